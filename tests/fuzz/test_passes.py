"""Random sequences of passes over random models: structure, metadata and results hold after each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from torch import Tensor
from torch.export import Dim
from torch.fx import Node

import foldfx
from foldfx.errors import CaptureError
from foldfx.passes import FoldTokens, Outcome, PassContext, PassResult, Pipeline, Status
from foldfx.passes.builder import Builder
from foldfx.passes.context import Fuel, Pass
from foldfx.passes.structure import verify_structure

from .attack import Recorder
from .grammar import Setting, models, together
from .trial import Tally, Together, Trial, difference

aten = torch.ops.aten
SEQUENCES, ROUNDS = 3, 4


class Negate:
    """Claim: x is -(-x). Before: use(x). After: use(neg(neg(x)))."""

    name: ClassVar[str] = "negate"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        floats = [node for node in program.graph.nodes if _is_float(node)]
        chosen = self.rng.sample(floats, min(len(floats), 3))
        for node in chosen:
            users = [user for user in node.users if user.op != "call_function" or not user.target._schema.is_mutable]
            builder = Builder(program.module, node.next, self.name)
            twice = builder.call(aten.neg.default, builder.call(aten.neg.default, node))
            for user in users:
                user.replace_input_with(node, twice)
        program.module.recompile()
        outcome = Outcome(self.name, Status.APPLIED, f"{len(chosen)} values", "-(-x) is x")
        return PassResult(program, (outcome,))


class Repeat:
    """Claim: a pure call computed twice is the same value. Before: y = f(x). After: y and y' = f(x), each for some readers."""

    name: ClassVar[str] = "repeat"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        pure = [
            node
            for node in program.graph.nodes
            if _is_float(node) and torch.Tag.nondeterministic_seeded not in node.target.tags
        ]
        for node in self.rng.sample(pure, min(len(pure), 3)):
            again = Builder(program.module, node.next, self.name).call(node.target, *node.args, **node.kwargs)
            for user in self.rng.sample([*node.users], len(node.users) // 2):
                if user is not again and user.op == "call_function" and not user.target._schema.is_mutable:
                    user.replace_input_with(node, again)
        program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "some calls", "computed twice"),))


class Sweep:
    """Claim: what nobody reads is not needed. Before: y = f(x). After: nothing."""

    name: ClassVar[str] = "sweep"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        for node in reversed([*program.graph.nodes]):
            if _is_float(node) and not node.users:
                program.graph.erase_node(node)
        program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "dead calls", "nobody reads them"),))


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    floats = isinstance(value, Tensor) and value.is_floating_point()
    overload = isinstance(node.target, torch._ops.OpOverload)
    anchor = node.next.op == "call_function" and isinstance(node.next.meta.get("val"), Tensor)
    return anchor and node.op == "call_function" and floats and overload and not node.target._schema.is_mutable


def sequence(rng: random.Random) -> list[Pass]:
    """One to five passes."""
    kinds = [
        FoldTokens,
        lambda: FoldTokens(max_table_bytes=rng.choice([0, 500, 1 << 20])),
        lambda: FoldTokens(largest_product=rng.choice([4, 64])),
        lambda: Negate(rng.getrandbits(32)),
        lambda: Repeat(rng.getrandbits(32)),
        Sweep,
    ]
    return [rng.choice(kinds)() for _ in range(rng.randint(1, 5))]


def metadata_holds(program: foldfx.Program, inputs: Sequence[Tensor]) -> None:
    """Every value has the dtype and rank that is recorded for it, and where sizes are fixed, the shape."""
    seen = Recorder(program.module).values(dict(enumerate(inputs)))  # type: ignore[arg-type]
    for node, value in seen.items():
        recorded = node.meta.get("val")
        if node.op == "call_function" and isinstance(recorded, Tensor):
            assert (value.dtype, value.dim()) == (recorded.dtype, recorded.dim()), node.format_node()
            fixed = [(a, b) for a, b in zip(value.shape, recorded.shape, strict=True) if isinstance(b, int)]
            assert all(a == b for a, b in fixed), node.format_node()


def attack(text: str, rng: random.Random) -> None:
    trial = Trial(text, Tally(), rng.getrandbits(32))
    model = Together([each() for each in trial.classes])
    inputs = tuple(trial._call(trial.shapes[0]).values())
    dims = {name: [Dim.AUTO] * len(trial.shapes[0]) for name in ("ids", "others", "mask")}
    dynamic = len(trial.shapes) > 1 and {**dims, "hidden": [*dims["ids"], Dim.STATIC]}
    tokens = [foldfx.TokenInput("ids", trial.vocabulary), foldfx.TokenInput("others", 5)]
    try:
        program = foldfx.capture(model, inputs, tokens=tokens, dynamic=dynamic)
    except CaptureError:
        return
    with torch.no_grad():
        expected = program.copy().module(*(each.clone() for each in inputs))
    for _ in range(SEQUENCES):
        passes = sequence(rng)
        context = PassContext(Fuel(rng.choice([None, None, 0, 1])))
        rewritten, _, _ = Pipeline(passes).rewrite(program, context)
        names = [each.name for each in passes]
        verify_structure(rewritten.module)
        metadata_holds(rewritten, [each.clone() for each in inputs])
        with torch.no_grad():
            found = rewritten.module(*(each.clone() for each in inputs))
        assert not (wrong := difference(expected, found)), f"{names}: {wrong}\n\n{text}"
    run = Pipeline(sequence(rng)).run(program, [foldfx.Example(inputs)], original=model)
    assert run.accepted or run.status in ("unchanged", "rolled_back"), run.status


@pytest.mark.parametrize("part", range(ROUNDS))
def test_random_sequences_of_passes(part: int, seed: int) -> None:
    setting = st.builds(
        Setting, st.sampled_from([7, 5]), st.just(64), st.sampled_from([[(2, 3)], [(2, 3), (3, 4)]]),
        st.sampled_from([torch.float64, torch.float32]), st.just(False), st.just(True), st.just("storage"),
    )  # fmt: skip

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2, database=None, deadline=None, suppress_health_check=[*HealthCheck], phases=[Phase.generate]
    )
    @hypothesis.given(setting, st.lists(models, min_size=1, max_size=3), st.integers(0, 2**32))
    def programs(setting: Setting, batch: list, number: int) -> None:
        text = together(setting, batch)
        if "calls.add_" in text or "w8.mul_" in text or "hidden.mul_" in text or "exponential_" in text:
            return
        attack(text, random.Random(number))

    programs()
