"""A captured or folded program as the source of a Python module: tensors by name in, flat inputs in, outputs out."""

from __future__ import annotations

import builtins
import keyword
import math
import operator
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from .._torch import is_overload, tree_flatten
from ..analysis.program import GUARDS
from ..analysis.provenance import where

_HOMES = (operator, builtins, math, torch)
"""Modules whose functions text can name."""

_ARITHMETIC = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//"}
_COMPARISONS = {operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">="}
_INFIX: Mapping[Any, str] = {**_ARITHMETIC, operator.mod: "%", **_COMPARISONS}
_BUILT_IN = frozenset({"aten", "prims"})
_WAY_OUT = "Capture the part of the model without it, or compare the modules themselves with foldfx.verify"
_RESERVED = frozenset(
    {"self", "torch", "operator", "math", "nn", "Any", "Mapping", "Tensor", "foldfx", "hold", *keyword.kwlist, *dir(builtins)}
)
"""Names that the text uses for something else."""

_HEAD = '''"""{class_name}: a program of foldfx as text.

Comments give the module and the source line of what follows them, and the dtype and sizes of each value (strides, too,
where they are not row-major).{needs}
"""

from __future__ import annotations

{standard}from collections.abc import Mapping
from typing import Any

{own}import torch
from torch import Tensor, nn


def hold(root: nn.Module, name: str, value: Tensor, persistent: bool = True) -> None:
    """Register a parameter or a buffer under its dotted name, making the submodules on the way."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    else:
        root.register_buffer(leaf, value, persistent)


class {class_name}(nn.Module):
    """Takes its tensors by name and keeps them: what a call writes to a buffer is written to the tensor given."""
'''


def graph_text(module: GraphModule, class_name: str) -> str:
    """The source of a Python module that defines the program as one `nn.Module` class.

    The constructor takes a mapping from the names in `state_tensors(module)` to tensors and registers them under these
    names, as parameters or buffers as they were (plain attributes as non-persistent buffers). `forward` takes the
    graph's placeholders, one positional argument each, in order, and returns what `module` returns; containers other
    than lists, tuples and dictionaries are tuples of their leaves. Input guards are left out. The text depends on the
    graph alone, not on the values of tensors: equal graphs give equal text, byte for byte.

    Args:
        module: the graph of a `Program`; not changed.
        class_name: what to call the class.

    Raises:
        ValueError: `class_name` is not an identifier, or a node cannot be written: it reads a nested graph, calls a
            submodule or a Python function, or carries a constant without a literal. The message names the node.
    """
    if not class_name.isidentifier() or class_name in _RESERVED:
        raise ValueError(f"{class_name!r} cannot name the class; pass an identifier that names nothing else")
    names = _local_names(module.graph, class_name)
    inputs = [f"{names[node]}: Any" for node in module.graph.find_nodes(op="placeholder")]
    lines = ["    def __init__(self, state: Mapping[str, Tensor]) -> None:", "        super().__init__()"]
    lines += [f"        {line}" for line in _state_lines(module)]
    lines += ["", f"    def forward({', '.join(['self', *inputs])}) -> Any:"]
    said = ""
    for node in module.graph.nodes:
        if not (statement := _statement(node, module, names)):
            continue
        origin = " ".join(where(node).split()) if node.op.startswith("call") else said
        if origin != said:
            lines += ["", f"        # {origin}"]
            said = origin
        comment = described(node.meta.get("val")) if node.op != "output" else ""
        lines.append(f"        {statement}" + (f"  # {comment}" if comment else ""))
    body = "\n".join(lines) + "\n"
    return _head(module.graph, class_name, body) + "\n" + body


