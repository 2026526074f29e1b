"""What a model must not have for its capture to be faithful. Each refusal names the module path and the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from .._torch import global_hooks, tensor_hooks
from ..errors import CaptureError


def audit(model: nn.Module) -> None:
    """Refuse a model whose forward the traced graph would not reproduce.

    Raises:
        CaptureError: training mode, hooks of any kind, `max_norm` or `sparse` embeddings, state that is meta,
            quantised, complex or not strided, or autocast.
        TypeError: `model` is not an `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}; pass an nn.Module")
    refuse_autocast()
    if hooks := global_hooks():
        raise CaptureError(f"process-wide module hooks are registered ({', '.join(hooks)}); tracing would drop them")
    for path, module in model.named_modules():
        _audit_module(path, module)
    for path, tensor in _state(model):
        _audit_tensor(path, tensor)


def refuse_autocast() -> None:
    """Raises `CaptureError` inside an autocast region: the trace would freeze its casts."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            raise CaptureError(f"autocast is on for {device}; leave the autocast region and capture the model in one dtype")


def _at(path: str, module: nn.Module) -> str:
    return f"module '{path or '<root>'}' ({type(module).__name__})"


def _audit_module(path: str, module: nn.Module) -> None:
    if module.training:
        raise CaptureError(f"{_at(path, module)} is in training mode; call model.eval() first")
    hooks = [name for name, value in vars(module).items() if name.endswith("_hooks") and value]
    if hooks:
        raise CaptureError(
            f"{_at(path, module)} has hooks ({', '.join(hooks)}), which tracing drops; remove them or make them part of forward"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            raise CaptureError(
                f"{_at(path, module)} has max_norm={module.max_norm}: its lookup rewrites the weight; renormalise the "
                "weight once and set max_norm=None"
            )
        if module.sparse:
            raise CaptureError(f"{_at(path, module)} has sparse=True; set sparse=False for inference")


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _audit_tensor(path: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "meta":
        raise CaptureError(f"state '{path}' is on the meta device; load the weights first")
    if tensor.is_quantized:
        raise CaptureError(f"state '{path}' is quantised ({tensor.dtype}); capture the float model")
    if tensor.is_complex():
        raise CaptureError(f"state '{path}' is complex ({tensor.dtype}); foldfx handles real models only")
    if tensor.layout is not torch.strided:
        raise CaptureError(f"state '{path}' has layout {tensor.layout}; foldfx handles strided tensors only")
    if tensor_hooks(tensor):
        raise CaptureError(f"state '{path}' has autograd hooks, which tracing drops; remove them")


class AttributeWatch:
    """Sees what a call of the model leaves behind in plain attributes, and puts it back.

    Export drops such writes silently: the graph would never make them.

    Args:
        model: the model to watch.
        written: names of the buffers to save and put back; None for all.

    Attributes:
        buffers: the buffers as they were.
    """

    def __init__(self, model: nn.Module, written: Collection[str] | None = None) -> None:
        self._model = model
        self._before = {path: _plain(module) for path, module in model.named_modules()}
        self.buffers = {
            path: buffer.detach().clone() for path, buffer in model.named_buffers() if written is None or path in written
        }

    def restore(self) -> list[str]:
        """Undo every write since construction; returns what was written, as `path.attribute`."""
        written = []
        for path, module in self._model.named_modules():
            before, now = self._before.get(path, {}), _plain(module)
            for name in sorted(before.keys() | now.keys()):
                if name in before and name in now and _same(before[name], now[name]):
                    continue
                written.append(f"{path}.{name}".lstrip("."))
                if name in before:
                    object.__setattr__(module, name, before[name][0])
                else:
                    object.__delattr__(module, name)
        with torch.no_grad():
            for path, buffer in self._model.named_buffers():
                if path in self.buffers and buffer.shape == self.buffers[path].shape:
                    buffer.copy_(self.buffers[path])
        return written


_Snapshot = tuple[Any, Any]


def _plain(module: nn.Module) -> dict[str, _Snapshot]:
    """Attributes outside the state machinery of nn.Module: the object, and what of its content can be compared."""
    hidden = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
    return {
        name: (value, _content(value))
        for name, value in vars(module).items()
        if name not in hidden and not name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
    }


def _content(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (id(value), value._version)
    if isinstance(value, list | tuple | set | frozenset):
        return (
            type(value),
            len(value),
            sorted(map(_identity, value), key=repr) if isinstance(value, set) else [*map(_identity, value)],
        )
    if isinstance(value, dict):
        return [(repr(key), _identity(item)) for key, item in value.items()]
    return _identity(value)


def _identity(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | bytes | None) else id(value)


def _same(before: _Snapshot, now: _Snapshot) -> bool:
    return type(before[0]) is type(now[0]) and repr(before[1]) == repr(now[1])
