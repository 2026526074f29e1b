"""`foldfx diff`: what changed between two graphs, and whether a policy allows it."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..inspection.diff import Diff, diff_graphs
from ..inspection.diff_markdown import diff_markdown
from ..inspection.diff_text import diff_text
from ..inspection.html import render_diff
from ..inspection.load_outline import as_outline
from ..inspection.outline import Outline
from ..inspection.policy import Policy
from ..inspection.run_layout import read_report
from .inputs import called

DIFFERENT = BROKEN = 2

_STYLES = {"---": "bold", "+++": "bold", "@@ ": "cyan", "-": "red", "+": "green", "~": "yellow"}

Side = Annotated[
    str,
    typer.Argument(
        help="A .pt2 file, a run directory (its last graph), one of its NN-….json graphs, or file.py:function that returns a "
        "Program, GraphModule or ExportedProgram."
    ),
]


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MARKDOWN = "markdown"


def diff_command(
    before: Side,
    after: Side,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = Form.TEXT,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 2 where the graphs differ.")] = False,
    check: Annotated[Path | None, typer.Option(help="A TOML file of rules; exit with 2 where the change breaks one.")] = None,
) -> None:
    """Compare two graphs value by value; names do not count."""
    policy = None if check is None else Policy.load(check)
    diff = diff_graphs(_side(before), _side(after))
    _show(diff, form)
    report = read_report(Path(after)) if Path(after).is_dir() else None
    violations = [] if policy is None else policy.violations(diff, report)
    for text in violations:
        print(f"policy: {text}", file=sys.stderr)
    if violations:
        raise typer.Exit(BROKEN)
    if exit_code and not diff.empty:
        raise typer.Exit(DIFFERENT)


def _side(named: str) -> Outline:
    is_function = ":" in named and not Path(named).exists()
    return as_outline(called(named) if is_function else named, named)


def _show(diff: Diff, form: Form) -> None:
    if form is Form.JSON:
        print(json.dumps(diff.to_dict(), indent=2, allow_nan=False))
    elif form is Form.HTML:
        print(render_diff(diff), end="")
    elif form is Form.MARKDOWN:
        print(diff_markdown(diff))
    elif not diff.empty:
        text = Text("\n").join(Text(line, _style(line)) for line in diff_text(diff).splitlines())
        Console().print(text, soft_wrap=True)


def _style(line: str) -> str:
    return next((style for start, style in _STYLES.items() if line.startswith(start)), "")
