"""What the tests of passes share: a comparison independent of the package's own, and a kernel whose rounding is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten

import foldfx
from foldfx import api
from foldfx.analysis.rules import RULES
from foldfx.passes import Pass, PassContext
from foldfx.passes.shape_profiles import Profile
from foldfx.passes.tables.region import Region
from foldfx.passes.verification.figures import EXACT as EXACT_LIMITS

EXACT = (torch.bool, torch.uint8, torch.int32, torch.int64)


def check(reference: Any, candidate: Any, max_abs: float = 1e-5, relative_l2: float = 1e-5) -> None:
    """Both trees have one structure, dtypes and shapes; floats within both limits, everything else equal."""
    leaves, structure = tree_flatten(reference)
    others, other_structure = tree_flatten(candidate)
    assert other_structure == structure
    for one, other in zip(leaves, others, strict=True):
        assert (other.dtype, other.shape) == (one.dtype, one.shape)
        if one.dtype in EXACT:
            assert torch.equal(one, other)
        elif one.numel():
            error = (other.double() - one.double()).abs()
            assert error.max() <= max_abs
            assert error.norm() <= relative_l2 * one.double().norm()


@pytest.fixture
def agree() -> Callable[..., None]:
    return check


class Planted:
    """`foldfx_tests::rounded` hands its operand on, the last bits of each row moved by the row's planted class.

    Attributes:
        plan: the class of every row, by the shape [*ids, width] of the operand.
        rare: only rows whose first value has bits that this number divides are moved.
    """

    VOCABULARY, WIDTH = 40, 8
    _programs: ClassVar[dict[nn.Module, foldfx.Program]] = {}
    _regions: ClassVar[dict[Any, tuple[Region, list[torch.fx.Node]]]] = {}

    def __init__(self) -> None:
        self.plan: Callable[[Sequence[int]], Tensor] = lambda shape: torch.zeros(torch.Size(shape[:-1]).numel())
        self.rare = 1

    def by_count(self, classes: Callable[[int], Sequence[int] | int]) -> None:
        """Plant a class for all rows of a call, or one for each position, by their number."""

        def plan(shape: Sequence[int]) -> Tensor:
            count = torch.Size(shape[:-1]).numel()
            return torch.as_tensor(classes(count) if count else 0).expand(count)

        self.plan = plan

    def __call__(self, x: Tensor) -> Tensor:
        bits = x.reshape(-1, x.shape[-1]).contiguous().view(torch.int32)
        move = torch.where(bits[:, 0] % self.rare == 0, self.plan(x.shape).int(), 0)
        return (bits + move[:, None]).view(torch.float32).reshape(x.shape)

    def region(self, *shape: int, through: Callable[[Tensor], Any] | None = None) -> tuple[Region, list[torch.fx.Node]]:
        """The region of a model's token input, and the value rounded; made once for all tests."""
        if (shape, through) not in self._regions:
            model = Rounding() if through is None else Rounding(through=through)
            program = foldfx.capture(model, (torch.randint(self.VOCABULARY, shape or (3, 5)),))
            region = Region(program, PassContext().facts(program), tuple(program.input_nodes()))
            self._regions[shape, through] = region, [node for node in program.graph.nodes if node.target is ROUNDED]
        return self._regions[shape, through]

    def fold(
        self,
        model: nn.Module,
        *,
        limits: foldfx.Limits = EXACT_LIMITS,
        profiles: Sequence[Profile | Mapping[str, int]] | None = None,
        ids: Tensor | None = None,
        passes: Sequence[Pass] = (),
    ) -> foldfx.Result:
        """`foldfx.compile`, by default with limits of zero; a model is captured once for all tests."""
        example = foldfx.Example((torch.randint(self.VOCABULARY, (3, 5)) if ids is None else ids,))
        pipeline = foldfx.Pipeline(passes or [foldfx.FoldTokens(profiles=profiles)], limits=limits)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "capture", lambda model, *_, **__: self.captured(model))
            return foldfx.compile(model, [example], pipeline=pipeline)

    def captured(self, model: nn.Module) -> foldfx.Program:
        if model not in self._programs:
            self._programs[model] = foldfx.capture(model, (torch.randint(self.VOCABULARY, (3, 5)),))
        return self._programs[model]


class Rounding(nn.Module):
    """An embedding, the largest of every four of its values, and the planted kernel: nothing else rounds."""

    READS: ClassVar[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
        "embedding": lambda weight, ids: functional.embedding(ids, weight),
        "index": lambda weight, ids: weight[ids],
        "gather": lambda weight, ids: weight.gather(0, ids.reshape(-1, 1).expand(-1, weight.shape[1])).reshape(
            *ids.shape, weight.shape[1]
        ),
    }

    def __init__(
        self, read: str = "embedding", width: int = Planted.WIDTH, through: Callable[[Tensor], Any] = lambda x: x
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(Planted.VOCABULARY, 4 * width), requires_grad=False)
        self.read, self.through = read, through
        self.eval()

    def forward(self, ids: Tensor) -> Any:
        one, two, three, four = self.READS[self.read](self.weight, ids).chunk(4, -1)
        return self.through(ROUNDED(torch.maximum(torch.maximum(one, two), torch.maximum(three, four))))


CURRENT = Planted()


@torch.library.custom_op("foldfx_tests::rounded", mutates_args=())
def rounded(x: Tensor) -> Tensor:
    return CURRENT(x)


@rounded.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


ROUNDED: Any = torch.ops.foldfx_tests.rounded.default


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    """The planted kernel, which rounds everything alike at first; foldfx knows it as row-local during this test."""
    monkeypatch.setitem(RULES._rules, ROUNDED, lambda call: call.operand("x").rows)
    CURRENT.__init__()  # type: ignore[misc]
    return CURRENT


@pytest.fixture(scope="session")
def rounding() -> Callable[..., Rounding]:
    """Makes each model once."""
    return cache(Rounding)
