"""Public reports on tracing, each under its number: the right result, or a refusal that names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError, TokenInputError, TrainingModeError

Block = Callable[..., Any]
Fold = Callable[..., foldfx.Result]

IMAGE = 3


def dropped(self: Any, ids: Tensor) -> Tensor:
    return F.dropout(self.rows(ids), 0.5, training=self.training)


def test_pytorch_68190_dropout_frozen_at_trace(block: Block, fold: Fold, ids: Tensor) -> None:
    """R1. `F.dropout(training=self.training)` keeps the value it had at the trace: only eval mode is captured."""
    with pytest.raises(CaptureError, match=r"module '<root>' \(Block\) is in training mode; call model\.eval\(\)"):
        foldfx.compile(block(dropped).train(), [foldfx.Example((ids,))])
    fold(block(dropped), dynamic=True)


def test_pyg_7745_eval_ignored_after_conversion(block: Block, fold: Fold, ids: Tensor) -> None:
    """`train()` and `eval()` of a converted graph change nothing in it: called in training mode it says so."""
    module = fold(block(dropped)).module
    expected = module(ids)
    with pytest.raises(TrainingModeError, match=r"call \.eval\(\) on it, and train the original"):
        module.train()(ids)
    assert torch.equal(module.eval()(ids), expected)


def test_pytorch_68190_dropout_that_is_meant_stays_random(block: Block, fold: Fold, ids: Tensor) -> None:
    """Twin: dropout that eval mode does not switch off still draws in every call, and is no table."""
    result = fold(block(lambda self, ids: F.dropout(self.rows(ids), 0.5)))
    assert not torch.equal(result.module(ids), result.module(ids))
    assert any("in training mode is random" in each for each in result.report.data["blockers"])


def optional(self: Any, ids: Tensor | None = None, embeds: Tensor | None = None) -> Tensor:
    return self.head(self.rows(ids) if embeds is None else embeds)


def test_transformers_31200_31414_branch_on_inputs_embeds(block: Block, fold: Fold, ids: Tensor) -> None:
    """R21. The branch taken at the trace is the only one the graph has; a call for the other is not answered."""
    result = fold(block(optional), (ids, None))
    assert "embeds: the value None" in {f"{each['input']}: {each['what']}" for each in result.report.data["specialised"]}
    with pytest.raises(AssertionError, match="input embeds was None when this program was captured"):
        result.module(ids, torch.randn(3, 5, 4))


def test_R21_only_embeddings_given(block: Block) -> None:
    """Where the embeddings come from outside, nothing carries a token id."""
    with pytest.raises(TokenInputError, match="no integer input indexes a table"):
        foldfx.compile(block(optional), [foldfx.Example((None, torch.randn(3, 5, 4)))], dynamic=False)


# Each stops in the line of this file that it is written in.
UNTRACEABLE: dict[str, Callable[..., Any]] = {
    "pytorch/torchdynamo#115, llm-compressor#1603: control flow": (
        lambda self, ids: self.rows(ids) if ids.max() > 3 else self.rows(ids) * 2
    ),
    "prime-rl#996: item": lambda self, ids: self.rows(ids) if ids.max().item() > 3 else self.rows(ids) * 2,
    "torchtitan#2369: tolist": lambda self, ids: self.rows(ids) * len([each for each in ids[0].tolist() if each > 3]),
    "R13: numpy": lambda self, ids: self.embedding(torch.from_numpy(ids.numpy() * 7 % 11)),
    "transformers#38518: experts hit": (
        lambda self, ids: sum(self.rows(ids) * (ids == each[0])[..., None] for each in (ids[0] > 3).nonzero())
    ),
}


@pytest.mark.parametrize("report", UNTRACEABLE)
def test_what_cannot_be_traced_is_refused_with_its_line(report: str, block: Block, ids: Tensor) -> None:
    """The number of the report is the parameter's."""
    line = UNTRACEABLE[report].__code__.co_firstlineno
    with pytest.raises(CaptureError, match=r"torch\.export cannot trace the model") as raised:
        foldfx.compile(block(UNTRACEABLE[report]), [foldfx.Example((ids,))], dynamic=False)
    places = [f"{__file__}:{number}, in <" for number in (line, line + 1)]
    assert any(f"It stopped at {place}" in str(raised.value) for place in places), raised.value
    assert "Write that line with tensor operations alone" in str(raised.value)


