"""The small models, each captured once in a process, with the calls that complete outputs are compared on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.analysis.rules import RULES

VOCABULARY, KINDS, WIDTH, OUT = 11, 7, 32, 8
POSITIONS = 3
"""Every example has so many, so only the probes see other lengths."""
SEEN = 6
"""The examples use ids below this one only, so faults in the other rows show in the checks of the tables alone."""


class Reader(nn.Module):
    """Folds over two token inputs; outputs of every kind, each with its own way of going wrong; a count of the calls."""

    calls: Tensor
    codes: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0), nn.Embedding(KINDS, WIDTH)
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)
        self.scale = nn.Parameter(torch.rand(OUT) + 1)
        self.register_buffer("codes", torch.randint(100, 200, (VOCABULARY, 8)))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("shift", torch.randn(OUT), persistent=False)

    def forward(self, ids: Tensor, kinds: Tensor, hidden: Tensor, *, bias: Tensor) -> dict[str, Tensor | None]:
        values = torch.relu(self.up(self.norm(self.words(ids))))
        scores = values * self.scale + hidden
        self.calls += 1
        return {
            "scores": scores,
            "copy": scores.clone(),
            "flat": scores.view(-1),
            "residual": values + hidden,
            "sums": self.down(self.kinds(kinds)).cumsum(1) + bias,
            "mean": scores.sum(1) / ids.shape[1],
            "long": self.kinds(kinds) * kinds.shape[1],
            "code": F.embedding(ids, self.codes).sum(-1),
            "top": scores.argmax(-1),
            "pair": ids * kinds,
            "next": ids + 1,
            "next_float": ids + 1.0,
            "gate": torch.relu(hidden),
            "small": hidden * 1e-4,
            "twice": hidden * 2,
            "double": hidden * 2,
            "given": hidden.clone(),
            "state": self.scale.clone(),
            "shifted": hidden + self.shift,
            "count": self.calls.clone(),
            "none": None,
        }


class Sampler(nn.Module):
    """bfloat16, random numbers, a head tied to the embedding, an input it writes to, a LayerNorm over the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight
        self.over_positions = nn.LayerNorm(POSITIONS)
        self.bfloat16()

    def forward(self, ids: Tensor, cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.words(ids)
        normed = self.over_positions(rows.transpose(1, 2))
        logits = self.head(torch.tanh(rows.cumsum(1))) / 64
        noise = torch.rand(WIDTH, dtype=torch.float32)
        cache.add_(rows.sum((0, 1)))
        return logits, normed, rows + noise.to(rows.dtype)


@torch.library.custom_op("foldfx_mutants::rounded", mutates_args=())
def rounded(x: Tensor, ulps: int, counts: Sequence[int]) -> Tensor:
    """Hands its operand on; in calls of certain row counts some ulps further, as a kernel that rounds otherwise there."""
    moved = x.numel() // x.shape[-1] in counts
    return (x.contiguous().view(torch.int32) + (ulps if moved else 0)).view(torch.float32)


@rounded.register_fake
def _(x: Tensor, ulps: int, counts: Sequence[int]) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


ROUNDED: Any = torch.ops.foldfx_mutants.rounded.default


class Rounder(nn.Module):
    """Ids computed on by a kernel that rounds otherwise in calls of some row counts, which no example and no probe has."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.counts = list(counts)
        self.words = nn.Embedding(VOCABULARY, 8 * OUT)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = ROUNDED(self.words(ids).unflatten(-1, (8, OUT)).amax(-2), 4096, self.counts)
        return result


class Chooser(nn.Module):
    """Scores that calls of some row counts have a few ulps higher, far within the limits, and a threshold that one is on."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.counts = list(counts)
        self.words = nn.Embedding(VOCABULARY, 8 * OUT)
        with torch.no_grad():
            self.words.weight[-1].unflatten(-1, (8, OUT))[:, 0] = 0.5

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        scores: Tensor = ROUNDED(self.words(ids).unflatten(-1, (8, OUT)).amax(-2), 4, self.counts)
        return scores.cumsum(1), scores > 0.5


class Router(nn.Module):
    """Experts on a hidden value, chosen and weighed by the id alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 6)
        self.experts = nn.Parameter(torch.randn(6, OUT))

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        top = self.gate(self.words(ids)).topk(3)
        weights = top.values.softmax(-1)
        return hidden + (weights[..., None] * self.experts[top.indices]).sum(-2)


class Mixer(nn.Module):
    """Chooses by a running sum over two positions; for the ids 9, 10 in this order the best two scores are a bit apart."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 4)
        self.experts = nn.Parameter(torch.randn(4, OUT))
        with torch.no_grad():
            self.words.weight[9], self.words.weight[10] = torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([2.0, 1.0, 0.0, 0.0])
            self.words.weight[10, 1] += 2**-22

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.experts[self.words(ids).cumsum(1).argmax(-1)]
        return result


@dataclass(frozen=True)
class Subject:
    """A model, its graph, and the calls."""

    model: nn.Module
    program: foldfx.Program
    examples: list[foldfx.Example]


def _read(batch: int, seen: int = SEEN) -> foldfx.Example:
    shape = (batch, POSITIONS)
    ids = torch.randint(seen, shape)
    ids[0, 0] = seen - 1
    args = (ids, torch.randint(KINDS, shape), torch.randn(*shape, OUT))
    return foldfx.Example(args, {"bias": torch.randn(OUT)})


def _sample() -> foldfx.Example:
    return foldfx.Example((torch.randint(SEEN, (2, POSITIONS)), torch.zeros(WIDTH, dtype=torch.bfloat16)))


def _round(batch: int) -> foldfx.Example:
    return foldfx.Example((torch.randint(SEEN, (batch, 5)),))


def _route(batch: int) -> foldfx.Example:
    return foldfx.Example((torch.randint(SEEN, (batch, POSITIONS)), torch.randn(batch, POSITIONS, OUT)))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[foldfx.Example]], bool]] = {
    "reader": (Reader, lambda: [_read(2, 4), _read(5)], True),
    "sampler": (Sampler, lambda: [_sample(), _sample()], False),
    "rounder": (lambda: Rounder(1), lambda: [_round(3), _round(4)], True),
    "rounder of a dozen": (lambda: Rounder(12, 13), lambda: [_round(3), _round(4)], True),
    "router": (Router, lambda: [_route(2), _route(5)], True),
    "mixer": (Mixer, lambda: [foldfx.Example((torch.randint(SEEN, (3, 2)),))], True),
    "rounder of 64": (lambda: Rounder(64), lambda: [_round(3), _round(4)], True),
    "chooser": (lambda: Chooser(1), lambda: [_round(3), _round(4)], True),
    "chooser of six": (lambda: Chooser(6), lambda: [_round(3), _round(4)], True),
}
"""How each is made, its calls, and whether sizes are symbolic."""


@cache
def subject(name: str) -> Subject:
    """The model of that name, the same whatever random numbers were drawn before."""
    RULES._rules.setdefault(ROUNDED, lambda call: call.operand("x").rows)
    make, calls, dynamic = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, examples = make().eval(), calls()
    return Subject(model, foldfx.capture(model, examples[0].args, examples[0].kwargs, dynamic=dynamic), examples)
