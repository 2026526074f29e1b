"""Which models are not captured, for which reason, and that capture leaves every model as it was."""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from foldfx import Example, capture
from foldfx.errors import CaptureError, ExampleError
from foldfx.passes.verification.observe import observe

VOCABULARY, WIDTH = 7, 4
IDS = torch.tensor([[0, 1, 2], [3, 4, 6]])

Change = Callable[["Model"], object]


@dataclass(slots=True)
class Slotted:
    count: int = 0


class Remembering(nn.Module):
    """Held by a list, so that nobody registers it."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.weight = 0, nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(2))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[0]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.linear = nn.Linear(WIDTH, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.linear(self.embedding(ids)).flatten(0, -2)).unflatten(0, ids.shape)


class Model(nn.Module):
    """A small model; `act` runs at the start of forward."""

    def __init__(self, act: Change = lambda model: None) -> None:
        super().__init__()
        self.inner = Inner()
        self.act = act
        self.count, self.seen, self.memory, self.set = 0, [1], {"last": None}, {1}
        self.nested, self.queue, self.record = {"seen": [1]}, deque([1]), SimpleNamespace(count=0)
        self.scratch, self.slotted, self.push = torch.zeros(2), Slotted(), self.seen.append
        self.block = [Remembering()]
        self.register_buffer("calls", torch.zeros(2))
        self.register_buffer("later", None)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        self.act(self)
        return self.block[0](self.inner(ids))


def contents(model: nn.Module) -> dict[str, Any]:
    """Everything a call could leave behind, the identity of every tensor included."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    plain = {name: value for name, value in vars(model).items() if not name.startswith("_") and not callable(value)}
    block = plain.pop("block", [Remembering()])[0]
    plain |= {"block.last": block.last, "block.calls": block.calls.tolist(), "block.weight": block.weight.tolist()}
    found: dict[str, Any] = {f"state {name}": (id(tensor), tensor.tolist()) for name, tensor in state.items()}
    for name, value in plain.items():
        found[name] = (id(value), value.tolist()) if isinstance(value, Tensor) else copy.deepcopy(value)
    return found | {"modules": [name for name, _ in model.named_modules()]}


@contextmanager
def module_hook() -> Iterator[None]:
    handle = every_module.register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


def replaced(name: str, weight: Tensor) -> Change:
    def change(model: Model) -> None:
        holder = model.inner.get_submodule(name)
        del holder.weight
        holder.register_buffer("weight", weight)

    return change


def hook(*_: object) -> None: ...


