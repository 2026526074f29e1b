"""Full and reduced table, wherever the module goes: meta, to_empty, loads by copy or by assignment, and refused loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foldfx.runtime.tr_hash import TRHashEngine

from .definition import VOCABULARY, engine, inputs

PLANTED = torch.tensor([[0, 1], [2, 3]]).repeat(1, VOCABULARY // 2)
"""A table that no strategy makes."""


def on_meta(**values: Any) -> TRHashEngine:
    with torch.device("meta"):
        return TRHashEngine(engine(**values).config)


def copied(layer: TRHashEngine, source: TRHashEngine) -> None:
    layer.to_empty(device="cpu")
    layer.load_state_dict(source.state_dict())


def assigned(layer: TRHashEngine, source: TRHashEngine) -> None:
    layer.load_state_dict(source.state_dict(), assign=True)


def assert_same_at(experts: int, layer: TRHashEngine, source: TRHashEngine) -> None:
    """The same output and the same reduced table as a layer that never moved."""
    still = engine(num_experts=8)
    still.load_state_dict(source.state_dict())
    still.set_active_capacity(experts)
    call = inputs(torch.float32)
    assert layer.capacity == still.capacity
    assert torch.equal(layer(*call), still(*call))


@pytest.mark.parametrize("restore", [copied, assigned])
@pytest.mark.parametrize("before", [2, 4, 8])
@pytest.mark.parametrize("after", [2, 4, 8])
def test_capacity_changed_on_meta_is_the_one_in_use_afterwards(
    restore: Callable[[TRHashEngine, TRHashEngine], None], before: int, after: int
) -> None:
    """No table of an earlier capacity comes back, neither at once nor at the next move."""
    source, layer = engine(num_experts=8), engine(num_experts=8)
    layer.set_active_capacity(before)
    layer.to("meta")
    layer.set_active_capacity(after)
    restore(layer, source)
    assert_same_at(after, layer, source)
    layer.set_active_capacity(4)
    copied(layer, source)
    assert_same_at(4, layer, source)


@pytest.mark.parametrize("restore", [copied, assigned])
def test_capacity_of_a_module_built_on_meta(restore: Callable[[TRHashEngine, TRHashEngine], None]) -> None:
    source, layer = engine(num_experts=8), on_meta(num_experts=8)
    layer.set_active_capacity(4)
    layer.set_active_capacity(expert_width=5)
    layer.set_active_capacity(expert_width=layer.config.expert_width)
    restore(layer, source)
    assert_same_at(4, layer, source)


def test_weights_alone_assigned_to_a_module_on_meta() -> None:
    """The table that was kept aside goes where they are, and weights that only copy leave it there."""
    source, layer = engine(), on_meta()
    weights = {name: weight.detach() for name, weight in source.named_parameters()}
    with pytest.warns(UserWarning, match="no-op"):
        layer.load_state_dict(weights, strict=False)
    assert layer.route_table.is_meta
    assert layer.load_state_dict(weights, strict=False, assign=True).missing_keys == ["route_table"]
    call = inputs(torch.float32)
    assert torch.equal(layer(*call), source(*call))
    assert layer.routes == source.routes


def test_a_table_loaded_on_meta_is_there_afterwards() -> None:
    layer = on_meta()
    layer.load_route_table(PLANTED)
    assert layer.route_table.is_meta
    layer.to_empty(device="cpu")
    assert torch.equal(layer.route_table.long(), PLANTED)


def test_a_table_is_loaded_beside_weights_that_were_set_by_hand() -> None:
    source, layer = engine(), on_meta()
    for name, weight in source.named_parameters():
        owner, _, last = name.rpartition(".")
        setattr(layer.get_submodule(owner), last, nn.Parameter(weight.detach()))
    layer.load_route_table(PLANTED)
    source.load_route_table(PLANTED)
    call = inputs(torch.float32)
    assert torch.equal(layer(*call), source(*call))


@pytest.mark.parametrize("assign", [False, True])
def test_a_refused_load_changes_nothing_and_says_one_thing(assign: bool) -> None:
    """Neither experts nor the modules below are loaded, and what was given stays as it was; the layer beside it loads."""
    model, source = nn.Sequential(engine(), engine()), nn.Sequential(engine(), engine())
    held, weights = {name: entry.clone() for name, entry in model.state_dict().items()}, dict(model.named_parameters())
    state = source.state_dict() | {"0.route_table": torch.zeros(2, VOCABULARY, dtype=torch.int64), "0.more.x": torch.ones(1)}
    given = dict(state)
    with pytest.raises(RuntimeError, match=r"0\.route table refused, nothing loaded: routes must") as refusal:
        model.load_state_dict(state, assign=assign)
    assert str(refusal.value).count("\n\t") == 1
    assert state.keys() == given.keys()
    assert all(state[name] is entry for name, entry in given.items())
    for name, entry in model.state_dict().items():
        assert torch.equal(entry, held[name] if name.startswith("0.") else given[name])
    assert all(weights[name] is weight for name, weight in model[0].named_parameters("0"))
    model.load_state_dict(source.state_dict(), assign=assign)
    call = inputs(torch.float32)
    assert torch.equal(model[0](*call), source[0](*call))


@pytest.mark.parametrize("name", ["route_table", "fused_route_codes", "fused_expert_pairs"])
@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (lambda entry: None, "NoneType"),
        (Tensor.tolist, "list"),
        (lambda entry: entry.to("meta"), r"torch\.\w+ on meta"),
        (lambda entry: entry + 0.5, r"torch\.float32 on cpu"),
        (Tensor.bool, r"torch\.bool on cpu"),
    ],
)
def test_entries_that_hold_no_integers_are_refused(name: str, changed: Callable[[Tensor], object], found: str) -> None:
    layer, state = engine(), engine().state_dict()
    before = {each: entry.clone() for each, entry in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match=f"{name} must hold integers, got {found}"):
        layer.load_state_dict(state | {name: changed(state[name])})
    assert all(torch.equal(entry, before[each]) for each, entry in layer.state_dict().items())
    layer.load_state_dict(state | {name: state[name].to(torch.int16)})


def test_a_table_that_something_else_took_to_meta_does_not_keep_weights_from_casts() -> None:
    """As offloading does, which holds the content itself and brings it back."""
    layer = engine()
    table = layer.route_table
    layer.route_table = table.to("meta")
    layer.double()
    with pytest.raises(ValueError, match="on the meta device has no content"):
        _ = layer.routes
    layer.route_table = table
    layer.float()
    assert torch.equal(layer.route_table, table)
