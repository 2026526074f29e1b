"""The tables of whole models are the cheapest ones: bytes after a fold against every choice, priced from shapes alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx

MODELS, FLOAT, HIDDEN = 36, 4, 16
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "sin": torch.sin, "silu": F.silu}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "mul": torch.mul}
MAKERS: dict[str, Callable[[int, int, bool], nn.Module]] = {
    "embedding": lambda rows, width, _: nn.Embedding(rows, width),
    "linear": lambda rows, width, bias: nn.Linear(width, rows, bias),
    "norm": lambda _, width, bias: nn.LayerNorm(width, bias=bias),
}
Agree = Callable[..., None]


@dataclass(frozen=True)
class Value:
    """One operation of a model: what it reads, the module it calls, and the width of its rows."""

    operation: str
    operands: tuple[int, ...]
    module: str
    width: int


@dataclass
class Plan:
    """A model to be: values in order, the shapes of the modules they call, and what leaves the region.

    Attributes:
        outputs: values that are returned as they are.
        taps: values that a sum over positions reads.
        held: modules that are also called on the caller's hidden state, or "".
    """

    vocabulary: int
    values: list[Value] = field(default_factory=list)
    modules: dict[str, tuple[str, int, int, bool]] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    taps: list[int] = field(default_factory=list)
    held: str = ""

    def needed(self) -> set[int]:
        found, stack = set[int](), [*self.outputs, *self.taps]
        while stack:
            place = stack.pop()
            found.add(place)
            stack += self.values[place].operands
        return found


class Model(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        used = {plan.values[place].module for place in plan.needed()} | {plan.held}
        for name, (kind, rows, width, bias) in plan.modules.items():
            if name in used:
                self.add_module(name, MAKERS[kind](rows, width, bias))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        wanted = self.plan.needed()
        for place, value in enumerate(self.plan.values):
            read = [found[operand] for operand in value.operands]
            found.append(self.run(value, read, ids) if place in wanted else hidden)
        context = [self.get_submodule(self.plan.held)(hidden)] if self.plan.held else []
        taps = [found[place].cumsum(1) for place in self.plan.taps]
        return [found[place] for place in self.plan.outputs] + taps + context

    def run(self, value: Value, read: list[Tensor], ids: Tensor) -> Tensor:
        if value.module:
            result: Tensor = self.get_submodule(value.module)(*(read or [ids]))
            return result
        if value.operation == "half":
            return read[0][..., : value.width]
        return (POINTWISE | JOINS)[value.operation](*read)


def random_plan(number: int) -> Plan:
    """Diamonds, joins, branches, shared linears, slices; several values leave, some as residual taps."""
    rng = random.Random(number)
    plan = Plan(rng.choice((7, 13, 29)))
    for _ in range(rng.choice((1, 1, 2))):
        grow(plan, rng, "embedding")
    while len(plan.values) < rng.randint(5, 9):
        grow(plan, rng, rng.choice(("linear", "linear", "linear", "norm", "half", *POINTWISE, *JOINS)))
    last = len(plan.values) - 1
    plan.taps = [last, *rng.sample(range(last), rng.choice((0, 1, 2)))]
    whole = [place for place in range(last) if plan.values[place].operation != "half"]
    plan.outputs = rng.sample(whole, rng.choice((0, 0, 1, 2)))
    fitting = [name for name, (kind, _, width, _) in plan.modules.items() if (kind, width) == ("linear", HIDDEN)]
    plan.held = rng.choice([*fitting, *fitting, ""])
    return plan


def grow(plan: Plan, rng: random.Random, operation: str) -> None:
    """One more value, if there are operands for it and it is not there already."""
    widths = [value.width for value in plan.values]
    read = tuple(sorted(rng.sample(range(len(widths)), min(2 if operation in JOINS else 1, len(widths)))))
    if operation in JOINS and len({widths[place] for place in read}) != len(read) - 1:
        return
    width = widths[read[0]] if read else 0
    module = ""
    if operation == "embedding":
        read, width, module = (), rng.choice((16, 24)), f"embedding{len(widths)}"
        plan.modules[module] = ("embedding", plan.vocabulary, width, False)
    elif operation == "linear":
        fitting = [name for name, (kind, _, inner, _) in plan.modules.items() if (kind, inner) == ("linear", width)]
        module = rng.choice([*fitting, f"linear{len(widths)}"])
        made = ("linear", rng.choice((4, 8, 16, 24)), width, rng.random() < 0.5)
        width = plan.modules.setdefault(module, made)[1]
    elif operation == "norm":
        module = f"norm{len(widths)}"
        plan.modules[module] = ("norm", 0, width, True)
    elif operation == "half":
        width //= 2
    value = Value(operation, read, module, width)
    if value not in plan.values and width >= 2:
        plan.values.append(value)


def module_bytes(plan: Plan, name: str) -> int:
    kind, rows, width, bias = plan.modules[name]
    return FLOAT * {"embedding": rows * width, "norm": 2 * width, "linear": rows * width + bias * rows}[kind]


def price(plan: Plan, tables: Sequence[int]) -> int:
    """Bytes of the tables and of every module still called."""
    called, stack, seen = {plan.held} - {""}, [*plan.outputs, *plan.taps], set[int]()
    while stack:
        place = stack.pop()
        if place not in seen and place not in tables:
            called |= {plan.values[place].module} - {""}
            stack += plan.values[place].operands
        seen.add(place)
    rows = sum(plan.values[place].width for place in tables)
    return plan.vocabulary * FLOAT * rows + sum(module_bytes(plan, name) for name in called)


def choices(plan: Plan) -> Iterator[tuple[int, ...]]:
    for count in range(len(plan.needed()) + 1):
        yield from combinations(sorted(plan.needed()), count)


def cheapest(plan: Plan) -> int:
    return min(price(plan, tables) for tables in choices(plan))


def state_bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def call(vocabulary: int) -> tuple[Tensor, Tensor]:
    return torch.randint(vocabulary, (3, 5)), torch.randn(3, 5, HIDDEN)


@pytest.mark.parametrize("number", range(MODELS))
def test_no_choice_of_tables_holds_fewer_bytes(number: int, agree: Agree) -> None:
    plan = random_plan(number)
    model = Model(plan)
    assert state_bytes(model) == price(plan, ())
    result = foldfx.compile(model, [foldfx.Example(call(plan.vocabulary))], dynamic=False)
    storage = result.report.to_dict()["storage"]
    assert storage["after"] == {"logical": cheapest(plan), "backing": cheapest(plan)}, plan
    assert state_bytes(result.module) == cheapest(plan)
    assert result.accepted is (cheapest(plan) < price(plan, ()))
    for _ in range(2):
        args = call(plan.vocabulary)
        agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)


def test_the_sample_holds_every_kind_of_ending() -> None:
    """Models to be left alone, single tables, several tables, and tables beside modules that stay."""
    kinds = set()
    for plan in map(random_plan, range(MODELS)):
        best = min(choices(plan), key=lambda tables: (price(plan, tables), len(tables)))
        kept = price(plan, best) > plan.vocabulary * FLOAT * sum(plan.values[place].width for place in best)
        kinds.add((min(len(best), 2), kept))
    assert kinds == {(0, True), (1, True), (1, False), (2, True), (2, False)}


class Held(nn.Module):
    """Two narrow columns and a projection of an embedding that another name may hold in memory."""

    def __init__(self, held: bool) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(13, 16), nn.Linear(16, 24)
        self.unread = self.embedding.weight if held else None
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.embedding(ids)
        return torch.sin(self.project(rows)).cumsum(1).mean(-1) + (rows[..., 0] * rows[..., 1]).cumsum(1)


@pytest.mark.parametrize("held", [False, True])
def test_memory_that_is_held_anyway_costs_nothing_to_read(held: bool, agree: Agree) -> None:
    """Then one table is enough; else two, and the embedding goes."""
    model, args = Held(held), (torch.randint(13, (3, 5)),)
    result = foldfx.compile(model, [foldfx.Example(args)], dynamic=False)
    agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)
    projected, product, rows = 13 * 24 * FLOAT, 13 * FLOAT, 13 * 16 * FLOAT
    assert result.report.to_dict()["storage"]["after"]["backing"] == projected + (rows if held else product)


class Halves(nn.Module):
    """Two regions, each with a half of one allocation, or with an allocation of its own."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        whole = torch.randn(2 * 11, 32)
        self.one, self.two = (nn.Parameter(half if together else half.clone()) for half in whole.split(11))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        one, two = (F.embedding(ids, table).unflatten(-1, (4, 8)).mean(-1) for table in (self.one, self.two))
        return one.cumsum(1) + two.cumsum(1)


