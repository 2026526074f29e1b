"""How the model fuzzer writes models: choices drawn by Hypothesis become a printable module, line by line.

A choice is always valid: it is read modulo what there is to choose from, and a line that does not run, or whose value is
large, not finite or ill-conditioned, is left out. So every simpler choice is a model, too, and failures shrink.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

FOLDER = Path(__file__).parent
OPERATIONS: dict[str, list[str]] = tomllib.loads((FOLDER / "operations.toml").read_text())
MODULES: dict[str, list[str]] = tomllib.loads((FOLDER / "modules.toml").read_text())
FAMILIES = [*OPERATIONS.values(), *(MODULES[name] for name in ("modules", "modules", "mixing", "writing", "dtypes", "more"))]

OTHERS = 5
"""Ids of the second token input."""

IDS = [
    "ids",
    "ids",
    "ids",
    "others",
    "(ids + 1) % {v}",
    "ids.roll(1, -1)",
    "ids.flip(0)",
    "ids.mT",
    "ids[..., None]",
    "ids.int()",
]

STATE = {
    "emb": "nn.Embedding({v}, {width})",
    "small": "nn.Embedding({v}, 8)",
    "table": "nn.Parameter(torch.randn({v}, 8))",
    "proj": "nn.Linear({width}, 8)",
    "lin": "nn.Linear(8, 8)",
    "up": "nn.Linear({width}, 24)",
    "norm": "nn.LayerNorm(8)",
    "rms": "nn.RMSNorm(8)",
    "conv": "nn.Conv1d(8, 8, 1)",
    "conv3": "nn.Conv1d(8, 8, 3, padding=1)",
    "group": "nn.GroupNorm(2, 8)",
    "batch": "nn.BatchNorm1d(8)",
    "glu": "nn.Sequential(nn.Linear(8, 16), nn.GLU())",
    "drop": "nn.Dropout()",
    "positions": "nn.Parameter(torch.randn(8, 8))",
    **{
        name: f"nn.Buffer(torch.randn({size}))"
        for name, size in {"w8": "8", "w4": "4", "w2": "2", "w48": "4, 8", "w88": "8, 8", "w44": "4, 4", "w24": "2, 4"}.items()
    },
    "calls": "nn.Buffer(torch.ones(()))",
}
CONSTANTS = ["w8", "w4", "w2", "w48", "w88", "w44", "w24", "table"]
TIED = "self.small.weight = self.table"

SHAPES: list[list[tuple[int, ...]]] = [
    [(2, 3)], [(2, 3), (3, 4)], [(2, 4)], [(4,)], [(2, 3), (4, 2)], [(2, 2, 2)], [(3,), (5,)], [(2, 3), (5, 4)],
]  # fmt: skip
"""Shapes of the ids: the first is traced; where there are others, sizes are symbols."""

DTYPES = [torch.float64, torch.float32, torch.float32, torch.bfloat16]
NOISE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 4e-3}
AMPLIFIED = 40

Inputs = dict[str, Tensor]
Picks = tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """What the models of one source share."""

    vocabulary: int
    width: int
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    everything_dynamic: bool
    stated: bool
    objective: str

    def head(self) -> str:
        dynamic = len(self.shapes) > 1 and ("True" if self.everything_dynamic else '"auto"')
        lines = {
            "TOKENS": f'{{"ids": {self.vocabulary}, "others": {OTHERS}}}' if self.stated else None,
            "SHAPES": self.shapes,
            "DYNAMIC": dynamic,
            "OBJECTIVE": f'"{self.objective}"',
            "VOCABULARY": self.vocabulary,
        }
        return "".join(f"{name} = {value}\n" for name, value in lines.items())


@dataclass(frozen=True)
class Model:
    """Choices for one model: numbers for its first value, for each further line, and for what it returns."""

    start: Picks
    steps: Sequence[Picks]
    outputs: Picks
    tied: bool


_numbers = st.integers(0, 5039)  # divisible by every small number, so that remainders are equally likely
models = st.builds(
    Model,
    st.tuples(*[_numbers] * 3),
    st.lists(st.tuples(*[_numbers] * 9), min_size=2, max_size=11),
    st.tuples(*[_numbers] * 4),
    st.booleans(),
)
settings = st.builds(
    Setting,
    st.sampled_from([7, 5, 6, 8]),
    st.sampled_from([64, 32, 8]),
    st.sampled_from(SHAPES),
    st.sampled_from(DTYPES),
    st.sampled_from([False, False, True]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["storage", "storage", "storage", "storage", "latency"]),
)


@dataclass
class Choices:
    """Reads numbers as choices, one after the other."""

    numbers: Picks
    place: int = 0

    def of(self, count: int) -> int:
        number = self.numbers[self.place % len(self.numbers)]
        self.place += 1
        return number % count

    def one(self, options: Sequence[Any]) -> Any:
        return options[self.of(len(options))]


def inputs_for(shape: tuple[int, ...], vocabulary: int, numbers: torch.Generator) -> Inputs:
    """A call: two token inputs, hidden states and a mask."""
    return {
        "ids": torch.randint(vocabulary, shape, generator=numbers),
        "others": torch.randint(OTHERS, shape, generator=numbers),
        "hidden": torch.randn(*shape, 8, generator=numbers),
        "mask": torch.rand(shape, generator=numbers) < 0.6,
    }


@dataclass
class Writer:
    """Writes one model; every line has run on every shape."""

    setting: Setting
    model: Model
    seed: int
    lines: list[str] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._restart()
        start = Choices(self.model.start)
        self._try(start.one(MODULES["start"]), start)
        if not self.lines:
            self._try("F.embedding(ids, table)", start)
        for numbers in self.model.steps:
            choices = Choices(numbers)
            self._try(choices.one(choices.one(FAMILIES)), choices)

    def _restart(self) -> None:
        """Fresh scopes: one for each shape, and one whose state is perturbed; the lines so far are run again."""
        numbers = torch.Generator().manual_seed(self.seed)
        calls = [
            inputs_for(shape, self.setting.vocabulary, numbers) for shape in [*self.setting.shapes, self.setting.shapes[0]]
        ]
        calls[-1] = {name: value.clone() for name, value in calls[0].items()}
        self.scopes = [{"self": self._module(), "torch": torch, "F": F, "nn": nn, **call} for call in calls]
        noise = NOISE[self.setting.dtype]
        for tensor in self.scopes[-1]["self"].state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1 + noise * torch.randn(tensor.shape, generator=numbers, dtype=torch.float64).to(tensor.dtype))
        for scope in self.scopes:
            for line in self.lines:
                _execute(line, scope)

    def _module(self) -> nn.Module:
        scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
        exec(self.text("M", [], "None", [*STATE]), scope)
        module: nn.Module = scope["M"]()
        return module

    def _pool(self) -> list[str]:
        return [name for name, value in self.scopes[0].items() if re.fullmatch(r"v\d+", name) and isinstance(value, Tensor)]

    def _filled(self, template: str, choices: Choices) -> str:
        pool = self._pool() or ["w8"]
        floats = [name for name in pool if self.scopes[0].get(name, torch.ones(1)).is_floating_point()] or pool
        x = [*reversed(floats), *floats[-1:] * 2, *pool][choices.of(2 * len(floats[:1]) + len(floats) + len(pool))]
        value = self.scopes[0].get(x, torch.ones(8))
        d, e = (choices.of(2 * value.dim()) - value.dim() for _ in range(2))
        left = [*range(value.dim())]
        order = [left.pop(choices.of(len(left))) for _ in range(value.dim())]
        text = template.format(
            x=x,
            y=choices.one([*reversed(pool), "small(others)"]),
            i=choices.one(IDS).format(v=self.setting.vocabulary),
            c=choices.one(CONSTANTS),
            v=self.setting.vocabulary,
            d=d,
            e=e,
            order=order,
            shape=self._shape(x, value, d, choices),
        )
        return re.sub(rf"(?<![\w.'])({'|'.join(STATE)})\b", r"self.\1", text)

    def _shape(self, x: str, value: Tensor, d: int, choices: Choices) -> Any:
        if len(self.setting.shapes) > 1:
            return f"*{x}.shape[:{d}], -1, *{x}.shape[{d}:][2:]"
        shape, left = [], value.numel()
        while left > 1 and len(shape) < 4:
            shape.append(choices.one([factor for factor in range(2, left + 1) if left % factor == 0]))
            left //= shape[-1]
        return [*shape, left]

    def _try(self, template: str, choices: Choices) -> None:
        filled = self._filled(template, choices)
        name = f"v{len(self.lines)}"
        writes = bool(re.search(r"\w_\(|(?<![=!<>])=(?!=)\s?[^,()]*$", filled))
        if writes and "=" in filled and not filled.endswith(")"):
            filled = f"{filled}; {name} = {filled.split('[')[0]}"
        else:
            filled = f"{name} = {filled.replace('.double()', _cast(self.setting.dtype))}"
        try:
            values = [_execute(filled, scope)[name] for scope in self.scopes]
            fine = all(map(_fine, values)) and len({value.dim() for value in values}) == 1 and self._conditioned()
        except Exception:  # whatever torch raises: such a line is no model
            fine = False
        if fine:
            self.lines.append(filled)
        elif writes:
            self._restart()
        else:
            for scope in self.scopes:
                scope.pop(name, None)

    def _conditioned(self) -> bool:
        """Whether a perturbed state gives nearly the same values: rounding must not decide what a model returns."""
        one, other = self.scopes[0], self.scopes[-1]
        limit = AMPLIFIED * NOISE[self.setting.dtype]
        pairs = [(one[name], other[name]) for name in self._pool()]
        return all(_near(a, b, limit if a.dtype != torch.bfloat16 else AMPLIFIED * 4e-3) for a, b in pairs)

    def source(self) -> str:
        """The module as text; values that nothing reads are returned."""
        names = [
            line.split(" = ")[0].split("; ")[-1] if ";" not in line else line.split("; ")[1].split(" = ")[0]
            for line in self.lines
        ]
        names = [name for name in names if name in self.scopes[0]]
        read = " ".join(line.partition(" = ")[2] for line in self.lines)
        sinks = [name for name in names if not re.search(rf"\b{name}\b", read)] or names[-1:]
        choices = Choices(self.model.outputs)
        returned = [*dict.fromkeys([*sinks, *(choices.one(names) for _ in range(choices.of(2)))])]
        body = "\n".join(self.lines)
        used = [name for name in STATE if re.search(rf"self\.{name}\b", body)]
        return self.text(f"Model{self.seed}", self.lines, _nested(returned, choices), used)

    def text(self, name: str, lines: Sequence[str], returned: str, used: Sequence[str]) -> str:
        sizes = {"v": self.setting.vocabulary, "width": self.setting.width}
        state = [f"self.{each} = {STATE[each].format(**sizes)}" for each in used]
        tied = [TIED] * (self.model.tied and {"small", "table"} <= set(used))
        init = ["super().__init__()", f"torch.manual_seed({self.seed})", *state, *tied, f"self.to({self.setting.dtype}).eval()"]
        return "\n".join(
            [
                f"class {name}(nn.Module):",
                "    def __init__(self):",
                *(f"        {line}" for line in init),
                "",
                "    def forward(self, ids, others, hidden, mask):",
                *(f"        {line}" for line in lines),
                f"        return {returned}",
                "",
            ]
        )


def _cast(dtype: torch.dtype) -> str:
    return f".to({dtype})"


def _execute(line: str, scope: dict[str, Any]) -> dict[str, Any]:
    with torch.no_grad():
        exec(line, scope)
    return scope


def _fine(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_complex() or not 0 < value.numel() <= 2048 or not 0 < value.dim() <= 5:
        return False
    return bool(value.double().isfinite().all()) and float(value.double().abs().max()) <= 30


def _near(one: Tensor, other: Tensor, limit: float) -> bool:
    if one.shape != other.shape:
        return False
    return (
        torch.equal(one, other) if not one.is_floating_point() else float((one.double() - other.double()).abs().max()) <= limit
    )


def _nested(names: Sequence[str], choices: Choices) -> str:
    """The outputs as one tensor, a tuple, or a tree."""
    ways = [f"({', '.join(names)},)", names[0] if len(names) == 1 else f"[{', '.join(names)}]"]
    ways.append(f'{{"first": {names[0]}, "rest": [{", ".join(names[1:])}]}}')
    ways.append(f"({names[0]}, {{'a': ({', '.join(names)},)}})")
    return str(choices.one(ways))


def sources(setting: Setting, batch: Sequence[Model]) -> Iterator[str]:
    """Each model's class; they are named Model0, Model1, …"""
    for place, model in enumerate(batch):
        yield Writer(setting, model, place).source()


def together(setting: Setting, batch: Sequence[Model]) -> str:
    """One file with all of them."""
    return "\n\n".join([setting.head(), *sources(setting, batch)])
