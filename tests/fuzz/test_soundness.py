"""Every claim of the dependence analysis on random graphs, against what the graph computes.

A graph is a few random operations over embedded ids, written as source text so that a failure can be pasted. Several
graphs are captured at once. Each value that is called constant or token-only is then executed in several
surroundings: its layout says which token and which feature every element belongs to, and elements of one token and
one feature must be equal, wherever they stand and whoever their neighbours are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Interpreter, Node

from foldfx import Facts, Program, capture
from foldfx._torch import size_expression
from foldfx.analysis import Fact, analyze_program
from foldfx.analysis.rows import Feature, TokenAxis
from foldfx.passes.region import Region, RegionError
from foldfx.passes.runner import RegionRunner

VOCABULARY, WIDTH, STEPS, RELATIVE = 5, 8, 6, 1e-6

CATALOGUE: dict[str, list[str]] = {
    "pointwise": [
        "{x}.sin()",
        "{x} * 1.5 + 0.25",
        "F.silu({x})",
        "{x} + {y}",
        "{x} * {y}",
        "torch.where({x} > 0.1, {x}, {y})",
        "{x}.masked_fill({y} > 0.3, 0.5)",
        "torch.maximum({x}, {y})",
        "{x} * {x}.shape[{d}]",
        "F.dropout({x}, 0.5, False)",
    ],
    "constants": [
        "{x} + {c}",
        "{c} * {x}",
        "{x} + {c}.unsqueeze(-1)",
        "{x} + torch.arange({x}.shape[{d}]).double()",
        "{x} * torch.ones({x}.shape[{d}], {x}.shape[{e}]).tril().double()",
        "{x} + torch.ones_like({x}).cumsum({d})",
        "torch.zeros_like({x}) + {c}",
        "{x}.new_full(({x}.shape[{d}], 1), 0.5) * {c}",
    ],
    "layout": [
        "{x}.transpose({d}, {e})",
        "{x}.permute({order})",
        "{x}.movedim({d}, {e})",
        "{x}.flatten({d}, {e})",
        "{x}.unsqueeze({d})",
        "{x}.squeeze({d})",
        "{x}.unflatten({d}, (2, -1))",
        "{x}.unflatten({d}, (-1, 2))",
        "{x}.reshape({shape})",
        "{x}.reshape({shape})",
        "{x}.reshape(ids.shape[0], -1)",
        "{x}.reshape(-1, {x}.shape[{d}])",
        "{x}.expand(3, *{x}.shape)",
        "{x}.expand_as({y})",
        "{x}.repeat_interleave(2, {d})",
        "{x}.repeat(2, *({x}.dim() - 1) * (1,))",
        "{x}.tile((2,))",
        "{x}[..., None] + {x}[..., None, :]",
        "{x}[None] * {x}[:, None]",
    ],
    "cut": [
        "{x}.select({d}, 0)",
        "{x}.narrow({d}, 0, 2)",
        "{x}.narrow({d}, 1, {x}.shape[{d}] - 1)",
        "{x}.chunk(2, {d})[1]",
        "{x}.unbind({d})[0]",
        "{x}[..., ::2]",
        "{x}[:, :1]",
        "{x}[:1].expand_as({x})",
        "F.pad({x}, (1, 2))",
        "F.pad({x}, (1, -1))",
        "F.pad({x}, (0, 0, 1, 1))",
        "F.pad({x}, (0, 0, -1, 1))",
        "F.pad({x}, (1, 1), mode='reflect')",
        "{x}.roll(1, {d})",
        "{x}.flip({d})",
    ],
    "reduction": [
        "{x}.sum({d})",
        "{x}.mean({d}, keepdim=True)",
        "{x}.amax({d})",
        "{x}.max({d})[0]",
        "{x}.var({d})",
        "{x}.logsumexp({d})",
        "{x}.norm(dim={d})",
        "{x}.argmax({d}).double()",
        "{x}.mean(({d}, {e}))",
        "{x}.softmax({d})",
        "{x}.cumsum({d})",
        "{x}.sort({d})[0]",
        "{x}.topk(2, {d})[0]",
        "F.glu({x}, {d})",
    ],
    "norm": [
        "F.layer_norm({x}, {x}.shape[-1:])",
        "F.layer_norm({x}, {x}.shape[-2:])",
        "F.rms_norm({x}, {x}.shape[-1:])",
        "F.group_norm({x}, 1)",
        "F.batch_norm({x}, None, None, training=True)",
        "F.normalize({x}, dim={d})",
    ],
    "contraction": [
        "F.linear({x}, {c})",
        "{x} @ {c}",
        "{c} @ {x}",
        "{x} @ {y}",
        "{x} @ {x}.mT",
        "{x}.mT @ {x}",
        "torch.einsum('abc,dc->abd', {x}, {c})",
        "torch.einsum('abc,abd->acd', {x}, {y})",
        "F.conv1d({x}, {c}[..., None])",
        "F.conv1d({x}, {c}[:, :, None].expand(-1, -1, 3), padding=1)",
        "F.max_pool1d({x}, 2, 1)",
        "F.avg_pool1d({x}, 1)",
        "F.scaled_dot_product_attention({x}, {x}, {x})",
    ],
    "indexing": [
        "F.embedding(ids, table)",
        "F.embedding(ids.flatten(), table)",
        "F.one_hot(ids, 5).double() @ table",
        "table[ids]",
        "table.index_select(0, ids.reshape(-1))",
        "table.gather(0, ids.reshape(-1, 1).expand(-1, 8))",
        "{x}[..., {x}.shape[-1] // 2]",
        "{x}.index_select({d}, torch.tensor([1, 0]))",
        "{x}.gather({d}, torch.zeros_like({x}).long())",
        "{x}.gather({d}, {x}.argmax({e}, keepdim=True))",
        "{x}[ids]",
        "{x}[..., ids]",
        "{x}[torch.arange(2)]",
    ],
    "concatenation": [
        "torch.cat([{x}, {y}], {d})",
        "torch.cat([{x}, {x}], {d})",
        "torch.stack([{x}, {y}], {d})",
        "torch.cat([{x}, torch.zeros_like({x})], {d})",
    ],
}  # fmt: skip


class Composed(nn.Module):
    """Runs source lines over embedded ids and returns the value of every line.

    The constants have the sizes of token axes, so that they vary over positions as easily as over features.
    """

    def __init__(self, graphs: Sequence[Sequence[str]] = ()) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        sizes = {"w8": (8,), "w4": (4,), "w2": (2,), "w48": (4, 8), "w88": (8, 8), "w44": (4, 4), "w24": (2, 4), "table": (5, 8)}
        for name, size in sizes.items():
            self.register_buffer(name, torch.randn(size))
        self.graphs = [[compile(line.split(" = ", 1)[1], line, "eval") for line in graph] for graph in graphs]
        self.double().eval()

    def scope(self, ids: torch.Tensor) -> dict[str, Any]:
        return {"torch": torch, "F": F, "ids": ids, "v0": self.embedding(ids), **dict(self.named_buffers())}

    def forward(self, ids: torch.Tensor) -> list[list[torch.Tensor]]:
        results = []
        for graph in self.graphs:
            scope = self.scope(ids)
            for place, code in enumerate(graph, 1):
                scope[f"v{place}"] = eval(code, scope)
            results.append([scope[f"v{place}"] for place in range(1, len(graph) + 1)])
        return results


class Writer:
    """Writes one random graph: each line must run, and stay finite and small, in every surrounding."""

    def __init__(self, rng: random.Random, surroundings: Sequence[torch.Tensor]) -> None:
        model = Composed()
        self.rng = rng
        self.scopes = [model.scope(ids) for ids in surroundings]
        self.static = len({ids.shape for ids in surroundings}) == 1
        self.lines: list[str] = []

    def write(self) -> list[str]:
        while len(self.lines) < STEPS:
            family = self.rng.choice([*CATALOGUE])
            self._try(self._filled(self.rng.choice(CATALOGUE[family])))
        return self.lines

    def _filled(self, template: str) -> str:
        newest = len(self.lines)
        x, y = self.rng.choice([newest, newest, self.rng.randint(0, newest)]), self.rng.randint(0, newest)
        value = self.scopes[0][f"v{x}"]
        rank = max(value.dim(), 1)
        d, e = (self.rng.choice([place, place - rank]) for place in (self.rng.randrange(rank), self.rng.randrange(rank)))
        return template.format(
            x=f"v{x}",
            y=f"v{y}",
            c=self.rng.choice(["w8", "w4", "w2", "w48", "w88", "w44", "w24", "table"]),
            d=d,
            e=e,
            order=self.rng.sample(range(value.dim()), value.dim()),
            shape=self._shape(value) if self.static else self._grouped(value, f"v{x}"),
        )

    def _shape(self, value: torch.Tensor) -> list[int]:
        """A random factorisation of the number of elements."""
        left, shape = value.numel(), []
        while left > 1 and len(shape) < 4:
            size = self.rng.choice([factor for factor in range(2, min(left, 16) + 1) if left % factor == 0] or [left])
            shape.append(size)
            left //= size
        return [*shape, left]

    def _grouped(self, value: torch.Tensor, name: str) -> str:
        """Two neighbouring dimensions together; sizes stay symbols."""
        place = self.rng.randrange(max(value.dim() - 1, 1))
        return f"*{name}.shape[:{place}], -1, *{name}.shape[{place + 2}:]"

    def _try(self, line: str) -> None:
        name = f"v{len(self.lines) + 1}"
        try:
            found = [eval(line, scope) for scope in self.scopes]
        except (RuntimeError, IndexError, ValueError, TypeError, AssertionError):
            return
        sound = all(v.dtype == torch.float64 and v.isfinite().all() and 0 < v.numel() <= 2048 and v.dim() <= 5 for v in found)
        if sound and len({v.dim() for v in found}) == 1:
            for scope, value in zip(self.scopes, found, strict=True):
                scope[name] = value
            self.lines.append(f"{name} = {line}")


class Recorder(Interpreter):
    """Runs a captured graph and keeps every value."""

    def values(self, ids: torch.Tensor) -> dict[Node, Any]:
        self.seen: dict[Node, Any] = {}
        with torch.no_grad():
            self.run(ids)
        return self.seen

    def run_node(self, n: Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


def elements(fact: Fact, value: torch.Tensor, ids: torch.Tensor, symbols: dict[sympy.Symbol, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of its (token, feature) pair for each element of `value`, and the elements in the same order."""
    assert fact.rows is not None
    atoms = [atom for dim in fact.rows for atom in dim]
    sizes = [int(sympy.sympify(atom.size).subs(symbols)) for atom in atoms]
    along = [torch.arange(size).view(*[1] * place, size, *[1] * (len(sizes) - place - 1)) for place, size in enumerate(sizes)]
    index = [torch.zeros(sizes, dtype=torch.long) for _ in range(ids.dim())]
    feature = torch.zeros(sizes, dtype=torch.long)
    for atom, size, digit in zip(atoms, sizes, along, strict=True):
        if isinstance(atom, TokenAxis):
            for _, dim in atom.axes:
                index[dim] = index[dim] + digit * int(sympy.sympify(atom.stride).subs(symbols))
        elif isinstance(atom, Feature):
            feature = feature * size + digit
    token = ids[tuple(index)] if fact.tokens else torch.zeros(sizes, dtype=torch.long)
    return (feature * VOCABULARY + token).flatten(), value.double().reshape(-1)


