"""A directory that shows on any machine where two programs differ: both as text, their tensors, one call, one script."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import torch
from safetensors.torch import save_file
from torch.fx import GraphModule

from .._torch import storage_key
from .folder import new_folder, require_new
from .graph_text import graph_text, state_tensors

_STORABLE = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2}
)
"""Dtypes that safetensors files can hold."""

_SCRIPT = Template('''"""$title

Runs wherever torch, safetensors and foldfx are installed: python reproduce.py

Exits with 1 where the candidate differs from the reference on this call, with 0 where it does the same, and with 2 where
nothing can be decided (the reference differs from itself). An exception, which Python ends with 1, too, is no verdict.
"""

import json
import sys
from pathlib import Path

import torch
from candidate import Candidate
from reference import Reference
from safetensors.torch import load_file

import foldfx

HERE = Path(__file__).resolve().parent
THREADS = $threads
LIMITS = foldfx.Limits(
    max_abs={$max_abs},
    relative_l2={$relative_l2},
    wide_factor=$wide_factor,
)


def rebuild(records, stored):
    """Tensors on the device and with the strides they had; what was one tensor is one again."""
    tensors = {}
    for name, record in records.items():
        kept = stored[name]
        again = torch.empty_strided(kept.shape, record["stride"], dtype=kept.dtype, device=record["device"])
        tensors[name] = again.copy_(kept).expand(record["size"])
    return tensors


def main():
    torch.set_num_threads(THREADS)
    state, stored = json.loads((HERE / "state.json").read_text()), load_file(HERE / "state.safetensors")
    modules = []
    for make, program in ((Reference, state["reference"]), (Candidate, state["candidate"])):
        tensors = rebuild(program["tensors"], stored)
        modules.append(make({name: tensors[tensor] for name, tensor in program["names"].items()}))

    call = json.loads((HERE / "inputs.json").read_text())
    tensors = rebuild(call["tensors"], load_file(HERE / "inputs.safetensors"))
    inputs = [tensors[leaf["tensor"]] if "tensor" in leaf else leaf["value"] for leaf in call["leaves"]]

    verification = foldfx.verify(*modules, [foldfx.Example(tuple(inputs))], limits=LIMITS)
    print(verification.verdict)
    for reason in verification.because:
        print(f"  {reason}")
    return {"equivalent_on": 0, "different": 1}.get(verification.verdict, 2)


if __name__ == "__main__":
    sys.exit(main())
''')


def write_reproducer(
    folder: Path,
    reference: GraphModule,
    candidate: GraphModule,
    inputs: Sequence[Any],
    *,
    title: str,
    limits: Mapping[str, Any],
    threads: int,
) -> Path:
    """Write a directory whose script compares two programs on one call.

    It holds `reference.py` and `candidate.py` (see `graph_text`), `state.safetensors` and `inputs.safetensors` with
    `state.json` and `inputs.json` (names, strides, devices, inputs that are no tensors), and `reproduce.py`. Tensors are
    written row-major, one that stands under several names once; other views of one memory become tensors of their own.
    The directory is written under another name next to `folder` and renamed.

    Args:
        folder: where; missing parents are made.
        reference, candidate: graphs of programs with the same flat inputs; not changed.
        inputs: one leaf for each placeholder, in order: strided tensors of any shape, or None, bool, int, float, str.
        title: the script's docstring.
        limits: `Limits.to_dict()`: "max_abs" and "relative_l2" by dtype name ("torch.float32"), and "wide_factor".
        threads: how many torch threads the script runs on.

    Returns:
        The path of `reproduce.py`.

    Raises:
        FileExistsError: `folder` is a file, or a directory that is not empty.
        ValueError: a program cannot be written, the number of inputs is not the programs', an input or a tensor is of a
            kind that cannot be stored, `limits` names no dtype, or `threads` is not positive. Nothing is written then.
    """
    require_new(folder)
    programs = {"reference": reference, "candidate": candidate}
    for name, module in programs.items():
        if (count := len(module.graph.find_nodes(op="placeholder"))) != len(inputs):
            raise ValueError(f"the {name} takes {count} inputs and {len(inputs)} are given; give one for each placeholder")
    stored = _Stored()
    state = {name: _state_records(name, module, stored) for name, module in programs.items()}
    given = _Stored()
    texts = {
        "reference.py": graph_text(reference, "Reference"),
        "candidate.py": graph_text(candidate, "Candidate"),
        "reproduce.py": _script(title, limits, threads),
        "state.json": json.dumps(state, indent=2) + "\n",
        "inputs.json": json.dumps(_input_records(inputs, given), indent=2) + "\n",
    }
    with new_folder(folder) as partial:
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        save_file(stored.contents, partial / "state.safetensors")
        save_file(given.contents, partial / "inputs.safetensors")
    return folder / "reproduce.py"


class _Stored:
    """The contents of one safetensors file.

    Attributes:
        contents: row-major tensors by stored name; dimensions of stride 0 have size 1.
    """

    def __init__(self) -> None:
        self.contents: dict[str, torch.Tensor] = {}
        self._names: dict[object, str] = {}

    def add(self, tensor: torch.Tensor, name: str) -> str:
        """Store `tensor`, as `name` where it is new, and return the name it is stored under.

        Raises:
            ValueError: such tensors cannot be stored.
        """
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in _STORABLE:
            what = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            raise ValueError(f"{name} is a tensor of {what}, which safetensors cannot hold")
        place = (storage_key(tensor), tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        bits = (tensor.is_conj(), tensor.is_neg())
        stored = self._names.setdefault((place, bits), name)
        if stored not in self.contents:
            kept = tensor.detach()
            for dim, stride in enumerate(tensor.stride()):
                if stride == 0 and tensor.shape[dim] > 1:
                    kept = kept.narrow(dim, 0, 1)
            plain = kept.resolve_conj().resolve_neg().cpu()
            self.contents[stored] = plain.clone(memory_format=torch.contiguous_format)
        return stored


def _record(tensor: torch.Tensor) -> dict[str, Any]:
    """What `rebuild` in the script needs beside the contents."""
    return {"size": list(tensor.shape), "stride": list(tensor.stride()), "device": str(tensor.device)}


def _state_records(program: str, module: GraphModule, stored: _Stored) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, tensor in state_tensors(module).items():
        names[name] = stored.add(tensor, f"{program}.{name}")
        tensors[names[name]] = _record(tensor)
    return {"names": names, "tensors": tensors}


def _input_records(inputs: Sequence[Any], stored: _Stored) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    leaves: list[dict[str, Any]] = []
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            name = stored.add(value, f"input.{place}")
            tensors[name] = _record(value)
            leaves.append({"tensor": name})
        elif value is None or type(value) in (bool, int, float, str):
            leaves.append({"value": value})
        else:
            raise ValueError(f"input {place} is a {type(value).__name__}; pass tensors, numbers, strings or None, flat")
    return {"leaves": leaves, "tensors": tensors}


def _script(title: str, limits: Mapping[str, Any], threads: int) -> str:
    if threads < 1:
        raise ValueError(f"threads is {threads}; pass how many the script runs on, at least 1")
    return _SCRIPT.substitute(
        title=title.replace("\\", "\\\\").replace('"', '\\"'),
        threads=int(threads),
        max_abs=_by_dtype(limits["max_abs"]),
        relative_l2=_by_dtype(limits["relative_l2"]),
        wide_factor=_number(limits["wide_factor"]),
    )


def _by_dtype(limits: Mapping[str, float]) -> str:
    for name in limits:
        if not isinstance(getattr(torch, str(name).removeprefix("torch."), None), torch.dtype):
            raise ValueError(f'limits name the dtype {name!r}, which torch has not; write it as in "torch.float32"')
    return ", ".join(f"torch.{name.removeprefix('torch.')}: {_number(limit)}" for name, limit in limits.items())


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else f"float({str(float(value))!r})"
