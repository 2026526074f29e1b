"""Route files: which experts each token id takes, for another engine to replay or to be compared with."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..errors import RouteFileError

SCHEMA_VERSION = 1

_WEIGHTS = "weights."


@dataclass(frozen=True)
class Routes:
    """The routes of one decision.

    Attributes:
        name: the decision, as the graph names it.
        at: its place in the source.
        experts: [classes, K, V], integers; what each of V tokens chooses, for each execution class; class 0 is that of bulk
            calls.
        weights: what is computed from the chosen scores alone, [classes, K', V] floats by name.
        margins: [V], float64: how far each token's choice is from another, in units of the score, in bulk calls.
        fragile: [n], int64: ids whose margin is within the noise of the scores.
        ids: [V], int64: the token ids, where they are not 0 … V-1.
        rule: which class answers for which number of rows in a call; "" where there is one.
    """

    name: str
    at: str
    experts: torch.Tensor
    weights: Mapping[str, torch.Tensor]
    margins: torch.Tensor
    fragile: torch.Tensor
    ids: torch.Tensor | None = None
    rule: str = ""

    def tokens(self) -> torch.Tensor:
        """The token ids, [V], int64."""
        return torch.arange(self.margins.shape[0]) if self.ids is None else self.ids


@dataclass(frozen=True)
class RouteFile:
    """Everything one file holds.

    Attributes:
        routes: one for each decision.
        fingerprint: of the model's state: SHA-256 over names, dtypes, shapes and contents.
        torch_version: of the torch that computed them.
        threads: torch's threads then.
    """

    routes: tuple[Routes, ...]
    fingerprint: str
    torch_version: str = torch.__version__
    threads: int = field(default_factory=torch.get_num_threads)

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file: to a temporary name, synchronised, renamed.

        Returns:
            The path.

        Raises:
            RouteFileError: see `require_place`.
        """
        path = Path(path)
        require_place(path)
        tensors: dict[str, torch.Tensor] = {}
        described = []
        for each in self.routes:
            held = {"experts": each.experts, "margins": each.margins, "fragile": each.fragile}
            held |= {} if each.ids is None else {"ids": each.ids}
            held |= {_WEIGHTS + name: tensor for name, tensor in each.weights.items()}
            tensors |= {f"{each.name}.{name}": tensor.contiguous() for name, tensor in held.items()}
            described.append({"name": each.name, "at": each.at, "rule": each.rule, "weights": list(each.weights)})
        header = {"routes": described, "fingerprint": self.fingerprint, "torch": self.torch_version, "threads": self.threads}
        data = save(tensors, {"foldfx_routes": json.dumps({"schema_version": SCHEMA_VERSION, **header})})
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            with (Path(folder) / path.name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
        return path

    @staticmethod
    def load(path: str | Path) -> RouteFile:
        """Read a file, strictly.

        Raises:
            RouteFileError: there is no such file, it is not one of routes, or its tables do not fit together.
        """
        if not Path(path).is_file():
            raise RouteFileError(f"there is no file {path}")
        try:
            with safe_open(path, "pt") as file:
                text = (file.metadata() or {}).get("foldfx_routes")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise RouteFileError(f"{path} is not a safetensors file: {error}") from error
        if text is None:
            raise RouteFileError(f"{path} holds no routes: its metadata has no entry foldfx_routes")
        try:
            return _from_header(json.loads(text), tensors, path)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RouteFileError(f"{path}: its entry foldfx_routes is malformed: {type(error).__name__}: {error}") from error


def _from_header(header: Mapping[str, Any], tensors: dict[str, torch.Tensor], path: str | Path) -> RouteFile:
    if header["schema_version"] != SCHEMA_VERSION:
        raise RouteFileError(f"{path} has schema version {header['schema_version']}, this foldfx reads {SCHEMA_VERSION}")
    routes = tuple(_routes(described, tensors, path) for described in header["routes"])
    if tensors:
        raise RouteFileError(f"{path} holds tensors that belong to no decision: {sorted(tensors)}")
    return RouteFile(routes, header["fingerprint"], header["torch"], header["threads"])


def require_place(path: Path) -> None:
    """Refuse a path where no file can be written.

    Raises:
        RouteFileError: it is a directory, or its folder is none or not writable.
    """
    if path.is_dir():
        raise RouteFileError(f"{path} is a directory; name a file")
    if not path.absolute().parent.is_dir():
        raise RouteFileError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise RouteFileError(f"{path} cannot be written: its folder is not writable")


def _routes(described: Mapping[str, object], tensors: dict[str, torch.Tensor], path: str | Path) -> Routes:
    """One decision's routes, taken out of `tensors`."""
    name = str(described["name"])

    def taken(key: str) -> torch.Tensor:
        if f"{name}.{key}" not in tensors:
            raise RouteFileError(f"{path} has no tensor {name}.{key}")
        return tensors.pop(f"{name}.{key}")

    weights = {str(key): taken(_WEIGHTS + str(key)) for key in described["weights"]}  # type: ignore[attr-defined]
    ids = taken("ids") if f"{name}.ids" in tensors else None
    found = Routes(
        name, str(described["at"]), taken("experts"), weights, taken("margins"), taken("fragile"), ids, str(described["rule"])
    )
    if problems := list(_problems(found)):
        raise RouteFileError(f"{path}: decision {found.name}: {'; '.join(problems)}")
    return found


def _problems(routes: Routes) -> Iterator[str]:
    """What does not fit together in the tables of one decision."""
    experts, tokens = routes.experts, routes.margins.shape[0]
    if experts.is_floating_point() or experts.dim() != 3 or experts.shape[2] != tokens:
        yield f"experts are {experts.dtype} {list(experts.shape)}, not integers [classes, K, {tokens}]"
    if experts.numel() and int(experts.min()) < 0:
        yield f"an expert has the number {int(experts.min())}"
    for name, tensor in routes.weights.items():
        if tensor.dim() != 3 or tensor.shape[::2] != experts.shape[::2]:
            yield f"weights {name} are {list(tensor.shape)}, not [{experts.shape[0]}, K, {tokens}]"
    if routes.ids is not None and routes.ids.shape != routes.margins.shape:
        yield f"there are {routes.ids.numel()} ids for {tokens} tokens"
