"""From an `nn.Module` and one example call to a `Program`: torch.export, functionalised, checked, with token domains."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule

from .._torch import is_fake, static_size, storage_key, take_exact_calls, tree_flatten, tree_map
from ..errors import CaptureError, ExampleError
from .attributes import AttributeWatch
from .audit import audit, nested_tensors_refused
from .contraction import EinsumInPairs
from .dropped import refuse_dropped
from .example import Example
from .hidden_aliases import HiddenAliasesShown
from .observables import measure_observables, observed, underlying
from .program import GUARDS, Effects, NoGuards, Program, Specialised, graph_module, named_state, own_written_buffers
from .surroundings import SurroundingsWatch
from .tokens import TokenInput, as_token_inputs, token_domains

DynamicShapes = dict[str, Any]


def capture(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    tokens: Iterable[TokenInput] | None = None,
    dynamic: bool | DynamicShapes = True,
    observables: Collection[str] = (),
) -> Program:
    """Trace a model to the functional ATen graph that passes work on.

    Args:
        model: in eval mode, without hooks. It is run on the example; what it leaves in attributes and buffers is put back.
        args: positional arguments of one call; sizes of 0 or 1 are specialised by export, so give an example with two
            or more rows.
        kwargs: keyword arguments of that call.
        tokens: the inputs that carry token ids; None infers them.
        dynamic: True makes every dynamic size export can prove symbolic (0 and 1 included where it can); False fixes
            all sizes; a mapping is handed to `torch.export` as `dynamic_shapes`, and sizes below its ranges (2 for
            `Dim.AUTO`) are refused by the folded program.
        observables: attributes that forward writes, as "layers.3.mlp.router_logits"; any other attribute it writes is
            refused. Their values are tensors, numbers, strings, None, or trees of these.

    Returns:
        The program. Parameters are shared with `model`; buffers that the program writes are its own copies. Where there are
        observables it returns `Complete`: what the model returns, and their values by name.

    Raises:
        CaptureError: the model cannot be captured faithfully; the message names the module path and the way out.
        ExampleError: the model itself fails on the example, or the example has no token ids.
        TokenInputError: token inputs or domains are ambiguous or stated wrongly.
    """
    audit(model)
    stated = None if tokens is None else as_token_inputs(tokens)
    example = Example(args, {} if kwargs is None else kwargs)
    if not example.leaves():
        raise ExampleError("the example has no arguments, so none that carries token ids; give a call with its arguments")
    model = observed(model, observables)
    leaves = MappingProxyType(dict(measure_observables(model, example)))
    parameters = _refuse_writes(model, example)
    try:
        exported, notes = _export(model, example, dynamic)
    except CaptureError as error:
        raise (_writes_parameter(parameters[0]) if parameters else error) from error.__cause__
    _refuse_leftovers(model, example)
    module = _plain_module(exported)
    _refuse_renormalisation(module.graph)
    if parameters:
        raise _writes_parameter(parameters[0])
    effects = _effects(module.graph)
    for name in effects.mutated_buffers:
        _refuse_shared_write(module, name)
    own_written_buffers(module, effects)
    _ensure_guard_call(module)
    domains = token_domains(module.graph, stated)
    _require_ids(module.graph, domains)
    ranges = {str(symbol): str(span) for symbol, span in exported.range_constraints.items()}
    specialised = (*_specialised(module.graph), *notes)
    constants, uncounted = _constants(model, module)
    tables = MappingProxyType(domains)
    return Program(module, tables, effects, specialised, MappingProxyType(ranges), constants, uncounted, leaves)


def _constants(model: nn.Module, module: GraphModule) -> tuple[frozenset[str], frozenset[str]]:
    """Tensors the graph reads that the model has not registered, and those of them on memory of their own."""
    state = named_state(model)
    registered = {name: storage_key(tensor) for name, tensor in state}
    read = {str(node.target) for node in module.graph.find_nodes(op="get_attr")} - registered.keys()
    own = {
        name
        for name in read
        if isinstance(held := attrgetter(name)(module), torch.Tensor) and storage_key(held) not in registered.values()
    }
    return frozenset(read), frozenset(own)


def _export(model: nn.Module, example: Example, dynamic: bool | DynamicShapes) -> tuple[ExportedProgram, list[Specialised]]:
    if dynamic is not True:
        return _functional(model, example, _traced(model, example, dynamic or None)), []
    automatic = _traced(model, example, _shapes(model, example, lambda tensor: [Dim.AUTO] * tensor.dim()))
    if not automatic.range_constraints:
        return _functional(model, example, automatic), []
    notes: list[Specialised] = []
    for smallest in (0, 1):
        shapes = _named_shapes(model, example, automatic, smallest)
        if shapes is None:
            break
        try:
            return _functional(model, example, _traced(model, example, shapes)), notes
        except CaptureError as error:
            notes = [Specialised("sizes", f"size {smallest} is not covered: {_first_line(error)}")]
    notes = notes or [Specialised("sizes", "sizes 0 and 1 are not covered: a size is computed from another")]
    return _functional(model, example, automatic), notes


def _traced(model: nn.Module, example: Example, shapes: DynamicShapes | None) -> ExportedProgram:
    """The model's operations as they are called, writes included."""
    call = example.cloned()
    with _tracing(model), EinsumInPairs(), HiddenAliasesShown():
        exported: ExportedProgram = torch.export.export(
            model, call.args, dict(call.kwargs), dynamic_shapes=shapes, strict=False
        )
    refuse_dropped(exported.graph, frozenset(exported.graph_signature.user_inputs))
    return exported


