"""`observables=[…]` through the front door: compared like outputs, set on the result, told in reports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.cli import main
from foldfx.errors import CaptureError
from foldfx.passes import FoldTokens, Outcome, PassContext, PassResult, Status
from foldfx.passes.builder import Builder
from foldfx.runtime import ObservedProgram

VOCABULARY, EXPERTS, CHOSEN = 23, 6, 2
NAMES = ["load_balance_loss", "layers.0.router_logits"]


class Layer(nn.Module):
    """Routes rank-one experts over a value, as in finite-domain.md §7.5; router and weights are token-only."""

    router_logits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, EXPERTS)
        self.experts = nn.Parameter(torch.randn(EXPERTS, 16))

    def forward(self, x: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.router_logits = self.down(torch.relu(self.up(x)))
        scores = self.router_logits.softmax(-1)
        weights, chosen = scores.topk(CHOSEN, -1)
        mixed = (weights.unsqueeze(-1) * self.experts[chosen]).sum(-2) * value.unsqueeze(-1)
        return mixed, scores, chosen


class Routed(nn.Module):
    """The load-balance loss is the share of tokens × the mean score of each expert."""

    load_balance_loss: Any

    def __init__(self, extra: Callable[[Routed, Tensor], None] = lambda model, scores: None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList([Layer()])
        self.load_balance_loss = 0.0
        self.extra = extra
        self.eval()

    def forward(self, ids: Tensor, value: Tensor) -> Tensor:
        mixed, scores, chosen = self.layers[0](self.embedding(ids), value)
        share = F.one_hot(chosen, EXPERTS).to(scores.dtype).mean((0, 1, 2))
        self.load_balance_loss = (share * scores.mean((0, 1))).sum() * EXPERTS
        self.extra(self, scores)
        return mixed.cumsum(1)


def calls() -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(VOCABULARY, shape), torch.randn(shape))) for shape in ((3, 5), (2, 2))]


def compiled(model: Routed, names: list[str] = NAMES, **options: Any) -> foldfx.Result:
    return foldfx.compile(model, calls(), observables=names, **options)


def test_a_load_balance_loss_is_folded_with_the_router_compared_and_set() -> None:
    model = Routed()
    result = compiled(model)
    assert result.accepted
    assert isinstance(result.module, ObservedProgram)
    assert not [name for name in result.module.state_dict() if "up" in name or "down" in name]
    for example in calls():
        found, expected = result.module(*example.args), model(*example.args)
        assert torch.allclose(found, expected, atol=1e-5)
        assert torch.allclose(result.module.load_balance_loss, model.load_balance_loss, atol=1e-6)
        logits = result.module.get_submodule("layers.0").router_logits
        assert torch.allclose(logits, model.layers[0].router_logits, atol=1e-5)
    assert foldfx.verify(model, result.module, calls(), observables=NAMES).success


def test_undeclared_it_is_refused_with_its_name_and_the_way_out() -> None:
    with pytest.raises(CaptureError, match=r"would lose: load_balance_loss\. .* observables=\['load_balance_loss'\]"):
        compiled(Routed(), ["layers.0.router_logits"])
    with pytest.raises(CaptureError, match=r"would lose: load_balance_loss, layers\.0\.router_logits"):
        foldfx.compile(Routed(), calls())
    with pytest.raises(CaptureError, match="load_balance_loss"):
        foldfx.analyze(Routed(), calls()[0].args)
    facts = foldfx.analyze(Routed(), calls()[0].args, observables=NAMES)
    assert facts[facts.node("topk")].token_only


class OffByABit:
    """Adds `amount` to leaf number `leaf` of the outputs; nothing else changes."""

    name: ClassVar[str] = "off_by_a_bit"

    def __init__(self, leaf: int, amount: float = 1e-3) -> None:
        self._leaf, self._amount = leaf, amount

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        if not context.fuel.admits(self.name):
            reason = context.fuel.left_out.get(self.name, "no fuel")
            return PassResult(program, (Outcome(self.name, Status.REJECTED, "the outputs", reason),))
        context.fuel.take(self.name)
        output = program.graph.output_node()
        values = list(output.args[0])
        node = values[self._leaf]
        values[self._leaf] = Builder(program.module, node, self.name).call(torch.ops.aten.add.Scalar, node, self._amount)
        output.prepend(values[self._leaf])
        output.args = (type(output.args[0])(values),)
        program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, node.name, "looked better", (node.name,)),))


@pytest.mark.parametrize(("leaf", "attribute"), [(1, "load_balance_loss"), (2, "layers.0.router_logits")])
def test_a_pass_that_spoils_an_attribute_alone_is_rejected(leaf: int, attribute: str, tmp_path: Path) -> None:
    model = Routed()
    result = compiled(model, pipeline=foldfx.Pipeline([OffByABit(leaf)]))
    assert result.status == "rolled_back"
    assert {each.difference.where for each in result.counterexamples} == {f"output .attributes['{attribute}']"}
    ids, value = calls()[0].args
    assert torch.equal(result.module(ids, value), model(ids, value))
    assert torch.equal(result.module.load_balance_loss, model.load_balance_loss)
    script = result.write_reproducer(tmp_path / "found")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr


def test_bisection_leaves_out_what_spoils_an_attribute_and_keeps_the_fold() -> None:
    result = compiled(Routed(), pipeline=foldfx.Pipeline([FoldTokens(), OffByABit(1)]))
    assert result.accepted
    assert [each.difference.where for each in result.counterexamples] == ["output .attributes['load_balance_loss']"]
    statuses = {outcome["pass"]: outcome["status"] for outcome in result.report.data["outcomes"]}
    assert statuses == {"fold_tokens": "applied", "off_by_a_bit": "rejected"}


def alias(model: Routed, scores: Tensor) -> None:
    model.scores = scores
    model.first = scores[..., 0]


def test_what_observables_share_memory_with_is_compared() -> None:
    model, names = Routed(alias), [*NAMES, "scores", "first"]
    result = compiled(model, names)
    assert result.accepted
    result.module(*calls()[0].args)
    assert result.module.scores.data_ptr() == result.module.first.data_ptr()
    (unshared,) = compiled(model, names, pipeline=foldfx.Pipeline([OffByABit(4, 0.0)])).counterexamples
    assert "output .attributes['first'] shares no memory with output .attributes['scores']" in str(unshared).replace(":", "")


def test_an_observable_that_is_an_input() -> None:
    class Keeping(Routed):
        def forward(self, ids: Tensor, value: Tensor) -> Tensor:
            self.kept = ids
            return super().forward(ids, value)

    result = compiled(Keeping(), [*NAMES, "kept"])
    assert result.accepted
    ids, value = calls()[0].args
    result.module(ids, value)
    assert result.module.kept.data_ptr() == ids.data_ptr()


def test_validity_looks_past_observables_and_at_everything_else() -> None:
    model = Routed()
    result = compiled(model)
    for module in (model, result.module):
        module(*calls()[0].args)
    assert result.validity().state == "verified"
    assert result.revalidate(calls()).success
    hook = result.module.register_forward_hook(lambda *_: None)
    assert result.validity().which == ("folded <root>: hooks (_forward_hooks)",)
    hook.remove()
    with torch.no_grad():
        table = next(name for name in result.module.state_dict() if name.startswith("foldfx_tables"))
        result.module.state_dict()[table].mul_(2)
    assert result.validity().which == (f"folded {table}: contents",)
    assert not result.revalidate(calls()).success


def test_the_report_lists_observables_and_what_feeds_them() -> None:
    report = compiled(Routed()).report
    assert report.to_dict()["observables"] == NAMES
    assert "observables, compared like outputs: load_balance_loss, layers.0.router_logits" in str(report)
    (decision,) = report.data["decisions"]
    assert decision["feeds"] == ["attribute load_balance_loss", "output 0"]
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 4)).eval()
    plain = foldfx.compile(model, [foldfx.Example((torch.tensor([[1, 2], [3, 4]]),))]).report
    assert plain.to_dict()["observables"] == []
    assert "observables" not in str(plain)


def test_verify_takes_an_attribute_that_is_not_set_for_a_difference() -> None:
    model = Routed()
    result = compiled(model)
    found = foldfx.verify(model, result.module.program, calls())
    assert found.verdict == "different"

    class Silent(Routed):
        def forward(self, ids: Tensor, value: Tensor) -> Tensor:
            returned = super().forward(ids, value)
            self.load_balance_loss = 0.0
            del self.load_balance_loss
            return returned

    silent = Silent()
    silent.load_state_dict(model.state_dict())
    assert foldfx.verify(model, silent, calls()).success
    found = foldfx.verify(model, silent, calls(), observables=["load_balance_loss"])
    assert found.verdict == "different"
    with pytest.raises(CaptureError, match=r"layers\.1"):
        foldfx.verify(model, silent, calls(), observables=["layers.1.router_logits"])


def test_gradients_through_the_loss_are_the_models() -> None:
    model = Routed()
    result = compiled(model)
    ids, value = calls()[0].args
    value.requires_grad_()
    grads = []
    for module in (model, result.module):
        returned = module(ids, value)
        (returned.sum() + module.load_balance_loss).backward()
        grads.append(value.grad.clone())
        value.grad = None
    assert torch.allclose(*grads, atol=1e-5)


def test_low_precision_is_measured_after_a_call_with_gradients() -> None:
    model = Routed().bfloat16()
    ids, value = calls()[0].args
    model(ids, value.bfloat16())
    assert model.load_balance_loss.requires_grad
    examples = [foldfx.Example((ids, value.bfloat16()))]
    result = foldfx.compile(model, examples, observables=NAMES)
    assert result.report.data["verification"]["verdict"] == "equivalent_on"


FACTORY = """
import sys
sys.path.insert(0, {folder!r})
import torch, foldfx
from test_observables import Routed, VOCABULARY

def make():
    torch.manual_seed(0)
    return Routed()

def examples():
    return [foldfx.Example((torch.randint(VOCABULARY, (3, 5)), torch.randn(3, 5)))]
"""


@pytest.mark.parametrize("command", ["analyze", "compile", "bisect"])
def test_the_command_line_takes_observables(command: str, own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own_folder / "model.py"
    file.write_text(FACTORY.format(folder=str(Path(__file__).parent)))
    arguments = [command, "--factory", f"{file}:make", "--examples", f"{file}:examples"]
    assert main(arguments) == 1
    assert "observables=['load_balance_loss'," in capsys.readouterr().err
    declared = [part for name in NAMES for part in ("--observable", name)]
    as_json = ["--json"] if command == "compile" else []
    assert main([*arguments, *declared, *as_json]) == 0
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said)["observables"] == NAMES
