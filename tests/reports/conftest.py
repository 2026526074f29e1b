"""What the tests of public reports share: a block to put a reported situation into, and compile-and-compare."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import foldfx

VOCABULARY, WIDTH = 11, 32


class Parts(nn.Module):
    """An embedding and a projection that fold to a table, and a head behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4)
        self.head = nn.Linear(4, 3)

    def rows(self, ids: Tensor) -> Tensor:
        """[B, T] → [B, T, 4], depending on the ids alone."""
        return torch.tanh(self.project(self.embedding(ids)))


def make(forward: Callable[..., Any], **parts: Any) -> Any:
    """`Parts` with a forward, further attributes, and tensors among them as buffers; in eval mode."""
    model = type("Block", (Parts,), {"forward": forward})()
    for name, part in parts.items():
        model.register_buffer(name, part) if isinstance(part, Tensor) else setattr(model, name, part)
    return model.eval()


def draw(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape or (3, 5))


def same(model: nn.Module, other: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Outputs, and arguments after the call, agree; random numbers start from one seed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch's own, of a graph that is copied
        pairs = [copy.deepcopy((module, (args, kwargs))) for module in (model, other)]
    found = []
    for module, call in pairs:
        torch.manual_seed(1)
        with torch.no_grad():
            found.append(tree_leaves((module(*call[0], **call[1]), call)))
    for one, two in zip(*found, strict=True):
        if isinstance(one, Tensor):
            assert (two.dtype, two.shape) == (one.dtype, one.shape)
            error = (two.double() - one.double()).abs()
            assert not one.numel() or error.max() <= (1e-5 if one.is_floating_point() else 0)
            assert error.norm() <= 1e-5 * one.double().norm()


def compile_and_compare(model: nn.Module, *calls: tuple[Any, ...], accepted: bool = True, **options: Any) -> foldfx.Result:
    """Compile on the first call; then the folded agrees on the others, and the model is as it was, to the bit.

    Sizes are fixed unless `dynamic=True`. Without calls: ids [3, 5], and others, then also of other shapes.
    """
    options.setdefault("dynamic", False)
    if not calls:
        shapes = ((3, 5), (2, 7), (1, 1), (6, 2)) if options["dynamic"] else ((3, 5),) * 3
        calls = tuple((draw(*shape),) for shape in shapes)
    before = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    result = foldfx.compile(model, [foldfx.Example(calls[0])], **options)
    assert result.accepted is accepted, str(result.report)
    for call in calls:
        same(model, result.module, *call)
    after = model.state_dict(keep_vars=True)
    assert after.keys() == before.keys()
    assert all(id(after[name]) == place and torch.equal(after[name], tensor) for name, (place, tensor) in before.items())
    return result


@pytest.fixture(scope="session")
def block() -> Callable[..., Any]:
    return make


@pytest.fixture
def ids() -> Tensor:
    return draw()


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    return same


@pytest.fixture(scope="session")
def fold() -> Callable[..., foldfx.Result]:
    return compile_and_compare
