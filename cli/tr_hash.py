"""`foldfx routes build | check`: TR-Hash route tables from the command line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from safetensors import safe_open
from safetensors.torch import save_file

from ..runtime.tr_hash import RouteTable, TRHashStrategy, build_route_table
from ..runtime.tr_hash.config import DEFAULT_ROUTE_SEED
from ..runtime.tr_hash.convert import TABLE
from ..runtime.tr_hash.stored import CODES, PAIRS, ROUTE_TABLE, require_same_codes

NOT_AS_SAID = 2

tables_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build TR-Hash route tables, or check stored ones.")

Seed = Annotated[int, typer.Option(help="Salt of the construction.")]
HashCount = Annotated[int, typer.Option(help="Channels of the multi-hash.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@tables_app.command("build")
def build_command(
    strategy: Annotated[TRHashStrategy, typer.Argument(help="The construction.")],
    vocab_size: Annotated[int, typer.Option(help="V.")],
    num_experts: Annotated[int, typer.Option(help="E: 1, 2, 4, 8 or 16.")],
    top_k: Annotated[int, typer.Option(help="K: 1, 2 or 4.")],
    layer_index: Annotated[int, typer.Option(help="Which layer's table.")] = 0,
    route_seed: Seed = DEFAULT_ROUTE_SEED,
    route_hash_count: HashCount = 2,
    out: Annotated[Path | None, typer.Option(help="A safetensors file to write the table to, as route_table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Build a layer's route table, and say how it spreads the vocabulary."""
    table = build_route_table(
        strategy,
        vocab_size=vocab_size,
        num_experts=num_experts,
        top_k=top_k,
        layer_index=layer_index,
        route_seed=route_seed,
        route_hash_count=route_hash_count,
    )
    if out is not None:
        said = {"strategy": strategy, "num_experts": num_experts, "layer_index": layer_index, "route_seed": route_seed}
        metadata = {name: str(value) for name, value in said.items()} | {"sha256": table.sha256}
        save_file({ROUTE_TABLE: table.experts}, out, metadata)
    _print([_described(ROUTE_TABLE, table)], as_json)


@tables_app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A safetensors checkpoint, or a table that `build` wrote.")],
    num_experts: Annotated[int | None, typer.Option(help="E, where the file holds no expert weights that tell.")] = None,
    strategy: Annotated[TRHashStrategy | None, typer.Option(help="Compare every table with this construction.")] = None,
    route_seed: Seed = DEFAULT_ROUTE_SEED,
    route_hash_count: HashCount = 2,
    as_json: AsJson = False,
) -> None:
    """Check every route table in a file: range, distinct experts, pair codes and, if asked, the construction.

    The layer is read from `layers.N.` in a table's name, and is 0 without. Exit code 2: a table is not as it should be.
    """
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}")
    stored = _read(file, num_experts)
    if not stored:
        raise typer.BadParameter(f"{file} holds no entry named {ROUTE_TABLE} or {TABLE}")
    found = [each.checked(strategy, route_seed, route_hash_count) for each in stored]
    _print(found, as_json)
    if any(each["wrong"] for each in found):
        raise typer.Exit(NOT_AS_SAID)


@dataclass(frozen=True)
class _Stored:
    """A table as it lies in a file, with what lies beside it."""

    name: str
    experts: Any
    num_experts: int
    derived: dict[str, Any]

    def checked(self, strategy: TRHashStrategy | None, route_seed: int, route_hash_count: int) -> dict[str, Any]:
        """What it is, and under `wrong` what is the matter with it, or None."""
        try:
            table = RouteTable(self.experts, self.num_experts)
            require_same_codes(table, self.derived)
        except (TypeError, ValueError) as error:
            return {"name": self.name, "wrong": str(error)}
        if strategy is None:
            return _described(self.name, table)
        layer = re.search(r"(?:^|\.)layers\.(\d+)\.", self.name)
        expected = build_route_table(
            strategy,
            vocab_size=table.vocab_size,
            num_experts=table.num_experts,
            top_k=table.top_k,
            layer_index=int(layer[1]) if layer else 0,
            route_seed=route_seed,
            route_hash_count=route_hash_count,
        )
        differing = int((expected.experts != table.experts).any(0).sum())
        wrong = f"{differing:,} of {table.vocab_size:,} tokens are routed otherwise than by {strategy}" if differing else None
        return _described(self.name, table) | {"wrong": wrong}


def _read(file: Path, num_experts: int | None) -> list[_Stored]:
    with safe_open(file, framework="pt") as held:
        names, metadata = set(held.keys()), held.metadata() or {}
        stored = []
        for name in sorted(names):
            prefix, _, last = name.rpartition(".")
            if last not in (ROUTE_TABLE, TABLE):
                continue
            head = f"{prefix}." if prefix else ""
            weights = [each for each in (f"{head}expert_gate", f"{head}gate_proj_w") if each in names]
            experts = num_experts or (held.get_slice(weights[0]).get_shape()[0] if weights else metadata.get("num_experts"))
            if experts is None:
                raise typer.BadParameter(f"nothing in {file} tells the number of experts of {name}; pass --num-experts")
            derived = {each: held.get_tensor(head + each) for each in (CODES, PAIRS) if head + each in names}
            stored.append(_Stored(name, held.get_tensor(name), int(experts), derived))
    return stored


def _described(name: str, table: RouteTable) -> dict[str, Any]:
    return {
        "name": name,
        "num_experts": table.num_experts,
        "top_k": table.top_k,
        "vocab_size": table.vocab_size,
        "sha256": table.sha256,
        "occupancy": table.occupancy().tolist(),
        "wrong": None,
    }


def _print(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for each in found:
        if "sha256" in each:
            print(
                f"{each['name']}: K={each['top_k']}, V={each['vocab_size']:,}, E={each['num_experts']}, sha256 {each['sha256']}"
            )
            for position, counts in enumerate(each["occupancy"]):
                print(f"  route {position}: {' '.join(f'{count:,}' for count in counts)} tokens")
        if each["wrong"]:
            print(f"{each['name']}: {each['wrong']}")
