"""State that a pass must not write: operations that would are refused before they run."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from .._torch import Foreseen, storage_key
from ..analysis.program import named_state
from ..errors import PassError


def read_only(module: GraphModule) -> Foreseen:
    """A context in which no operation writes a tensor of the state of `module`, through whatever view or detached copy.

    Writes through numpy are no operations; they are seen afterwards, see `structure.state_versions`.

    Raises:
        PassError: (inside) an operation would write one; nothing is written.
    """
    names = {storage_key(tensor): name for name, tensor in named_state(module) if tensor.numel()}

    def refuse(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not operation._schema.is_mutable:
            return
        for place, argument in enumerate(operation._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for each in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(each, torch.Tensor) and (name := names.get(storage_key(each))) is not None:
                        raise PassError(f"it writes the tensors {[name]}; new values are new state")

    return Foreseen(refuse)
