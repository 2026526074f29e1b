"""One source of fuzzed models: compiled, attacked, and compared with the originals on calls of other shapes."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import Node
from torch.utils._pytree import tree_flatten

import foldfx
from foldfx import Example, Limits, Program, TokenInput
from foldfx._torch import is_data_dependent, static_size
from foldfx.analysis import analyze_program
from foldfx.errors import FoldfxError

from .attack import EXACT, RELATIVE, Inputs, admitted, claims, unsound
from .discovery import BASES, observe, token_only
from .grammar import OTHERS, inputs_for


@dataclass
class Tally:
    """What a run has seen, to be printed."""

    models: int = 0
    compiled: int = 0
    folded: int = 0
    claims: int = 0
    calls: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    proved: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    @property
    def completeness(self) -> float:
        """The share of the token-only operation nodes found that is proved."""
        found = self.proved.total() + self.missing.total()
        return self.proved.total() / found if found else 1.0

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        rows = [
            f"{self.models} models in {seconds:.0f} s ({self.models / seconds:.2f} a second)",
            f"{len(self.operations)} operations, {self.claims} claims attacked, {self.calls} calls of fresh shapes compared",
            f"{self.compiled} compiled, {self.folded} folded ({self.folded / max(self.compiled, 1):.0%})",
            f"runs: {dict(self.statuses)}",
            f"completeness {self.completeness:.2%}: {self.proved.total()} proved, {self.missing.total()} missed",
            *(f"  missed {count} × {what}" for what, count in self.missing.most_common(40)),
            *(f"  refused {count} × {what}" for what, count in self.refusals.most_common(12)),
        ]
        return "\n".join(rows)


class Together(nn.Module):
    """Several models on the same inputs."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.eval()

    def forward(self, ids: Tensor, others: Tensor, hidden: Tensor, mask: Tensor) -> Any:
        return [model(ids, others, hidden, mask) for model in self.models]


@dataclass
class Trial:
    """The models of one source text, under one setting."""

    text: str
    tally: Tally
    seed: int = 0

    def __post_init__(self) -> None:
        scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
        exec(self.text, scope)
        self.classes = [value for name, value in scope.items() if name.startswith("Model")]
        self.tokens = scope["TOKENS"]
        self.shapes = scope["SHAPES"]
        self.dynamic = scope["DYNAMIC"]
        self.objective = scope["OBJECTIVE"]
        self.vocabulary = scope["VOCABULARY"]
        self.numbers = torch.Generator().manual_seed(self.seed)

    def check(self) -> None:
        """Everything a model is held to.

        Raises:
            AssertionError: with the module, ready to paste.
        """
        self.tally.models += len(self.classes)
        refusal = self._check(self.classes)
        if refusal is None:
            return
        singles = [[each] for each in self.classes] if len(self.classes) > 1 else []
        refusals = [self._check(single) for single in singles] if singles else [refusal]
        if not any(refusals):  # sizes that one model fixes are fixed for all
            refusals = [self._check(single, fixed=True) for single in singles]
        assert any(refusals), self._failed(f"refused together, though each one compiles: {refusal}")
        for each in refusals:
            if each is not None:
                assert str(each).strip(), self._failed("refused without a reason")
                self.tally.refusals[f"{type(each).__name__}: {str(each)[:150]}"] += 1

    def _failed(self, why: str) -> str:
        return f"{why}\n\n{self.text}"

    def _call(self, shape: tuple[int, ...]) -> Inputs:
        return inputs_for(shape, self.vocabulary, self.numbers)

    def _check(self, classes: Sequence[type[nn.Module]], *, fixed: bool = False) -> FoldfxError | None:
        model = Together([each() for each in classes])
        before, copy = state_hash(model), deepcopy(model)
        example = self._call(self.shapes[0])
        dims: Any = not fixed and self.dynamic
        if dims == "auto":
            dims = {name: [Dim.AUTO] * len(self.shapes[0]) for name in example}
            dims["hidden"] = [*dims["hidden"], Dim.STATIC]
        elif dims is True and len(self.shapes) == 1:
            dims = False
        tokens = None if self.tokens is None else [TokenInput(name, size) for name, size in self.tokens.items()]
        latency = {"objective": "latency", "max_table_bytes": 1 << 20} if self.objective == "latency" else {}
        try:
            result = foldfx.compile(model, [Example(tuple(example.values()))], tokens=tokens, dynamic=dims, **latency)
        except FoldfxError as refusal:
            assert state_hash(model) == before, self._failed("a refused compile changed the model")
            return refusal
        except Exception as error:
            raise AssertionError(self._failed(f"compile crashed: {type(error).__name__}: {error}")) from error
        assert state_hash(model) == before, self._failed("compile changed the model")
        assert not (since := _fixed_since(result._run.captured)), self._failed(f"compile fixed sizes: {since}")
        self._count(result, classes)
        self._differential(copy, result.module)
        assert state_hash(model) == before, self._failed("a call of the result changed the model")
        self._attack(result._run.captured)
        return None

    def _count(self, result: foldfx.Result, classes: Sequence[type[nn.Module]]) -> None:
        removed = [name for rewrite in result.report.data["rewrites"] for name in rewrite["removed"]]
        self.tally.compiled += len(classes)
        self.tally.folded += len({name.split(".")[1] for name in removed})
        self.tally.statuses[result.status] += 1

    def _differential(self, original: nn.Module, compiled: nn.Module) -> None:
        """On fresh calls, one after the other, so that buffers the models write count as well."""
        other = [tuple(size + 1 + place for place, size in enumerate(shape)) for shape in self.shapes]
        for shape in [*self.shapes, *other, *([(1, *self.shapes[0][1:])] if self.dynamic is True else [])]:
            mine, theirs = (dict(self._call(shape)) for _ in range(2))
            theirs = {name: value.clone() for name, value in mine.items()}
            saved = {name: value.clone() for name, value in original.state_dict().items()}
            with torch.no_grad():
                try:
                    expected = original(**mine)
                except Exception:
                    original.load_state_dict(saved)
                    continue
                try:
                    found = compiled(**theirs)
                except (AssertionError, FoldfxError):  # the guards: sizes that were not captured
                    assert shape != self.shapes[0], self._failed("the compiled model refuses the example's own shape")
                    original.load_state_dict(saved)
                    continue
                except Exception as error:
                    raise AssertionError(self._failed(f"at {shape} only the compiled model raises {error!r}")) from error
            self.tally.calls += 1
            if wrong := difference((expected, mine), (found, theirs)):
                raise AssertionError(self._failed(f"at shape {shape} the compiled model differs: {wrong}"))

    def _attack(self, program: Program) -> None:
        facts = analyze_program(program)
        for node, fact in facts.items():
            assert "please report this" not in fact.because.text, self._failed(f"a rule is defective:\n{facts.explain(node)}")
        self.tally.operations.update(str(node.target) for node in program.graph.nodes if node.op == "call_function")
        other = [tuple(size + 1 for size in shape) for shape in self.shapes]
        calls = [self._call(shape) for shape in [*self.shapes * 2, *other * 2, *self.shapes]]
        calls[1]["ids"] = calls[1]["ids"].mT.contiguous().mT if calls[1]["ids"].dim() > 1 else calls[1]["ids"]
        calls.append(_alike(calls[0]))
        calls = [inputs for inputs in calls if admitted(program, inputs)]
        assert calls, self._failed("the captured graph takes no call")
        for node, wrong in unsound(program, facts, calls, max(self.vocabulary, OTHERS)):
            raise AssertionError(self._failed(f"unsound: {node.name}: {wrong}\n{facts.explain(node)}"))
        self.tally.claims += len([*claims(facts)])
        self._complete(program, facts)

    def _complete(self, program: Program, facts: foldfx.Facts) -> None:
        unproved = []
        for node, fact in facts.items():
            if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor):
                if fact.token_only and fact.rows is not None:
                    self.tally.proved[str(node.target)] += 1
                elif not fact.constant and not any(map(is_data_dependent, node.meta["val"].shape)):
                    unproved.append(node)
        if not unproved:
            return
        sizes = {"ids": self.vocabulary, "others": OTHERS}
        observed = []
        for shape in dict.fromkeys(self.shapes):
            calls = [self._call(shape) for _ in range(BASES + 9)]
            if admitted(program, alike := _alike(calls[0])):
                calls[BASES - 1] = alike
            if all(admitted(program, inputs) for inputs in calls):
                observed.append(observe(program, unproved, calls[:BASES], calls[BASES:], sizes))
        found: set[Node] = set()
        for node in unproved:
            if token_only(node, observed, max(RELATIVE.get(node.meta["val"].dtype, EXACT), EXACT)):
                found.add(node)
                culprit = facts.refusal(node)
                self.tally.missing[f"{node.target}, lost at {culprit.target}: {facts[culprit].because.text[:90]}"] += 1


