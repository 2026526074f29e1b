"""The shared branch where its modules are more than their weights: adapters, hooks, other kinds of linear layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from ..._torch import module_hooks


def is_its_weight(module: nn.Module) -> bool:
    """Whether a call of `module` is one product with its weight: the forward of nn.Linear, no bias, no hook."""
    own = type(module).forward is nn.Linear.forward and "forward" not in vars(module)
    return own and module.bias is None and not module_hooks(module)


def by_modules(x: Tensor, modules: Sequence[nn.Module], scale: float) -> Tensor:
    """scale · down(silu(gate(x)) · up(x)), each module called.

    Args:
        x: [..., H].
        modules: gate, up and down.

    Returns:
        [..., H].
    """
    gate, up, down = modules
    y: Tensor = down(functional.silu(gate(x)) * up(x))
    return y if scale == 1 else y * scale
