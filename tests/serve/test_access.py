"""Tokens, addresses and limits."""

import pytest

from latelier.errors import InvalidArgumentError
from latelier.serve import Access, Limits
from latelier.serve.security import is_loopback

READ, WRITE = "r" * 20, "w" * 20


@pytest.mark.parametrize(
    ("tokens", "sent", "read", "write"),
    [
        ((None, None), None, True, True),
        ((READ, None), None, False, False),
        ((READ, None), READ, True, False),
        ((READ, WRITE), READ, True, False),
        ((READ, WRITE), WRITE, True, True),
        ((READ, WRITE), READ + "x", False, False),
        ((READ, WRITE), "é" * 20, False, False),
        ((None, WRITE), None, True, False),
        ((None, WRITE), WRITE, True, True),
    ],
)
def test_tokens_decide_who_reads_and_who_writes(tokens, sent, read, write):
    access = Access(*tokens)
    header = None if sent is None else f"Bearer {sent}"
    assert (access.allows(header, "read"), access.allows(header, "write")) == (read, write)


def test_tokens_are_not_shown():
    assert repr(Access(READ, WRITE, ("https://a.org",))) == "Access(origins=('https://a.org',))"


def test_another_scheme_is_no_token():
    assert not Access(READ).allows(f"Basic {READ}", "read")
    assert not Access(READ).allows(READ, "read")
    assert Access(READ).allows(f"bearer {READ}", "read")


@pytest.mark.parametrize("token", ["short", "a token with spaces in it", "ü" * 20, "", " " * 20])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_rejected(token):
    with pytest.raises(InvalidArgumentError, match=r"the read token has \d+ characters; expected at least 16"):
        Access(read_token=token)


def test_equal_tokens_are_rejected():
    with pytest.raises(InvalidArgumentError, match="are equal"):
        Access(READ, READ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_other_machines_may_only_reach_a_server_with_a_read_token(host):
    assert not is_loopback(host)
    with pytest.raises(InvalidArgumentError, match="without a read token"):
        Access(write_token=WRITE).check_host(host)
    Access(READ).check_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_token(host):
    Access().check_host(host)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://example.org", "https://example.org"),
        ("https://example.org/", "https://example.org"),
        ("HTTPS://Example.org:443", "https://example.org"),
        ("http://localhost:3000/", "http://localhost:3000"),
        ("http://[::1]:80", "http://[::1]"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("*", "*"),
    ],
)
def test_an_origin_is_kept_as_browsers_send_it(given, sent):
    assert Access(origins=(given,)).origins == (sent,)


@pytest.mark.parametrize(
    "origin",
    ["foo", "", "/", "https://", "example.org", "https://a.example/page", "https://ä.example", "null", "https://a b"],
)
def test_what_no_browser_sends_as_an_origin_is_refused(origin):
    with pytest.raises(InvalidArgumentError, match=r"as an origin; expected SCHEME://HOST or SCHEME://HOST:PORT"):
        Access(origins=("https://fine.example", origin))


def test_limits_are_positive_integers():
    with pytest.raises(InvalidArgumentError, match="batch"):
        Limits(batch=0)
