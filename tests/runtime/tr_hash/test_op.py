"""`foldfx::tr_hash_mlp` as an operation: sound registration, and one node in every kind of graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from foldfx.runtime.tr_hash import TR_HASH_MLP, TRHashEngine
from foldfx.runtime.tr_hash.choice import LOWERINGS

from .definition import HIDDEN, VOCABULARY, engine, inputs


def arguments(layer: TRHashEngine, lowering: str, grad: bool = True, **inputs_of: int) -> tuple[Any, ...]:
    hidden, ids = inputs(next(layer.parameters()).dtype, **inputs_of)
    weights = [weight.detach().requires_grad_(grad) for weight in layer.parameters()]
    shared = weights[3:] or [None] * 3
    table = layer.route_table
    return (hidden.requires_grad_(grad), ids, table, *weights[:3], *shared, [0.7, 0.3], 0.5, 2.0, "clamp", lowering)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("lowering", ["auto", *LOWERINGS])
def test_opcheck(lowering: str, grad: bool) -> None:
    torch.library.opcheck(TR_HASH_MLP, arguments(engine(), lowering, grad))


def test_opcheck_without_shared_branch_on_strided_operands() -> None:
    _, *rest = arguments(engine(shared_width=0), "auto")
    wide = torch.randn(2, HIDDEN, 5, requires_grad=True).transpose(1, 2)
    torch.library.opcheck(TR_HASH_MLP, (wide, *rest))


@pytest.mark.parametrize(
    ("place", "value", "error", "message"),
    [
        (1, torch.zeros(2, 5), TypeError, "token_ids must be one of"),
        (2, torch.zeros(2, 5, dtype=torch.int64), TypeError, "route_table must be uint8"),
        (2, torch.zeros(3, 5, dtype=torch.uint8), ValueError, r"route_table is \(3, 5\), not \[2, V\]"),
        (0, torch.zeros(2, 4, HIDDEN), ValueError, r"hidden is \(2, 4, 12\), not \[\*token_ids.shape, 12\]"),
        (
            0,
            torch.zeros(2, 5, HIDDEN, dtype=torch.float64),
            TypeError,
            r"hidden is torch\.float64 and expert_up torch\.float32",
        ),
        (4, torch.zeros(4, HIDDEN, 5), ValueError, r"expert_up must be \(4, 12, 6\), got \(4, 12, 5\)"),
        (7, None, ValueError, r"shared_up must be \(10, 12\), got None"),
        (6, None, ValueError, "shared_gate is None, but shared_up or shared_down is not"),
        (12, "wrap", ValueError, "out_of_range must be one of"),
        (13, "triton", ValueError, "lowering must be auto or one of"),
    ],
)
def test_operands_are_checked(place: int, value: object, error: type[Exception], message: str) -> None:
    given = list(arguments(engine(), "auto", grad=False))
    given[place] = value
    with pytest.raises(error, match=message):
        TR_HASH_MLP(*given)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.5, 0.25, 0.25]])
def test_pairs_need_two_routes(weights: list[float]) -> None:
    given = list(arguments(engine(), "by_pair", grad=False))
    given[9] = weights
    with pytest.raises(ValueError, match="by_pair needs two routes of weight other than 0"):
        TR_HASH_MLP(*given)


@pytest.mark.parametrize(("dtype", "found"), [(torch.int64, "int64"), (torch.float64, "float64")])
def test_what_autocast_does_not_cast_is_refused(dtype: torch.dtype, found: str) -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(TypeError, match=rf"hidden is torch\.{found} and expert_up torch\.bfloat16; cast one"):
            layer(hidden.to(dtype), ids)
        assert layer(hidden.half(), ids).dtype == torch.float16


def test_meta_tensors_pass_forward_and_backward() -> None:
    """Under autocast too, of which the meta device has none."""
    source = engine()
    with torch.device("meta"):
        layer = TRHashEngine(source.config)
    hidden, ids = (each.to("meta") for each in inputs(torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(hidden.requires_grad_(), ids)
    assert (output.shape, output.dtype, output.is_meta) == (hidden.shape, torch.float32, True)
    output.sum().backward()
    assert hidden.grad is not None
    assert layer.expert_up.grad is not None


def nodes(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("training", [True, False])
def test_export_has_one_node_and_takes_other_shapes(training: bool) -> None:
    layer = engine(num_experts=16, top_k=4).train(training)
    shapes = ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO})
    exported = torch.export.export(layer, inputs(torch.float32), dynamic_shapes=shapes)
    plain = exported.run_decompositions({})
    assert nodes(exported.graph_module) == nodes(plain.graph_module) == ["foldfx.tr_hash_mlp.default"]
    for batch, length in ((2, 5), (3, 7), (4, 40)):
        call = inputs(torch.float32, batch, length)
        assert torch.equal(plain.module()(*call), layer(*call))
    assert layer.last_backend is not None
    assert layer.last_backend.lowering == "by_expert"


def test_symbolic_trace_has_one_node() -> None:
    """The public engine cannot be traced by torch.fx."""
    layer = engine()
    traced = torch.fx.symbolic_trace(layer)
    assert nodes(traced) == ["foldfx.tr_hash_mlp.default"]
    call = inputs(torch.float32)
    assert torch.equal(traced(*call), layer(*call))


def test_a_symbolic_trace_follows_the_autocast_it_runs_under() -> None:
    """Whether or not it was taken under autocast."""
    layer = engine()
    call = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within, expected = torch.fx.symbolic_trace(layer), layer(*call)
        assert nodes(within) == ["foldfx.tr_hash_mlp.default"]
        assert torch.equal(within(*call), expected)
    assert torch.equal(within(*call), layer(*call))
    assert not torch.equal(within(*call), expected)


def test_make_fx_has_one_node() -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    with torch.no_grad():
        traced = make_fx(layer, tracing_mode="symbolic", _allow_non_fake_inputs=True)(hidden, ids)
    assert nodes(traced).count("foldfx.tr_hash_mlp.default") == 1
    assert [name for name in nodes(traced) if "bmm" in name or "mm.default" in name] == []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.RMSNorm(HIDDEN), engine()

    def forward(self, hidden: Tensor, ids: Tensor) -> Tensor:
        return hidden + self.layer(self.norm(hidden), ids)


def test_compile_has_one_graph_for_all_lengths_and_trains() -> None:
    """One dynamic graph, no break; forward and gradients as eager within float32 rounding of sums in another order."""
    torch._dynamo.reset()
    block = Block()
    graphs = []

    def record(module: GraphModule, example: list[Any]) -> GraphModule:
        graphs.append(nodes(module))
        return module

    recorded = torch.compile(block, backend=record, fullgraph=True, dynamic=True)
    for length in (4, 5, 9, 40):
        call = inputs(torch.float32, 3, length)
        assert torch.equal(recorded(*call), block(*call))
    assert len(graphs) == 1
    assert sum("tr_hash_mlp" in name for name in graphs[0]) == 1
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (4, 9):
        hidden, ids = inputs(torch.float32, 3, length)
        gradients = []
        for each in (block, compiled):
            block.zero_grad()
            given = hidden.clone().requires_grad_()
            each(given, ids).square().mean().backward()
            gradients.append([given.grad, *(weight.grad for weight in block.parameters())])
        for eager, other in zip(*gradients, strict=True):
            assert float((eager - other).abs().max()) <= 1e-5
            assert float((eager - other).norm() / eager.norm()) <= 1e-5


def test_the_operation_takes_any_vocabulary() -> None:
    hidden, ids, table, *rest = arguments(engine(), "auto", grad=False)
    outputs = [TR_HASH_MLP(hidden, ids, each, *rest) for each in (table, table.repeat(1, 2))]
    inside = (ids >= 0) & (ids < VOCABULARY)
    assert torch.equal(outputs[0][inside], outputs[1][inside])
