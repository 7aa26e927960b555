"""A hit is a tuple that can be read by field name too."""

import json
import pickle

import pytest

from latelier.indexes import Hit

HIT = Hit("a", 3.5)


def test_fields_by_name_by_position_and_as_attributes():
    assert (HIT["id"], HIT["score"]) == (HIT[0], HIT[1]) == (HIT.id, HIT.score) == ("a", 3.5)
    assert (HIT[-1], HIT[:1], HIT[::-1]) == (3.5, ("a",), (3.5, "a"))
    with pytest.raises(KeyError, match="a hit has no field 'text'; it has 'id' and 'score'"):
        HIT["text"]


def test_it_is_still_a_tuple():
    id, score = HIT
    assert (id, score) == HIT == ("a", 3.5)
    assert json.dumps(HIT) == '["a", 3.5]'
    assert HIT._replace(score=1.0) == Hit("a", 1.0)
    assert type(pickle.loads(pickle.dumps(HIT))) is Hit


def test_as_a_dict():
    assert dict(HIT) == {**HIT} == HIT._asdict() == {"id": "a", "score": 3.5}
    assert dict([HIT, Hit(7, 1.0)]) == {"a": 3.5, 7: 1.0}