def state_tensors(module: GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that the graph reads, by dotted name, in the graph's order; not copied.

    Raises:
        ValueError: it reads something else, such as a nested graph.
    """
    found: dict[str, torch.Tensor] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        value = attrgetter(str(node.target))(module)
        if not isinstance(value, torch.Tensor):
            kind = "a nested graph" if isinstance(value, nn.Module) else f"a {type(value).__name__}"
            raise ValueError(f"node {node.name} reads {node.target}, {kind}, which text cannot hold. {_WAY_OUT}")
        found[str(node.target)] = value
    return found


def _head(graph: Graph, class_name: str, body: str) -> str:
    spaces = {node.target.namespace for node in graph.nodes if is_overload(node.target)} - _BUILT_IN
    own = "import foldfx.runtime\n" if "foldfx" in spaces else ""
    foreign = ", ".join(sorted(spaces - {"foldfx"}))
    needs = f"\nImport what registers the operators of {foreign} before calling this." if foreign else ""
    standard = "".join(f"import {name}\n" for name in ("math", "operator") if f"{name}." in body)
    return _HEAD.format(class_name=class_name, needs=needs, standard=standard, own=own)


def _local_names(graph: Graph, class_name: str) -> dict[Node, str]:
    """The node's own name wherever it hides nothing that the text uses."""
    taken = {*_RESERVED, class_name}
    names: dict[Node, str] = {}
    for node in graph.nodes:
        name = node.name
        while name in taken:
            name += "_"
        taken.add(name)
        names[node] = name
    return names


def _state_lines(module: GraphModule) -> list[str]:
    """One call of `hold` for each tensor; a tensor under several names is made a parameter once."""
    persistent = module.state_dict(keep_vars=True).keys()
    first: dict[int, str] = {}
    lines = []
    for name, tensor in state_tensors(module).items():
        text = f"hold(self, {name!r}, state[{name!r}]"
        comment = described(tensor)
        if isinstance(tensor, nn.Parameter):
            text = f"hold(self, {name!r}, nn.Parameter(state[{name!r}], requires_grad={tensor.requires_grad})"
            if (tied := first.setdefault(id(tensor), name)) != name:
                text, comment = f"hold(self, {name!r}, self.get_parameter({tied!r})", "tied"
        elif name not in persistent:
            text += ", persistent=False"
        lines.append(f"{text})  # {comment}")
    return lines if module.training else [*lines, "self.eval()"]


def _statement(node: Node, module: GraphModule, names: Mapping[Node, str]) -> str:
    """The line that computes a node; "" where nothing needs computing."""
    if node.op == "placeholder" or (node.op == "call_module" and node.target == GUARDS):
        return ""
    if node.op == "output":
        return f"return {_literal(_nested(module.graph, node.args[0]), names, node)}"
    if node.op == "get_attr":
        is_parameter = isinstance(attrgetter(str(node.target))(module), nn.Parameter)
        read = f"self.get_{'parameter' if is_parameter else 'buffer'}({str(node.target)!r})"
        return f"{names[node]} = {read}" if node.users else ""
    if node.op == "call_module":
        raise ValueError(
            f"node {node.name} ({where(node)}) calls submodule {node.target}, which is not part of the text. {_WAY_OUT}"
        )
    call = _call(node, names)
    return f"{names[node]} = {call}" if node.users else call


def _call(node: Node, names: Mapping[Node, str]) -> str:
    operands = [_literal(argument, names, node) for argument in node.args]
    keywords = [f"{name}={_literal(argument, names, node)}" for name, argument in node.kwargs.items()]
    if node.op == "call_method":
        return f"{operands[0]}.{node.target}({', '.join([*operands[1:], *keywords])})"
    if node.target in _INFIX:
        return f"{operands[0]} {_INFIX[node.target]} {operands[1]}"
    if node.target is operator.getitem:
        return f"{operands[0]}[{operands[1]}]"
    return f"{_function(node)}({', '.join([*operands, *keywords])})"


def _function(node: Node) -> str:
    if is_overload(node.target):
        return f"torch.ops.{node.target}"
    name = str(getattr(node.target, "__name__", ""))
    for home in _HOMES:
        if name and getattr(home, name, None) is node.target:
            return name if home is builtins else f"{home.__name__}.{name}"
    what = f"{type(node.target).__name__} {name or node.target!r}"
    raise ValueError(f"node {node.name} ({where(node)}) calls the {what}, which text cannot name. {_WAY_OUT}")


def _nested(graph: Graph, leaves: Any) -> Any:
    """The output as the caller sees it; its leaves as they are where their container cannot be made of nodes."""
    try:
        return graph.process_outputs(leaves)
    except Exception:  # a container's own constructor, which may do anything
        return leaves


def _literal(value: Any, names: Mapping[Node, str], node: Node) -> str:
    """The expression for an argument of `node`.

    Raises:
        ValueError: there is none.
    """
    if isinstance(value, Node):
        return names[value]
    if value is ...:
        return "..."
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) is complex:
        return f"complex({_literal(value.real, names, node)}, {_literal(value.imag, names, node)})"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, slice):
        return f"slice({', '.join(_literal(part, names, node) for part in (value.start, value.stop, value.step))})"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_literal(key, names, node)}: {_literal(part, names, node)}" for key, part in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_literal(part, names, node) for part in value) + "]"
    parts = list(value) if isinstance(value, tuple) else tree_flatten(value)[0]
    if len(parts) == 1 and parts[0] is value:
        raise ValueError(f"node {node.name} ({where(node)}) carries a {type(value).__name__}, which has no literal. {_WAY_OUT}")
    return "(" + ", ".join(_literal(part, names, node) for part in parts) + ("," if len(parts) == 1 else "") + ")"


def described(value: Any) -> str:
    """Dtype and sizes of a traced value or of state, and strides that are not row-major."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
        if value.layout is not torch.strided:
            return f"{text} {value.layout}"
        row_major: Any = 1
        for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
            if str(stride) != str(row_major):
                return f"{text}, strides [{', '.join(map(str, value.stride()))}]"
            row_major = row_major * size
        return text
    if isinstance(value, list | tuple):
        return f"({', '.join(map(described, value))})"
    return str(value) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else ""
