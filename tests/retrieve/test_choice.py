"""Which model is opened: a table of what a user says, what an index stores, and what this machine has."""

import pytest

from latelier.errors import InvalidArgumentError
from latelier.models import DEFAULT_MODEL
from latelier.retrieve.choice import Asked, Machine, Stored, choose
from latelier.retrieve.identity import ModelIdentity

INT8 = {"compute_dtype": "int8"}


def stored(options=(), name="a/model", unstored=(), is_filled=True):
    return Stored(ModelIdentity(name, dict(options), [0.5] * 4, list(unstored)), is_filled)


def no_torch():
    raise AssertionError("torch is not to be imported for this")


def choice(asked, stored=Stored(), kind="checkpoint", has_onnx=True, has_accelerator=lambda: False):  # noqa: B008
    return choose(asked, kind, stored, Machine(has_onnx, has_accelerator))


NEW = Asked(purpose="fill")
OPEN = Asked(purpose="open")
# What is asked for, what is stored, and of what is chosen: the name, the options of loading, the dtype, the export that
# is looked for, whether the user has named the model.
CASES = {
    "nothing said": (Asked(), Stored(), (DEFAULT_MODEL, {}, "auto", None, True)),
    "a name": (
        Asked("b/own", {"max_length_query": 8}),
        Stored(),
        ("b/own", {"max_length_query": 8}, "auto", None, True),
    ),
    "int8": (Asked("b/own", INT8), Stored(), ("b/own", {"backend": "onnx"}, "int8", "int8", True)),
    "int8 on a GPU": (Asked("b/own", INT8, "cuda"), Stored(), ("b/own", {"backend": "onnx"}, "int8", None, True)),
    "float16 by torch": (
        Asked("b/own", {"compute_dtype": "float16", "backend": "torch"}),
        Stored(),
        ("b/own", {"backend": "torch"}, "float16", None, True),
    ),
    "a folder in int8": (Asked("b/own"), stored(INT8), ("b/own", {"backend": "onnx"}, "int8", "int8", True)),
    "a folder in int8, with a backend": (
        Asked("b/own", {"backend": "torch"}),
        stored(INT8),
        ("b/own", {"backend": "torch"}, "auto", None, True),
    ),
    "a folder with lengths, of which the model of a retriever has its own": (
        Asked("b/own"),
        stored({"max_length_query": 8}),
        ("b/own", {}, "auto", None, True),
    ),
    "opened": (OPEN, stored({"max_length_query": 8}), ("a/model", {"max_length_query": 8}, "auto", "cached", False)),
    "opened with torch": (OPEN._replace(backend="torch"), stored(INT8), ("a/model", {}, "auto", None, False)),
    "opened in int8": (OPEN, stored(INT8), ("a/model", {"backend": "onnx"}, "int8", "cached", False)),
    "opened on a GPU": (OPEN._replace(device="cuda"), stored(INT8), ("a/model", {}, "auto", None, False)),
    "opened with another model": (
        OPEN._replace(model="b/own"),
        stored({"max_length_query": 8, **INT8}),
        ("b/own", {"max_length_query": 8, "backend": "onnx"}, "int8", "int8", True),
    ),
    "opened with code": (
        OPEN._replace(model="b/own", trusts_code=True),
        stored(),
        ("b/own", {"trust_remote_code": True}, "auto", None, True),
    ),
    "filled anew": (NEW, Stored(), (DEFAULT_MODEL, {"backend": "onnx"}, "int8", "int8", True)),
    "filled anew on a CPU": (
        NEW._replace(device="cpu"),
        Stored(),
        (DEFAULT_MODEL, {"backend": "onnx"}, "int8", "int8", True),
    ),
    "filled anew in float32": (
        NEW._replace(options={"compute_dtype": "float32"}),
        Stored(),
        (DEFAULT_MODEL, {}, "float32", None, True),
    ),
    "filled anew by another model": (NEW._replace(model="b/own"), Stored(), ("b/own", {}, "auto", None, True)),
    "opened with a model of queries": (
        OPEN,
        stored()._replace(of_queries=ModelIdentity("c/small", {"max_length_query": 8}, [0.5] * 4, [])),
        ("c/small", {"max_length_query": 8}, "auto", "cached", False),
    ),
    "filled on, with a model of queries": (
        NEW,
        stored()._replace(of_queries=ModelIdentity("c/small", {}, [0.5] * 4, [])),
        ("a/model", {}, "auto", "cached", False),
    ),
    "filled on": (NEW, stored(), ("a/model", {}, "auto", "cached", False)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_chosen(name):
    asked, kept, expected = CASES[name]
    chosen = choice(asked, kept)
    assert (chosen.name, chosen.loading, chosen.compute_dtype, chosen.exported, chosen.is_trusted) == expected


def test_the_machine_decides_about_int8_and_is_asked_for_it_alone():
    assert choice(NEW, has_accelerator=lambda: True).compute_dtype == "auto"
    assert choice(NEW, has_onnx=False, has_accelerator=no_torch).compute_dtype == "auto"
    for asked in (Asked(), OPEN, NEW._replace(device="cpu"), NEW._replace(options={"backend": "torch"})):
        choice(asked, stored() if asked is OPEN else Stored(), has_accelerator=no_torch)


def test_what_is_stored_says_what_makes_other_vectors():
    assert choice(Asked("b/own", {"truncate_dim": 8, "backend": "onnx"})).identity == {"truncate_dim": 8}
    assert choice(Asked("b/own", INT8)).identity == INT8
    assert choice(Asked("b/own", {"backend": "openvino"})).identity == {"backend": "openvino"}


@pytest.mark.parametrize("kind", ["object", "export"])
def test_models_that_have_all_their_options_take_none(kind):
    assert choice(Asked("x"), kind=kind).kind == kind
    for asked in (Asked("x", {"truncate_dim": 8}), Asked("x", device="cuda")):
        with pytest.raises(InvalidArgumentError, match="takes no device and no options"):
            choice(asked, kind=kind)
    assert choice(Asked("x", device="cpu"), kind="export").name == "x"


REFUSED = {
    "int8 of another dtype": (NEW._replace(options={"compute_dtype": "float32"}), stored(INT8), "was filled in int8"),
    "another dtype of int8": (NEW._replace(options=INT8), stored(), "was filled in another dtype"),
    "code that only an index names": (OPEN._replace(trusts_code=True), stored(), "only a model that you name"),
    "no name": (OPEN, stored(name=None), "does not name its model"),
    "nothing stored": (OPEN, Stored(None, True), "does not name its model"),
    "options that are not stored": (OPEN, stored(unstored=["token"]), "options that are not stored: 'token'"),
    "an export for a GPU": (OPEN._replace(backend="onnx", device="cuda"), stored(), "only for the CPU"),
    "an export that is none": (OPEN._replace(model="b/own", backend="onnx"), stored(), "is not the folder of an exp"),
    "a backend that is none": (OPEN._replace(backend="tpu"), stored(), "backend='tpu'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    asked, kept, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        choice(asked, kept)
