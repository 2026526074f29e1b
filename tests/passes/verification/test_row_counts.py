"""Near ties that fall otherwise only at some row counts, or along one axis of the ids: no table answers for them unseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.passes import shape_profiles
from foldfx.passes.ladder import BY_CLASS

SHAPES = ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1), (2, 2), (1, 5), (5, 1), (3, 5), (2, 8), (4, 32), (1, 150), (150, 1))
NEAR = 11


def choice(x: Tensor) -> Tensor:
    """Two of six, whose scores are moved up or down by a rounding."""
    return torch.cat([x[..., :3], 3 - x[..., 3:6]], -1).topk(2).indices


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_profiles, "DENSE", 17)
    monkeypatch.setattr(shape_profiles, "SPARSE", (18, 40, 65, 128, 300))


@pytest.fixture
def router(planted: Any, rounding: Any) -> Callable[[bool], nn.Module]:
    """A router by rounded scores; of id `NEAR` the second and third are one bit apart, or a tenth."""

    def make(near: bool) -> nn.Module:
        model: nn.Module = rounding(through=choice)
        rows = torch.arange(6).repeat(planted.VOCABULARY, 2)[:, : planted.WIDTH] / 8 + 1.0
        up = torch.nextafter(torch.tensor(1.5), torch.tensor(0.0))
        rows[NEAR] = torch.tensor([1.9, 1.5, 1.05, up if near else 1.6, 1.95, 1.96, 1.0, 1.2])
        with torch.no_grad():
            model.weight.copy_(rows.repeat(1, 4))
        return model

    return make


def flips(model: nn.Module, other: Any) -> list[Sequence[int]]:
    """The shapes of calls, all for the id near a tie, that choose otherwise."""
    return [shape for shape in SHAPES if not torch.equal(model(torch.full(shape, NEAR)), other(torch.full(shape, NEAR)))]


COUNTS: dict[str, Callable[[int], int]] = {
    "one small count": lambda count: int(count == 5),
    "all small counts but one": lambda count: int(2 <= count <= 15),
    "counts beyond the vocabulary": lambda count: int(count >= 100),
}


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("name", COUNTS)
def test_a_near_tie_that_some_row_counts_decide_otherwise_takes_a_table_for_each_class(
    name: str, near: bool, planted: Any, router: Callable[[bool], nn.Module]
) -> None:
    """The twin has no near tie: a rounding within the limits then needs no second table."""
    planted.by_count(COUNTS[name])
    model = router(near)
    result = planted.fold(model, limits=foldfx.Limits())
    assert result.accepted
    (name,) = [each["name"] for each in result.report.to_dict()["rewrites"]]
    assert name.endswith(BY_CLASS) is near
    assert flips(model, result.module) == []
    again = result.revalidate([foldfx.Example((torch.randint(planted.VOCABULARY, (3, 5)),))])
    for verification in (again.to_dict(), result.report.to_dict()["verification"]):
        assert ("near ties" in {each["layout"] for each in verification["layouts"]}) is near


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("along", [(4, 1), (150, 1), (2, 4)], ids=str)
def test_a_near_tie_that_the_axis_decides_is_not_folded(
    along: tuple[int, int], near: bool, planted: Any, router: Callable[[bool], nn.Module]
) -> None:
    def plan(shape: Sequence[int]) -> Tensor:
        outer, inner = (shape[0], torch.Size(shape[1:-1]).numel()) if len(shape) > 2 else (1, shape[0])
        moved = outer > 100 if along[0] > 100 else (outer, inner) == along
        return torch.full((outer * inner,), int(moved))

    planted.plan = plan
    model = router(near)
    result = planted.fold(model, limits=foldfx.Limits())
    assert result.accepted is not near
    assert flips(model, result.module) == []
