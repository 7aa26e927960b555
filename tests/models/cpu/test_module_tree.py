"""What is hooked into a module after it was looked at is seen, and so is its end."""

import pytest
import torch
from torch import nn

from latelier.models.cpu.module_tree import ModuleTree
from latelier.models.cpu.patching import replaced_forwards


@pytest.fixture
def root():
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))


def hook_in(kind, module):
    """Hook something in; return what takes it out again."""
    if kind == "hook":
        return module.register_forward_hook(lambda *_: None).remove
    if kind == "hook before":
        return module.register_forward_pre_hook(lambda *_: None).remove
    name, value = ("forward", torch.neg) if kind == "forward" else ("_compiled_call_impl", torch.neg)
    setattr(module, name, value)
    return lambda: delattr(module, name)


@pytest.mark.parametrize("kind", ["hook", "hook before", "forward", "compiled"])
def test_what_is_hooked_in_is_seen(root, kind):
    tree = ModuleTree(root)
    for module in (root[1], root[1][1], root[0]):
        assert not tree.is_overridden()
        take_out = hook_in(kind, module)
        assert tree.is_overridden()
        assert tree.is_overridden()
        take_out()
        assert not tree.is_overridden()


def test_a_forward_in_the_place_of_a_patched_one_is_seen(root):
    tree = ModuleTree(root)
    with replaced_forwards({root[0]: torch.abs}):
        assert not tree.is_overridden()
    root[0].forward = torch.neg
    assert tree.is_overridden()


def test_a_module_that_is_compiled_again_is_seen(root):
    tree = ModuleTree(root)
    root[0]._compiled_call_impl = None
    assert not tree.is_overridden()
    root[0]._compiled_call_impl = torch.neg
    assert tree.is_overridden()


def test_the_hooks_of_other_models_do_not_count(root):
    tree = ModuleTree(root)
    assert not tree.is_overridden()
    nn.Linear(2, 2).register_forward_hook(lambda *_: None)
    assert not tree.is_overridden()


def test_other_modules_are_seen(root):
    tree = ModuleTree(root)
    assert tree.is_unchanged()
    before, root[1][0] = root[1][0], nn.Tanh()
    assert not tree.is_unchanged()
    root[1][0] = before
    assert tree.is_unchanged()
    root[1][1].add_module("inside", nn.Tanh())
    assert not tree.is_unchanged()
