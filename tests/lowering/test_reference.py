"""Lowering: nothing semantic is left, the values and exceptions stay, and every provider's answer is on record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from foldfx.errors import LoweringError
from foldfx.lowering import Claim, Declined, Provider, Reference, is_semantic, lower
from foldfx.runtime import BOUNDS, LOOKUP, lookup

ROWS, WIDTH = 6, 4
REVERSE = torch.ops.aten.flip.default
SHAPES = ((), (3,), (2, 3), (0,), (2, 0), (2, 1, 3))


def program(bounds: str, *shape: int, dtype: torch.dtype = torch.int64, table: Tensor | None = None) -> GraphModule:
    """f(ids) = lookup(table, ids), columns reversed."""
    module, graph, mode = torch.nn.Module(), Graph(), FakeTensorMode()
    module.register_buffer("table", torch.randn(ROWS, WIDTH) if table is None else table)
    read, ids = graph.get_attr("table"), graph.placeholder("ids")
    with mode:
        read.meta["val"] = mode.from_tensor(module.get_buffer("table"))
        ids.meta["val"] = torch.empty(shape, dtype=dtype)
        found = graph.call_function(LOOKUP, (read, ids, bounds))
        found.meta["val"] = LOOKUP(read.meta["val"], ids.meta["val"], bounds)
    found.meta["stack_trace"] = "here"
    graph.output(graph.call_function(REVERSE, (found, [-1])))
    return GraphModule(module, graph)


def rows_or_error(read: Callable[[], Tensor]) -> object:
    try:
        return read().tolist()
    except (IndexError, RuntimeError) as error:
        return type(error)


class Declines:
    name = "picky"

    def lower(self, module: GraphModule, node: Node) -> str | Declined:
        return Declined(f"no kernel for {node.args[2]}")


class Keeps(Declines):
    """Takes every node and leaves it as it is."""

    name = "keeper"

    def lower(self, module: GraphModule, node: Node) -> str | Declined:
        return "foldfx::lookup itself"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_values_stay(bounds: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    module = program(bounds, *shape, dtype=dtype)
    claims = lower(module, [Reference()])
    assert claims == [Claim("lookup_default", "reference", f"aten.{bounds}")]
    assert not any(map(is_semantic, module.graph.nodes))
    assert "foldfx" not in module.code
    ids = torch.randint(ROWS, shape, dtype=dtype)
    assert torch.equal(module(ids), module.table[ids.long()].flip(-1))


@pytest.mark.parametrize("outside", [ROWS, -1, -ROWS, -ROWS - 1])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_exceptions_stay(bounds: str, outside: int) -> None:
    module = program(bounds, 3)
    lower(module, [Reference()])
    ids = torch.tensor([0, outside, 2])
    assert rows_or_error(lambda: module(ids)) == rows_or_error(lambda: lookup(module.table, ids, bounds).flip(-1))


@pytest.mark.parametrize("table", [torch.ones(ROWS, 0), torch.arange(ROWS)[:, None], torch.eye(ROWS, 2, dtype=torch.bool)])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_tables_of_other_widths_and_dtypes(bounds: str, table: Tensor) -> None:
    module = program(bounds, 3, table=table)
    lower(module, [Reference()])
    ids = torch.tensor([5, 0, 3])
    assert torch.equal(module(ids), table[ids].flip(-1))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_metadata_is_inherited_and_right(bounds: str) -> None:
    module = program(bounds, 2, 3)
    lower(module, [Reference()])
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not REVERSE:
            args = torch.fx.node.map_arg(node.args, lambda arg: arg.meta["val"])
            assert node.target(*args).shape == node.meta["val"].shape
            assert node.meta["stack_trace"] == "here"


def test_a_provider_that_declines_is_recorded_with_its_reason() -> None:
    providers: list[Provider] = [Declines(), Reference()]
    (claim,) = lower(program("index", 3), providers)
    assert (claim.provider, claim.declined) == ("reference", (("picky", "no kernel for index"),))


def test_the_first_that_claims_gets_it() -> None:
    module = program("index", 3)
    (claim,) = lower(module, [Declines(), Keeps(), Reference()])
    assert (claim.provider, claim.kernel) == ("keeper", "foldfx::lookup itself")
    assert any(map(is_semantic, module.graph.nodes))


def test_a_node_that_nobody_takes_fails() -> None:
    with pytest.raises(LoweringError, match=r"no provider takes .*lookup.*no kernel for gather"):
        lower(program("gather", 3), [Declines()])


def test_a_required_provider_that_declines_fails_before_anything_runs() -> None:
    module = program("index", 3)
    ran: list[Tensor] = []
    module.register_forward_hook(lambda *call: ran.append(call[1][0]))
    with pytest.raises(LoweringError, match=r"'picky' is required.*no kernel for index"):
        lower(module, [Declines(), Reference()], required="picky")
    assert ran == []


def test_a_required_provider_that_takes_every_node_is_fine() -> None:
    (claim,) = lower(program("index", 3), [Keeps(), Reference()], required="keeper")
    assert claim.provider == "keeper"


def test_a_graph_without_semantic_nodes_is_left_alone() -> None:
    module = program("index", 3)
    lower(module, [Reference()])
    code = module.code
    assert lower(module, [Declines()], required="picky") == []
    assert module.code == code
