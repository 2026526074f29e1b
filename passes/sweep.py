"""Clears what nobody needs after values were replaced: dead computation, and the state only it read."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch.fx import Graph, GraphModule, Node

from .._torch import is_mutable, is_overload
from .tables.region import closure, is_metadata_check


def needed_without(graph: Graph, replaced: Collection[Node]) -> set[Node]:
    """The nodes still needed when `replaced` come from somewhere else: backwards from outputs, writes and checks."""
    kept = [node for node in graph.nodes if not _is_pure(node) and not is_metadata_check(node)]
    return closure(kept, lambda node: [operand for operand in node.all_input_nodes if operand not in replaced])


def freed_by(graph: Graph, replaced: Collection[Node]) -> list[str]:
    """Names of the state that loses its last reader when `replaced` come from somewhere else, in graph order.

    State that nobody read before is not among them.
    """
    needed = needed_without(graph, replaced)
    reads = [node for node in graph.nodes if node.op == "get_attr"]
    kept = {str(node.target) for node in reads if node in needed or not node.users}
    return list(dict.fromkeys(str(node.target) for node in reads if str(node.target) not in kept))


def sweep(copy: GraphModule, replaced: Iterable[Node], keep: Collection[str] = ()) -> list[str]:
    """Erase the computation behind `replaced` (already without readers), and the state that only it read.

    Checks of a value's dtype or device go with the value. State named in `keep` stays, without a reader.

    Returns:
        The names of the state removed.
    """
    candidates = closure(replaced, lambda node: node.all_input_nodes)
    removed: list[str] = []
    for node in reversed(list(copy.graph.nodes)):
        if node not in candidates or not _is_pure(node) or (node.op == "get_attr" and str(node.target) in keep):
            continue
        if all(is_metadata_check(user) for user in node.users):
            for check in list(node.users):
                copy.graph.erase_node(check)
            copy.graph.erase_node(node)
            if node.op == "get_attr":
                removed.append(str(node.target))
    still_read = {str(node.target) for node in copy.graph.find_nodes(op="get_attr")}
    gone = [name for name in dict.fromkeys(removed) if name not in still_read]
    for name in gone:
        _delete_state(copy, name)
    return gone[::-1]


def _is_pure(node: Node) -> bool:
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    return not (is_overload(node.target) and is_mutable(node.target)) and "val" in node.meta


def _delete_state(module: GraphModule, name: str) -> None:
    """Delete a tensor, and the submodules it leaves empty."""
    path, _, leaf = name.rpartition(".")
    delattr(module.get_submodule(path), leaf)
    while path:
        holder = module.get_submodule(path)
        if (
            any(True for _ in holder.parameters())
            or any(True for _ in holder.buffers())
            or any(True for _ in holder.children())
        ):
            return
        module.delete_submodule(path)
        path = path.rpartition(".")[0]
