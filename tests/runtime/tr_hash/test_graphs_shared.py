"""CUDA graph buckets where others take part: threads, replicas, tracers, and captures around the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from foldfx._torch import Foreseen
from foldfx.runtime.tr_hash import TRHashEngine, cuda_graph

from .taped import TapedGraph, call, graphed, in_threads, plain_of, taped

__all__ = ["taped"]

OPERATION = "foldfx.tr_hash_mlp.default"


def test_threads_get_results_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = graphed()
    plain, calls, wrong = plain_of(layer), [call() for _ in range(2)], []
    with torch.no_grad():
        layer(*calls[0])
    monkeypatch.setattr(TapedGraph, "pause", 0.01)

    def work(hidden: Tensor, ids: Tensor) -> None:
        with torch.no_grad():
            expected = plain(hidden, ids)
            wrong.extend(number for number in range(5) if not torch.equal(layer(hidden, ids), expected))

    in_threads(work, calls)
    assert wrong == []
    assert len(TapedGraph.made) == 1


def symbolic(layer: TRHashEngine, *arguments: Tensor) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(layer)


def exported(layer: TRHashEngine, *arguments: Tensor) -> torch.fx.GraphModule:
    return torch.export.export(layer, arguments).graph_module


def proxied(mode: str) -> Callable[..., torch.fx.GraphModule]:
    def trace(layer: TRHashEngine, *arguments: Tensor) -> torch.fx.GraphModule:
        return make_fx(layer, tracing_mode=mode, _allow_non_fake_inputs=True)(*arguments)

    return trace


def compiled(layer: TRHashEngine, *arguments: Tensor) -> torch.fx.GraphModule:
    graphs: list[torch.fx.GraphModule] = []

    def record(module: torch.fx.GraphModule, example: list[Any]) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch.compile(layer, backend=record, fullgraph=True)(*arguments)
    return graphs[0]


@pytest.mark.parametrize(
    "trace", [symbolic, exported, proxied("real"), proxied("fake"), compiled], ids=["fx", "export", "real", "fake", "compile"]
)
def test_a_trace_has_the_operation(trace: Callable[..., torch.fx.GraphModule]) -> None:
    layer = graphed()
    with torch.no_grad():
        module = trace(layer, *call())
        names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        assert [name for name in names if "tr_hash" in name] == [OPERATION]
        assert TapedGraph.made == []
        layer(*call())
    assert len(TapedGraph.made) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_jit_trace_follows_its_input() -> None:
    layer, (hidden, ids) = graphed(), call()
    with torch.no_grad():
        traced = torch.jit.trace(layer, call(), check_trace=False)
        assert torch.equal(traced(hidden, ids), plain_of(layer)(hidden, ids))
    assert TapedGraph.made == []


def test_a_mode_sees_the_operation() -> None:
    layer, seen = graphed(), []
    with torch.no_grad(), Foreseen(lambda func, args, kwargs: seen.append(str(func))):
        layer(*call())
    assert seen.count(OPERATION) == 1
    assert TapedGraph.made == []


def test_within_a_capture_of_the_user_the_layer_becomes_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (hidden, ids) = graphed(), call(5, 9)  # larger than any bucket
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr("foldfx.runtime.tr_hash.engine.is_capturing", lambda device: True)
        assert torch.equal(layer(hidden, ids), plain_of(layer)(hidden, ids))
    assert TapedGraph.made == []
    with torch.no_grad(), pytest.raises(ValueError, match="no CUDA Graph bucket"):
        layer(hidden, ids)


def test_only_a_cuda_stream_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Current:
        def __init__(self, device: torch.device) -> None:
            asked.append(device)

        def __enter__(self) -> None: ...
        def __exit__(self, *raised: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not cuda_graph.is_capturing(torch.device("cpu"))
    assert asked == []
    assert cuda_graph.is_capturing(torch.device("cuda:1"))
    assert asked == [torch.device("cuda:1")]


def test_a_replica_of_data_parallel_computes_by_itself() -> None:
    """Its parameters are plain attributes, other ones in every call, which `parameters()` does not list."""
    layer, (hidden, ids) = graphed(), call()
    replica: Any = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, weight in layer.named_parameters(recurse=False):
            setattr(replica, name, weight.clone())
        expected = plain_of(layer)(hidden, ids)
        assert torch.equal(replica(hidden, ids), expected)
        replica.expert_up = replica.expert_up * 2
        assert not torch.equal(replica(hidden, ids), expected)
        assert TapedGraph.made == []
        assert torch.equal(layer(hidden, ids), expected)
    assert len(TapedGraph.made) == 1
