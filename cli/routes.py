"""`foldfx routes export | show | compare`: the routes of a folded model as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..inspection.report import SCHEMA_VERSION
from ..inspection.route_diff import compare_routes
from ..inspection.route_text import route_text, routes_to_dict
from ..runtime.route_file import RouteFile, require_place
from .compiled import compiled
from .inputs import AsJson, Examples, Factory, MaxTableBytes, Observables, Static, TimeBudget, Tokens, Weights

DIFFERENT = 2

routes_app = typer.Typer(no_args_is_help=True, help="Write, read and compare routes.", rich_markup_mode=None)

File = Annotated[Path, typer.Argument(help="A route file.")]


@routes_app.command("export")
def export_command(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    observable: Observables = None,
    max_table_bytes: MaxTableBytes = None,
    time_budget: TimeBudget = None,
    static: Static = False,
) -> None:
    """Fold a model's routes, verify, and write them to a file."""
    require_place(file)
    result = compiled(
        factory,
        weights,
        examples,
        token=token,
        observable=observable,
        static=static,
        objective="routes",
        max_table_bytes=max_table_bytes,
        time_budget=time_budget,
    )
    print(route_text(RouteFile.load(result.routes().save(file))))


@routes_app.command("show")
def show_command(file: File, as_json: AsJson = False) -> None:
    """Say what a file holds."""
    held = RouteFile.load(file)
    print(_json({"file": str(file), **routes_to_dict(held)}) if as_json else route_text(held))


@routes_app.command("compare")
def compare_command(file: File, other: File, as_json: AsJson = False) -> None:
    """Compare two files token by token; exit with 2 where anything differs."""
    one, two = RouteFile.load(file), RouteFile.load(other)
    differences = compare_routes(one, two)
    same_model = one.fingerprint == two.fingerprint
    if as_json:
        print(_json({"same_model": same_model, "routes": [each.to_dict() for each in differences]}))
    else:
        print("\n".join([*map(str, differences), f"of {'the same model' if same_model else 'models with other tensors'}"]))
    if not all(each.equal for each in differences):
        raise typer.Exit(DIFFERENT)


def _json(data: dict[str, object]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=2, allow_nan=False)
