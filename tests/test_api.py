"""The front door: what `compile` promises about its three endings, about its input, and about the user's model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import ExampleError, TokenInputError
from foldfx.passes import Pass, PassContext, PassResult

VOCABULARY, OTHER = 23, 19


class Scorer(nn.Module):
    """Token-only up to `down`, where the caller's hidden state comes in. Its weights hold far more than its table."""

    def __init__(self, vocabulary: int = VOCABULARY, inner: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.up, self.down = nn.Linear(32, inner), nn.Linear(inner, 8)
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return torch.tanh(self.down(torch.relu(self.up(self.embedding(ids)))) + hidden)


class TwoTokens(nn.Module):
    """Two token inputs with a region each."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.tag = Scorer(), Scorer(OTHER)
        self.eval()

    def forward(self, words: Tensor, tags: Tensor, hidden: Tensor) -> Tensor:
        return self.word(words, hidden) * self.tag(tags, hidden)


def calls(vocabulary: int = VOCABULARY) -> list[foldfx.Example]:
    shapes = ((3, 5), (2, 2), (1, 4))
    return [foldfx.Example((torch.randint(vocabulary, shape), torch.randn(*shape, 8))) for shape in shapes]


def distance(reference: Tensor, candidate: Tensor) -> tuple[float, float]:
    """Max-abs and relative L2 difference, in float64."""
    assert (reference.dtype, reference.shape) == (candidate.dtype, candidate.shape)
    error = candidate.double() - reference.double()
    return error.abs().max().item(), (error.norm() / reference.double().norm()).item()


def statuses(result: foldfx.Result) -> list[str]:
    return [outcome["status"] for outcome in result.report.to_dict()["outcomes"]]


class Poison:
    """A pass that replaces every table by a copy with one wrong entry."""

    name: ClassVar[str] = "poison"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        for module in list(program.module.modules()):
            for name, table in list(module.named_buffers(recurse=False)):
                if table.is_floating_point():
                    wrong = table.clone()
                    wrong[-1, -1] += 1e-3
                    setattr(module, name, wrong)
        return PassResult(program, ())


def test_accepted_agrees_on_calls_it_has_not_seen_and_holds_fewer_bytes() -> None:
    model = Scorer()
    result = foldfx.compile(model, calls())
    assert (result.status, result.accepted, statuses(result)) == ("accepted", True, ["applied"])
    for ids, hidden in (call.args for call in calls()):
        max_abs, relative_l2 = distance(model(ids, hidden), result.module(ids, hidden))
        assert max_abs <= 1e-5
        assert relative_l2 <= 1e-5
    kept = sum(tensor.numel() * tensor.element_size() for tensor in result.module.state_dict().values())
    assert kept == VOCABULARY * 8 * 4
    assert not result.module.state_dict().keys() & model.state_dict().keys()


def test_unchanged_where_the_table_would_be_larger() -> None:
    model = Scorer(vocabulary=2000, inner=4)
    model.embedding.weight = nn.Parameter(torch.randn(2000, 2))
    model.up = nn.Linear(2, 4)
    result = foldfx.compile(model.eval(), calls())
    assert (result.status, result.accepted) == ("unchanged", False)
    assert "applied" not in statuses(result)
    assert result.module.state_dict().keys() == model.state_dict().keys()
    ids, hidden = calls()[0].args
    assert torch.equal(model(ids, hidden), result.module(ids, hidden))


def test_rolled_back_gives_the_captured_program_back_byte_for_byte() -> None:
    model, examples = Scorer(), calls()
    pipeline = foldfx.Pipeline((foldfx.FoldTokens(), Poison()))
    result = foldfx.compile(model, examples, pipeline=pipeline)
    assert (result.status, result.accepted, statuses(result)) == ("rolled_back", False, ["rejected", "rejected"])
    captured = foldfx.capture(model, examples[0].args)
    assert result.module.print_readable(print_output=False) == captured.text()
    data = result.report.to_dict()
    assert data["rewrites"] == data["kernels"] == []
    assert data["storage"]["before"] == data["storage"]["after"]
    assert data["verification"]["verdict"] == "different"
    assert "max-abs" in data["outcomes"][0]["reason"]
    ids, hidden = examples[0].args
    assert torch.equal(model(ids, hidden), result.module(ids, hidden))


@torch.library.custom_op("foldfx_test_api::drift", mutates_args=())
def drift(x: Tensor) -> Tensor:
    return x + next(_DRIFT)


@drift.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_DRIFT = itertools.count()


class Drifting(Scorer):
    """Returns something else every time it is called."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return torch.ops.foldfx_test_api.drift(super().forward(ids, hidden))


def test_a_model_that_differs_from_itself_is_undecided_and_never_accepted() -> None:
    result = foldfx.compile(Drifting(), calls())
    assert (result.status, result.accepted) == ("rolled_back", False)
    verification = result.report.to_dict()["verification"]
    assert verification["verdict"] == "undecided"
    assert "differs from itself" in verification["because"][0]


class Exhausted(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        raise RuntimeError("no more")


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "at least one is required"),
        ([torch.zeros(2)], "example 0 is a Tensor"),
        ([(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 8))], "example 0 is a tuple"),
        ([(([0],), {}, 3)], "example 0 is a tuple"),
    ],
)
def test_examples_of_another_type_are_refused(examples: list[Any], message: str) -> None:
    with pytest.raises(ExampleError, match=message):
        foldfx.compile(Scorer(), examples)