def check(program: Program, facts: Facts, surroundings: Sequence[torch.Tensor], describe: Any) -> int:
    """Compare every claim with execution; returns how many computed token-only values there were."""
    placeholder = program.input_nodes()[0]
    sizes = [size_expression(size) for size in placeholder.meta["val"].shape]
    runs = [Recorder(program.module).values(ids) for ids in surroundings]
    claimed = 0
    for node, fact in facts.items():
        assert "please report this" not in fact.because.text, f"{describe(node)}\n{facts.explain(node)}"
        if node.op != "call_function" or fact.rows is None or not isinstance(runs[0][node], torch.Tensor):
            continue
        pairs, found = [], []
        for ids, run in zip(surroundings, runs, strict=True):
            symbols = {size: number for size, number in zip(sizes, ids.shape, strict=True) if not size.is_Integer}
            number, value = elements(fact, run[node], ids, symbols)
            pairs.append(number)
            found.append(value)
        pair, value = torch.cat(pairs), torch.cat(found)
        table = value.new_zeros(int(pair.max()) + 1)
        table[pair] = value
        error = value - table[pair]
        worst, relative = error.abs().max().item(), (error.norm() / value.norm().clamp_min(1e-30)).item()
        text = f"{node.name} is not what the analysis says: max-abs {worst:.3g}, relative L2 {relative:.3g}"
        scale = value.abs().max().item()
        assert worst <= RELATIVE * scale, f"{text}\n{describe(node)}\n{facts.explain(node)}"
        assert relative <= RELATIVE, f"{text}\n{describe(node)}\n{facts.explain(node)}"
        claimed += fact.token_only
    return claimed
