"""Public reports on graph passes, each under its number: what a fold, or another pass before it, must not do."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

import foldfx
from foldfx.analysis import analyze_program
from foldfx.errors import CaptureError, PassError, TokenRankError

from .custom import Edit, run

Block = Callable[..., Any]
Fold = Callable[..., foldfx.Result]

aten = torch.ops.aten


def refused(model: Any, edit: Edit, why: str, *args: Tensor) -> None:
    """The pass is named, and what it was given is as it was: the model folds without it."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises((PassError, RuntimeError), match=why):
        run(model, edit, *args)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    run(model, lambda program: None, *args)


def node(program: foldfx.Program, name: str) -> fx.Node:
    return next(each for each in program.graph.nodes if each.name == name)


def replace_cats(program: foldfx.Program) -> None:
    def cat(x: Tensor, y: Tensor) -> Any:
        return aten.cat.default([x, y], -1)

    fx.replace_pattern(program.module, cat, cat)


def test_pytorch_159613_R3_replace_pattern_back_to_back(block: Block, ids: Tensor) -> None:
    """`replace_pattern` on two matches in a row leaves a value used before it is made."""
    model = block(lambda self, ids: torch.cat([torch.cat([self.rows(ids), self.rows(ids) * 2], -1), self.rows(ids)], -1))
    refused(model, replace_cats, "pass custom: ", ids)


def test_pytorch_104775_a_node_that_is_not_in_the_graph(block: Block, ids: Tensor) -> None:
    """A match from another graph is not taken for one of this graph, whatever its name."""
    model = block(lambda self, ids: self.rows(ids))
    program = foldfx.capture(model, (ids,), dynamic=False)
    facts = foldfx.analyze(model, (ids,), dynamic=False)
    with pytest.raises(KeyError, match="no node tanh in this graph"):
        facts.explain(node(program, "tanh"))
    assert "depends on: token(ids)" in facts.explain("tanh")


def doubled(self: Any, ids: Tensor) -> Tensor:
    x = self.rows(ids)
    for _ in range(40):
        x = x * 0.5 + x * 0.5
    return x.cumsum(1)


def test_pytorch_97817_exponentially_many_paths(block: Block, ids: Tensor) -> None:
    """2⁴⁰ paths lead through 40 diamonds: facts, proofs and the choice look at nodes."""
    program = foldfx.capture(block(doubled), (ids,), dynamic=False)
    _, _, (rewrite,) = foldfx.Pipeline().rewrite(program)
    assert len(rewrite.removed) >= 3
    facts = analyze_program(program)
    assert len(facts.explain(facts.refusal(facts.node("cumsum"))).splitlines()) <= len(facts) + 1


def chain(self: Any, ids: Tensor) -> Tensor:
    x = self.rows(ids).cumsum(1)
    for _ in range(20):
        x = x.sin()
    return x


def test_pytorch_131025_dead_values_are_freed_at_once(block: Block, fold: Fold, ids: Tensor) -> None:
    """The folded program's code drops every value behind its last use: a long chain holds two at a time."""

    class Count(TorchDispatchMode):
        made: ClassVar[list[Any]] = []
        most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.made.append(weakref.ref(out))
            self.most = max(self.most, sum(each() is not None for each in self.made))
            return out

    module = fold(block(chain)).module
    with torch.no_grad(), Count() as count:
        module(ids)
    assert len(count.made) > 20
    assert count.most <= 3


def written(self: Any, ids: Tensor) -> Tensor:
    y = self.rows(ids) * 1
    y.add_(1)
    return y * 2


def written_out(self: Any, ids: Tensor) -> Tensor:
    x = self.rows(ids)
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    return y * 2


def mutated_constant(self: Any, ids: Tensor) -> Tensor:
    ones = torch.ones(4)
    ones.add_(self.rows(ids).mean())
    return self.rows(ids) + ones


