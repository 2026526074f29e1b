"""What torch 2.13 was seen to do to graphs, P1 to P20, and that foldfx does not inherit it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.testing import assert_close

import foldfx
from foldfx._torch import is_mutable
from foldfx.errors import CaptureError, PassError
from foldfx.passes.structure import structural_hash

from .custom import Edit, run

Block = Callable[..., Any]
Fold = Callable[..., foldfx.Result]

aten = torch.ops.aten


def node(program: foldfx.Program, name: str) -> fx.Node:
    return next(each for each in program.graph.nodes if each.name == name)


def writes(self: Any, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    hidden.add_(1)
    self.count.add_(1)
    return self.rows(ids), hidden * 2 + self.count


def test_P1_writes_are_found_in_the_functional_graph(block: Block, ids: Tensor) -> None:
    """An exported graph keeps in-place operations and lists no effects; the captured one has none, and lists them."""
    model, args = block(writes, count=torch.zeros(())), (ids, torch.randn(4))
    program = foldfx.capture(model, args, dynamic=False)
    assert program.effects.mutated_buffers == {"count"}
    assert program.effects.mutated_inputs == {"hidden"}
    targets = {each.target for each in program.graph.nodes if each.op == "call_function" and is_mutable(each.target)}
    assert targets == {aten.copy_.default}
    assert not foldfx.capture(block(lambda self, ids: self.rows(ids)), (ids,), dynamic=False).effects.mutated_buffers


def test_P3_outputs_are_the_user_s_in_their_order(block: Block, fold: Fold, ids: Tensor) -> None:
    """Decomposition puts the written tensors in front of the outputs; what comes back is what forward returned."""
    fold(block(writes, count=torch.zeros(())), (ids, torch.randn(4)), (ids.flip(0), torch.randn(4)))


@pytest.mark.parametrize("view", [True, False])
def test_P2_a_view_of_a_written_input(view: bool, block: Block, fold: Fold, ids: Tensor) -> None:
    """Traced, it shares no memory with the input any more. A caller could tell: refused, unless it is a copy."""

    def forward(self: Any, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        hidden.add_(1)
        return self.rows(ids), hidden[0] if view else hidden[0].clone()

    args = ids, torch.randn(3, 4)
    if not view:
        fold(block(forward), args)
        return
    with pytest.raises(CaptureError, match=r"shares no memory with .*as in the original.*use the model as it is"):
        foldfx.compile(block(forward), [foldfx.Example(args)], dynamic=False)


def test_P4_what_is_saved_and_loaded_shares_memory_as_before(block: Block, fold: Fold, ids: Tensor) -> None:
    """Traced values lose their sharing on the way through a file; the loaded program's outputs still share theirs."""

    def forward(self: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.rows(ids)
        return x, x[0]

    model = block(forward)
    stored = io.BytesIO()
    torch.export.save(torch.export.export(fold(model).module, (ids,)), stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    for module in (model, loaded):
        one, part = module(ids)
        assert part.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()


def eliminate(program: foldfx.Program) -> None:
    program.graph.eliminate_dead_code()
    program.module.recompile()


def test_P5_dead_code_elimination_keeps_writes(block: Block, ids: Tensor) -> None:
    """fx deletes `y.mul_(2)` of a traced method call; of the captured graph it takes neither writes nor checks."""
    model, hidden = block(writes, count=torch.zeros(())), torch.randn(4)
    result = run(model, eliminate, ids, hidden)
    assert result.accepted
    result.module(ids, hidden)
    assert result.module.get_buffer("count").item() == 1
    assert any(each.op == "call_module" for each in result.module.graph.nodes)


def across(self: Any, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    y = hidden + 1
    hidden.add_(10)
    return self.rows(ids), y * 2


def distribute(program: foldfx.Program) -> None:
    def pattern(x: Tensor) -> Any:
        return aten.mul.Tensor(aten.add.Tensor(x, 1), 2)

    def replacement(x: Tensor) -> Any:
        return aten.add.Tensor(aten.mul.Tensor(x, 2), 2)

    fx.replace_pattern(program.module, pattern, replacement)


def test_P6_replace_pattern(block: Block, fold: Fold, ids: Tensor) -> None:
    """It miscompiles across a write, and its nodes carry no value: refused. Without it the write is where it was."""
    model, args = block(across), (ids, torch.randn(4))
    with pytest.raises(PassError, match=r"pass custom: .* carries no traced value"):
        run(model, distribute, *args)
    fold(model, args)


def wrong_value(program: foldfx.Program) -> None:
    node(program, "tanh").meta["val"] = node(program, "tanh").meta["val"].double()


def test_P7_a_wrong_traced_value(block: Block, ids: Tensor) -> None:
    """`Graph.lint` accepts it."""
    with pytest.raises(PassError, match=r"pass custom: tanh records .*float64.* its operation yields .*float32"):
        run(block(lambda self, ids: self.rows(ids)), wrong_value, ids)


def merge(program: foldfx.Program) -> None:
    program.module.graph = CSEPass()(program.module).graph_module.graph


class Sums(nn.Module):
    """`x + 1` twice; in the trap once as a float."""

    def __init__(self, trap: bool) -> None:
        super().__init__()
        self.embedding, self.one = nn.Embedding(11, 4), 1.0 if trap else 1
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (ids + 1) * 2, (ids + self.one) * 3, self.embedding(ids)


def test_P8_one_and_one_point_zero_are_different(ids: Tensor) -> None:
    """fx's common subexpressions merge `x + 1` with `x + 1.0`, and a float becomes an int: refused. Equal ones may merge."""
    with pytest.raises(PassError, match=r"pass custom: mul_1 records .*float32.* its operation yields .*int64"):
        run(Sums(trap=True), merge, ids)
    model = Sums(trap=False)
    result = run(model, merge, ids)
    assert result.accepted
    assert all(map(torch.equal, result.module(ids), model(ids)))


def other_operation(program: foldfx.Program) -> None:
    node(program, "tanh").target = aten.sigmoid.default
    program.module.recompile()


def test_P9_an_edit_in_place_is_seen(block: Block, ids: Tensor) -> None:
    """No hook of fx sees `node.target = …`; the structural hash does, and the wrong outputs roll it back."""
    model = block(lambda self, ids: self.rows(ids))
    program = foldfx.capture(model, (ids,), dynamic=False)
    copied = program.copy()
    assert structural_hash(copied.module) == structural_hash(program.module)
    other_operation(copied)
    assert structural_hash(copied.module) != structural_hash(program.module)
    result = run(model, other_operation, ids)
    assert result.status == "rolled_back"
    assert_close(result.module(ids), model(ids))


def test_P10_copies_have_metadata_of_their_own(block: Block, ids: Tensor) -> None:
    """Metadata set on a copy's node is not seen on the original's, and the state is shared, not copied."""
    program = foldfx.capture(block(lambda self, ids: self.rows(ids)), (ids,), dynamic=False)
    copied = program.copy()
    node(copied, "tanh").meta["mine"] = True
    assert "mine" not in node(program, "tanh").meta
    assert copied.module.get_parameter("project.weight") is program.module.get_parameter("project.weight")


def in_place(program: foldfx.Program) -> None:
    with torch.no_grad():
        program.module.get_parameter("project.weight").mul_(2)


EDITS: dict[str, Edit] = {
    "in place": in_place,
    "through .data": lambda program: program.module.get_parameter("project.weight").data.mul_(2),
    "through numpy": lambda program: program.module.get_parameter("project.weight").detach().numpy().fill(2),
}


@pytest.mark.parametrize("edit", EDITS)
def test_P11_a_pass_that_writes_a_tensor(edit: str, block: Block, ids: Tensor) -> None:
    """The weight is the model's own, so every comparison would agree; the version counter misses `.data` and numpy."""
    with pytest.raises(PassError, match=r"it (writes|wrote) the tensors \['project.weight'\]; new values are new state"):
        run(block(lambda self, ids: self.rows(ids)), EDITS[edit], ids)
    assert run(block(lambda self, ids: self.rows(ids)), lambda program: None, ids).accepted


@pytest.mark.parametrize("copies", [True, False])
def test_P15_reshape_copies_or_not(copies: bool, block: Block, fold: Fold, ids: Tensor) -> None:
    """`reshape` says it is a view; whether two outputs share memory is what the model does, not what the schema says."""

    def forward(self: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.rows(ids)
        return x, (x.mT if copies else x).reshape(-1)

    model = block(forward)
    for module in (model, fold(model).module):
        one, other = module(ids)
        assert (one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()) is not copies


class Same(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


UNSEEN: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "strides": (lambda x: x * 1, lambda x: (x.t() * 1).contiguous().t()),
    "memory": (lambda x: x * 1, lambda x: x),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_P19_what_assert_close_does_not_see(what: str) -> None:
    """It ignores strides and shared memory, and takes NaN for unequal; `foldfx.verify` does neither."""
    one, other = UNSEEN[what]
    x = torch.randn(3, 4)
    assert_close(one(x), other(x))
    assert not foldfx.verify(Same(one), Same(other), [foldfx.Example((x,))]).success
    assert foldfx.verify(Same(one), Same(copy.copy(one)), [foldfx.Example((x / 0 - x / 0,))]).success


def test_P20_every_node_of_a_folded_program_carries_a_value(block: Block, fold: Fold, ids: Tensor) -> None:
    """The export verifier and `export.save` reject a node without one."""
    module = fold(block(lambda self, ids: self.rows(ids).cumsum(1))).module
    assert all("val" in each.meta for each in module.graph.nodes if each.op in ("placeholder", "call_function", "get_attr"))
    torch.export.save(torch.export.export(module, (ids,)), io.BytesIO())
