"""Evidence made anew, and evidence there never was: what results of every status answer."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError, ExampleError
from foldfx.passes import PassContext, PassResult

VOCABULARY = 11


class Scorer(nn.Module):
    """`embedding`, `up` and `down` fold to a table and leave; `head` stays, shared."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.Linear(64, 8)
        self.head = nn.Linear(8, 4)
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return self.head(torch.tanh(self.down(torch.relu(self.up(self.embedding(ids)))) + hidden))


def examples() -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(VOCABULARY, (2, 3)), torch.randn(2, 3, 8)))]


def compiled(model: nn.Module, **options: Any) -> foldfx.Result:
    return foldfx.compile(model, examples(), dynamic=False, **options)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_revalidate_after_a_change_that_both_follow_verifies_again() -> None:
    model = Scorer()
    result = compiled(model)
    model.head.weight.data.mul_(2)
    assert result.validity().state == "stale"
    verification = result.revalidate(examples())
    assert verification.success
    assert verification.layouts
    assert result.validity().state == "verified"
    model.head.weight.data.mul_(2)
    assert result.validity().state == "stale"


def test_revalidate_after_a_change_beyond_them_leaves_it_stale() -> None:
    model = Scorer()
    result = compiled(model)
    model.embedding.weight.data[0] += 1.0
    before = result.validity()
    assert before.state == "stale"
    assert result.revalidate(examples()).verdict == "different"
    assert result.validity() == before


def test_revalidate_finds_a_wrong_row_that_no_example_reads() -> None:
    result = compiled(Scorer())
    table = next(tensor for name, tensor in result.module.named_buffers() if name.startswith("foldfx_tables"))
    table[3] += 1.0
    call = foldfx.Example((torch.zeros(2, 3, dtype=torch.int64), torch.randn(2, 3, 8)))
    assert result.revalidate([call]).verdict == "different"


def test_revalidate_under_other_settings_verifies_again(request: pytest.FixtureRequest) -> None:
    result = compiled(Scorer())
    request.getfixturevalue("two_threads")
    assert result.validity().state == "historical"
    assert result.revalidate(examples()).success
    assert result.validity().state == "verified"


def test_revalidate_refuses_training_mode_and_no_examples() -> None:
    model = Scorer()
    result = compiled(model)
    with pytest.raises(ExampleError, match="at least one is required"):
        result.revalidate([])
    model.train()
    with pytest.raises(CaptureError, match=r"original <root>: training mode.*eval\(\)"):
        result.revalidate(examples())


class Poison:
    """A pass that makes every table wrong."""

    name: ClassVar[str] = "poison"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        for module in list(program.module.modules()):
            for name, table in list(module.named_buffers(recurse=False)):
                setattr(module, name, table + 1)
        return PassResult(program, ())


PIPELINES = {
    "unchanged": foldfx.Pipeline(disable=["fold_tokens"]),
    "rolled_back": foldfx.Pipeline((foldfx.FoldTokens(), Poison())),
}


@pytest.mark.parametrize("status", PIPELINES)
def test_results_without_a_fold_answer_for_the_captured_module(status: str) -> None:
    model = Scorer()
    result = compiled(model, pipeline=PIPELINES[status])
    assert result.status == status
    assert result.validity().state == "verified"
    assert result.revalidate(examples()).success
    model.up.bias.data += 1
    assert result.validity().which == ("original up.bias: contents", "folded up.bias: contents")
    assert result.revalidate(examples()).success
    assert result.validity().state == "verified"


_DRIFT = itertools.count()


@torch.library.custom_op("foldfx_test_validity::drift", mutates_args=())
def drift(x: Tensor) -> Tensor:
    return x + next(_DRIFT)


@drift.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Drifting(Scorer):
    """Returns something else every time it is called."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return torch.ops.foldfx_test_validity.drift(super().forward(ids, hidden))


@pytest.mark.parametrize("fuel", [None, 0])
def test_what_was_never_shown_is_not_verified(fuel: int | None) -> None:
    result = compiled(Drifting(), pipeline=foldfx.Pipeline(fuel=fuel))
    assert not result.accepted
    assert result.validity().state == "stale"
    assert result.validity().which[0].startswith("evidence: undecided")
    assert not result.revalidate(examples()).success
    assert result.validity().state == "stale"


def test_a_result_keeps_the_original_and_its_module_alone_does_not() -> None:
    model = Scorer()
    result = compiled(model)
    original, source = weakref.ref(model), weakref.ref(model.embedding.weight)
    del model
    gc.collect()
    assert original() is not None
    module = result.module
    del result
    gc.collect()
    assert original() is source() is None
    assert module(*examples()[0].args).shape == (2, 3, 4)
