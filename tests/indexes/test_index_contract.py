"""What every index does, whatever it keeps of the vectors: the same tests over all of them."""

import json
import pickle

import numpy as np
import pytest
import torch
from index_helpers import check_hits, contents, expected_hits, keeps_vectors, matrices

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes import Hit, Record
from latelier.utils import misc

LENGTHS = [3, 1, 5, 2, 4, 1]
IDS = ["a", 1, "1", "ä b'\"", -7, 2**62]


@pytest.fixture
def filled(index):
    metadata = [{"place": i, "even": i % 2 == 0} for i in range(len(IDS))]
    index.add(IDS, matrices(LENGTHS), texts=[f"text {id}" for id in IDS], metadata=metadata)
    return index


def test_an_empty_index(index):
    assert (len(index), index.ids(), index.dim, "a" in index) == (0, [], None, False)
    assert index.search(matrices([2, 3]), k=3) == [[], []]
    assert index.search(matrices([2]), filter="no_field_yet = 1") == [[]]
    assert index.get_embeddings([]).dim == 0
    index.compact()
    assert index.check().recall == 1.0
    assert "0 documents" in repr(index)


def test_ids_keep_type_and_order(filled):
    assert filled.ids() == IDS
    assert [type(id) for id in filled.ids()] == [type(id) for id in IDS]
    assert all(id in filled for id in IDS)
    assert [id in filled for id in ("7", 7, True, 1.0, None, [])] == [False] * 6
    hits = filled.search(matrices([3])[0], k=6)[0]
    assert {(hit.id, type(hit.id)) for hit in hits} == {(id, type(id)) for id in IDS}


def test_texts_and_metadata_come_back(filled):
    assert filled.get(1) == Record(1, "text 1", {"place": 1, "even": False})
    assert [record.text for record in filled.get(["1", "a"])] == ["text 1", "text a"]
    filled.add("bare", matrices([1]))
    assert filled.get("bare") == Record("bare", None, {})


def test_fields_are_what_filters_can_name(index):
    assert index.fields == []
    index.add(["a", "b"], matrices([2, 2]), metadata=[{"year": 1, 'a "quoted" name': 2}, {"Year": 3, "lang": None}])
    assert index.fields == ['a "quoted" name', "lang", "year"]  # names that differ in case only are one
    for field in index.fields:
        quoted = field.replace('"', '""')
        index.search(matrices([2])[0], filter=f'"{quoted}" IS NULL')
    index.remove("a")
    assert index.fields == ['a "quoted" name', "lang", "year"]


def test_the_values_of_fields_are_counted_among_the_documents_of_a_filter(index):
    documents = [
        {"lang": "en", "tags": ["sea", "sky", "sea"], "year": 2020},
        {"lang": "en", "tags": "sky", "year": 2024},
        {"lang": "de", "tags": ["sky"], "year": 2026, "note": "[no list"},
    ]
    index.add(["a", "b", "c"], matrices([2, 2, 2]), metadata=documents)
    whole = {each.field: each for each in index.field_values()}
    assert list(whole) == ["lang", "note", "tags", "year"]
    if whole["lang"].values is None:
        pytest.skip("this kind counts no values")
    chosen = {"filter": "year >= ? AND lang <> 'xx'", "parameters": (2024,)}

    def counts(field, **options):
        (found,) = index.field_values(field=field, **options)
        return {each.value: each.documents for each in found.values}

    assert counts("tags") == {"sky": 3, "sea": 1}
    assert (whole["tags"].has_lists, whole["note"].has_lists, whole["note"].greatest) == (True, False, "[no list")
    assert counts("tags", prefix="S") == {"sky": 3, "sea": 1}
    assert counts("tags", **chosen) == {"sky": 2}
    assert counts("tags", prefix="se", **chosen) == {}
    assert counts("Lang", **chosen) == {"en": 1, "de": 1}
    assert index.field_values(field="year", **chosen)[0].least == 2024
    has_sea = "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = 'sea')"
    assert counts("year", filter=f"json_valid(tags) AND {has_sea}") == {2020: 1}
    with pytest.raises(InvalidArgumentError, match="zzz"):
        index.field_values(filter="zzz = 1")


