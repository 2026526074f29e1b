"""CUDA graph buckets: padding, reuse, and captures anew where what was captured no longer holds; with tapes for graphs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

from foldfx.runtime.tr_hash import TRHashEngine
from foldfx.runtime.tr_hash.graphs import GraphPool

from .definition import HIDDEN, engine, inputs
from .taped import BUCKETS, TapedGraph, call, graphed, plain_of, taped

__all__ = ["taped"]


def run(layer: TRHashEngine, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden, ids = call(batch, length)
    with torch.no_grad():
        return layer(hidden, ids), hidden, ids


@pytest.mark.parametrize(("batch", "length", "bucket"), [(1, 1, (2, 4)), (2, 4, (2, 4)), (1, 5, (4, 8)), (3, 2, (4, 8))])
def test_padded_to_the_smallest_bucket_with_zeros_and_id_0(batch: int, length: int, bucket: tuple[int, int]) -> None:
    layer = graphed()
    run(layer, 4, 8)
    run(layer, 2, 4)
    output, hidden, ids = run(layer, batch, length)
    (graph,) = [each for each in TapedGraph.made if tuple(each.ids.shape) == bucket]
    seen, seen_ids = graph.replays[-1]
    assert torch.equal(seen[:batch, :length], hidden)
    assert torch.equal(seen_ids[:batch, :length], ids)
    seen[:batch, :length], seen_ids[:batch, :length] = 0, 0
    assert not seen.any()
    assert not seen_ids.any()
    assert output.shape == hidden.shape
    assert len(TapedGraph.made) == 2
    assert layer.last_backend is not None
    assert (layer.last_backend.selected, layer.last_backend.graph_safe) == ("cuda_graph", True)


def test_values_are_those_of_the_plain_layer_in_memory_of_their_own() -> None:
    layer = graphed()
    output, hidden, ids = run(layer, 2, 3)
    kept = output.clone()
    assert float((output - plain_of(layer)(hidden, ids)).abs().max()) <= 1e-6
    run(layer, 2, 3)
    assert torch.equal(output, kept)


CHANGES: dict[str, Callable[[TRHashEngine], object]] = {
    "capacity": lambda layer: layer.set_active_capacity(2),
    "dtype": lambda layer: layer.double().float(),
    "device": lambda layer: layer.to("cpu"),
    "weight written": lambda layer: _write(layer.expert_up),
    "weight replaced": lambda layer: setattr(layer, "expert_up", torch.nn.Parameter(layer.expert_up.detach().clone())),
    "data replaced": lambda layer: setattr(layer.expert_up, "data", layer.expert_up.detach().clone()),
    "strides": lambda layer: setattr(layer.expert_up, "data", layer.expert_up.detach().transpose(1, 2)),
    "shared weight written": lambda layer: _write(layer.shared_up.weight),
    "state loaded": lambda layer: layer.load_state_dict(layer.state_dict(), assign=True),
    "table": lambda layer: layer.load_route_table(layer.routes),
    "table written": lambda layer: layer.route_table.copy_(layer.route_table.clone()),
    "route weights": lambda layer: layer.set_top_k_primary_weight(0.9),
}


def _write(weight: Tensor) -> None:
    with torch.no_grad():
        weight.mul_(2)


@pytest.mark.parametrize("change", CHANGES)
def test_graphs_are_captured_anew_after(change: str) -> None:
    layer = graphed(expert_width=HIDDEN)
    run(layer, 2, 4)
    run(layer, 2, 4)
    assert len(TapedGraph.made) == 1
    CHANGES[change](layer)
    output, hidden, ids = run(layer, 2, 4)
    assert len(TapedGraph.made) == 2
    assert float((output - plain_of(layer)(hidden, ids)).abs().max()) <= 1e-5


def test_each_dtype_has_graphs_of_its_own() -> None:
    pool = GraphPool(BUCKETS, TapedGraph)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            hidden = torch.ones(1, 1, 3, dtype=dtype)
            pool.run(lambda hidden, ids: hidden * 2, hidden, torch.zeros(1, 1, dtype=torch.int64), reads=())
    assert len(pool) == len(TapedGraph.made) == 2


@pytest.mark.parametrize("first", [True, False])
def test_autocast_has_graphs_of_its_own(first: bool) -> None:
    layer, (hidden, ids) = graphed(), call()
    plain = plain_of(layer)
    with torch.no_grad():
        for enabled in (first, not first, first):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                assert torch.equal(layer(hidden, ids), plain(hidden, ids))
        assert len(TapedGraph.made) == 2
        with torch.autocast("cpu", torch.float16):
            assert torch.equal(layer(hidden, ids), plain(hidden, ids))
    assert len(TapedGraph.made) == 3


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("setting", "captures"), [(_tf32, 2), (_deterministic, 2), (nullcontext, 1)])
def test_numeric_settings_have_graphs_of_their_own(setting: Callable[[], AbstractContextManager[None]], captures: int) -> None:
    layer = graphed()
    run(layer, 2, 4)
    with setting():
        run(layer, 2, 4)
    run(layer, 2, 4)
    assert len(TapedGraph.made) == captures


def test_a_graph_captured_in_inference_mode_serves_outside_and_back() -> None:
    layer, (hidden, ids) = graphed(), call()
    expected = plain_of(layer)(hidden, ids)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(layer(hidden, ids), expected)
    assert len(TapedGraph.made) == 1


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_layer_built_or_loaded_in_inference_mode_has_graphs(mode: Callable[[], AbstractContextManager[None]]) -> None:
    """Its tensors have no version, so that only their addresses tell that they are others."""
    with torch.inference_mode():
        built = graphed()
    loaded = graphed()
    with torch.inference_mode():
        loaded.load_state_dict({name: value.clone() for name, value in loaded.state_dict().items()}, assign=True)
    for layer in (built, loaded):
        hidden, ids = call()
        with mode():
            assert torch.equal(layer(hidden, ids), plain_of(layer)(hidden, ids))
            made = len(TapedGraph.made)
            layer.load_state_dict({name: value.clone() for name, value in built.state_dict().items()}, assign=True)
            assert torch.equal(layer(hidden, ids), plain_of(layer)(hidden, ids))
            assert len(TapedGraph.made) == made + 1


def test_only_in_eval_and_without_gradients() -> None:
    layer = graphed()
    hidden, ids = inputs(torch.float32, 2, 4)
    with pytest.raises(RuntimeError, match="gradients are enabled"):
        layer(hidden, ids)
    layer.train()
    with torch.no_grad(), pytest.raises(RuntimeError, match="requires eval mode"):
        layer(hidden, ids)
    with torch.no_grad(), pytest.raises(ValueError, match="no CUDA Graph bucket can contain"):
        layer.eval()(*inputs(torch.float32, 5, 4))
    assert TapedGraph.made == []


def test_ids_are_refused_before_a_replay() -> None:
    layer = graphed(out_of_range="error")
    run(layer, 2, 4)
    with torch.no_grad(), pytest.raises(IndexError, match="token id -3"):
        layer(*inputs(torch.float32, 2, 4))
    assert len(TapedGraph.made[0].replays) == 1


def test_copies_capture_graphs_of_their_own() -> None:
    layer = graphed()
    run(layer, 2, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        made = len(TapedGraph.made)
        run(other, 2, 4)
        assert len(TapedGraph.made) == made + 1
        assert TapedGraph.made[-1].hidden is not TapedGraph.made[0].hidden


def test_a_shallow_copy_with_other_settings_does_not_get_the_graphs_of_the_first() -> None:
    """It has the same tensors, and the same pool."""
    layer = graphed()
    other, (hidden, ids) = copy.copy(layer), call()
    other.set_route_weights((0.1, 0.9))
    with torch.no_grad():
        for each in (layer, other, layer):
            assert torch.equal(each(hidden, ids), plain_of(each)(hidden, ids))


def test_on_a_cpu_the_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    layer = engine(backend="cuda_graph", phase="inference", graph_buckets=BUCKETS)
    with pytest.raises(RuntimeError, match="CUDA Graph backend requires a CUDA device, got cpu"):
        layer(*inputs(torch.float32))