@pytest.mark.parametrize("together", [False, True], ids=["two allocations", "one allocation"])
def test_regions_that_pay_only_together_are_folded_together(together: bool, agree: Agree) -> None:
    """Neither table frees the common allocation; both do."""
    model, args = Halves(together), (torch.randint(11, (3, 5)),)
    result = foldfx.compile(model, [foldfx.Example(args)], dynamic=False)
    agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)
    tables = 2 * 11 * 4 * FLOAT
    assert result.report.to_dict()["storage"]["after"] == {"logical": tables, "backing": tables}


@pytest.mark.parametrize("shape", [(3, 5), (4, 5), (5, 4), (4, 4)])
def test_a_width_may_be_one_of_the_sizes_of_the_ids(shape: tuple[int, int], agree: Agree) -> None:
    """Sizes that are fixed are numbers like the widths, and are told apart from them."""
    model = nn.Sequential(nn.Embedding(11, 32), nn.Linear(32, 4)).eval()
    result = foldfx.compile(model, [foldfx.Example((torch.randint(11, shape),))], dynamic=False)
    ids = torch.randint(11, shape)
    agree(model(ids), result.module(ids), max_abs=1e-5, relative_l2=1e-5)
    assert result.report.to_dict()["storage"]["after"] == {"logical": 11 * 4 * FLOAT, "backing": 11 * 4 * FLOAT}
