"""The one door to torch names that are private or not covered by a compatibility promise.

Each name here has a contract test in `tests/test_torch_contract.py`; nothing else in foldfx imports a private
torch module. Tested with torch 2.13; the package declares torch>=2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeGuard

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx._pytree import tree_flatten_spec
from torch.fx.graph import _PyTreeCodeGen
from torch.nn.modules import module as _module
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import CallError

GLOBAL_HOOK_TABLES = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)

CALL_HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Foreseen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context every operation is shown to `see` before it runs, those on `.data` included.

    Args:
        see: called with the overload, its arguments and its keyword arguments; what it raises keeps the operation away.
    """

    def __init__(self, see: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self._see(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def unforeseen() -> Any:
    """A context in which no `Foreseen` is shown operations, which run as fast as without one; no fake tensors in it."""
    return torch._C._DisableTorchDispatch()


def below_autograd() -> Any:
    """A context in which operations go straight to the kernels below autograd and record no gradient."""
    return torch._C._AutoDispatchBelowAutograd()


def within_transform() -> bool:
    """Whether a transform of `torch.func` is at work: `grad`, `jvp`, or what is made of them."""
    return torch._C._are_functorch_transforms_active()


def is_traced(value: object) -> bool:
    """Whether operations on `value` are recorded or transformed by someone: then each has to be run, not a stand-in for it.

    That is so while compiling, exporting and tracing, within a dispatch mode or a transform of `torch.func`, and for proxies
    and subclasses of Tensor.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or type(value) not in (torch.Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
        or within_transform()
    )


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves of a pytree, in order, and its structure (comparable with ``==``)."""
    return _pytree.tree_flatten(tree)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with `function` applied to every leaf."""
    return _pytree.tree_map(function, tree)


def leaf_paths(tree: Any) -> list[str]:
    """A readable path for each leaf, in the order of `tree_flatten`."""
    return [_pytree.keystr(path) or "<root>" for path, _ in _pytree.tree_flatten_with_path(tree)[0]]


def size_expression(size: int | torch.SymInt) -> sympy.Expr:
    """The sympy expression of a dimension: an `Integer` for a static size, symbols for a dynamic one."""
    if isinstance(size, torch.SymInt):
        return sympy.sympify(size.node.expr)
    return sympy.Integer(size)


def size_texts(sizes: Iterable[int | torch.SymInt], known: dict[Any, str]) -> tuple[str, ...]:
    """Each size as text; `known` holds the text of every expression met, which torch simplifies anew whenever it is asked."""
    texts = []
    for size in sizes:
        key = getattr(size.node, "_expr", None) if isinstance(size, torch.SymInt) else size
        text = known[key] if key in known else str(size)
        texts.append(text)
        if key is not None:
            known[key] = text
    return tuple(texts)


def is_data_dependent(size: int | torch.SymInt) -> bool:
    """Whether the size depends on values of a tensor, as that of `x[mask]` does; it has a new symbol at every trace."""
    return any(str(symbol).startswith("u") for symbol in size_expression(size).free_symbols)


def static_size(size: int | torch.SymInt) -> int | None:
    """The size as a number where it is fixed (a SymInt may have been specialised), else None."""
    expression = size_expression(size)
    return int(expression) if expression.is_Integer else None


def fake_mode_of(value: torch.Tensor) -> Any:
    """The `FakeTensorMode` a traced value belongs to.

    Raises:
        AttributeError: `value` is not a fake tensor.
    """
    return value.fake_mode  # type: ignore[attr-defined]


@contextmanager
def as_traced(mode: Any) -> Iterator[None]:
    """Within it, operations compute on traced values of `mode` as in export, and leave their symbols as they are.

    Elsewhere some (padding among them) end in kernels that know no symbols, and one that asks whether two sizes are
    equal fixes them in every graph that shares the symbols.
    """
    free = nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()
    with enable_python_dispatcher(), mode, free:
        yield


def is_fake(value: object) -> bool:
    """Whether it is a tensor of a trace, without values."""
    return isinstance(value, FakeTensor)


def as_fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor of `mode` with the metadata of the real `tensor`, all sizes static."""
    result = mode.from_tensor(tensor, static_shapes=True)
    assert isinstance(result, torch.Tensor)
    return result


def mark_non_persistent(module: torch.nn.Module, name: str) -> None:
    """Undo what `fx.GraphModule` does to non-persistent buffers: it registers them as persistent ones."""
    module._non_persistent_buffers_set.add(name)


def global_hooks() -> list[str]:
    """Names of the process-wide module hook tables that hold at least one hook."""
    return [name for name in GLOBAL_HOOK_TABLES if getattr(_module, name)]


def module_hooks(module: torch.nn.Module) -> list[str]:
    """Names of the hook tables of `module` itself that hold at least one hook of a forward or backward call."""
    return [name for name in CALL_HOOK_TABLES if vars(module).get(name)]


def tensor_hooks(tensor: torch.Tensor) -> bool:
    """Whether autograd hooks are registered on `tensor`."""
    return bool(tensor._backward_hooks) or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


def storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    """Identity of the backing allocation: equal exactly when two tensors stand on one StorageImpl."""
    return str(tensor.device), tensor.untyped_storage()._cdata


def flatten_inputs(module: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The call's leaves in the order of the graph's placeholders.

    Raises:
        ValueError: the call's structure is not the captured one.
    """
    info = module.graph._codegen.pytree_info  # type: ignore[attr-defined]
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    if spec != info.in_spec:
        raise ValueError(f"the call has structure {spec}, the program was captured with {info.in_spec}")
    return leaves


class ExactCalls(_PyTreeCodeGen):
    """Generates a `forward` that takes calls of the captured structure alone.

    What torch generates reads the elements of a list, and the keys of a dict, that were there at capture, and no others.
    """

    def gen_var_bindings(self, fn_args: list[str], free_vars: list[str], expanded_def: bool) -> str:
        """The line that takes a call apart, by `exact_leaves`."""
        bindings = super().gen_var_bindings(fn_args, free_vars, expanded_def)
        return bindings.replace("fx_pytree.tree_flatten_spec(", f"{exact_leaves.__name__}(")

    def additional_globals(self) -> list[tuple[str, Any]]:
        """What the generated code names."""
        return [*super().additional_globals(), (exact_leaves.__name__, exact_leaves)]


def take_exact_calls(graph: Graph) -> None:
    """Let the code of an exported graph, which knows the structure of calls, take no others."""
    graph.set_codegen(ExactCalls(graph._codegen.pytree_info))  # type: ignore[attr-defined]


def exact_leaves(call: Any, spec: Any) -> list[Any]:
    """The leaves of a call `([*args], kwargs)`, whose dicts may hold their keys in another order.

    Raises:
        CallError: its structure is not `spec`.
    """
    args, kwargs = call
    if not _has_structure((tuple(args), kwargs), spec):
        found = _pytree.tree_structure((tuple(args), kwargs))
        raise CallError(
            f"the call has structure {_on_one_line(found)}, but this program was captured with {_on_one_line(spec)}; what it "
            "was not captured with it does not read. Compile the model with an example of such a call"
        )
    return tree_flatten_spec(call, spec)


def _has_structure(tree: Any, spec: Any) -> bool:
    if isinstance(tree, Proxy):
        return True
    if isinstance(tree, torch.Tensor):
        return bool(spec.is_leaf())
    if type(tree) is not spec.type or spec.type not in (dict, list, tuple):
        return bool(_pytree.tree_structure(tree) == spec)
    parts = [tree[key] for key in spec.context if key in tree] if spec.type is dict else tree
    return len(tree) == len(parts) == spec.num_children and all(map(_has_structure, parts, spec.children()))


def call_structure(module: GraphModule) -> tuple[str, str] | None:
    """The pytrees of arguments and results as text; None where the graph takes its placeholders one by one."""
    info = getattr(module.graph._codegen, "pytree_info", None)
    return None if info is None else (_on_one_line(info.in_spec), _on_one_line(info.out_spec))


def _on_one_line(spec: Any) -> str:
    return " ".join(str(spec).split())


def copy_graph(graph: Graph) -> Graph:
    """An independent graph with the same nodes, names and calling convention; each node gets its own `meta` dict."""
    result = Graph(tracer_cls=graph._tracer_cls)
    copied: dict[Node, Node] = {}
    result.graph_copy(graph, copied)
    old = graph.output_node()
    new = result.output(torch.fx.node.map_arg(old.args[0], lambda node: copied[node]), old.type)
    new.meta = dict(old.meta)
    result.set_codegen(graph._codegen)
    return result


def schema_arguments(node: Node) -> dict[str, Any]:
    """The arguments of an ATen call by schema name, defaults filled in.

    Raises:
        TypeError: the node's target is not an `OpOverload`.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise TypeError(f"{node.format_node()} does not call an ATen overload")
    bound: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(node.args) and not argument.kwarg_only:
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value
    return bound


def is_mutable(target: Any) -> bool:
    """Whether the ATen overload writes to one of its arguments (unknown targets count as writing)."""
    return not isinstance(target, torch._ops.OpOverload) or bool(target._schema.is_mutable)


def is_random(target: Any) -> bool:
    """Whether the ATen overload draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in target.tags


def is_overload(target: object) -> TypeGuard[Any]:
    """Whether a node's target is an ATen (or custom) operator overload with a schema."""
    return isinstance(target, torch._ops.OpOverload)
