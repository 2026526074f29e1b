"""Twelve ways in which memory is used by more readers than the region sees. Each has a twin without the trap.

The region averages groups of an embedding's columns, so its table pays exactly if the embedding's memory is freed. Or
it projects them: the table pays for the projection's sake, and the embedding has to survive.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import foldfx

VOCABULARY, WIDTH, GROUPS, FLOAT = 11, 32, 4, 4
TABLE, EMBEDDING = VOCABULARY * GROUPS * FLOAT, VOCABULARY * WIDTH * FLOAT
PROJECTION = (WIDTH + 1) * GROUPS * FLOAT
Agree = Callable[..., None]


class Block(nn.Module):
    """A region, and `read`, which does not depend on the ids but in the trap uses the embedding's memory."""

    def __init__(self, trap: bool, projected: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.project = nn.Linear(WIDTH, GROUPS) if projected else None
        self.share(self.embedding.weight if trap else nn.Parameter(torch.randn(VOCABULARY, WIDTH)))
        self.eval()

    def share(self, weight: nn.Parameter) -> None:
        """Register `weight`, the embedding's or in the twin another one, for `read`."""

    def rows(self, ids: Tensor) -> Tensor:
        return self.embedding(ids)

    def read(self, hidden: Tensor) -> Any:
        return hidden + 1

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Any]:
        rows = self.rows(ids)
        grouped = rows.unflatten(-1, (GROUPS, -1)).mean(-1) if self.project is None else torch.tanh(self.project(rows))
        return grouped.cumsum(1), self.read(hidden)


class TiedWeight(Block):
    def share(self, weight: nn.Parameter) -> None:
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = weight

    def read(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


class TransposedView(Block):
    def share(self, weight: nn.Parameter) -> None:
        self.register_buffer("view", weight.detach().t())

    def read(self, hidden: Tensor) -> Tensor:
        return hidden @ self.get_buffer("view")


class SliceView(TransposedView):
    def share(self, weight: nn.Parameter) -> None:
        self.register_buffer("view", weight.detach()[2:5].t())


class BufferTwice(Block):
    """The rows are a buffer's; in the trap the same tensor has another name."""

    def share(self, weight: nn.Parameter) -> None:
        table = self.embedding.weight.detach()
        self.register_buffer("one", table)
        self.register_buffer("two", table if weight is self.embedding.weight else weight.detach())
        del self.embedding

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.get_buffer("one"))

    def read(self, hidden: Tensor) -> Tensor:
        return hidden @ self.get_buffer("two").t()


class PlainList(Block):
    def share(self, weight: nn.Parameter) -> None:
        self.held = [weight]

    def read(self, hidden: Tensor) -> Tensor:
        return hidden @ self.held[0].t()


class CalledTwice(Block):
    """The embedding also looks up what the context asks for; in the twin it is called twice on the ids."""

    def share(self, weight: nn.Parameter) -> None:
        self.trap = weight is self.embedding.weight

    def rows(self, ids: Tensor) -> Tensor:
        return self.embedding(ids) if self.trap else self.embedding(ids).sin() + self.embedding(ids)

    def read(self, hidden: Tensor) -> Tensor:
        return self.embedding(hidden[..., :VOCABULARY].argmax(-1)) if self.trap else hidden + 1


class TwoNames(Block):
    def share(self, weight: nn.Parameter) -> None:
        self.again = self.embedding if weight is self.embedding.weight else copy.deepcopy(self.embedding)

    def read(self, hidden: Tensor) -> Tensor:
        return self.again(hidden[..., :VOCABULARY].argmax(-1))


class Closure(Block):
    """A function encloses the rows: nobody registered them, so no fold can free them."""

    def share(self, weight: nn.Parameter) -> None:
        if weight is self.embedding.weight:
            enclosed = weight.detach().clone()
            self.rows = lambda ids: F.embedding(ids, enclosed)  # type: ignore[method-assign]
            del self.embedding


class NonPersistent(Block):
    """The state dict does not hold the rows: no checkpoint shrinks."""

    def share(self, weight: nn.Parameter) -> None:
        self.register_buffer("table", self.embedding.weight.detach(), persistent=weight is not self.embedding.weight)
        del self.embedding

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.get_buffer("table"))


class Returned(Block):
    def share(self, weight: nn.Parameter) -> None:
        self.returned = weight

    def read(self, hidden: Tensor) -> Tensor:
        return self.returned


FIRST = 3 * WIDTH * FLOAT
# Whom the refusal has to name, and the bytes (logical, backing) beside the region in the twin.
TRAPS: dict[type[Block], tuple[str, int, int]] = {
    TiedWeight: ("stays: linear (module head", EMBEDDING, EMBEDDING),
    TransposedView: ("embedding.weight stays: view is the same memory", EMBEDDING, EMBEDDING),
    SliceView: ("embedding.weight stays: view is the same memory", FIRST, EMBEDDING),
    BufferTwice: ("reads it", EMBEDDING, EMBEDDING),
    PlainList: ("is a constant of the trace", 0, 0),
    CalledTwice: ("embedding.weight stays: embedding_1 (module embedding", 0, 0),
    TwoNames: ("module again", EMBEDDING, EMBEDDING),
    Closure: ("is a constant of the trace", 0, 0),
    NonPersistent: ("logical 0 → ", 0, 0),
    Returned: ("stays: output", EMBEDDING, EMBEDDING),
}
every_trap = pytest.mark.parametrize("block", TRAPS)


def storages(module: nn.Module) -> dict[int, int]:
    """Bytes of each distinct storage of all parameters and buffers."""
    state = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for _, tensor in state}


