"""Structure: the hash that says whether a graph changed, and the checks every transaction must pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch import (
    as_traced,
    fake_mode_of,
    is_data_dependent,
    is_overload,
    size_expression,
    size_texts,
    storage_key,
    tree_flatten,
)
from ..analysis.program import GUARDS, named_state
from ..analysis.provenance import ORIGINS
from ..errors import PassError
from .verification.bits import same_bits


def structural_hash(module: GraphModule) -> str:
    """SHA-256 of the graph: operations, typed literals, edges, result metadata, and which tensors the state holds.

    `1`, `1.0`, `True`, `-0.0` and NaN are all different. Names of values do not count, names of state do.
    """
    number = {node: place for place, node in enumerate(module.graph.nodes)}
    texts: dict[Any, str] = {}
    digest = hashlib.sha256()
    for node in module.graph.nodes:
        target = node.target if node.op in ("get_attr", "placeholder", "call_module") else str(node.target)
        line = (
            node.op,
            target,
            _literal(node.args, number),
            _literal(node.kwargs, number),
            _metadata(node.meta.get("val"), texts),
        )
        digest.update(repr(line).encode())
    for name, tensor in sorted(named_state(module), key=lambda item: item[0]):
        digest.update(
            repr((name, storage_key(tensor), tensor.storage_offset(), tuple(tensor.shape), str(tensor.dtype))).encode()
        )
    return digest.hexdigest()


def _literal(value: Any, number: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return ("node", number[value])
    if isinstance(value, dict):
        return tuple((str(key), _literal(item, number)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_literal(item, number) for item in value)
    if isinstance(value, slice):
        return ("slice", *(_literal(part, number) for part in (value.start, value.stop, value.step)))
    return (type(value).__name__, repr(value))


def _metadata(value: Any, texts: dict[Any, str]) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), str(value.device), size_texts(value.shape, texts), size_texts(value.stride(), texts)
    if isinstance(value, (list, tuple)):
        return tuple(_metadata(part, texts) for part in value)
    return type(value).__name__, str(value)


def verify_structure(module: GraphModule, before: GraphModule | None = None) -> None:
    """Check a graph a pass has left behind.

    Args:
        module: the graph.
        before: the graph the pass was given; calls that are as they were in it need no second look.

    Raises:
        PassError: fx lint fails; a read has no state behind it; the recorded metadata of a value is not what its operation
            yields; a new node does not say what it stands for; state changed its kind; the inputs are no longer checked; or an
            output has other symbolic sizes.
    """
    known = {} if before is None else {node.name: node for node in before.graph.nodes}
    try:
        module.graph.lint()
    except RuntimeError as error:
        raise PassError(f"the graph is malformed: {error}") from error
    for node in module.graph.nodes:
        if node.op == "get_attr":
            _verify_state(module, node)
        if node.op == "call_function" and not _is_as_before(node, known.get(node.name)):
            _verify_metadata(node)
    if before is not None:
        _verify_origins(module, known)
        _verify_kinds(module, before)
        _verify_input_check(module, before)
        _verify_sizes(module, before)


def _verify_origins(module: GraphModule, known: Mapping[str, Node]) -> None:
    """A reviewer must be able to trace every new value to those it stands for."""
    for node in module.graph.nodes:
        if node.op in ("call_function", "get_attr") and node.name not in known and ORIGINS not in node.meta:
            raise PassError(f"{node.name} is new and has no origins; create nodes through passes.builder.Builder")


def _verify_kinds(module: GraphModule, before: GraphModule) -> None:
    """Parameters stay parameters, buffers buffers, and what a saved model leaves out stays out."""
    kinds, now = _kinds(before), _kinds(module)
    for name in kinds.keys() & now.keys():
        if kinds[name] != now[name]:
            raise PassError(f"state {name!r} was a {kinds[name]} and is a {now[name]}; new values are new state")


def _verify_input_check(module: GraphModule, before: GraphModule) -> None:
    """The call returns nothing, so no output shows that it is gone; it must see every input."""
    if any(node.op == "call_module" and node.target == GUARDS for node in before.graph.nodes):
        inputs = tuple(node for node in module.graph.nodes if node.op == "placeholder")
        if not any(node.target == GUARDS and node.args == inputs for node in module.graph.nodes if node.op == "call_module"):
            raise PassError("the inputs are no longer checked: the graph must call its input check on all of them")


def _verify_sizes(module: GraphModule, before: GraphModule) -> None:
    """Calls larger than the examples must return as much as before; how many outputs there are, the examples show."""
    for one, other in zip(_returned(before), _returned(module), strict=False):
        sizes, found = ([size and size.expand() for size in _shape_of(value)[1]] for value in (one, other))
        if sizes != found and any(size is not None and not size.is_Integer for size in (*sizes, *found)):
            raise PassError(f"an output of sizes {sizes} now has sizes {found}")


def _returned(module: GraphModule) -> list[torch.Tensor]:
    leaves = tree_flatten(module.graph.output_node().args[0])[0]
    values = (leaf.meta.get("val") if isinstance(leaf, Node) else leaf for leaf in leaves)
    return [value for value in values if isinstance(value, torch.Tensor)]


def verify_values(module: GraphModule, captured: GraphModule) -> None:
    """Check that captured state which kept its name holds what it held: no example need use the rows that do not.

    Raises:
        PassError: it holds other values.
    """
    held = dict(named_state(module))
    for name, tensor in named_state(captured):
        now = held.get(name, tensor)
        if now is not tensor and not same_bits(now, tensor):
            raise PassError(f"state {name!r} holds other values than the captured one; new values are new state")


def _kinds(module: GraphModule) -> dict[str, str]:
    saved = module.state_dict(keep_vars=True).keys()
    kinds = {name: "parameter" for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, _ in module.named_buffers(remove_duplicate=False):
        kinds[name] = "persistent buffer" if name in saved else "non-persistent buffer"
    return kinds


def state_versions(module: GraphModule) -> dict[str, tuple[int, int]]:
    """What moves when a tensor of the state is written in place: its version counter, and a sum over its bits.

    Writes through `.data` and numpy move only the sum.
    """
    return {name: (tensor._version, _bit_sum(tensor)) for name, tensor in named_state(module)}


def _bit_sum(tensor: torch.Tensor) -> int:
    plain = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    return int(plain.view(words).sum(dtype=torch.int64))


def _is_as_before(node: Node, before: Node | None) -> bool:
    """The same call of the same values: operands by name, and the very objects recorded as their traced values."""
    if before is None or (node.op, node.target) != (before.op, before.target):
        return False
    names = {before: before.name for before in before.all_input_nodes} | {each: each.name for each in node.all_input_nodes}
    arguments = [_named((each.args, each.kwargs), names) for each in (node, before)]
    pairs = zip((node, *node.all_input_nodes), (before, *before.all_input_nodes), strict=False)
    return arguments[0] == arguments[1] and all(one.meta.get("val") is other.meta.get("val") for one, other in pairs)


def _named(value: Any, names: dict[Node, str]) -> str:
    return repr(torch.fx.node.map_arg(value, lambda node: names[node]))


def _verify_state(module: GraphModule, node: Node) -> None:
    try:
        held = attrgetter(str(node.target))(module)
    except AttributeError as error:
        raise PassError(f"{node.name} reads state {node.target!r}, which the module does not hold") from error
    recorded = node.meta.get("val")
    if isinstance(held, torch.Tensor) and isinstance(recorded, torch.Tensor) and _shape_of(held) != _shape_of(recorded):
        raise PassError(f"state {node.target!r} is {_shape_of(held)}, recorded as {_shape_of(recorded)}")


def _verify_metadata(node: Node) -> None:
    recorded = node.meta.get("val")
    if not is_overload(node.target):
        return
    if recorded is None:
        if node.target._schema.returns and not node.target._schema.is_mutable:
            raise PassError(f"{node.name} carries no traced value; create nodes through passes.builder.Builder")
        return
    if isinstance(recorded, torch.Tensor) and not node.target._schema.is_mutable:
        found = recompute(node)
        if _shape_of(found) != _shape_of(recorded):
            raise PassError(f"{node.name} records {_shape_of(recorded)}, its operation yields {_shape_of(found)}")


def recompute(node: Node, instead: Mapping[Node, Any] = MappingProxyType({}), mode: Any = None) -> Any:
    """The fake value of a node, from the recorded values of its operands (or those given instead).

    Args:
        node: calls an operation.
        instead: values of operands, where not those recorded.
        mode: the fake mode; None takes that of an operand, or of the value recorded.
    """

    def value(argument: Node) -> Any:
        return instead[argument] if argument in instead else argument.meta["val"]

    args = torch.fx.node.map_arg(node.args, value)
    kwargs = torch.fx.node.map_arg(node.kwargs, value)
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    mode = mode or fake_mode_of(_first_fake(node))
    with as_traced(mode):
        return target(*args, **kwargs)


def _first_fake(node: Node) -> torch.Tensor:
    for candidate in (*node.all_input_nodes, node):
        value = candidate.meta.get("val")
        if isinstance(value, torch.Tensor):
            return value
    raise PassError(f"{node.name} has no tensor operand and no traced value")


def _shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), [None if is_data_dependent(size) else size_expression(size) for size in value.shape]
    return [_shape_of(part) for part in value] if isinstance(value, (list, tuple)) else type(value)
