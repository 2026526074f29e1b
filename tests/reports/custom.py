"""A pass of somebody's own, made of one edit, in front of the fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

import foldfx
from foldfx.passes import Outcome, PassContext, PassResult, Status

Edit = Callable[[foldfx.Program], object]


@dataclass
class Custom:
    """Somebody's own pass."""

    edit: Edit
    name: ClassVar[str] = "custom"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        self.edit(program)
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "everything", "said so"),))


def run(model: Any, edit: Edit, *args: Tensor) -> foldfx.Result:
    """Compile with the edit before the fold."""
    pipeline = foldfx.Pipeline((Custom(edit), foldfx.FoldTokens()))
    return foldfx.compile(model, [foldfx.Example(args)], pipeline=pipeline, dynamic=False)
