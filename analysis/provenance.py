"""Where a node came from: module path and source line, in the form every message uses."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import torch
from torch.fx import Node

ORIGINS = "foldfx_origins"
"""`node.meta` key of every node a pass adds: (pass name, names of the nodes it stands for)."""

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = str(Path(torch.__file__).parent)
_NOT_THE_MODEL = (_TORCH, "torch/", "<eval_with_key>")
"""What files of torch, and code that it generated, are called."""


def module_path(node: Node) -> str:
    """The path of the innermost module whose forward made the node; "" is the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and not entry[0].startswith("_empty")]
    return str(paths[-1]) if paths else ""


def source_line(node: Node) -> str:
    """`file:line` of the innermost frame outside torch and its generated code, or "" when the trace holds none.

    The file as it is imported, `transformers/models/llama/modeling_llama.py`, so that every machine writes the same.
    """
    frames = [(m["file"], m["line"]) for m in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if not frame[0].startswith(_NOT_THE_MODEL)]
    return f"{_as_imported(own[-1][0], tuple(sys.path))}:{own[-1][1]}" if own else ""


@cache
def _as_imported(file: str, roots: tuple[str, ...]) -> str:
    """The path within the innermost folder that Python imports from; the whole path where none holds the file."""
    holding = [root for root in roots if root and Path(file).is_relative_to(root)]
    return Path(file).relative_to(max(holding, key=len)).as_posix() if holding else file


def where(node: Node) -> str:
    """Module path and source line for a message; for a parameter or an input, its name."""
    if node.op == "placeholder":
        return f"input {node.target}"
    if node.op == "get_attr":
        return f"state {node.target}"
    parts = [part for part in (f"module {module_path(node)}" if module_path(node) else "", source_line(node)) if part]
    return ", ".join(parts) or "no source line"
