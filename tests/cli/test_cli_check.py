"""The commands that check an index and explain a missing document: what they print, and their exit status."""

import json
import shutil


def test_check_prints_what_the_index_holds_its_recall_and_its_integrity(run, folder):
    result = run("check", folder, "-k", 2)
    assert result.exit_code == 0
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert lines["documents"] == "3"
    assert lines["recall"].startswith("recall@2 1.000 (worst query 1.000) against exact scores: 3 of its own documents")
    assert lines["files"].endswith("files are whole")
    assert lines["texts"] == lines["metadata"] == "yes"
    assert lines["keywords"] == "porter"


def test_check_of_a_damaged_index_fails(run, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "index")
    [vectors] = copy.rglob("codes.npy")
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1
    vectors.write_bytes(content)
    result = run("check", copy)
    assert result.exit_code == 1
    assert "1 of " in result.stdout
    assert "codes.npy" in result.stdout
    vectors.unlink()
    result = run("check", copy, "--json")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert facts["recall"] is None
    assert facts["integrity"]["damages"][0]["ids"] == ["fruit", "moon", "berlin"]
    assert "not measured: " in run("check", copy).stdout


def test_why_not_prints_the_cause_and_what_would_find_it(run, folder):
    result = run("why-not", folder, "unhealthy fruit", "moon", "-k", 1, "--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("'moon' is not found for 'unhealthy fruit' with k=1 and mode='hybrid'; ")
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["no_query_word", "vector_rank"]
    assert lines[-2] == "It is found if you"
    assert lines[-1].startswith("  search with k=")
    result = run("why-not", folder, "unhealthy fruit", "moon", "-k", 1, "--mode", "vectors", "--device", "cpu")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("'moon' is not found for 'unhealthy fruit' with k=1: rank ")
    assert lines[1].startswith("  scored_lower: ")
    assert lines[-2:] == ["It is found if you", f"  search with k={json.loads(lines[-1].partition('=')[2])}"]