def test_metadata_round_trips_exactly(index):
    names = ['quote " and space', "Case", "case", "rowid", "number", "f0", "metadata", "select", "ünï"]
    for i, metadata in enumerate(
        [
            {"nested": {"list": [1, None, {"x": [True, 2.5]}]}, "text": "ü \x00 '", "id": 5},
            {"big": 2**80, "huge": -(10**400), "small": -(2**63), "float": 1e-300, "true": True},
            {name: i for i, name in enumerate(names)},
        ]
    ):
        index.add(i, matrices([2])[0], metadata=metadata)
        assert repr(index.get(i).metadata) == repr(metadata)  # keys in their order, True is not 1


def test_search_equals_the_double_loop(filled):
    queries = matrices([2, 4, 1], seed=1)
    for k in (1, 3, 6, 100):
        check_hits(filled.search(queries, k=k), expected_hits(filled, queries, k))


def test_search_takes_every_form_of_queries(filled):
    matrix = matrices([3], seed=2)[0]
    wanted = filled.search([matrix])
    forms = [
        matrix,
        TokenEmbeddings.from_list([matrix]),
        torch.from_numpy(matrix),
        [torch.from_numpy(matrix).bfloat16()],
    ]
    assert [filled.search(form) for form in forms] == [wanted] * 4
    assert isinstance(wanted[0][0], Hit)
    assert type(wanted[0][0].score) is float
    assert filled.search([]) == []


def test_equal_scores_come_in_the_order_of_insertion(index):
    ids = [f"{i}" for i in range(20)]
    for start in range(0, 20, 7):
        index.add(ids[start : start + 7], [np.ones((1, 2))] * len(ids[start : start + 7]))
    assert [hit.id for hit in index.search(np.ones((1, 2)), k=8)[0]] == ids[:8]
    index.update("3", np.ones((1, 2)))
    assert [hit.id for hit in index.search(np.ones((1, 2)), k=20)[0]] == [*ids[:3], *ids[4:], "3"]


def test_update_replaces_the_whole_record_or_inserts(filled):
    new = matrices([2, 3], seed=3)
    filled.update(["1", "new"], new, texts=[None, "fresh"])
    assert filled.ids() == [id for id in IDS if id != "1"] + ["1", "new"]
    assert filled.get(["1", "new"]) == [Record("1", None, {}), Record("new", "fresh", {})]
    queries = matrices([2, 2], seed=4)
    check_hits(filled.search(queries, k=9), expected_hits(filled, queries, 9))


def test_removed_documents_are_gone_and_others_stay(filled):
    before = dict(zip(IDS, contents(filled), strict=True))
    filled.remove(["a", -7, "a"])
    assert len(filled) == 4
    assert contents(filled) == [before[id] for id in IDS if id not in ("a", -7)]
    queries = matrices([2], seed=5)
    check_hits(filled.search(queries, k=10), expected_hits(filled, queries, 10))
    filled.add("a", matrices([1], seed=6))
    assert filled.ids()[-1] == "a"


def test_an_emptied_index_takes_any_dim(filled):
    filled.remove(IDS)
    assert (len(filled), filled.dim, filled.search(matrices([2]))) == (0, None, [[]])
    filled.add("wide", matrices([2], dim=9))
    assert (filled.dim, filled.ids()) == (9, ["wide"])


def test_embeddings_come_back_in_the_order_asked_for(filled):
    given = dict(zip(IDS, matrices(LENGTHS), strict=True))
    found = filled.get_embeddings([2**62, "1", "a", "1"])
    assert found.lengths.tolist() == [1, 5, 3, 5]
    if keeps_vectors(filled):
        for matrix, id in zip(found, [2**62, "1", "a", "1"], strict=True):
            np.testing.assert_array_equal(matrix, given[id])
    assert len(filled.get_embeddings("a")) == 1


def test_compacting_changes_nothing_but_the_space(filled):
    for i in range(5):
        filled.add(f"more {i}", matrices([2], seed=i))
    filled.remove([1, "more 3"])
    before = contents(filled)
    queries = matrices([3, 1], seed=7)
    wanted = filled.search(queries, k=20)
    filled.compact()
    assert contents(filled) == before
    assert filled.search(queries, k=20) == wanted
    filled.compact()
    assert contents(filled) == before


