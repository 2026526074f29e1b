"""CUDA graph buckets: padding, reuse and clearing with a recorder in place of the graph; the capture itself on a GPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from foldfx.runtime.tr_hash import GraphBucket, TRHashEngine, backends, graphs
from foldfx.runtime.tr_hash.graphs import GraphPool

from .definition import HIDDEN, VOCABULARY, engine, inputs

BUCKETS = (GraphBucket(2, 4), GraphBucket(4, 8))


class Recorder:
    """Stands in for a graph: a replay computes anew on what the static inputs hold, and the inputs are noted."""

    made: list[Recorder]

    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, ids: Tensor) -> None:
        self.compute, self.hidden, self.ids = compute, hidden, ids
        self.output = compute(hidden, ids)
        self.replays: list[tuple[Tensor, Tensor]] = []
        type(self).made.append(self)

    def replay(self) -> None:
        self.replays.append((self.hidden.clone(), self.ids.clone()))
        self.output.copy_(self.compute(self.hidden, self.ids))


@pytest.fixture(autouse=True)
def recorder() -> None:
    Recorder.made = []


def graphed(monkeypatch: pytest.MonkeyPatch, **values: Any) -> TRHashEngine:
    """An engine on the CPU that believes in a CUDA device, with recorders for graphs."""

    def on_cuda(circumstances: backends.Circumstances) -> backends.BackendDecision:
        return backends.decide(circumstances._replace(device_type="cuda"))

    monkeypatch.setattr("foldfx.runtime.tr_hash.engine.decide", on_cuda)
    monkeypatch.setattr(GraphPool.__init__, "__defaults__", (Recorder,))
    layer = engine(backend="cuda_graph", phase="inference", graph_buckets=BUCKETS, **values)
    return layer.eval()


def run(layer: TRHashEngine, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden, ids = torch.randn(batch, length, HIDDEN), torch.randint(VOCABULARY, (batch, length))
    with torch.no_grad():
        return layer(hidden, ids), hidden, ids


@pytest.mark.parametrize(("batch", "length", "bucket"), [(1, 1, (2, 4)), (2, 4, (2, 4)), (1, 5, (4, 8)), (3, 2, (4, 8))])
def test_padded_to_the_smallest_bucket_with_zeros_and_id_0(
    monkeypatch: pytest.MonkeyPatch, batch: int, length: int, bucket: tuple[int, int]
) -> None:
    layer = graphed(monkeypatch)
    run(layer, 4, 8)
    run(layer, 2, 4)
    output, hidden, ids = run(layer, batch, length)
    (graph,) = [each for each in Recorder.made if tuple(each.ids.shape) == bucket]
    seen, seen_ids = graph.replays[-1]
    assert torch.equal(seen[:batch, :length], hidden)
    assert torch.equal(seen_ids[:batch, :length], ids)
    seen[:batch, :length], seen_ids[:batch, :length] = 0, 0
    assert not seen.any()
    assert not seen_ids.any()
    assert output.shape == hidden.shape
    assert len(Recorder.made) == 2
    assert layer.last_backend is not None
    assert (layer.last_backend.selected, layer.last_backend.graph_safe) == ("cuda_graph", True)


def test_values_are_those_of_the_plain_layer_in_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graphed(monkeypatch)
    plain = engine().eval()
    plain.load_state_dict(layer.state_dict())
    output, hidden, ids = run(layer, 2, 3)
    kept = output.clone()
    assert float((output - plain(hidden, ids)).abs().max()) <= 1e-6
    run(layer, 2, 3)
    assert torch.equal(output, kept)


CHANGES: dict[str, Callable[[TRHashEngine], object]] = {
    "capacity": lambda layer: layer.set_active_capacity(2),
    "dtype": lambda layer: layer.double().float(),
    "device": lambda layer: layer.to("cpu"),
    "weight written": lambda layer: _write(layer.expert_up),
    "weight replaced": lambda layer: setattr(layer, "expert_up", torch.nn.Parameter(layer.expert_up.detach().clone())),
    "data replaced": lambda layer: setattr(layer.expert_up, "data", layer.expert_up.detach().clone()),
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
def test_graphs_are_captured_anew_after(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graphed(monkeypatch)
    run(layer, 2, 4)
    run(layer, 2, 4)
    assert len(Recorder.made) == 1
    CHANGES[change](layer)
    output, hidden, ids = run(layer, 2, 4)
    assert len(Recorder.made) == 2
    plain = engine(route_weights=layer.config.route_weights).eval()
    plain.load_state_dict(layer.state_dict())
    plain.set_active_capacity(*layer.capacity)
    assert float((output - plain(hidden, ids)).abs().max()) <= 1e-6


def test_each_dtype_has_graphs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = GraphPool(BUCKETS, Recorder)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            pool.run(lambda hidden, ids: hidden * 2, torch.ones(1, 1, 3, dtype=dtype), torch.zeros(1, 1, dtype=torch.int64), ())
    assert len(pool) == len(Recorder.made) == 2


def test_only_in_eval_and_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graphed(monkeypatch)
    hidden, ids = inputs(torch.float32, 2, 4)
    with pytest.raises(RuntimeError, match="gradients are enabled"):
        layer(hidden, ids)
    layer.train()
    with torch.no_grad(), pytest.raises(RuntimeError, match="requires eval mode"):
        layer(hidden, ids)
    with torch.no_grad(), pytest.raises(ValueError, match="no CUDA Graph bucket can contain"):
        layer.eval()(*inputs(torch.float32, 5, 4))
    assert Recorder.made == []


def test_ids_are_refused_before_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graphed(monkeypatch, out_of_range="error")
    run(layer, 2, 4)
    with torch.no_grad(), pytest.raises(IndexError, match="token id -3"):
        layer(*inputs(torch.float32, 2, 4))
    assert len(Recorder.made[0].replays) == 1


def test_copies_capture_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graphed(monkeypatch)
    run(layer, 2, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        made = len(Recorder.made)
        run(other, 2, 4)
        assert len(Recorder.made) == made + 1
        assert Recorder.made[-1].hidden is not Recorder.made[0].hidden


def test_on_a_cpu_the_backend_is_refused() -> None:
    layer = engine(backend="cuda_graph", phase="inference", graph_buckets=BUCKETS)
    with pytest.raises(RuntimeError, match="CUDA Graph backend requires a CUDA device, got cpu"):
        layer(*inputs(torch.float32))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a CUDA device")
def test_capture_on_a_gpu() -> None:
    layer = engine(backend="cuda_graph", phase="inference", graph_buckets=BUCKETS).eval().cuda()
    plain = engine().eval().cuda()
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for _ in range(3):
            hidden, ids = (each.cuda() for each in inputs(torch.float32, 3, 5))
            assert float((layer(hidden, ids) - plain(hidden, ids)).abs().max()) <= 1e-5
    assert graphs.WARM_UPS == 3