LINEAR, EMBEDDING = r"module 'inner\.linear' \(Linear\)", r"module 'inner\.embedding' \(Embedding\)"
WEIGHT = r"state 'inner\.linear\.weight'"
REFUSED: dict[str, tuple[Change, str]] = {
    "training": (lambda m: m.train(), r"module '<root>' \(Model\) is in training mode; call model\.eval\(\)"),
    "a layer that is not registered trains": (
        lambda m: m.block[0].train(),
        r"module 'block\[0\]' \(Remembering\) is in training mode",
    ),
    "one layer trains": (lambda m: m.inner.norm.train(), r"module 'inner\.norm' \(BatchNorm1d\) is in training mode"),
    "forward hook": (lambda m: m.inner.linear.register_forward_hook(hook), f"{LINEAR} has hooks \\(_forward_hooks\\)"),
    "forward pre-hook": (lambda m: m.inner.linear.register_forward_pre_hook(hook), f"{LINEAR} has hooks"),
    "backward hook": (lambda m: m.inner.linear.register_full_backward_hook(hook), f"{LINEAR} has hooks"),
    "backward pre-hook": (lambda m: m.inner.linear.register_full_backward_pre_hook(hook), f"{LINEAR} has hooks"),
    "tensor hook": (lambda m: m.inner.linear.weight.register_hook(hook), f"{WEIGHT} has autograd hooks"),
    "accumulation hook": (
        lambda m: m.inner.linear.weight.register_post_accumulate_grad_hook(hook),
        f"{WEIGHT} has autograd hooks",
    ),
    "max_norm": (lambda m: setattr(m.inner.embedding, "max_norm", 1.0), f"{EMBEDDING} has max_norm=1"),
    "sparse": (lambda m: setattr(m.inner.embedding, "sparse", True), f"{EMBEDDING} has sparse=True"),
    "meta": (lambda m: m.inner.linear.to("meta"), f"{WEIGHT} is on the meta device"),
    "complex": (replaced("linear", torch.zeros(8, 4, dtype=torch.cfloat)), f"{WEIGHT} is complex"),
    "sparse layout": (replaced("linear", torch.eye(4).to_sparse()), rf"{WEIGHT} has layout torch\.sparse_coo"),
    "quantised": (
        replaced("linear", torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8)),
        rf"{WEIGHT} is quantised \(torch\.qint8\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_tracing_would_change_is_refused(case: str) -> None:
    change, why = REFUSED[case]
    model = Model()
    change(model)
    with pytest.raises(CaptureError, match=why):
        capture(model, (IDS,), dynamic=False)


@pytest.mark.parametrize("kind", ["state_dict_pre_hook", "state_dict_post_hook", "load_state_dict_post_hook"])
def test_hooks_that_no_call_runs_are_fine(kind: str) -> None:
    model = Model()
    getattr(model.inner.linear, f"register_{kind}")(hook)
    capture(model, (IDS,), dynamic=False)


@pytest.mark.parametrize(
    ("surrounding", "why"),
    [(lambda: torch.autocast("cpu", torch.bfloat16), "autocast is on for cpu"), (module_hook, "process-wide module hooks")],
)
def test_surroundings_that_tracing_would_drop_are_refused(surrounding: Callable[[], Any], why: str) -> None:
    with surrounding(), pytest.raises(CaptureError, match=why):
        capture(Model(), (IDS,))


def double_weight(model: Model) -> None:
    with torch.no_grad():
        model.inner.linear.weight.mul_(2)


WRITES: dict[str, tuple[Change, str]] = {
    "counter": (lambda m: setattr(m, "count", m.count + 1), "count"),
    "new attribute": (lambda m: setattr(m, "last", 3), "last"),
    "attribute of a layer": (lambda m: setattr(m.inner.linear, "last", 3), "inner.linear.last"),
    "deleted attribute": (lambda m: vars(m).pop("count", None), "count"),
    "list": (lambda m: m.seen.append(1), "seen"),
    "dict": (lambda m: m.memory.update(last=1), "memory"),
    "set": (lambda m: m.set.add(2), "set"),
    "list in a dict": (lambda m: m.nested["seen"].append(1), "nested"),
    "deque": (lambda m: m.queue.append(1), "queue"),
    "attribute of an object": (lambda m: setattr(m.record, "count", m.record.count + 1), "record"),
    "slot of an object": (lambda m: setattr(m.slotted, "count", m.slotted.count + 1), "slotted"),
    "through a bound method": (lambda m: m.push(1), "push"),
    "tensor that is no state": (lambda m: m.scratch.add_(1), "scratch"),
    "attribute of a module not registered": (lambda m: setattr(m.block[0], "last", 1), "block[0].last"),
    "buffer of a module not registered": (lambda m: m.block[0].calls.add_(1), "block[0]._buffers"),
    "parameter of a module not registered": (lambda m: m.block[0].weight.data.add_(1), "block[0].weight"),
    "parameter": (double_weight, "inner.linear.weight"),
    "parameter replaced": (
        lambda m: setattr(m.inner.linear, "weight", nn.Parameter(m.inner.linear.weight.detach() * 2)),
        "inner.linear.weight",
    ),
    "buffer made late": (lambda m: setattr(m, "later", torch.ones(2)), "later"),
    "buffer registered": (lambda m: m.register_buffer("extra", torch.ones(2)), "extra"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITES)
def test_a_write_that_the_graph_would_lose_is_refused_and_undone(case: str) -> None:
    act, name = WRITES[case]
    model = Model(act)
    before = contents(model)
    with pytest.raises(CaptureError, match=rf"\b{re.escape(name)}\b"):
        capture(model, (IDS,), dynamic=False)
    assert contents(model) == before


@pytest.mark.parametrize(
    "act",
    [lambda m: None, lambda m: m.calls.add_(1), lambda m: setattr(m, "calls", m.calls + 1)],
    ids=["no write", "buffer in place", "buffer replaced"],
)
def test_capture_leaves_model_and_example_as_they_were(act: Change) -> None:
    model, ids = Model(act), IDS.clone()
    before = contents(model)
    capture(model, (ids,))
    assert contents(model) == before
    assert torch.equal(ids, IDS)


class Wide(nn.Module):
    """Its buffer is one number, expanded in memory; forward may write it."""

    wide: Tensor

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.embedding, self.writes = nn.Embedding(VOCABULARY, WIDTH), writes
        self.register_buffer("wide", torch.ones(1).expand(WIDTH))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        if self.writes:
            self.wide[0] = 3
        return self.embedding(ids) * self.wide


@pytest.mark.parametrize("writes", [False, True])
def test_a_buffer_that_is_expanded_in_memory_is_put_back(writes: bool) -> None:
    model = Wide(writes)
    expected = observe(model, Example((IDS,))).outputs
    assert model.wide.tolist() == [1.0] * WIDTH
    torch.testing.assert_close(expected, model.embedding(IDS) * (3 if writes else 1))
    if not writes:
        torch.testing.assert_close(capture(model, (IDS,)).module(IDS), expected)


class Weight(nn.Module):
    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.compute = compute
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.compute(self.weight, ids)


@pytest.mark.parametrize(
    ("compute", "error", "why"),
    [
        (
            lambda weight, ids: weight[ids] if weight.sum() > 0 else weight[ids] * 2,
            CaptureError,
            "torch.export cannot trace the model: .*Could not guard on data-dependent expression",
        ),
        (
            lambda weight, ids: F.embedding(ids, weight, max_norm=1.0),
            CaptureError,
            r"embedding_renorm.* renormalises an embedding's weight in forward \(max_norm\)",
        ),
        (lambda weight, ids: weight @ ids, ExampleError, "the model itself fails on the example: RuntimeError"),
    ],
    ids=["control flow on data", "max_norm in forward", "broken"],
)
def test_a_model_that_cannot_be_traced_says_why(compute: Any, error: type[Exception], why: str) -> None:
    model = Weight(compute)
    before = contents(model)
    with pytest.raises(error, match=why):
        capture(model, (IDS,), dynamic=False)
    assert contents(model) == before


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)], ids=str)
@pytest.mark.parametrize("dynamic", [True, False])
def test_an_example_without_ids_is_refused(shape: tuple[int, ...], dynamic: bool) -> None:
    size = shape.index(0)
    with pytest.raises(ExampleError, match=rf"token input ids has size 0 in dimension {size}.*with at least one id"):
        capture(Weight(lambda weight, ids: weight[ids]), (torch.zeros(shape, dtype=torch.int64),), dynamic=dynamic)


def test_an_example_with_one_id_is_captured() -> None:
    program = capture(Weight(lambda weight, ids: weight[ids]), (torch.zeros(1, 1, dtype=torch.int64),))
    assert program.tokens["ids"].size == VOCABULARY


def test_only_modules_are_captured() -> None:
    with pytest.raises(TypeError, match="the model is a function; pass an nn"):
        capture(hook, (IDS,))  # type: ignore[arg-type]
