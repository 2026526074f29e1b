"""Consumers: who reads each piece of state, in the graph and outside it.

Removing state frees memory only when nobody is left: no graph node reads it, no other name holds the same storage, and
no enclosing model uses it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType

import torch
from torch import nn
from torch.fx import Node

from .._torch import storage_key
from .aliases import state_tensor
from .program import Program

StorageKey = tuple[str, int]


@dataclass(frozen=True)
class Holder:
    """Someone outside the graph who keeps a storage alive.

    Attributes:
        storage: the allocation.
        who: in words, with the name under which it is held.
        pins: the state name that must stay for it; "" where the allocation lives on without one.
    """

    storage: StorageKey
    who: str
    pins: str = ""


@dataclass(frozen=True)
class Consumers:
    """Readers and holders of the state of one program.

    Attributes:
        readers: the graph nodes that read each state name (directly, from its `get_attr`).
        storages: the allocation each state name stands on.
        sizes: bytes of each allocation, in full.
        holders: who else holds an allocation.
    """

    readers: Mapping[str, tuple[Node, ...]]
    storages: Mapping[str, StorageKey]
    sizes: Mapping[StorageKey, int]
    holders: tuple[Holder, ...] = field(default=())

    def held(self, storage: StorageKey) -> tuple[str, ...]:
        """Who outside the graph keeps the allocation."""
        return tuple(holder.who for holder in self.holders if holder.storage == storage)

    @property
    def pinned(self) -> frozenset[str]:
        """State names that must stay although the graph may stop reading them."""
        return frozenset(holder.pins for holder in self.holders if holder.pins)

    def names(self, storage: StorageKey) -> tuple[str, ...]:
        """The state names that stand on an allocation."""
        return tuple(name for name, key in self.storages.items() if key == storage)


def analyze_consumers(program: Program, owner: nn.Module | None = None, model: nn.Module | None = None) -> Consumers:
    """Readers and holders of every piece of state of `program`.

    Args:
        program: the captured model.
        owner: a model that encloses the captured one.
        model: the captured model itself, to tell its own registrations from the owner's.

    Raises:
        ValueError: `owner` does not contain `model`.
    """
    readers: dict[str, tuple[Node, ...]] = {}
    storages: dict[str, StorageKey] = {}
    sizes: dict[StorageKey, int] = {}
    for node in program.graph.nodes:
        tensor = state_tensor(program, str(node.target)) if node.op == "get_attr" else None
        if tensor is not None:
            name = str(node.target)
            readers[name] = readers.get(name, ()) + tuple(node.users)
            storages[name] = storage_key(tensor)
            sizes[storages[name]] = tensor.untyped_storage().nbytes()
    holders = [
        Holder(storages[name], f"{name} is registered but never read by the traced forward")
        for name, users in readers.items()
        if not users
    ]
    holders += [Holder(storages[name], f"{name} is a constant of the trace") for name in program.constants if name in storages]
    if owner is not None and model is not None:
        holders += _owner_holders(storages, owner, model)
    return Consumers(readers, storages, sizes, tuple(holders))


def _owner_holders(storages: Mapping[str, StorageKey], owner: nn.Module, model: nn.Module) -> Iterator[Holder]:
    paths = [path for path, module in owner.named_modules(remove_duplicate=False) if module is model]
    if not paths:
        raise ValueError("owner does not contain the model: no submodule of owner is the model given")
    inside = {id(module) for module in model.modules()}
    held = set(storages.values())
    for path, module in owner.named_modules(remove_duplicate=False):
        if id(module) in inside:
            if not any(path == own or path.startswith(own + ".") or own == "" for own in paths):
                for name, tensor in _own_tensors(module):
                    if storage_key(tensor) in held:
                        yield Holder(storage_key(tensor), f"owner uses it as {path}.{name}")
            continue
        for name, tensor in _own_tensors(module):
            if storage_key(tensor) in held:
                yield Holder(storage_key(tensor), f"owner holds it as {f'{path}.{name}'.lstrip('.')}")
        for state, key in storages.items():
            if method := _named_in_code(module, state):
                yield Holder(key, f"owner's {type(module).__name__}.{method} names {state}", state)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)
    for name, value in vars(module).items():
        if name not in ("_parameters", "_buffers", "_modules"):
            for tensor in _tensors_in(value):
                yield name, tensor


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of a plain container, nested ones included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | set | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)


def _named_in_code(module: nn.Module, state: str) -> str:
    """The method of a user's module class whose code names every part of a state's path, or "".

    It may read the state directly, as in `self.block.embedding.weight`. Index parts ("0") cannot be seen and count as
    named, so the answer errs towards holding.
    """
    if type(module).__module__.startswith("torch."):
        return ""
    parts = {part for part in state.split(".")[-2:] if not part.isdigit()}
    for name, method in inspect.getmembers(type(module), inspect.isfunction):
        if not method.__module__.startswith("torch.") and parts <= set(names_in(method.__code__)):
            return name
    return ""


def names_in(code: CodeType) -> Iterator[str]:
    """The attributes and globals that code names, that of functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
