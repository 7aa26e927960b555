"""Runs and qrels in TREC's format: they come back as written, and bad lines are named."""

import gzip
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation import ranking, read_trec, read_trec_qrels, write_trec, write_trec_qrels

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda s: not any(c.isspace() for c in s))
scores = st.floats(allow_nan=False)
shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)


@shared_folder
@given(st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=5), max_size=4))
def test_run_round_trip(tmp_path, run):
    path = tmp_path / "run.trec"
    write_trec(run, path, name="mine")
    read = read_trec(path)
    assert read == run
    for query, documents in read.items():
        assert list(documents.items()) == ranking(run[query])  # in the order of the ranks


@shared_folder
@given(st.dictionaries(ids, st.dictionaries(ids, st.integers(-(10**6), 10**6), min_size=1, max_size=5), max_size=4))
def test_qrels_round_trip(tmp_path, qrels):
    path = tmp_path / "qrels.txt"
    write_trec_qrels(qrels, path)
    assert read_trec_qrels(path) == qrels


@pytest.mark.parametrize(
    ("write", "read", "table"),
    [(write_trec, read_trec, {"q": {"d": 1.5}}), (write_trec_qrels, read_trec_qrels, {"q": {"d": 1}})],
)
def test_a_name_that_ends_in_gz_is_compressed(tmp_path, write, read, table):
    path = tmp_path / "table.txt.gz"
    write(table, path)
    assert gzip.decompress(path.read_bytes()).startswith(b"q ")
    assert read(path) == table


def test_lines_ranks_and_ties(tmp_path):
    path = tmp_path / "run.trec"
    write_trec({"q": {"a": 1, "c": 1.0, "b": 2.5, "z": -math.inf}}, path, name="r1")
    assert path.read_text() == "q Q0 b 1 2.5 r1\nq Q0 c 2 1.0 r1\nq Q0 a 3 1.0 r1\nq Q0 z 4 -inf r1\n"


def test_reads_gzip_tabs_and_any_white_space(tmp_path):
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress(b"q1\tQ0\td1 1  0.5 x\r\n\nq1 Q0 d2 2 0.25 x\n"))
    assert read_trec(path) == {"q1": {"d1": 0.5, "d2": 0.25}}


@pytest.mark.parametrize(
    ("run", "name", "message"),
    [
        ({"q 1": {"d": 1.0}}, "n", "query id 'q 1' cannot be written to a TREC file"),
        ({"q": {"d\u00a01": 1.0}}, "n", "document id .* cannot be written to a TREC file"),
        ({"q": {"": 1.0}}, "n", "document id '' cannot be written to a TREC file"),
        ({"q": {"d": 1.0}}, "my run", "run name 'my run' cannot be written to a TREC file"),
        ({"q": {"d": math.nan}}, "n", "document 'd' of query 'q' in the run has score NaN"),
        (None, "n", "received None as run; expected"),
        ({"q": ["d"]}, "n", r"received \['d'\] \(list\) as query 'q' of the run"),
        ({"q": {"d": "high"}}, "n", "document 'd' has 'high' .*, which is not a number"),
        ({"q": {7: 1.0}}, "n", r"received 7 \(int\) as a document id of the run; evaluation takes ids as str"),
        ({1: {"d": 1.0}}, "n", r"received 1 \(int\) as a query id of the run; .*Retriever.run returns such ids"),
    ],
)
def test_a_run_that_cannot_be_written_leaves_no_file(tmp_path, run, name, message):
    with pytest.raises(InvalidArgumentError, match=message):
        write_trec(run, tmp_path / "run.trec", name=name)
    assert list(tmp_path.iterdir()) == []


def test_qrels_that_cannot_be_written(tmp_path):
    with pytest.raises(InvalidArgumentError, match="document id 'd 1' cannot be written to a TREC file"):
        write_trec_qrels({"q": {"d 1": 1}}, tmp_path / "qrels.txt")
    with pytest.raises(InvalidArgumentError, match="the relevance of document 'd' for query 'q' is not an integer"):
        write_trec_qrels({"q": {"d": 0.5}}, tmp_path / "qrels.txt")
    with pytest.raises(InvalidArgumentError, match="relevance of document 'd' for query 'q' is not from -1,000,000"):
        write_trec_qrels({"q": {"d": 2**32}}, tmp_path / "qrels.txt")
    with pytest.raises(InvalidArgumentError, match=r"received 5 \(int\) as path"):
        write_trec_qrels({"q": {"d": 1}}, 5)
    with pytest.raises(StorageError, match=r"could not write .*absent"):
        write_trec_qrels({"q": {"d": 1}}, tmp_path / "absent" / "qrels.txt")


@pytest.mark.parametrize("scores", [None, [1.0], {"a": "high"}, {"a": 1.0, 2: 1.0}])
def test_what_cannot_be_ranked_is_rejected(scores):
    with pytest.raises(InvalidArgumentError, match=r"expected .document id|not a number|ids that are all str"):
        ranking(scores)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d2 2 0.5", r":2: 5 columns; expected \"query-id Q0 document-id rank score name\""),
        ("q Q0 d2 2 high r", r":2: 'high' is not a number"),
        ("q Q0 d2 2 nan r", r":2: the score is NaN"),
        ("q Q0 d1 2 0.5 r", r":2: document 'd1' is repeated for query 'q'"),
    ],
)
def test_faulty_run_lines(tmp_path, line, message):
    path = tmp_path / "run.trec"
    path.write_text(f"q Q0 d1 1 1.0 r\n{line}\n")
    with pytest.raises(InvalidArgumentError, match=message):
        read_trec(path)


def test_faulty_qrel_lines(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("q 0 d1 1\nq 0 d2 1.5\n")
    with pytest.raises(InvalidArgumentError, match=r":2: '1.5' is not an integer"):
        read_trec_qrels(path)
    path.write_text(f"q 0 d1 1\nq 0 d2 {2**32}\n")
    with pytest.raises(InvalidArgumentError, match=r":2: relevance 4294967296 is not from -1,000,000 to 1,000,000"):
        read_trec_qrels(path)
    path.write_text("q 0 d1 1\nq 0 d1 0\n")
    with pytest.raises(InvalidArgumentError, match=r":2: document 'd1' is repeated"):
        read_trec_qrels(path)
    with pytest.raises(InvalidArgumentError, match="there is no file"):
        read_trec_qrels(tmp_path / "absent.txt")
