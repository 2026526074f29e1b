"""A model named on the command line, compiled on the examples named there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..api import Result, compile
from .inputs import built_model, loaded_examples, parsed_tokens, progress_bars


def compiled(
    factory: str,
    weights: Path | None,
    examples: str,
    *,
    token: list[str] | None,
    observable: list[str] | None,
    static: bool,
    **options: Any,
) -> Result:
    """What `compile` returns for the options that every compiling command has, and further ones of its own."""
    with progress_bars() as progress:
        return compile(
            built_model(factory, weights),
            loaded_examples(examples),
            tokens=parsed_tokens(token),
            observables=observable or (),
            dynamic=not static,
            progress=progress,
            **options,
        )
