"""Who may use a server: tokens, addresses, origins, hosts, bodies; and how requests are counted."""

import asyncio
import json

import pytest

from latelier.errors import InvalidArgumentError
from latelier.serve import Access, Limits
from latelier.serve.queues import Metrics
from latelier.serve.security import BodyLimit, LoopbackHost, Observed, is_loopback

READ, WRITE = "r" * 20, "w" * 20
# fmt: off
OWN = ["localhost", "LOCALHOST:8231", "localhost.", "LocalHost.:80", "127.0.0.1:8080", "127.8.8.8", "[::1]", "[::1]:80"]
OTHERS = [
    "[::1].evil.com", "[127.0.0.1", "[127.0.0.1]", "127.0.0.1]", "::1", "[::1]8080", "[::1%lo]", "localhost:80:80",
    "localhost..", "localhost.evil.com", "localhost@evil.com", "evil.com", "10.0.0.1", "", " localhost", "localhost\n",
]
# fmt: on


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
    with pytest.raises(InvalidArgumentError, match="expected at least 16"):
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
    with pytest.raises(InvalidArgumentError, match="expected SCHEME://HOST or SCHEME://HOST:PORT"):
        Access(origins=("https://fine.example", origin))


def test_limits_are_positive_integers():
    with pytest.raises(InvalidArgumentError, match="batch"):
        Limits(batch=0)


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def answered(app, *messages, headers=()):
    """Return the status and the body of the answer to one request; None and b"" if there is none."""
    sent, waiting = [], iter(messages)

    async def receive():
        return next(waiting)

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "http", "method": "POST", "headers": list(headers)}, receive, send))
    status = next((message["status"] for message in sent if "status" in message), None)
    return status, b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("host", OWN)
def test_the_names_of_this_machine_are_let_in(host):
    assert answered(LoopbackHost(hello), headers=[(b"host", host.encode())]) == (200, b"hello")


@pytest.mark.parametrize("host", OTHERS)
def test_others_are_not(host):
    status, body = answered(LoopbackHost(hello), headers=[(b"host", host.encode())])
    assert status == 400
    assert f"not as {host!r}" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["evil.com", "localhost"]])
def test_a_request_has_one_host(hosts):
    status, body = answered(LoopbackHost(hello), headers=[(b"host", host.encode()) for host in hosts])
    assert status == 400
    assert f"received {len(hosts)} headers Host" in json.loads(body)["error"]["message"]


def counted(metrics):
    lines = metrics.text().decode().splitlines()
    return [line.partition(" ")[0] for line in lines if line.startswith("latelier_requests_total")]


def test_a_client_that_goes_while_it_sends_the_body_is_no_fault_of_the_server(caplog):
    metrics = Metrics()
    begun = {"type": "http.request", "body": b"{", "more_body": True}
    with caplog.at_level("INFO", logger="latelier.access"):
        app = Observed(BodyLimit(hello, Limits(), Access()), metrics)
        assert answered(app, begun, {"type": "http.disconnect"}) == (None, b"")
    assert [json.loads(record.message)["status"] for record in caplog.records] == [499]
    assert counted(metrics) == ['latelier_requests_total{method="POST",route="other",status="499"}']


def test_a_request_that_raises_is_a_fault_of_the_server():
    async def fail(scope, receive, send):
        raise ValueError("a fault")

    metrics = Metrics()
    with pytest.raises(ValueError, match="a fault"):
        answered(Observed(fail, metrics))
    assert counted(metrics) == ['latelier_requests_total{method="POST",route="other",status="500"}']


async def echo(scope, receive, send):
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


@pytest.mark.parametrize(
    ("tokens", "sent", "body"),
    [
        ((None, None), None, b"text"),
        ((None, "w" * 20), None, b"text"),  # everybody reads
        (("r" * 20, None), None, b""),
        (("r" * 20, "w" * 20), "r" * 20, b"text"),
        (("r" * 20, "w" * 20), "w" * 20, b"text"),
        (("r" * 20, "w" * 20), "x" * 20, b""),
    ],
)
def test_a_body_is_received_from_who_may_read_only(tokens, sent, body):
    headers = [] if sent is None else [(b"authorization", f"Bearer {sent}".encode())]
    parts = [{"type": "http.request", "body": part, "more_body": part == b"te"} for part in (b"te", b"xt")]
    received = answered(BodyLimit(echo, Limits(), Access(*tokens)), *parts, headers=headers)
    assert received == (200, body)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([(b"content-length", b"4")], [(b"connection", b"close")]),
        ([(b"transfer-encoding", b"chunked")], [(b"connection", b"close")]),
        ([(b"content-length", b"0")], []),
        ([], []),
        ([(b"content-length", b"4"), (b"authorization", b"Bearer " + b"r" * 20)], []),
    ],
)
def test_a_connection_is_closed_on_which_a_body_is_not_received(sent, expected):
    messages = []

    async def receive():
        return {"type": "http.request", "body": b"text", "more_body": False}

    async def send(message):
        messages.append(message)

    limit = BodyLimit(echo, Limits(), Access("r" * 20))
    asyncio.run(limit({"type": "http", "headers": sent}, receive, send))
    assert messages[0]["headers"] == expected