def test_an_example_of_another_structure_is_refused() -> None:
    first = calls()[0]
    by_name = foldfx.Example((first.args[0],), {"hidden": first.args[1]})
    with pytest.raises(ExampleError, match="example 1 is another kind of call"):
        foldfx.compile(Scorer(), [first, by_name])
    assert foldfx.compile(Scorer(), [by_name], dynamic=False).accepted


def test_a_model_that_fails_on_an_example_is_refused() -> None:
    with pytest.raises(ExampleError, match="no more"):
        foldfx.compile(Exhausted().eval(), [foldfx.Example((torch.zeros(2, dtype=torch.int64),))])
    narrow = foldfx.Example((torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, 7)))
    with pytest.raises(ExampleError, match="example 3"):
        foldfx.compile(Scorer(), [*calls(), narrow])


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown objective 'speed'"):
        foldfx.compile(Scorer(), calls(), objective="speed")  # type: ignore[arg-type]


def test_fuel_bounds_the_number_of_rewrites() -> None:
    model = TwoTokens()
    args = torch.randint(OTHER, (3, 5)), torch.randint(OTHER, (3, 5)), torch.randn(3, 5, 8)
    program = foldfx.capture(model, args, dynamic=False)
    applied = {}
    for fuel in (0, 1, 2, None):
        run = foldfx.Pipeline(fuel=fuel).run(program, [foldfx.Example(args)], original=model)
        applied[fuel] = len(run.rewrites)
        assert run.accepted is (fuel != 0)
        max_abs, relative_l2 = distance(model(*args), run.program.module(*args))
        assert max_abs <= 1e-5
        assert relative_l2 <= 1e-5
    assert applied == {0: 0, 1: 1, 2: 2, None: 2}


def test_negative_fuel_is_refused() -> None:
    with pytest.raises(ValueError, match="fuel must not be negative"):
        foldfx.compile(Scorer(), calls()[:1], pipeline=foldfx.Pipeline(fuel=-1), dynamic=False)


def test_a_pass_is_disabled_by_name() -> None:
    pipeline = foldfx.Pipeline(disable=["fold_tokens"])
    result = foldfx.compile(Scorer(), calls()[:1], pipeline=pipeline, dynamic=False)
    assert (result.status, statuses(result)) == ("unchanged", ["disabled"])
    with pytest.raises(ValueError, match=r"fold_token.*fold_tokens"):
        foldfx.Pipeline(disable=["fold_token"])


def test_stated_token_inputs_alone_count() -> None:
    model = TwoTokens()
    args = torch.randint(OTHER, (3, 5)), torch.randint(OTHER, (3, 5)), torch.randn(3, 5, 8)
    tags = foldfx.TokenInput("tags", OTHER)
    result = foldfx.compile(model, [foldfx.Example(args)], tokens=[tags], dynamic=False)
    assert list(result.report.to_dict()["tokens"]) == ["tags"]
    assert [table["inputs"] for rewrite in result.report.to_dict()["rewrites"] for table in rewrite["tables"]] == [["tags"]]
    with pytest.raises(TokenInputError, match="'tag' is not an input"):
        foldfx.compile(model, [foldfx.Example(args)], tokens=[foldfx.TokenInput("tag")], dynamic=False)


