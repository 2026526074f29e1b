"""CUDA graph buckets on a CUDA device: what the stand-ins on the CPU cannot show."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from foldfx.runtime.tr_hash import TRHashEngine
from foldfx.runtime.tr_hash.cuda_graph import CudaGraph

from .definition import HIDDEN, VOCABULARY, by_token, engine
from .taped import BUCKETS, in_threads

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a CUDA device")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def pair(seed: int = 0) -> tuple[TRHashEngine, TRHashEngine]:
    """A layer with graphs and one without, of the same weights."""
    torch.manual_seed(seed)
    graphed = engine(backend="cuda_graph", phase="inference", graph_buckets=BUCKETS).eval().cuda()
    plain = engine().eval().cuda()
    plain.load_state_dict(graphed.state_dict(), assign=True)
    return graphed, plain


def call(batch: int = 2, length: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, HIDDEN).cuda(), torch.randint(VOCABULARY, (batch, length)).cuda()


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).abs().max()) <= 1e-5


@pytest.mark.parametrize("shape", [(2, 4), (1, 3), (3, 5)])
def test_replays_follow_their_input(shape: tuple[int, int]) -> None:
    graphed, plain = pair()
    on_cpu = copy.deepcopy(graphed).cpu()
    for _ in range(3):
        hidden, ids = call(*shape)
        found = graphed(hidden, ids)
        assert_same(found, plain(hidden, ids))
        assert_same(found.cpu(), by_token(on_cpu, hidden.cpu().double(), ids.cpu())[0])


def test_autocast_and_inference_mode() -> None:
    graphed, plain = pair()
    hidden, ids = call()
    for mode in (torch.inference_mode, torch.no_grad):
        for enabled in (True, False, True):
            with mode(), torch.autocast("cuda", torch.bfloat16, enabled=enabled):
                assert torch.equal(graphed(hidden, ids), plain(hidden, ids))


def test_layers_that_share_memory_in_any_order_and_after_others_are_gone() -> None:
    pairs = [pair(seed) for seed in range(3)]
    for order in ((0, 1, 2), (2, 0, 1), (1, 1, 0)):
        calls = [(place, call(*shape)) for place, shape in zip(order, ((2, 4), (4, 8), (1, 2)), strict=True)]
        found = [pairs[place][0](*each) for place, each in calls]
        for (place, each), output in zip(calls, found, strict=True):
            assert_same(output, pairs[place][1](*each))
    pools = {graph.memory_pool() for graphed, _ in pairs for graph in _graphs(graphed)}
    assert len(pools) == 1
    del pairs[:2]
    gc.collect()
    torch.cuda.empty_cache()
    survivor, each = pairs[0], call()
    assert_same(survivor[0](*each), survivor[1](*each))
    del pairs, survivor
    gc.collect()
    graphed, plain = pair(7)
    assert_same(graphed(*each), plain(*each))


def _graphs(layer: TRHashEngine) -> list[CudaGraph]:
    return [graph for graph in layer._graphs._graphs.values() if isinstance(graph, CudaGraph)]


def test_streams_and_threads() -> None:
    """Two threads a layer, each with a stream of its own."""
    pairs, wrong = [pair(seed) for seed in range(2)], []

    def work(place: int, each: tuple[Tensor, Tensor]) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            expected = pairs[place][1](*each)
            found = [pairs[place][0](*each) for _ in range(50)]
            wrong.extend(place for output in found if float((output - expected).abs().max()) > 1e-5)

    calls = [(number % 2, call()) for number in range(4)]
    for graphed, _ in pairs:
        graphed(*call())
    torch.cuda.synchronize()
    in_threads(work, calls)
    assert wrong == []


def test_within_a_capture_of_the_user() -> None:
    graphed, plain = pair()
    hidden, ids = call()
    plain(hidden, ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = graphed(hidden, ids) * 2
    hidden.copy_(torch.randn_like(hidden))
    graph.replay()
    assert_same(output, plain(hidden, ids) * 2)
    assert len(graphed._graphs) == 0