TRACEABLE: dict[str, Callable[..., Any]] = {
    "a branch on a size": lambda self, ids: self.rows(ids) if ids.dim() == 2 else self.rows(ids) * 2,
    "a branch on an attribute": lambda self, ids: self.rows(ids) if self.training else self.rows(ids) * 2,
    "a choice made by torch.where": lambda self, ids: torch.where(ids.max() > 3, self.rows(ids), self.rows(ids) * 2),
    "a number read from data, no branch": lambda self, ids: self.rows(ids) * ids.max().item(),
    "a hash in torch": lambda self, ids: self.rows(ids) + self.rows(ids * 7 % 11),
    "every expert, masked": lambda self, ids: sum(self.rows(ids) * (ids == each)[..., None] for each in range(3)),
}


@pytest.mark.parametrize("twin", TRACEABLE)
def test_the_twin_of_what_cannot_be_traced_is_folded(twin: str, block: Block, fold: Fold) -> None:
    fold(block(TRACEABLE[twin]))


@pytest.mark.parametrize(("experts", "traced"), [("eager", False), ("batched_mm", True)])
def test_transformers_38518_mixtral(experts: str, traced: bool) -> None:
    """R12. Mixtral's loop over the experts that were hit cannot be exported; its batched product can."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=13, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=2, max_position_embeddings=16, use_cache=False, pad_token_id=None,
        attn_implementation="sdpa", experts_implementation=experts,
    )  # fmt: skip
    model = transformers.MixtralModel(config).eval()
    ids = torch.randint(13, (2, 4))
    if not traced:
        with pytest.raises(CaptureError, match=r"It stopped at .*modeling_mixtral\.py:\d+, in forward"):
            foldfx.capture(model, (ids,), dynamic=False)
        return
    program = foldfx.capture(model, (ids,), dynamic=False)
    assert torch.allclose(program.module(ids).last_hidden_state, model(ids).last_hidden_state, atol=1e-5)


def positions(self: Any, ids: Tensor) -> Tensor:
    return self.rows(ids) * (ids == IMAGE).cumsum(1)[..., None]


def test_pytorch_173915_positions_counted_by_scanning_the_ids(block: Block, fold: Fold, ids: Tensor) -> None:
    """`get_rope_index` counts image tokens along the sequence: that is context, however little of the ids it reads."""
    model = block(positions)
    result = fold(model)
    assert any("cumsum" in each and "mix the rows of different tokens" in each for each in result.report.data["blockers"])
    twin = foldfx.analyze(block(lambda self, ids: self.rows(ids) * (ids == IMAGE)[..., None]), (ids,), dynamic=False)
    assert twin[twin.node("mul")].token_only


def chosen(self: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    return torch.cond(hidden.sum() > 0, lambda x: x * 2, lambda x: x * 3, (self.rows(ids),))


def test_pytorch_154559_cond_between_experts(block: Block, fold: Fold, ids: Tensor) -> None:
    """A `cond` is opaque: what goes into it folds, what comes out of it is context, and both branches still run."""
    more, less = torch.ones(2), -torch.ones(2)
    result = fold(block(chosen), (ids, more), (ids, less), (ids.flip(0), less))
    assert any("no rule for cond" in each for each in result.report.data["blockers"])


def add_one(*call: Any) -> Any:
    return call[-1] + 1


HOOKS: dict[str, Callable[[Any], Any]] = {
    "pytorch#117584: on the root": lambda model: model.register_forward_hook(add_one),
    "pytorch#117758: on a leaf": lambda model: model.project.register_forward_hook(add_one),
    "pytorch#91665: before a leaf": lambda model: model.project.register_forward_pre_hook(lambda _, args: (args[0] + 1,)),
    "pytorch#123979: hidden from Dynamo": lambda model: model.project.register_forward_hook(torch.compiler.disable(add_one)),
}


@pytest.mark.parametrize("report", HOOKS)
def test_hooks_are_not_dropped(report: str, block: Block, ids: Tensor) -> None:
    """R6, pytorch#196819. Tracing drops hooks of some modules and bakes in others; once removed, the model is captured."""
    model = block(lambda self, ids: self.rows(ids))
    hook = HOOKS[report](model)
    place = "'<root>'" if "root" in report else "'project'"
    with pytest.raises(CaptureError, match=f"module {place} .*has hooks .*remove them or make them part of forward"):
        foldfx.compile(model, [foldfx.Example((ids,))])
    hook.remove()
    foldfx.capture(model, (ids,), dynamic=False)


