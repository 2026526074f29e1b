"""Several token inputs share a table of their combinations, and ids that are computed from ids are ids all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import foldfx

WORDS, TYPES, FLAGS, WIDTH, OUT, FLOAT = 7, 3, 2, 64, 4, 4
ROW = OUT * FLOAT
Agree = Callable[..., None]
Across = Callable[[Tensor], Tensor]


class Summed(nn.Module):
    """BERT-like: embeddings of words, types and perhaps flags are added and projected."""

    def __init__(self, *sizes: int, across: Across = lambda types: types) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH) for size in sizes)
        self.project, self.across = nn.Linear(WIDTH, OUT), across
        self.eval()

    def forward(self, words: Tensor, types: Tensor, flags: Tensor | None = None) -> Tensor:
        x = self.tables[0](words) + self.tables[1](self.across(types))
        if flags is not None:
            x = x * self.tables[2](flags)
        return torch.tanh(self.project(torch.sin(x))).cumsum(1)


def fold(model: nn.Module, args: Sequence[Tensor], largest: int = 1 << 16, dynamic: bool = True) -> foldfx.Result:
    pipeline = foldfx.Pipeline((foldfx.FoldTokens(largest_product=largest),))
    return foldfx.compile(model, [foldfx.Example(tuple(args))], pipeline=pipeline, dynamic=dynamic)


def words(*shape: int, size: int = WORDS, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(size, shape or (4, 5), dtype=dtype)


def state_bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def combinations(*sizes: int) -> list[Tensor]:
    """Every combination once: one row of ids for each, as [combinations, 1]."""
    return [ids.reshape(-1, 1) for ids in torch.meshgrid(*map(torch.arange, sizes), indexing="ij")]


SIZES = pytest.mark.parametrize("sizes", [(WORDS, TYPES), (WORDS, TYPES, FLAGS)], ids=["two inputs", "three inputs"])


@SIZES
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_small_product_has_one_table(sizes: tuple[int, ...], dtype: torch.dtype, agree: Agree) -> None:
    """A row for each combination, and a byte for each id of each input that says where its rows begin."""
    model = Summed(*sizes)
    result = fold(model, [words(size=size, dtype=dtype) for size in sizes])
    rows = torch.tensor(sizes).prod().item()
    assert result.accepted
    assert state_bytes(result.module) == rows * ROW + sum(sizes)
    every = [ids.to(dtype) for ids in combinations(*sizes)]
    agree(model(*every), result.module(*every), max_abs=1e-5, relative_l2=1e-5)
    mixed = [words(3, 6, size=size, dtype=dtype) for size in sizes]
    agree(model(*mixed), result.module(*mixed), max_abs=1e-5, relative_l2=1e-5)


@pytest.mark.parametrize("largest", [WORDS * TYPES, WORDS * TYPES - 1])
def test_a_product_above_the_limit_is_left_alone(largest: int) -> None:
    model = Summed(WORDS, TYPES)
    result = fold(model, [words(), words(size=TYPES)], largest)
    assert result.accepted is (largest >= WORDS * TYPES)
    if not result.accepted:
        assert result.module.state_dict().keys() == model.state_dict().keys()


def test_a_product_above_the_limit_is_refused_with_its_size() -> None:
    """Not "there is nothing to fold": the reader has to learn which limit to raise."""
    result = fold(Summed(WORDS, TYPES), [words(), words(size=TYPES)], WORDS * TYPES - 1)
    reasons = [outcome["reason"] for outcome in result.report.to_dict()["outcomes"]]
    assert any(str(WORDS * TYPES) in reason and "largest_product" in reason for reason in reasons), reasons


@pytest.mark.parametrize("wrong", ["words", "types"])
@pytest.mark.parametrize("where", ["below", "above"])
def test_an_id_outside_one_domain_never_reads_the_neighbours_row(wrong: str, where: str, agree: Agree) -> None:
    """Row numbers are 3·word + type: word 2 with type 3, or word 3 with type -1, would be rows that exist."""
    model = Summed(WORDS, TYPES)
    module = fold(model, [words(), words(size=TYPES)]).module
    size, other_size = (WORDS, TYPES) if wrong == "words" else (TYPES, WORDS)
    for token in (-1, -2, -size) if where == "below" else (size, size + 1, WORDS * TYPES - 1, WORDS * TYPES):
        for other in range(other_size):
            pair = (torch.full((2, 2), token), torch.full((2, 2), other))
            for each in (model, module):
                with pytest.raises(IndexError):
                    each(*(pair if wrong == "words" else pair[::-1]))
    last = torch.full((2, 2), WORDS - 1), torch.full((2, 2), TYPES - 1)
    agree(model(*last), module(*last), max_abs=1e-5, relative_l2=1e-5)


ACROSS: dict[str, tuple[Across, tuple[int, ...]]] = {
    "one type a sequence": (lambda types: types.unsqueeze(1), (4,)),
    "one type a position": (lambda types: types.unsqueeze(0), (5,)),
    "a column of types": (lambda types: types, (4, 1)),
}


@pytest.mark.parametrize("name", ACROSS)
def test_inputs_of_other_shapes_are_spread_over_the_joint_axes(name: str, agree: Agree) -> None:
    across, shape = ACROSS[name]
    model = Summed(WORDS, TYPES, across=across)
    result = fold(model, [words(), words(*shape, size=TYPES)])
    assert result.accepted, str(result.report)
    assert state_bytes(result.module) == WORDS * TYPES * ROW + WORDS + TYPES
    for _ in range(3):
        args = words(), words(*shape, size=TYPES)
        agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)


def test_inputs_without_a_common_dynamic_axis_are_refused_by_name(agree: Agree) -> None:
    model, args = Summed(WORDS, TYPES), (words(), words(size=TYPES))
    result = fold(model, args, dynamic=False)
    assert not result.accepted
    assert "token inputs words × types share no dynamic axis" in result.report.to_dict()["outcomes"][0]["reason"]
    agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)


def test_reachable_ids_shrink_the_product(agree: Agree) -> None:
    """Words 1, 4 and 6 have rows; the rows of the others are nobody's, whatever the type."""
    model, some = Summed(WORDS, TYPES), torch.tensor([1, 4, 6])
    tokens = [foldfx.TokenInput("words", reachable=some.tolist()), foldfx.TokenInput("types")]
    result = foldfx.compile(model, [foldfx.Example((some[words(size=3)], words(size=TYPES)))], tokens=tokens)
    assert state_bytes(result.module) == len(some) * TYPES * ROW + WORDS + TYPES
    index, types = combinations(len(some), TYPES)
    agree(model(some[index], types), result.module(some[index], types), max_abs=1e-5, relative_l2=1e-5)
    for word in {*range(-1, WORDS + 1)} - {*some.tolist()}:
        for kind in range(TYPES):
            with pytest.raises(IndexError):
                result.module(torch.full((2, 2), word), torch.full((2, 2), kind))


