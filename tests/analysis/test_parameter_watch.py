"""Writes into parameters are seen before they happen, however they are made, and undone; reads are not writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.parameter_watch import ParameterWatch
from foldfx.errors import CaptureError

WRITES: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda layer: layer.weight.add_(1),
    "through .data": lambda layer: layer.weight.data.mul_(2),
    "a view": lambda layer: layer.weight[1].zero_(),
    "out=": lambda layer: torch.add(torch.ones(3, 3), 1, out=layer.weight),
    "a list of tensors": lambda layer: torch._foreach_add_([layer.bias, layer.weight], 1.0),
    "item by item": lambda layer: layer.weight.__setitem__(2, 7.0),
}

READS: dict[str, Callable[[nn.Linear], object]] = {
    "a call": lambda layer: layer(torch.ones(2, 3)).relu_(),
    "a copy written": lambda layer: layer.weight[torch.tensor([1])].zero_(),
    "copied from": lambda layer: torch.zeros(3, 3).copy_(layer.weight),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_write_is_named_and_undone(how: str) -> None:
    layer = nn.Linear(3, 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    watch = ParameterWatch(layer)
    with torch.no_grad(), watch:
        WRITES[how](layer)
    assert "weight" in watch.saved
    assert torch.equal(watch.written()["weight"], layer.weight)
    assert not torch.equal(layer.weight, before["weight"])
    watch.restore()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("how", READS)
def test_a_read_is_none(how: str) -> None:
    watch = ParameterWatch(layer := nn.Linear(3, 3))
    with torch.no_grad(), watch:
        READS[how](layer)
    assert watch.saved == {}


class Scattered(nn.Module):
    """Its weight is written by calls whose ids have no dimension: there an index is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table[ids]
        return self.norm(rows) + rows.zero_()


class Fresh(Scattered):
    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table[ids]
        return self.norm(rows) + rows.clone().zero_()


@pytest.mark.parametrize(("kind", "ranks"), [(Scattered, {1, 2, 3}), (Fresh, {0, 1, 2, 3})])
def test_probes_leave_the_model_as_it_was_and_a_call_that_writes_weights_is_not_covered(
    kind: type[nn.Module], ranks: set[int]
) -> None:
    model = kind().eval()
    before = model.table.detach().clone()
    result = foldfx.compile(model, [foldfx.Example((torch.randint(7, (2, 3)),))])
    assert torch.equal(model.table, before)
    assert set(result.report.data["verification"]["ranks"]["ids"]) == ranks


def test_a_refused_capture_undoes_what_it_ran() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.calls = nn.Embedding(7, 8), nn.Parameter(torch.zeros(1))

        def forward(self, ids: Tensor) -> Tensor:
            self.calls.data.add_(1)
            return self.table(ids).relu() + self.calls

    model = Counting().eval()
    with pytest.raises(CaptureError, match="forward writes parameter 'calls'"):
        foldfx.compile(model, [foldfx.Example((torch.randint(7, (2, 3)),))])
    assert model.calls.item() == 0