def copied_then_written(self: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    x = self.rows(ids)
    y = x.clone()
    y.add_(1)
    return x * 1.0, y


def same_dtype_then_written(self: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    x = self.rows(ids)
    y = x.to(x.dtype)  # x itself
    y.add_(1)
    return x * 1.0, y * 2


EFFECTS: dict[str, Callable[..., Any]] = {
    "pytorch#130552, R4: a write that nobody reads by name": written,
    "pytorch#190716, R5: a write through out=": written_out,
    "pytorch#107538, R2: a fresh constant written in every call": mutated_constant,
    "pytorch#174938, #174187: a copy, written": copied_then_written,
    "pytorch#174938, #174187: no copy, written": same_dtype_then_written,
}


@pytest.mark.parametrize("report", EFFECTS)
def test_writes_are_not_dropped_and_not_repeated(report: str, block: Block, fold: Fold, ids: Tensor) -> None:
    """The number of the report is the parameter's."""
    module = fold(block(EFFECTS[report])).module
    first, second = module(ids), module(ids)
    assert torch.equal(torch.stack([*first]), torch.stack([*second]))


class Noise(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


RANDOM: dict[str, tuple[Callable[..., Any], str]] = {
    "R20 at the root": (lambda self, ids: self.rows(ids) + torch.rand_like(self.rows(ids)), ""),
    "R20 in a submodule": (lambda self, ids: self.noise(self.rows(ids)), ""),
    "pytorch#167443 unused": (
        lambda self, ids: (self.noise(torch.zeros(3)), self.noise(self.rows(ids)))[1],
        r"draws random numbers it does not use: rand_like \(module noise, .*remove the call",
    ),
}


@pytest.mark.parametrize("report", RANDOM)
def test_pytorch_166592_189487_random_numbers_are_drawn_anew(report: str, block: Block, fold: Fold, ids: Tensor) -> None:
    """Impure is never constant: as many numbers are drawn as before, in every call, or the model is refused."""
    forward, why = RANDOM[report]
    model = block(forward, noise=Noise())
    if why:
        with pytest.raises(CaptureError, match=why):
            foldfx.compile(model, [foldfx.Example((ids,))], dynamic=False)
        return
    module = fold(model).module
    assert not torch.equal(module(ids), module(ids))


def test_pytorch_94374_120057_folding_is_silent_and_yields_one_graph(block: Block, ids: Tensor) -> None:
    """const_fold warned about get_attr and handed out a split: here one flat graph, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = block(lambda self, ids: self.rows(ids).cumsum(1))
        module = foldfx.compile(model, [foldfx.Example((ids,))], dynamic=False).module
    assert [each.target for each in module.graph.nodes if each.op == "call_module"] == ["_guards_fn"]


def erase_used(program: foldfx.Program) -> None:
    program.graph.erase_node(node(program, "tanh"))


def test_pytorch_129685_133942_100848_erasing_a_node_with_readers(block: Block, ids: Tensor) -> None:
    """torch refuses to erase what is read, and nothing of the model or the captured program is lost."""
    refused(block(lambda self, ids: self.rows(ids).cumsum(1)), erase_used, "Tried to erase Node tanh", ids)


def test_pytorch_67662_dead_code_elimination_keeps_the_input_checks(block: Block, fold: Fold) -> None:
    """The call of the input checks has no reader; fx asks the module behind it, which says that it is no dead code."""
    module = fold(block(lambda self, ids: self.rows(ids).cumsum(1))).module
    module.graph.eliminate_dead_code()
    module.recompile()
    with pytest.raises(TokenRankError):
        module(torch.zeros(1, 1, 3, 5, dtype=torch.int64))


def through_transformer(program: foldfx.Program) -> None:
    program.module.graph = fx.Transformer(program.module).transform().graph


def test_ttnn_22_pytorch_90737_187956_R16_metadata_lost_by_a_pass(block: Block, fold: Fold, agree: Any, ids: Tensor) -> None:
    """fx.Transformer drops `node.meta`: as a pass it is refused; the folded program itself runs without metadata."""
    model = block(lambda self, ids: self.rows(ids).cumsum(1))
    refused(model, through_transformer, "carries no traced value; create nodes through passes.builder.Builder", ids)
    result = fold(model)
    agree(model, fx.Transformer(result.module).transform(), ids)
    assert result.report.data["rewrites"][0]["removed"]


@pytest.mark.parametrize(("vocabulary", "folds"), [(2_000_000, False), (16, True)])
def test_pytorch_108389_openvino_32149_onnxruntime_28203_budget_before_building(vocabulary: int, folds: bool) -> None:
    """A table that does not pay is refused by arithmetic: nothing of its size is ever computed."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max(largest, out.shape.numel() if isinstance(out, Tensor) and func is aten.linear.default else 0)
            return out

    model = torch.nn.Sequential(torch.nn.Embedding(vocabulary, 2), torch.nn.Linear(2, 4 if folds else 512), torch.nn.Flatten())
    if folds:
        model[0], model[1] = torch.nn.Embedding(vocabulary, 64), torch.nn.Linear(64, 4)
    with Watch():
        result = foldfx.compile(model.eval(), [foldfx.Example((torch.randint(vocabulary, (2, 3)),))], dynamic=False)
    assert result.accepted is folds
    assert largest <= 64 * 512
    if not folds:
        (outcome,) = result.report.to_dict()["outcomes"]
        assert f"tables of {vocabulary:,} × 2,048" in outcome["reason"]