def _alike(inputs: Inputs) -> Inputs:
    """The same everywhere: what a random call has somewhere (`any`, `amax`) is nowhere."""
    return {name: torch.zeros_like(value) for name, value in inputs.items()}


def _fixed_since(program: Program) -> list[str]:
    """Sizes of inputs that are numbers now, and were not when the program was captured."""
    known = {f"{each.input}: {each.what}" for each in program.specialised}
    sizes = [
        (node.name, dim, static_size(size)) for node in program.input_nodes() for dim, size in enumerate(node.meta["val"].shape)
    ]
    fixed = [f"{name}: dimension {dim} is {size}" for name, dim, size in sizes if size is not None]
    return [each for each in fixed if each not in known]


def state_hash(model: nn.Module) -> str:
    """SHA-256 of everything a model holds: tensors with their bits and strides, and plain attributes."""
    digest = hashlib.sha256()
    for path, module in model.named_modules():
        plain = {name: repr(value) for name, value in vars(module).items() if not isinstance(value, dict)}
        digest.update(repr((path, type(module).__name__, sorted(plain.items()))).encode())
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        bits = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else str(tensor.item()).encode()
        digest.update(repr((name, id(tensor), tensor.data_ptr(), tensor.stride(), tensor.requires_grad)).encode() + bits)
    return digest.hexdigest()


def difference(expected: Any, found: Any) -> str:
    """What is beyond the documented limits, which hold for values of the size of one; "" where nothing is."""
    one, structure = tree_flatten(expected)
    other, found_structure = tree_flatten(found)
    if structure != found_structure:
        return f"structure {found_structure}, not {structure}"
    limits = Limits()
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {place} is {b.dtype} {tuple(b.shape)}, not {a.dtype} {tuple(a.shape)}"
        if a.is_floating_point() and a.numel():
            both = a.isnan() & b.isnan()
            x, y = a.double().masked_fill(both, 0.0), b.double().masked_fill(both, 0.0)
            limit = limits.max_abs[a.dtype] * max(1.0, float(x.abs().max()))
            if not float((x - y).abs().max()) <= limit:
                return f"output {place}, {a.dtype}: by {float((x - y).abs().max()):.3g}, at most {limit:.3g}"
        elif not torch.equal(a, b):
            return f"output {place}, {a.dtype}: values differ"
    return ""
