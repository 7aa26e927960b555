"""The modules inside a model, looked at before each text is encoded: the same ones, and nothing hooked in.

While a query is encoded, all weights pass through the processor's caches. So each object that is looked at before the
next query is read from memory again, and what is looked at counts, not how: dictionaries rather than modules.
"""

from __future__ import annotations

from torch import nn

from latelier.models.cpu.patching import PatchedForward

__all__ = ["ModuleTree", "submodules"]


class ModuleTree:
    """The modules inside another one, as they are at one time.

    It holds no reference to the outer module, by which it may be kept in a weak dictionary.

    Parameters
    ----------
    root
        The outer module.
    """

    __slots__ = ("_children", "_leaves", "_namespaces", "modules")

    def __init__(self, root: nn.Module) -> None:
        self.modules = submodules(root)[1:]
        self._namespaces = [vars(module) for module in self.modules]
        own = [module._modules for module in (root, *self.modules)]
        self._children = [(each, [*each.values()]) for each in own if each]
        self._leaves = [each for each in own if not each]

    def is_unchanged(self) -> bool:
        """Whether the same modules are still in the same places."""
        return not any(self._leaves) and all([[*each.values()] == known for each, known in self._children])

    def is_overridden(self) -> bool:
        """Whether a module has a hook, is compiled, or has a forward of its own, other than a `PatchedForward`."""
        for namespace in self._namespaces:
            if namespace["_forward_hooks"] or namespace["_forward_pre_hooks"]:
                return True
            if "forward" in namespace and not isinstance(namespace["forward"], PatchedForward):
                return True
            if namespace.get("_compiled_call_impl") is not None:
                return True
        return False


def submodules(module: nn.Module) -> list[nn.Module]:
    """Return a module and all modules inside it; ``module.modules()`` takes ten times as long."""
    found = [module]
    for each in found:  # grows while it is read
        if each._modules:
            found += [child for child in each._modules.values() if child is not None]
    return found
