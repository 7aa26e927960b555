"""What the index stores and asks for, given to Qdrant's own engine (qdrant-edge-py) in place of the local mode."""

import re
import uuid

import numpy as np
import pytest
from hypothesis import assume, given
from index_helpers import check_hits, matrices
from qdrant_client import models
from test_qdrant_filters import IDS, REFUSED, ROWS, TEXTS, expression

from latelier import indexes
from latelier.indexes.filters import parse_filter
from latelier.indexes.qdrant.filters import translate

edge = pytest.importorskip("qdrant_edge", reason="pip install qdrant-edge-py")


def as_edge(condition):
    if isinstance(condition, models.Filter):
        parts = [condition.must, condition.should, condition.must_not]
        return edge.Filter(*([as_edge(each) for each in part] if part else None for part in parts))
    if isinstance(condition, models.HasIdCondition):
        return edge.HasIdCondition({uuid.UUID(str(id)) for id in condition.has_id})
    if isinstance(condition, models.IsEmptyCondition):
        return edge.IsEmptyCondition(condition.is_empty.key)
    if condition.range is not None:
        bounds = condition.range
        return edge.FieldCondition(condition.key, range=edge.RangeFloat(bounds.gte, bounds.gt, bounds.lte, bounds.lt))
    match = condition.match
    kind = getattr(edge, type(match).__name__)
    return edge.FieldCondition(condition.key, match=kind(next(iter(match.model_dump().values()))))


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    index, flat = indexes.Qdrant(), indexes.Flat()
    for each in (index, flat):
        each.add(IDS, matrices([1 + i % 4 for i in range(len(IDS))]), TEXTS, ROWS)
    maxsim = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    graph = edge.HnswIndexConfig(m=0, ef_construct=100, full_scan_threshold=10_000)
    tokens = edge.EdgeVectorParams(size=4, distance=edge.Distance.Dot, multivector_config=maxsim, hnsw_config=graph)
    single = edge.EdgeVectorParams(size=4, distance=edge.Distance.Dot)
    words = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)
    config = edge.EdgeConfig(vectors={"tokens": tokens, "first_stage": single}, sparse_vectors={"keywords": words})
    shard = edge.EdgeShard.create(str(tmp_path_factory.mktemp("shard")), config)
    points = []
    for record in index._points.scroll(True, vectors=True):
        vectors = {"tokens": record.vector["tokens"]}
        points.append(edge.Point(uuid.UUID(record.id), vectors, record.payload))
    shard.update(edge.UpdateOperation.upsert_points(points))
    kinds = {"id": edge.KeywordIndexParams(prefix=True), "sequence": edge.IntegerIndexParams(lookup=False, range=True)}
    kinds |= {"numbers.n": edge.FloatIndexParams(), "strings.n": edge.KeywordIndexParams()}
    kinds |= {"lists.tags": edge.KeywordIndexParams()}
    for key, kind in kinds.items():
        shard.update(edge.UpdateOperation.create_field_index(key, kind))
    yield index, flat, shard
    shard.close()


@given(expression)
def test_random_filters_select_what_sqlite_does(engines, filter):
    index, flat, shard = engines
    assume(not re.search(REFUSED, filter))
    condition = translate(parse_filter(filter), (), {name: name for name in index.fields})
    if isinstance(condition, bool):
        found = IDS if condition else []
    else:
        own = as_edge(condition if isinstance(condition, models.Filter) else models.Filter(must=[condition]))
        request = edge.ScrollRequest(limit=99, filter=own, with_payload=True)
        found = [record.payload["id"] for record in shard.scroll(request)[0]]
    hits = flat.search(np.ones((1, 4)), 99, filter=filter)[0]
    assert set(found) == {hit.id for hit in hits}


def test_vectors_scores_and_order_are_those_of_an_exact_index(engines):
    _, flat, shard = engines
    order = edge.OrderBy("sequence", edge.Direction.Asc)
    request = edge.ScrollRequest(limit=99, with_payload=True, with_vector=True, order_by=order)
    records = shard.scroll(request)[0]
    assert [record.payload["id"] for record in records] == IDS
    for record, stored in zip(records, flat.get_embeddings(IDS), strict=True):
        np.testing.assert_array_equal(np.asarray(record.vector["tokens"], dtype="float32"), stored)
    query = matrices([3], seed=3)[0] + np.float32(0.01)
    nearest = edge.Query.Nearest(query.tolist(), using="tokens")
    points = shard.query(edge.QueryRequest(limit=99, query=nearest, prefetches=[], with_payload=True))
    scores = {point.payload["id"]: point.score for point in points}
    [hits] = flat.search(query, 99)
    check_hits([sorted(hits, key=lambda hit: str(hit.id))], [sorted(scores.items(), key=lambda pair: str(pair[0]))])