def _functional(model: nn.Module, example: Example, exported: ExportedProgram) -> ExportedProgram:
    """The same without writes, but for those into inputs and buffers at its end. Most of what a capture takes is spent here."""
    with _tracing(model):
        functional: ExportedProgram = exported.run_decompositions({})
    return functional


@contextmanager
def _tracing(model: nn.Module) -> Iterator[None]:
    """What torch's tracer leaves in the model is put back, and what it raises is explained."""
    watch, around = AttributeWatch(model), SurroundingsWatch(underlying(model))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")  # torch's own use of its pytrees
            yield
    except Exception as error:
        raise CaptureError(
            f"torch.export cannot trace the model: {type(error).__name__}: {error}{_stopped_at(error)}"
        ) from error
    finally:
        watch.restore()
        around.forget_computed()
        around.restore()


def _stopped_at(error: Exception) -> str:
    """The innermost line of the traceback that is neither torch's nor foldfx's, and what to do about it."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _is_tracer(frame)]
    if not frames:
        return ""
    frame, line = frames[-1]
    code = frame.f_code
    return (
        f"\nIt stopped at {code.co_filename}:{line}, in {code.co_name}. Write that line with tensor operations alone, or "
        "capture a part of the model without it"
    )


def _is_tracer(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    own = name.rpartition(".")[0] == __name__.rpartition(".")[0]
    return own or name.partition(".")[0] in ("torch", "sympy", "numpy", "contextlib")


def _refuse_writes(model: nn.Module, example: Example) -> list[str]:
    """Run the model and see what it leaves in its attributes, its classes and globals; everything is put back.

    This is before anything is traced: where the model computes something once and keeps it, as under `lru_cache`, that is
    then a tensor and not a trace of one.

    Returns:
        The parameters it writes.

    Raises:
        CaptureError: it writes what the graph would lose, or computes with nested tensors.
        ExampleError: the model itself fails.
    """
    watch, around = AttributeWatch(model), SurroundingsWatch(underlying(model))
    try:
        with watch.parameters, nested_tensors_refused(model):
            example.run(model)
    finally:
        written, outside = watch.restore(), around.restore()
    if written or outside:
        paths = dict(model.named_modules())
        declared = [name for name in written if name.rpartition(".")[0] in paths]
        declare = f", or declare what it is to set: observables={declared}" if declared else ""
        raise CaptureError(
            f"forward writes attributes that the graph would lose: {', '.join([*written, *outside])}. Return the value, "
            f"register a buffer, or remove the write{declare}. If it is a cache, call the model once before"
        )
    return list(watch.parameters.saved)


def _refuse_leftovers(model: nn.Module, example: Example) -> None:
    """Run the model on what tracing left where no watch looks.

    Raises:
        CaptureError: it fails now, or returns a value of the trace.
    """
    watch, around = AttributeWatch(model), SurroundingsWatch(underlying(model))
    try:
        with watch.parameters:
            found = "" if not any(map(is_fake, tree_flatten(example.run(model))[0])) else "it now returns one"
    except ExampleError as error:
        found = str(error)
    finally:
        watch.restore()
        around.restore()
    if found:
        raise CaptureError(
            f"forward keeps values in a place that foldfx does not look at, and tracing left fake tensors there: {found}. "
            "Empty that place, and keep nothing between calls but buffers"
        )


def _writes_parameter(name: str) -> CaptureError:
    return CaptureError(f"forward writes parameter '{name}'; make it a buffer, or write it outside forward")


def _shapes(model: nn.Module, example: Example, dims: Any) -> dict[str, Any]:
    """`dims(tensor)` for every tensor of the call, keyed by the parameter names of forward."""
    signature = inspect.signature(model.forward)
    bound = signature.bind(*example.args, **example.kwargs).arguments
    for name in bound:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            raise CaptureError(
                f"forward takes {', '.join(bound[name])} through **{name}, for which torch.export makes no size dynamic; name "
                "them in forward's signature, or capture with dynamic=False"
            )

    def leaf(value: Any) -> Any:
        return dims(value) if isinstance(value, torch.Tensor) and value.dim() else None

    return {name: tree_map(leaf, value) for name, value in bound.items()}


def _named_shapes(model: nn.Module, example: Example, automatic: ExportedProgram, smallest: int) -> dict[str, Any] | None:
    """One named dimension for each symbol of the automatic export; None where a size is an expression of others."""
    names = automatic.graph_signature.user_inputs
    traced = [node.meta["val"] for node in automatic.graph.nodes if node.op == "placeholder" and node.name in names]
    shapes = [value.shape for value in traced if isinstance(value, torch.Tensor) and value.dim()]
    sizes = iter(shapes)

    def dims(_: torch.Tensor) -> list[Any]:
        return [Dim.STATIC if static_size(size) is not None else named[str(size)] for size in next(sizes)]

    symbols = {str(size) for shape in shapes for size in shape if static_size(size) is None}
    if not all(symbol.isidentifier() for symbol in symbols):
        return None
    named = {symbol: Dim(symbol, min=smallest) for symbol in symbols}
    return _shapes(model, example, dims)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200]


def _plain_module(exported: ExportedProgram) -> GraphModule:
    """The exported graph with state as `get_attr` under the original names, and without export's module hooks."""
    stateful = exported.module()
    assert isinstance(stateful, GraphModule)
    take_exact_calls(stateful.graph)
    module = graph_module(stateful, stateful.graph)
    module.eval()
    return module


