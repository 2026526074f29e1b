"""`foldfx explain`: one value of a run, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..inspection.explain import explain, explain_why_not


def explain_command(
    run: Annotated[Path, typer.Argument(help="A run directory, as compile --run-dir writes it.")],
    node: Annotated[str, typer.Argument(help="The name of a value in any of its graphs.")],
    why_not: Annotated[str | None, typer.Option(metavar="PASS", help="Say why this pass did nothing with it.")] = None,
) -> None:
    """Say what a value depends on, what became of it and what was shown; or why a pass did nothing with it."""
    print(explain(run, node) if why_not is None else explain_why_not(run, why_not, node))
