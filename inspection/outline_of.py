"""The outline of a program, a graph module or an exported program."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .._torch import call_structure, is_overload, storage_key, tree_flatten
from ..analysis.program import GUARDS, Domain, Program, named_state
from ..analysis.provenance import ORIGINS, module_path, source_line
from ..analysis.storage import nbytes
from ..errors import DiffError
from .graph_text import described
from .outline import CALL, INPUT, OUTPUT, STATE, Held, Outline, Value

_OPS = {"placeholder": INPUT, "output": OUTPUT}
_SYMBOL = re.compile(r"\b[su]\d+\b")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def outline_of(graph: Program | GraphModule | ExportedProgram, label: str) -> Outline:
    """What a diff compares of a graph. Symbolic sizes are called s0, s1, … in the order in which they appear.

    Args:
        graph: not changed. Of an exported program its module is taken: state under the model's names.
        label: what the diff calls it.

    Raises:
        DiffError: a node carries a constant that has no text that is the same in every process; it is named.
    """
    if isinstance(graph, ExportedProgram):
        return outline_of(_module_of(graph), label)
    module = graph.module if isinstance(graph, Program) else graph
    sizes = _Sizes()
    values = _values(module, sizes)
    if isinstance(graph, Program):
        metadata = _metadata(graph, sizes)
        return Outline(label, tuple(values), _state(module, graph.uncounted), _signature(module, values), metadata)
    return Outline(label, tuple(values), _state(module, frozenset()), _signature(module, values))


def _module_of(exported: ExportedProgram) -> GraphModule:
    module = exported.module()
    assert isinstance(module, GraphModule)
    return module


class _Sizes:
    """Names for symbolic sizes that do not depend on how the trace numbered them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def text(self, text: str) -> str:
        return _SYMBOL.sub(lambda found: self._names.setdefault(found[0], f"{found[0][0]}{len(self._names)}"), text)

    def type_of(self, value: Any) -> str:
        text = self.text(described(value))
        elsewhere = {str(leaf.device) for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)} - {"cpu"}
        return f"{text} on {', '.join(sorted(elsewhere))}" if elsewhere else text


def _values(module: GraphModule, sizes: _Sizes) -> list[Value]:
    keys: dict[Node, str] = {}
    counted: Counter[str] = Counter()
    values = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            keys[node] = f"{STATE}{node.target}"
            continue
        target = _target(node, module)
        is_check = node.op == "call_module" and node.target == GUARDS
        path, source = ("", "") if is_check else (module_path(node), _without_folder(source_line(node)))
        identity = " ".join([target, *([f"in {path}"] if path else [])])
        counted[identity] += 1
        keys[node] = f"{identity} #{counted[identity]}"
        made_by, stands_for = node.meta.get(ORIGINS, ("", ()))
        operands: list[str] = []
        values.append(
            Value(
                keys[node],
                node.name,
                _OPS.get(node.op, CALL),
                target,
                "" if node.op == "placeholder" else _arguments(node, operands, keys),
                tuple(operands),
                sizes.type_of(node.meta.get("val")) if node.op != "output" else "",
                path,
                source,
                made_by,
                tuple(stands_for),
            )
        )
    return values


def _target(node: Node, module: GraphModule) -> str:
    if node.op in _OPS:
        return str(node.target)
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "call_module":
        what = "" if node.target == GUARDS else f" ({type(module.get_submodule(str(node.target))).__name__})"
        return f"module {node.target}{what}"
    if is_overload(node.target):
        return str(node.target)
    target = node.target
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or _plain(target, node)
    home = str(getattr(target, "__module__", None) or "").removeprefix("_")
    return ".".join(filter(None, [home, name.removeprefix("_VariableFunctionsClass.")]))


def _arguments(node: Node, operands: list[str], keys: Mapping[Node, str]) -> str:
    """The arguments as a format string; the keys of its fields are added to `operands`."""

    def text(value: Any) -> str:
        if isinstance(value, Node):
            operands.append(keys[value])
            return f"{{{len(operands) - 1}}}"
        if isinstance(value, tuple):
            return "(" + ", ".join(map(text, value)) + ("," if len(value) == 1 else "") + ")"
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        if isinstance(value, dict):
            return "{{" + ", ".join(f"{text(key)}: {text(item)}" for key, item in value.items()) + "}}"
        if isinstance(value, slice):
            return f"slice({', '.join(text(part) for part in (value.start, value.stop, value.step))})"
        return _plain(value, node).replace("{", "{{").replace("}", "}}")

    parts = [text(argument) for argument in node.args]
    return ", ".join([*parts, *(f"{name}={text(argument)}" for name, argument in node.kwargs.items())])