def measured(module: nn.Module, model: nn.Module | None = None) -> dict[str, int]:
    """Bytes of the state dict, and of the storages that it or the original model's registered state stands on.

    A tensor the model only encloses is no state of the model, and none of the result.
    """
    state = module.state_dict().values()
    ours = {tensor.untyped_storage().data_ptr() for tensor in state} | storages(model or module).keys()
    backing = sum(size for storage, size in storages(module).items() if storage in ours)
    return {"logical": sum(tensor.numel() * tensor.element_size() for tensor in state), "backing": backing}


def call() -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (3, 5)), torch.randn(3, 5, WIDTH)


def fold(model: nn.Module, agree: Agree, owner: nn.Module | None = None) -> foldfx.Result:
    """Compile; the outputs agree, and the report states what the model and the result really hold."""
    result = foldfx.compile(model, [foldfx.Example(call())], owner=owner, dynamic=False)
    for args in (call(), call()):
        agree(model(*args), result.module(*args))
    storage = result.report.to_dict()["storage"]
    assert storage["before"] == measured(model)
    assert storage["after"] == measured(result.module, model)
    for figures in [each["figures"] for each in result.report.to_dict()["outcomes"] if each["status"] == "refused"]:
        assert any(figures[f"{count}_after"] >= figures[f"{count}_before"] for count in ("logical", "backing"))
    return result


def reasons(result: foldfx.Result) -> str:
    return "\n".join(outcome["reason"] for outcome in result.report.to_dict()["outcomes"])


@every_trap
def test_memory_that_stays_is_not_counted_as_freed(block: type[Block], agree: Agree) -> None:
    holder, _, _ = TRAPS[block]
    result = fold(block(trap=True), agree)
    assert (result.status, holder in reasons(result)) == ("unchanged", True), reasons(result)


@every_trap
def test_the_twin_is_folded(block: type[Block], agree: Agree) -> None:
    _, logical, backing = TRAPS[block]
    model = block(trap=False)
    result = fold(model, agree)
    assert result.status == "accepted", reasons(result)
    assert measured(result.module, model) == {"logical": logical + TABLE, "backing": backing + TABLE}


@every_trap
def test_what_is_read_elsewhere_survives_a_fold_that_pays_without_it(block: type[Block], agree: Agree) -> None:
    """The projection leaves and the table comes; the rows' memory is what it was, the model's own."""
    model = block(trap=True, projected=True)
    result = fold(model, agree)
    assert result.status == "accepted", reasons(result)
    freed = PROJECTION + (EMBEDDING if block is NonPersistent else 0)
    assert measured(model)["backing"] - measured(result.module, model)["backing"] == freed - TABLE
    assert len(storages(result.module).keys() - storages(model).keys()) == 1


class WeightNorm(Block):
    def share(self, weight: nn.Parameter) -> None:
        self.trap = weight is self.embedding.weight
        weight_norm(self.embedding)

    def read(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.t() if self.trap else hidden + 1


@pytest.mark.parametrize("trap", [True, False], ids=["read by the context", "read by the region alone"])
def test_a_parametrised_weight(trap: bool, agree: Agree) -> None:
    """Both tensors behind it stay or go, its state-dict hooks are no hindrance, and a change of one makes tables stale."""
    model = WeightNorm(trap)
    result = fold(model, agree)
    assert result.status == ("unchanged" if trap else "accepted"), reasons(result)
    if trap:
        assert all(f"embedding.parametrizations.weight.original{part} stays" in reasons(result) for part in "01")
    else:
        assert measured(result.module) == {"logical": TABLE, "backing": TABLE}
    assert result.validity().state == "verified"
    with torch.no_grad():
        model.embedding.parametrizations.weight.original0.mul_(2)
    assert result.validity().state == "stale"


class Owner(nn.Module):
    """Encloses a block, and may hold its weight as a parameter of its own or in a plain list."""

    def __init__(self, block: Block, held: Any = None) -> None:
        super().__init__()
        self.block, self.held = block, held
        self.eval()


class DirectReader(Owner):
    """Nothing is registered twice: only the code shows the reader."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return self.block(ids, hidden)[1] @ self.block.embedding.weight.t()


OWNERS: dict[str, Callable[[Block], Owner]] = {
    "named in forward": DirectReader,
    "registered": lambda block: Owner(block, block.embedding.weight),
    "in a list": lambda block: Owner(block, [block.embedding.weight]),
}


@pytest.mark.parametrize("use", OWNERS)
def test_an_owner_that_uses_the_weight(use: str, agree: Agree) -> None:
    owner = OWNERS[use](Block(trap=False))
    result = fold(owner.block, agree, owner)
    assert (result.status, "embedding.weight stays: owner" in reasons(result)) == ("unchanged", True), reasons(result)


def test_an_owner_that_reads_the_weight_still_finds_it_after_a_fold(agree: Agree) -> None:
    owner = DirectReader(Block(trap=False, projected=True))
    args = call()
    expected = owner(*args)
    owner.block = fold(owner.block, agree, owner).module
    assert "embedding.weight" in owner.block.state_dict()
    assert "project.weight" not in owner.block.state_dict()
    agree(expected, owner(*args))


def test_an_owner_that_only_encloses_the_block(agree: Agree) -> None:
    owner = Owner(Block(trap=False))
    assert measured(fold(owner.block, agree, owner).module) == {"logical": TABLE, "backing": TABLE}
    with pytest.raises(ValueError, match="owner does not contain the model"):
        fold(Block(trap=False), agree, owner)