REMAP = torch.tensor([4, 0, 0, 3, 1, 2, 4])
DERIVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clamp": lambda ids, remap: ids.clamp(1, 4),
    "remainder": lambda ids, remap: ids % 5,
    "where": lambda ids, remap: torch.where(ids >= 5, 0, ids),
    "remap": lambda ids, remap: remap[ids],
    "arithmetic": lambda ids, remap: (ids + 1) // 2,
}


class Derived(nn.Module):
    """Looks up what is computed from an id, masks by comparing the id, and may ask the context as well."""

    def __init__(self, derive: str, mask: bool = False, context: bool = False) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, OUT)
        self.register_buffer("remap", REMAP.clone())
        self.derive, self.mask, self.context = DERIVED[derive], mask, context
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        derived = self.derive(ids, self.get_buffer("remap"))
        x = self.embedding(torch.where(hidden > 0, derived, 0) if self.context else derived)
        y = torch.tanh(self.project(x))
        y = y * (ids != 2)[..., None] if self.mask else y
        return y.cumsum(1), hidden * self.get_buffer("remap").sum()


def fold_derived(model: Derived) -> foldfx.Result:
    args = words(3, 6), torch.randn(3, 6)
    return foldfx.compile(model, [foldfx.Example(args)], tokens=[foldfx.TokenInput("ids", WORDS)], dynamic=False)


@pytest.mark.parametrize("derive", DERIVED)
@pytest.mark.parametrize("mask", [False, True], ids=["plain", "masked"])
def test_derived_ids_fold_over_the_ids_they_come_from(derive: str, mask: bool, agree: Agree) -> None:
    """One row for each id that is looked up differently, and a byte for each id; the mask is computed or is in the rows."""
    model = Derived(derive, mask)
    result = fold_derived(model)
    ids, hidden = torch.arange(WORDS).repeat(3)[:18].reshape(3, 6), torch.randn(3, 6)
    agree(model(ids, hidden), result.module(ids, hidden), max_abs=1e-5, relative_l2=1e-5)
    derived = DERIVED[derive](torch.arange(WORDS), REMAP).tolist()
    masked = {(token, mask and word == 2) for word, token in enumerate(derived)}
    stored = {min(WORDS, kinds + WORDS / ROW) * ROW for kinds in (len(set(derived)), len(masked))}
    assert result.accepted
    assert state_bytes(result.module) - REMAP.numel() * REMAP.element_size() in stored


@pytest.mark.parametrize("derive", DERIVED)
def test_ids_derived_from_the_context_are_not_folded(derive: str, agree: Agree) -> None:
    model = Derived(derive, context=True)
    result = fold_derived(model)
    args = words(3, 6), torch.randn(3, 6)
    agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)
    assert not result.accepted
    assert result.module.state_dict().keys() == model.state_dict().keys()