def _plain(value: Any, node: Node) -> str:
    if _ADDRESS.search(shown := repr(value)):
        raise DiffError(
            f"node {node.name} carries a {type(value).__name__} whose text is a memory address ({shown}), so it cannot be "
            "compared; capture the model with foldfx.capture, or replace the constant"
        )
    return shown


def _state(module: GraphModule, uncounted: frozenset[str]) -> dict[str, Held]:
    named = named_state(module)
    persistent = module.state_dict(keep_vars=True).keys()
    known = dict(named)
    read = {str(node.target): attrgetter(str(node.target))(module) for node in module.graph.find_nodes(op="get_attr")}
    constants = {name: value for name, value in read.items() if isinstance(value, torch.Tensor) and name not in known}
    memory: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for name, tensor in (*named, *constants.items()):
        memory[storage_key(tensor)].append(name)
    held: dict[str, Held] = {}
    for name, tensor in (*named, *constants.items()):
        if name in uncounted or name in constants:
            kind = "constant"
        else:
            saved = "buffer" if name in persistent else "unsaved buffer"
            kind = "parameter" if isinstance(tensor, nn.Parameter) else saved
        shares = tuple(sorted(other for other in memory[storage_key(tensor)] if other != name))
        size = tensor.untyped_storage().nbytes()
        held[name] = Held(kind, _Sizes().type_of(tensor), nbytes(tensor), size, shares, tensor=tensor)
    for name, value in read.items():
        if isinstance(value, GraphModule):
            held[name] = Held("graph", f"{len(value.graph.nodes)} nodes", 0, 0, digest=_digest(outline_of(value, name)))
    return held


def _digest(outline: Outline) -> str:
    """Of a nested graph, whatever its values are called."""
    place = {value.key: number for number, value in enumerate(outline.values)}
    rows = [(value.call, [place.get(key, key) for key in value.operands], value.type) for value in outline.values]
    return _sha256((rows, sorted(outline.state.items())))


def _sha256(what: object) -> str:
    return sha256(repr(what).encode()).hexdigest()


def _signature(module: GraphModule, values: list[Value]) -> dict[str, str]:
    """What a caller sees."""
    inputs = [value for value in values if value.op == INPUT]
    types = {value.key: value.type for value in values}
    found = {f"input {value.target}": value.type for value in inputs}
    found["inputs"] = ", ".join(value.target for value in inputs)
    returned = next((value for value in values if value.op == OUTPUT), None)
    if returned is None:
        raise DiffError("the graph has no output; compare graphs that return something")
    state = dict(named_state(module))
    for place, key in enumerate(returned.operands):
        name = key.removeprefix(STATE)
        found[f"output {place}"] = types[key] if key in types else described(state.get(name))
    if structure := call_structure(module):
        found["structure of inputs"], found["structure of outputs"] = structure
    found["mode"] = "training" if module.training else "eval"
    if any(node.op == "call_module" and node.target == GUARDS for node in module.graph.nodes):
        found["input check"] = type(module.get_submodule(GUARDS)).__name__
    return found


def _metadata(program: Program, sizes: _Sizes) -> dict[str, str]:
    """What a program knows beside its graph."""
    written = sorted({*program.effects.mutated_buffers, *program.effects.mutated_inputs})
    return {
        **{f"token input {name}": _domain(domain) for name, domain in program.tokens.items()},
        **{f"size {sizes.text(symbol)}": span for symbol, span in program.dynamic.items()},
        **{f"fixed {number}": str(each) for number, each in enumerate(program.specialised)},
        "writes": ", ".join(written) or "nothing",
        "observables": ", ".join(program.observables) or "none",
        "constants": ", ".join(sorted(program.constants)) or "none",
    }


def _domain(domain: Domain) -> str:
    some = "" if domain.reachable is None else f", {domain.rows:,} reachable: sha256 {_sha256(domain.reachable)}"
    return f"{domain.size:,} ids{some}{', stated' if domain.stated else ''}"


def _without_folder(source: str) -> str:
    path, colon, line = source.rpartition(":")
    return f"{Path(path).name}{colon}{line}" if source else ""
