"""What a model must not have for its capture to be faithful. Each refusal names the module path and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from .._torch import global_hooks, module_hooks, tensor_hooks
from ..errors import CaptureError
from .contents import reached_modules
from .program import named_state


def audit(model: nn.Module) -> None:
    """Refuse a model whose forward the traced graph would not reproduce; modules that only attributes hold are looked at.

    Raises:
        CaptureError: training mode, hooks of any kind, TorchScript, wrappers of torch.compile, `max_norm` or `sparse`
            embeddings, state that is meta, quantised, complex or not strided, or autocast.
        TypeError: `model` is not an `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}; pass an nn.Module")
    refuse_autocast()
    if hooks := global_hooks():
        raise CaptureError(f"process-wide module hooks are registered ({', '.join(hooks)}); tracing would drop them")
    for path, module in reached_modules(model):
        _audit_module(path, module)
    for path, tensor in named_state(model):
        _audit_tensor(path, tensor)


def refuse_autocast() -> None:
    """Raises `CaptureError` inside an autocast region: the trace would freeze its casts."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            raise CaptureError(f"autocast is on for {device}; leave the autocast region and capture the model in one dtype")


def _at(path: str, module: nn.Module) -> str:
    return f"module '{path or '<root>'}' ({type(module).__name__})"


def _audit_module(path: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(f"{_at(path, module)} is TorchScript; capture the nn.Module it was made from")
    if "_orig_mod" in dict(module.named_children()):
        raise CaptureError(
            f"{_at(path, module)} is the wrapper of torch.compile, which prefixes every state name with '_orig_mod.'; "
            "capture the module inside, its _orig_mod, and compile what comes out"
        )
    if module.training:
        raise CaptureError(f"{_at(path, module)} is in training mode; call model.eval() first")
    if hooks := module_hooks(module):
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


@contextmanager
def nested_tensors_refused(model: nn.Module) -> Iterator[None]:
    """Within it the model is called: an encoder that would pack padded rows into a nested tensor is refused on exit.

    Such an encoder returns zeros where rows are padded, but not where a mask pads nothing, and not in a trace.

    Raises:
        CaptureError: an `nn.TransformerEncoder` with nested tensors was given a padding mask.
    """
    padded: list[str] = []

    def see(path: str, encoder: nn.Module, args: Any, kwargs: Any) -> None:
        given = signature(encoder.forward).bind(*args, **kwargs).arguments
        if given.get("src_key_padding_mask") is not None and given.get("mask") is None:
            padded.append(_at(path, encoder))

    encoders = [(path, each) for path, each in reached_modules(model) if isinstance(each, nn.TransformerEncoder)]
    handles = [
        each.register_forward_pre_hook(partial(see, path), with_kwargs=True)
        for path, each in encoders
        if each.use_nested_tensor
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if padded:
        raise CaptureError(
            f"{padded[0]} is given src_key_padding_mask and packs padded rows into nested tensors, which a graph cannot; make "
            "it with enable_nested_tensor=False, or set its use_nested_tensor to False"
        )


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