def _effects(graph: Graph) -> Effects:
    buffers: set[str] = set()
    inputs: set[str] = set()
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.copy_.default:
            written = node.args[0]
            (buffers if written.op == "get_attr" else inputs).add(str(written.target))
    return Effects(frozenset(buffers), frozenset(inputs))


def _refuse_shared_write(module: GraphModule, name: str) -> None:
    """A write that other state would see: the graph would treat that state as constant."""
    if name in dict(module.named_parameters(remove_duplicate=False)):
        raise _writes_parameter(name)
    storage = storage_key(module.get_buffer(name))
    for other, tensor in named_state(module):
        if other != name and storage_key(tensor) == storage:
            raise CaptureError(f"forward writes buffer '{name}', which shares memory with '{other}'; give it memory of its own")


def _ensure_guard_call(module: GraphModule) -> None:
    """Every captured graph calls its input guards once, behind the inputs; export leaves an empty check out."""
    if not any(node.op == "call_module" and node.target == GUARDS for node in module.graph.nodes):
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        module.add_submodule(GUARDS, NoGuards())
        with module.graph.inserting_after(inputs[-1]):
            module.graph.call_module(GUARDS, tuple(inputs))
        module.recompile()


def _refuse_renormalisation(graph: Graph) -> None:
    for node in graph.nodes:
        if "embedding_renorm" in str(node.target):
            raise CaptureError(
                f"{node.name} renormalises an embedding's weight in forward (max_norm); renormalise it once instead"
            )


def _require_ids(graph: Graph, tokens: Collection[str]) -> None:
    for node in graph.find_nodes(op="placeholder"):
        sizes = list(map(static_size, node.meta["val"].shape)) if node.name in tokens else []
        if 0 in sizes:
            raise ExampleError(
                f"token input {node.name} has size 0 in dimension {sizes.index(0)} of the example that is traced; give an "
                "example with at least one id"
            )


def _specialised(graph: Graph) -> list[Specialised]:
    found = []
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            found.append(Specialised(node.name, f"the {'number' if number else 'value'} {value!r}"))
            continue
        sizes = enumerate(map(static_size, value.shape))
        found += [Specialised(node.name, f"dimension {dim} is {size}") for dim, size in sizes if size is not None]
    return found