def test_R15_scalar_argument_specialised(block: Block, fold: Fold, ids: Tensor) -> None:
    """A number given at the trace is part of the graph: the report says so, and another one is refused."""
    result = fold(block(lambda self, ids, scale: self.rows(ids) * scale), (ids, 2.0))
    assert {"input": "scale", "what": "the number 2.0"} in result.report.data["specialised"]
    with pytest.raises(AssertionError, match=r"scale == 2\.0"):
        result.module(ids, 3.0)
    tensor = torch.tensor(2.0)
    fold(block(lambda self, ids, scale: self.rows(ids) * scale), (ids, tensor), (ids, tensor * 3))


def test_R15_arguments_through_keywords(block: Block, fold: Fold, ids: Tensor) -> None:
    """torch.export miscounts what goes through `**options`: refused by name; with fixed sizes it works."""
    model = block(lambda self, ids, **options: self.rows(ids) * options["scale"])
    example = foldfx.Example((ids,), {"scale": 2.0})
    with pytest.raises(CaptureError, match=r"forward takes scale through \*\*options.*or capture with dynamic=False"):
        foldfx.compile(model, [example])
    assert foldfx.compile(model, [example], dynamic=False).accepted


class Alone(nn.Module):
    """R23, R24, R25: a computation over an embedding, and whether its result depends on the id alone."""

    def __init__(self, compute: Callable[[Tensor, Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.embedding, self.compute = nn.Embedding(11, 16), compute
        self.places, self.norm, self.conv = nn.Parameter(torch.randn(9, 16)), nn.LayerNorm(16), nn.Conv1d(16, 16, 3, padding=1)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.compute(self.embedding(ids), ids, self) * 1


Compute = Callable[[Tensor, Tensor, Any], Tensor]
ALONE: dict[str, tuple[Compute, str]] = {
    "R23 absolute positions": (lambda x, ids, m: m.norm(x + m.places[torch.arange(ids.shape[1])]), "position"),
    "R23 RMS norm": (lambda x, ids, m: F.rms_norm(x, (16,)), ""),
    "R24 mean over positions": (lambda x, ids, m: x.mean(1), "context"),
    "R24 roll": (lambda x, ids, m: x.roll(1, 1), "context"),
    "R24 convolution": (lambda x, ids, m: m.conv(x.mT).mT, "window(3)"),
    "R24 softmax over positions": (lambda x, ids, m: x.softmax(1), "context"),
    "R24 layer norm over features": (lambda x, ids, m: m.norm(x), ""),
    "R25 times the length": (lambda x, ids, m: x * ids.shape[1], "length"),
    "ggml#20943 position added before the norm": (lambda x, ids, m: F.rms_norm(x + m.places[: ids.shape[1]], (16,)), "length"),
}


@pytest.mark.parametrize("case", ALONE)
def test_R23_R24_R25_what_depends_on_more_than_the_token(case: str, ids: Tensor) -> None:
    compute, more = ALONE[case]
    facts = foldfx.analyze(Alone(compute), (ids,))
    (output,) = next(node for node in facts if node.op == "output").all_input_nodes
    assert facts[output].token_only is (more == "")
    assert more in facts[output].describe()


def test_R25_a_fixed_length_is_a_number(ids: Tensor) -> None:
    """Times the length folds where the length is fixed, and the report records that it is."""
    program = foldfx.capture(Alone(ALONE["R25 times the length"][0]), (ids,), dynamic=False)
    facts = foldfx.analyze(Alone(ALONE["R25 times the length"][0]), (ids,), dynamic=False)
    (output,) = next(node for node in facts if node.op == "output").all_input_nodes
    assert facts[output].token_only
    assert "ids: dimension 1 is 5" in map(str, program.specialised)
