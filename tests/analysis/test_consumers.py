"""Who reads and who holds each piece of state: graph nodes, other names, constants, and a model around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.consumers import Consumers, analyze_consumers
from foldfx.analysis.program import Program

aten = torch.ops.aten
VOCABULARY, WIDTH, FLOAT = 7, 4, 4
ENCLOSED = torch.randn(WIDTH)


class Block(nn.Module):
    """The embedding is read twice; `unused` not at all; `scale` and a global tensor are constants of the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("unused", torch.randn(3))
        self.scale = torch.randn(WIDTH)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale + ENCLOSED
        return self.project(x).cumsum(1) @ self.embedding.weight.t()


def captured(block: nn.Module) -> Program:
    return foldfx.capture(block, (torch.randint(VOCABULARY, (2, 3)),), dynamic=False)


def holders(consumers: Consumers, name: str) -> tuple[str, ...]:
    return consumers.held(consumers.storages[name])


def test_readers_are_the_nodes_that_take_the_state() -> None:
    consumers = analyze_consumers(captured(Block()))
    targets = {name: [node.target for node in nodes] for name, nodes in consumers.readers.items()}
    lookup, transposed = targets["embedding.weight"]
    assert (lookup, transposed in (aten.t.default, aten.permute.default)) == (aten.embedding.default, True)
    assert targets["project.weight"] == targets["project.bias"] == [aten.linear.default]
    assert targets["unused"] == []


def test_sizes_are_those_of_whole_allocations() -> None:
    block, backing = Block(), torch.randn(100, WIDTH)
    block.embedding.weight = nn.Parameter(backing[10 : 10 + VOCABULARY])
    consumers = analyze_consumers(captured(block))
    assert consumers.sizes[consumers.storages["embedding.weight"]] == 100 * WIDTH * FLOAT
    assert consumers.sizes[consumers.storages["project.weight"]] == WIDTH * WIDTH * FLOAT


def test_what_nobody_reads_is_held_by_its_registration_and_a_constant_by_the_trace() -> None:
    consumers = analyze_consumers(captured(Block()))
    assert holders(consumers, "unused") == ("unused is registered but never read by the traced forward",)
    constants = [name for name in consumers.storages if name not in Block().state_dict()]
    assert len(constants) == 2
    assert all(holders(consumers, name) == (f"{name} is a constant of the trace",) for name in constants)
    assert not any(holders(consumers, name) for name in ("embedding.weight", "project.weight", "project.bias"))
    assert consumers.pinned == frozenset()


class Tied(Block):
    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.twin = nn.Embedding(VOCABULARY, WIDTH)
        if tie:
            self.twin.weight = self.embedding.weight
        self.eval()


@pytest.mark.parametrize("tie", [True, False])
def test_two_names_of_one_allocation(tie: bool) -> None:
    """Whichever name the trace reads, the other one holds the memory."""
    consumers = analyze_consumers(captured(Tied(tie)))
    names = consumers.names(consumers.storages["embedding.weight"])
    assert set(names) == ({"embedding.weight", "twin.weight"} if tie else {"embedding.weight"})
    (unread,) = [name for name in ("embedding.weight", "twin.weight") if not consumers.readers[name]]
    assert holders(consumers, "embedding.weight") == (
        (f"{unread} is registered but never read by the traced forward",) if tie else ()
    )


class Plain(nn.Module):
    """Encloses a block, and uses only what it returns."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.block(ids).relu()


class Reads(Plain):
    def forward(self, ids: Tensor) -> Tensor:
        return self.block(ids) @ self.block.embedding.weight


class ReadsInside(Plain):
    """The names stand in a nested function."""

    def forward(self, ids: Tensor) -> Tensor:
        def weights() -> list[Tensor]:
            return [part.embedding.weight for part in (self.block,)]

        return self.block(ids) @ weights()[0]


class Inherits(Reads):
    """The method that reads is the parent's."""


class Other(Plain):
    """Names a weight, of a module the block does not have."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__(block)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return self.block(ids)[..., :WIDTH] @ self.head.weight


def around(use: Callable[[Plain, Block], Any]) -> Callable[[Block], Plain]:
    """A plain owner to which something was done from outside."""

    def make(block: Block) -> Plain:
        owner = Plain(block)
        use(owner, block)
        return owner

    return make


OWNERS: dict[str, tuple[Callable[[Block], Plain], str]] = {
    "a parameter": (around(lambda o, b: o.register_parameter("own", b.embedding.weight)), "owner holds it as own"),
    "a view as a buffer": (around(lambda o, b: o.register_buffer("v", b.embedding.weight.detach()[1:])), "owner holds it as v"),
    "a parameter of a part": (around(lambda o, b: o.add_module("h", tied(b))), "owner holds it as h.weight"),
    "the same module": (around(lambda o, b: o.add_module("again", b.embedding)), "owner uses it as again.weight"),
    "in a list": (around(lambda o, b: setattr(o, "kept", [b.embedding.weight])), "owner holds it as kept"),
    "in a tuple": (around(lambda o, b: setattr(o, "kept", (b.embedding.weight,))), "owner holds it as kept"),
    "in a dict": (around(lambda o, b: setattr(o, "kept", {"w": b.embedding.weight})), "owner holds it as kept"),
    "in a list of lists": (around(lambda o, b: setattr(o, "kept", [[b.embedding.weight]])), "owner holds it as kept"),
    "named in forward": (Reads, "owner's Reads.forward names embedding.weight"),
    "named in a nested function": (ReadsInside, "owner's ReadsInside.forward names embedding.weight"),
    "named in an inherited method": (Inherits, "owner's Inherits.forward names embedding.weight"),
}


def tied(block: Block) -> nn.Linear:
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    head.weight = block.embedding.weight
    return head


@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_that_uses_the_state(name: str) -> None:
    make, who = OWNERS[name]
    block = Block()
    consumers = analyze_consumers(captured(block), make(block), block)
    assert holders(consumers, "embedding.weight") == (who,)
    assert holders(consumers, "project.weight") == ()
    assert consumers.pinned == ({"embedding.weight"} if "names" in who else frozenset())


@pytest.mark.parametrize(
    "make", [Plain, Other, lambda block: block], ids=["outputs", "a weight of its own", "the model itself"]
)
def test_an_owner_that_does_not(make: Callable[[Block], nn.Module]) -> None:
    block = Block()
    consumers = analyze_consumers(captured(block), make(block), block)
    assert not any(holders(consumers, name) for name in ("embedding.weight", "project.weight", "project.bias"))
    assert consumers.pinned == frozenset()


def test_an_owner_has_to_contain_the_model() -> None:
    block = Block()
    with pytest.raises(ValueError, match="owner does not contain the model"):
        analyze_consumers(captured(block), Plain(Block()), block)
