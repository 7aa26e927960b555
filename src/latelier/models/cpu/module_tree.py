"""The modules inside a model, looked at before each text is encoded: the same ones, and nothing hooked in.

While a query is encoded, all weights pass through the processor's caches. So each object that is looked at before the
next query is read from memory again, and what is looked at counts, not how: dictionaries rather than modules.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from latelier.models.cpu.patching import PatchedForward

__all__ = ["ModuleTree", "submodules"]

_OVERRIDES = {"forward", "_compiled_call_impl"}  # attributes of a module that compute in place of its class's forward


class ModuleTree:
    """The modules inside another one, as they are at one time.

    It holds no reference to the outer module, by which it may be kept in a weak dictionary.
    """

    __slots__ = ("_children", "_leaves", "_namespaces", "_plain", "modules")

    def __init__(self, root: nn.Module) -> None:
        self.modules = submodules(root)[1:]
        self._namespaces = [vars(module) for module in self.modules]
        own = [module._modules for module in (root, *self.modules)]
        self._children = [(each, [*each.values()]) for each in own if each]
        self._leaves = [each for each in own if not each]
        self._plain: Any = None  # what `_look` has returned when nothing was overridden

    def is_unchanged(self) -> bool:
        """Whether the same modules are still in the same places."""
        return not any(self._leaves) and all([[*each.values()] == known for each, known in self._children])

    def is_overridden(self) -> bool:
        """Whether a module has a hook, is compiled, or has a forward of its own, other than a `PatchedForward`."""
        seen = self._look()
        if seen == self._plain:
            return False
        if any(map(_is_overridden, self._namespaces)):
            return True
        if all(map(_OVERRIDES.isdisjoint, self._namespaces)):  # in the place of one, another one may come
            self._plain = seen
        return False

    def _look(self) -> tuple[int, list[int]]:
        """Return what changes when something is hooked in.

        torch counts all hooks that are registered; a forward, or a compiled one, is one more attribute of its module.
        """
        return RemovableHandle.next_id, [*map(len, self._namespaces)]


def _is_overridden(namespace: dict[str, Any]) -> bool:
    return bool(
        namespace["_forward_hooks"]
        or namespace["_forward_pre_hooks"]
        or not isinstance(namespace.get("forward"), PatchedForward | None)
        or namespace.get("_compiled_call_impl") is not None
    )


def submodules(module: nn.Module) -> list[nn.Module]:
    """Return a module and all modules inside it; ``module.modules()`` takes ten times as long."""
    found = [module]
    for each in found:  # grows while it is read
        if each._modules:
            found += [child for child in each._modules.values() if child is not None]
    return found