def test_filters_and_removals_meet_in_a_search(filled):
    filled.remove("1")
    queries = matrices([2, 3], seed=8)
    hits = filled.search(queries, k=5, filter="even AND place < ?", parameters=(5,))
    check_hits(hits, expected_hits(filled, queries, 5, keep=lambda id: id in ("a", -7)))
    assert filled.search(queries, filter="place > 100") == [[], []]


def test_check_measures_recall(filled):
    report = filled.check(k=3, queries=4)
    assert (report.k, report.queries, report.documents) == (3, 4, 6)
    assert report.recall == report.worst == 1.0
    assert str(report).startswith("recall@3 1.000 (worst query 1.000)")


def test_verify_finds_nothing_wrong(filled):
    report = filled.verify()
    assert report.is_whole
    assert report.ids == []
    assert str(report).startswith("all ")


def test_repr_says_what_it_holds(filled):
    assert repr(filled).startswith(f"{type(filled).__name__}(6 documents, 16 tokens, dim=4, ")
    filled.remove(["1"])
    assert "5 documents, 11 tokens" in repr(filled)


def test_settings_are_kept_with_the_index(filled):
    assert (dict(filled.settings), "model" in filled.settings) == ({}, False)
    filled.settings["model"] = {"name": "m", "options": [1, None]}
    filled.settings["generation"] = "mine"
    assert dict(filled.settings) == {"generation": "mine", "model": {"name": "m", "options": [1, None]}}
    filled.compact()
    assert filled.settings["model"]["name"] == "m"
    del filled.settings["generation"]
    assert repr(filled.settings).endswith("Settings({'model': {'name': 'm', 'options': [1, None]}})")
    for missing in (lambda: filled.settings["x"], lambda: filled.settings.pop("x")):
        with pytest.raises(KeyError, match="x"):
            missing()
    for name, value in [("", 1), (1, 1), ("x", {1}), ("x", float("nan"))]:
        with pytest.raises(InvalidArgumentError, match="the setting"):
            filled.settings[name] = value
    assert len(filled) == 6


def test_a_closed_index_says_so(filled):
    filled.close()
    filled.close()
    for use in (
        lambda: filled.search(matrices([1])),
        lambda: filled.add("x", matrices([1])),
        lambda: filled.remove("a"),
        lambda: filled.get("a"),
        lambda: "a" in filled,
        lambda: len(filled),
        filled.compact,
    ):
        with pytest.raises(InvalidArgumentError, match=r"is closed; (open it again|its documents are gone)"):
            use()
    assert "closed" in repr(filled)


def test_progress_is_shown_on_stderr_only_when_asked(index, capsys, monkeypatch):
    monkeypatch.setattr(misc, "INTERVAL", 0.0)  # in seconds
    index.add(["a", "b"], matrices([1, 2]))
    assert capsys.readouterr() == ("", "")
    index.update(["a", "b"], matrices([1, 2]), show_progress=True)
    index.compact(show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2 of 2 documents so far." in err


def test_a_hit_is_a_tuple_with_named_fields():
    hit = Hit("a", 3.5)
    assert (hit["id"], hit["score"]) == (hit[0], hit[1]) == (hit.id, hit.score) == ("a", 3.5)
    assert dict(hit) == {**hit} == {"id": "a", "score": 3.5}
    assert dict([hit, Hit(7, 1.0)]) == {"a": 3.5, 7: 1.0}
    assert json.dumps(hit) == '["a", 3.5]'
    assert type(pickle.loads(pickle.dumps(hit))) is Hit
    with pytest.raises(KeyError, match="text"):
        hit["text"]


def test_facts_of_all_kinds(index):
    index.add(["a", "b"], [np.eye(4), np.ones((1, 4))], texts=["é", None])
    statistics = index.statistics()
    assert (statistics.documents, statistics.tokens) == (2, 5)
    assert statistics.text_bytes in (2, None)
    assert not index.read_only
    assert index.memory.most >= 0
    assert index.tokenizer
    assert index.kind in ("flat", "ivf", "sharded", "qdrant")


@pytest.mark.parametrize(("theirs", "ours"), [("delete", "remove"), ("insert", "add"), ("query", "search")])
def test_methods_of_other_libraries_are_named(index, theirs, ours):
    with pytest.raises(AttributeError, match=ours):
        getattr(index, theirs)