@pytest.mark.parametrize("passes", [(foldfx.FoldTokens(),), (foldfx.FoldTokens(), Poison())], ids=["accepted", "rolled back"])
def test_the_original_model_is_left_alone(passes: tuple[Pass, ...]) -> None:
    model, examples = Scorer(), calls()[:1]
    tensors = {name: id(tensor) for name, tensor in model.named_parameters()}
    state, attributes, arguments = copy.deepcopy(model.state_dict()), dict(vars(model)), copy.deepcopy(examples)
    foldfx.compile(model, examples, pipeline=foldfx.Pipeline(passes), dynamic=False)
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == tensors
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert vars(model) == attributes
    assert not model.training
    for example, before in zip(examples, arguments, strict=True):
        assert all(map(torch.equal, example.args, before.args))


class Pair(NamedTuple):
    scores: Tensor
    hidden: Tensor


@dataclass
class Scores:
    scores: Tensor
    hidden: Tensor


torch.export.register_dataclass(Scores)

TREES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict": lambda x, h: {"scores": x, "more": {"hidden": h}},
    "nested tuple": lambda x, h: ((x,), [h, (x, h)]),
    "named tuple": Pair,
    "dataclass": Scores,
}


class Returns(Scorer):
    def __init__(self, tree: str) -> None:
        super().__init__()
        self.tree = tree

    def forward(self, ids: Tensor, hidden: Tensor) -> Any:
        return TREES[self.tree](super().forward(ids, hidden), hidden + 1)


@pytest.mark.parametrize("tree", TREES)
def test_outputs_keep_their_tree(tree: str) -> None:
    model = Returns(tree).eval()
    result = foldfx.compile(model, calls()[:1], dynamic=False)
    assert result.accepted
    ids, hidden = calls()[0].args
    reference, structure = torch.utils._pytree.tree_flatten(model(ids, hidden))
    leaves, folded_structure = torch.utils._pytree.tree_flatten(result.module(ids, hidden))
    assert (folded_structure, len(leaves)) == (structure, len(reference))
    for one, other in zip(reference, leaves, strict=True):
        max_abs, relative_l2 = distance(one, other)
        assert max_abs <= 1e-5
        assert relative_l2 <= 1e-5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"objective": "routes"}, "objective and max_table_bytes go to the passes"),
        ({"objective": "latency", "max_table_bytes": 1 << 20}, "objective and max_table_bytes go to the passes"),
        ({"max_table_bytes": 1 << 20}, "objective and max_table_bytes go to the passes"),
        ({"time_budget": 1.0}, "time_budget goes to the pipeline"),
        ({"probe_contexts": 0}, "probe_contexts goes to the pipeline"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "+".join(value),
)
def test_what_a_pipeline_would_not_follow_is_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        foldfx.compile(Scorer(), calls(), pipeline=foldfx.Pipeline(), **option)


@pytest.mark.parametrize("pipeline", [[foldfx.FoldTokens()], foldfx.FoldTokens()], ids=["a list", "a pass"])
def test_only_a_pipeline_is_a_pipeline(pipeline: Any) -> None:
    with pytest.raises(TypeError, match=r"pipeline is a \w+; pass foldfx.Pipeline"):
        foldfx.compile(Scorer(), calls(), pipeline=pipeline)


@pytest.mark.parametrize("passes", [foldfx.FoldTokens(), [foldfx.FoldTokens], ["fold_tokens"], "fold_tokens", None], ids=repr)
def test_only_passes_make_a_pipeline(passes: Any) -> None:
    with pytest.raises(TypeError, match=r"passes is .*; pass a list of objects with a name and a run method"):
        foldfx.Pipeline(passes)


def test_what_is_disabled_is_a_list() -> None:
    with pytest.raises(TypeError, match=r"disable is 'fold_tokens'; pass a list"):
        foldfx.Pipeline(disable="fold_tokens")
