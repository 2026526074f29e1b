"""A graph as data: what a diff compares, and what a run directory keeps for later comparisons."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from ..analysis.fingerprint import Digests
from ..analysis.program import GUARDS
from ..analysis.storage import Storage
from ..errors import DiffError

OUTLINE_VERSION = 1
STATE = "state:"
"""Operands that begin with it are reads of the state of that name."""
INPUT, CALL, OUTPUT = "input", "call", "output"
CHECK = f"module {GUARDS}"
"""The operation that checks a program's inputs and returns nothing."""
SAVED = ("parameter", "buffer")
"""Kinds of state that a state dict holds."""


@dataclass(frozen=True)
class Value:
    """One input, computed value or output of a graph.

    Attributes:
        key: identifies it in its outline, without the help of its name: operation, module path and which one of these.
        name: what it is called there; not compared.
        op: `INPUT`, `CALL` or `OUTPUT`.
        target: the operation as text, such as "aten.linear.default"; of an input, the argument.
        arguments: the arguments as text, a format string with {0}, {1}, … for the operands; literals are typed: 1, 1.0, True.
        operands: keys of values, or `STATE` and a name.
        type: dtype and sizes, strides where not row-major, device where not the CPU; "" where the trace holds none.
        module: path of the module whose forward made it.
        source: file and line of the model's code, without the folder.
        made_by: the pass that added it, or "".
        stands_for: names of the values it was added for, in the graph before that pass.
    """

    key: str
    name: str
    op: str
    target: str
    arguments: str = ""
    operands: tuple[str, ...] = ()
    type: str = ""
    module: str = ""
    source: str = ""
    made_by: str = ""
    stands_for: tuple[str, ...] = ()

    @property
    def call(self) -> tuple[str, str, str]:
        """What it computes from its operands."""
        return self.op, self.target, self.arguments

    @property
    def site(self) -> tuple[str, str]:
        return self.module, self.source


@dataclass(frozen=True)
class Held:
    """One name of the state.

    Attributes:
        kind: "parameter", "buffer", "unsaved buffer", "constant" (on memory of its own, outside the model's state) or
            "graph" (one that an operation runs).
        type: dtype and sizes.
        bytes: numel · itemsize.
        allocation: bytes of the memory it stands on.
        shares: other names that stand on the same memory, ascending.
        digest: SHA-256 of its contents; "" where `tensor` has not been read yet, or cannot be.
        tensor: itself, where the graph is at hand.
    """

    kind: str
    type: str
    bytes: int
    allocation: int
    shares: tuple[str, ...] = ()
    digest: str = ""
    tensor: torch.Tensor | None = field(default=None, repr=False, compare=False)

    def contents(self, digests: Digests) -> str:
        """The digest, read from the tensor if need be."""
        return self.digest or ("" if self.tensor is None else digests.of(self.tensor))


@dataclass(frozen=True)
class Outline:
    """A graph as data.

    Attributes:
        label: what to call it.
        values: in the graph's order; reads of state are operands, not values.
        state: by name.
        signature: inputs, outputs and their structure, as label → text.
        metadata: token domains, effects and ranges of sizes, likewise; None for a bare graph, which has none.
    """

    label: str
    values: tuple[Value, ...]
    state: Mapping[str, Held]
    signature: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    metadata: Mapping[str, str] | None = None

    @property
    def calls(self) -> int:
        """How many values are computed; the check of the inputs is none."""
        return sum(value.op == CALL and value.target != CHECK for value in self.values)

    @property
    def storage(self) -> Storage:
        """Bytes of state, counted as in `analysis.storage`."""
        return storage_of(self.state)

    def to_dict(self, digests: Digests) -> dict[str, Any]:
        """JSON-serialisable; holds digests of the state's contents, not the contents."""
        return {
            "outline_version": OUTLINE_VERSION,
            "label": self.label,
            "values": [value_to_dict(value) for value in self.values],
            "state": {name: held_to_dict(held, digests) for name, held in self.state.items()},
            "signature": dict(self.signature),
            "metadata": None if self.metadata is None else dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Outline:
        """The reverse of `to_dict`.

        Args:
            data: parsed JSON.
            where: the file, for messages.

        Raises:
            DiffError: it is of another version, or not an outline.
        """
        if data.get("outline_version") != OUTLINE_VERSION:
            found = data.get("outline_version", "none")
            raise DiffError(f"{where} has outline version {found}, this foldfx reads {OUTLINE_VERSION}; write the run anew")
        try:
            values = tuple(Value(**_with_tuples(value, ("operands", "stands_for"))) for value in data["values"])
            state = {name: Held(**_with_tuples(held, ("shares",))) for name, held in data["state"].items()}
            return cls(data["label"], values, state, data["signature"], data["metadata"])
        except (KeyError, TypeError) as error:
            raise DiffError(
                f"{where} is not an outline of a graph: {type(error).__name__} {error}; write the run anew"
            ) from error


def storage_of(state: Mapping[str, Held]) -> Storage:
    """Logical bytes of what a state dict holds, and backing bytes of every allocation, constants left out."""
    logical = sum(held.bytes for held in state.values() if held.kind in SAVED)
    memory = {
        frozenset((name, *held.shares)): held.allocation
        for name, held in state.items()
        if held.kind not in ("constant", "graph")
    }
    return Storage(logical, sum(memory.values()))


def value_to_dict(value: Value) -> dict[str, Any]:
    return {**asdict(value), "operands": list(value.operands), "stands_for": list(value.stands_for)}


def held_to_dict(held: Held, digests: Digests) -> dict[str, Any]:
    return {
        "kind": held.kind,
        "type": held.type,
        "bytes": held.bytes,
        "allocation": held.allocation,
        "shares": list(held.shares),
        "digest": held.contents(digests),
    }


def _with_tuples(data: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: tuple(value) if name in names else value for name, value in data.items()}
