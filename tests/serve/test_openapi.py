"""The server against its own OpenAPI document: whatever schemathesis sends, it never fails."""

from collections import Counter

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from latelier.retrieve import Retriever

pytestmark = pytest.mark.slow
EXAMPLES = 30


@pytest.fixture(scope="module")
def url(tiny, tmp_path_factory):
    from serve.conftest import Process

    folder = tmp_path_factory.mktemp("fuzzed") / "records"
    with Retriever(tiny, folder, device="cpu") as retriever:
        retriever.add([("a", "The first document."), ("b", "The second one.")])
    server = Process(str(folder), "--model", tiny, "--device", "cpu", "--no-log")
    yield server.url
    server.stop()


def test_no_request_makes_the_server_fail(url, capsys):
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    cases = Counter()
    for operation in operations:

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def send(case):
            # Every second case is about an index that exists.
            if cases.total() % 2:
                case.path_parameters = {**(case.path_parameters or {}), "index": "records"}
            cases[case.operation.label] += 1
            case.call_and_validate(checks=[not_a_server_error], timeout=30)

        send()
    with capsys.disabled():
        print(f"\nschemathesis: {cases.total()} cases of {len(cases)} operations")  # noqa: T201 (the count is reported)
    assert len(cases) == len(operations) >= 15
    # The four without arguments have one case each; of the others, hypothesis makes as many as it is asked for.
    assert sum(count >= EXAMPLES for count in cases.values()) >= 11
    assert httpx.get(f"{url}/health/ready").status_code == 200
