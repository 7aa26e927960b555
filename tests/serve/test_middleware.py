"""What surrounds every request: the name that it was sent to, and how it is counted."""

import asyncio
import json

import pytest

from latelier.serve import Access, Limits
from latelier.serve.security import BodyLimit, LoopbackHost, Observed
from latelier.serve.service import Metrics


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


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8231",
        "localhost.",
        "LocalHost.:80",
        "127.0.0.1:8080",
        "127.8.8.8",
        "[::1]",
        "[::1]:8080",
        "[0:0:0:0:0:0:0:1]",
    ],
)
def test_the_names_of_this_machine_are_let_in(host):
    assert answered(LoopbackHost(hello), headers=[(b"host", host.encode())]) == (200, b"hello")


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.com",
        "[127.0.0.1",
        "[127.0.0.1]",
        "127.0.0.1]",
        "::1",
        "[::1]8080",
        "[::1%lo]",
        "localhost:80:80",
        "localhost..",
        "localhost.evil.com",
        "localhost@evil.com",
        "evil.com",
        "10.0.0.1",
        "",
        " localhost",
        "localhost\n",
    ],
)
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
