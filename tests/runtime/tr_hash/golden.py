"""Golden data: digests of route tables and numbers of whole layers, made by running the public engine."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent


@cache
def routes() -> dict[str, list[Any]]:
    """Digests: SHA-256 of the expert ids as bytes, row by row (the first 16 digits for small tables)."""
    return json.loads((FOLDER / "golden_routes.json").read_text())


def arguments(row: list[Any]) -> dict[str, Any]:
    """Keyword arguments of `build_route_table`, from the head of a row."""
    return dict(zip(routes()["fields"], row, strict=False))


def filled(shape: list[int], phase: float) -> Tensor:
    """Float64: value i, counted row by row, is sin(0.37 i + phase) / 2."""
    count = int(np.prod(shape))
    return (0.5 * torch.sin(0.37 * torch.arange(count, dtype=torch.float64) + phase)).reshape(shape)


@dataclass(frozen=True)
class Layer:
    """A layer in float64: its configuration, weights, a call and what came out, gradients included."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    hidden: Tensor
    ids: Tensor
    grad_output: Tensor
    output: Tensor
    gradients: dict[str, Tensor]
    table_sha256: str


@cache
def layers() -> list[Layer]:
    """Six layers with ids outside the vocabulary."""
    return [_layer(case) for case in json.loads((FOLDER / "golden_numbers.json").read_text())["cases"]]


def _layer(case: dict[str, Any]) -> Layer:
    phases, shapes = case["phases"], case["shapes"]
    ids = torch.tensor(case["token_ids"])
    call = [*ids.shape, case["config"]["hidden_size"]]
    return Layer(
        config=case["config"] | {"route_weights": tuple(case["config"]["route_weights"])},
        weights={name: filled(shape, phases[name]) for name, shape in shapes.items()},
        hidden=filled(call, phases["hidden"]),
        ids=ids,
        grad_output=filled(call, phases["grad_output"]),
        output=_decoded(case["output"], call),
        gradients={"hidden": _decoded(case["grad_hidden"], call)}
        | {name: _decoded(case["grads"][name], shape) for name, shape in shapes.items()},
        table_sha256=case["table"],
    )


def _decoded(text: str, shape: list[int]) -> Tensor:
    return torch.tensor(np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)).reshape(shape)
