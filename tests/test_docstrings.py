"""Public functions and classes are documented: numpydoc, an example, and the parameters that there really are."""

import contextlib
import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Iterable, Iterator
from types import ModuleType

import latelier
from latelier.errors import MissingExtraError
from latelier.indexes.options import SearchKeywords
from latelier.retrieve.retriever import WriteKeywords


def own_names(modules: Iterable[ModuleType]) -> dict[str, object]:
    """Functions and classes of ours that the modules' ``__all__`` name."""
    values = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
    ours = [value for value in values if inspect.isclass(value) or inspect.isfunction(value)]
    return {f"{v.__module__}.{v.__qualname__}": v for v in ours if v.__module__.split(".")[0] == "latelier"}


def importable_modules() -> Iterator[ModuleType]:
    """All modules but those that need an extra which is not installed."""
    for found in pkgutil.walk_packages(latelier.__path__, "latelier."):
        with contextlib.suppress(MissingExtraError):
            yield importlib.import_module(found.name)


ALL_MODULES = list(importable_modules())
EVERY_NAME = own_names(ALL_MODULES)
INTERFACE = own_names(module for module in ALL_MODULES if module.__name__.removeprefix("latelier.") in latelier.__all__)
FUNCTIONS = {name: value for name, value in INTERFACE.items() if inspect.isfunction(value)}
METHODS = {
    f"{name}.{key}": inspect.unwrap(getattr(value, "__func__", value))
    for name, cls in INTERFACE.items()
    if inspect.isclass(cls)
    for key, value in vars(cls).items()
    if not key.startswith("_") and inspect.isroutine(value)
}


def described(function: object) -> dict[str, str]:
    """What the section Parameters of a docstring says of each name, ``queries, documents`` being two."""
    text = inspect.cleandoc(function.__doc__ or "")
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^(\S.*)\n((?:(?: .*)?\n?)*)", section[1], re.MULTILINE) if section else []
    return {name.strip().lstrip("*"): said for line, said in entries for name in line.split(":")[0].split(",")}


def taken(function: object) -> set[str]:
    parameters = inspect.signature(function).parameters
    keywords = {"Unpack[SearchKeywords]": SearchKeywords, "Unpack[WriteKeywords]": WriteKeywords}
    options = [keywords[each.annotation].__annotations__ for each in parameters.values() if each.annotation in keywords]
    return {*parameters, *itertools.chain(*options)} - {"self", "cls"}


def test_public_names_have_a_docstring():
    assert [name for name, value in EVERY_NAME.items() if not value.__doc__] == []


def test_public_names_have_an_example():
    def is_only_a_name(value: object) -> bool:
        return inspect.isclass(value) and issubclass(value, Exception)

    names = [name for name, value in INTERFACE.items() if not (inspect.isabstract(value) or is_only_a_name(value))]
    assert [name for name in names if ">>>" not in (INTERFACE[name].__doc__ or "")] == []


def test_functions_describe_all_parameters_that_they_take():
    different = {name: described(function).keys() ^ taken(function) for name, function in FUNCTIONS.items()}
    assert {name: sorted(names) for name, names in different.items() if names} == {}


def test_methods_describe_no_parameter_that_they_do_not_take():
    # A method may leave the description to the contract that it fulfils.
    # What help() shows as single options is described as one, where they all are.
    unknown = {name: described(method).keys() - taken(method) - {"options"} for name, method in METHODS.items()}
    assert {name: sorted(names) for name, names in unknown.items() if names} == {}


def test_parameters_with_the_default_none_say_what_holds_without_them():
    says = re.compile(r"default|\b(None|without|instead of|as in|as for|is given)\b", re.IGNORECASE)
    silent = []
    for name, value in {**INTERFACE, **METHODS}.items():
        for parameter, said in described(value).items():
            default = inspect.signature(value).parameters[parameter].default if parameter in taken(value) else ""
            if default is None and not says.search(said):
                silent.append(f"{name}({parameter})")
    assert silent == []
