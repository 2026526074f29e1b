"""`foldfx routes build | check`: TR-Hash route tables from the command line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from safetensors import SafetensorError, safe_open
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
        said = {
            "strategy": strategy,
            "num_experts": num_experts,
            "layer_index": layer_index,
            "route_seed": route_seed,
            "route_hash_count": route_hash_count,
            "sha256": table.sha256,
        }
        try:
            save_file({ROUTE_TABLE: table.experts}, out, {name: str(value) for name, value in said.items()})
        except SafetensorError as error:
            raise typer.BadParameter(f"--out {out} cannot be written: {error}") from error
    _print([_described(ROUTE_TABLE, table)], as_json)


@tables_app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A safetensors checkpoint, or a table that `build` wrote.")],
    num_experts: Annotated[int | None, typer.Option(help="E, where the file does not tell.")] = None,
    strategy: Annotated[TRHashStrategy | None, typer.Option(help="Compare every table with this construction.")] = None,
    route_seed: Annotated[int | None, typer.Option(help="Salt of the construction.")] = None,
    route_hash_count: Annotated[int | None, typer.Option(help="Channels of the multi-hash.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every route table in a file: range, distinct experts, pair codes and, if asked, the construction.

    A table that `build` wrote is compared with the digest and the construction stated in its file, unless options say
    otherwise. In a checkpoint the layer is read from `layers.N.` in a table's name, and is 0 without. Exit code 2: a table
    is not as it should be.
    """
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}")
    try:
        stored = _read(file, num_experts)
    except SafetensorError as error:
        raise typer.BadParameter(f"{file} is not a safetensors file: {error}") from error
    if not stored:
        raise typer.BadParameter(f"{file} holds no entry named {ROUTE_TABLE} or {TABLE}")
    options = {"strategy": strategy, "route_seed": route_seed, "route_hash_count": route_hash_count}
    asked = {name: str(value) for name, value in options.items() if value is not None}
    found = [each.checked(asked) for each in stored]
    _print(found, as_json)
    if any(each["wrong"] for each in found):
        raise typer.Exit(NOT_AS_SAID)


@dataclass(frozen=True)
class _Stored:
    """A table as it lies in a file, with what lies beside it and what the file says of it."""

    name: str
    experts: Any
    num_experts: int
    derived: dict[str, Any]
    said: dict[str, str]

    def checked(self, asked: dict[str, str]) -> dict[str, Any]:
        """What it is, and under `wrong` what is the matter with it, or None."""
        try:
            table = RouteTable(self.experts, self.num_experts)
            require_same_codes(table, self.derived)
            return _described(self.name, table) | {"wrong": self._otherwise(table, self._layer() | self.said | asked)}
        except (TypeError, ValueError) as error:
            return {"name": self.name, "wrong": str(error)}

    def _layer(self) -> dict[str, str]:
        layer = re.search(r"(?:^|\.)layers\.(\d+)\.", self.name)
        return {"layer_index": layer[1]} if layer else {}

    def _otherwise(self, table: RouteTable, said: dict[str, str]) -> str | None:
        """How the table differs from what is said of it, or None."""
        if said.get("sha256", table.sha256) != table.sha256:
            return f"its sha256 is {table.sha256}, but the file says {said['sha256']}"
        if "strategy" not in said:
            return None
        expected = build_route_table(
            said["strategy"],
            vocab_size=table.vocab_size,
            num_experts=table.num_experts,
            top_k=table.top_k,
            **{name: int(said[name]) for name in ("layer_index", "route_seed", "route_hash_count") if name in said},
        )
        differing = int((expected.experts != table.experts).any(0).sum())
        by = said["strategy"]
        return f"{differing:,} of {table.vocab_size:,} tokens are routed otherwise than by {by}" if differing else None


def _read(file: Path, num_experts: int | None) -> list[_Stored]:
    with safe_open(file, framework="pt") as held:
        names, metadata = set(held.keys()), held.metadata() or {}
        stored = []
        for name in sorted(names):
            prefix, _, last = name.rpartition(".")
            if last not in (ROUTE_TABLE, TABLE):
                continue
            head = f"{prefix}." if prefix else ""
            said = metadata if name == ROUTE_TABLE else {}
            weights = [each for each in (f"{head}expert_gate", f"{head}gate_proj_w") if each in names]
            told = held.get_slice(weights[0]).get_shape()[0] if weights else said.get("num_experts")
            if isinstance(told, str) and not told.isdecimal():
                raise typer.BadParameter(f"the metadata of {file} says that num_experts is {told!r}, no number; build it anew")
            experts = num_experts if told is None else int(told)
            if experts is None:
                raise typer.BadParameter(f"nothing in {file} tells the number of experts of {name}; pass --num-experts")
            if num_experts not in (None, experts):
                raise typer.BadParameter(f"--num-experts {num_experts}, but {file} has {experts} for {name}; leave it out")
            derived = {each: held.get_tensor(head + each) for each in (CODES, PAIRS) if head + each in names}
            stored.append(_Stored(name, held.get_tensor(name), experts, derived, said))
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
