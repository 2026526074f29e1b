"""What a call of a model leaves behind in its attributes, buffers and parameters, and how it is put back.

Export drops such writes silently: the graph would never make them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from .contents import Content, attributes, can_change, fingerprint, put_back, reached_modules
from .parameter_watch import ParameterWatch


class AttributeWatch:
    """Sees what a call of the model writes, and undoes it.

    Args:
        model: the model to watch.
        written: names of the buffers to save and put back; None for all.

    Attributes:
        buffers: the buffers as they were.
        parameters: a context the call is to be made in, so that its writes into parameters can be undone as well.
    """

    def __init__(self, model: nn.Module, written: Collection[str] | None = None) -> None:
        registered = set(model.modules())
        self._modules = [(path, module, _watched(module, module in registered)) for path, module in reached_modules(model)]
        self._registered = [(module, dict(module._parameters), dict(module._buffers)) for _, module, _ in self._modules]
        self._before = {(path, name): fingerprint(value) for path, _, held in self._modules for name, value in held.items()}
        values = [value for _, _, held in self._modules for value in held.values()]
        self._content = [Content(value) for value in {id(v): v for v in values if can_change(v)}.values()]
        self.buffers = {
            path: buffer.detach().clone() for path, buffer in model.named_buffers() if written is None or path in written
        }
        self.parameters = ParameterWatch(model)
        self._model = model

    def restore(self) -> list[str]:
        """Undo every write since construction; returns the attributes written, as `path.attribute`.

        Buffers that were written or replaced by others of their shape are put back and not among them: a graph makes
        such writes itself. Nor are parameters, see `parameters.saved`.
        """
        found: list[str] = []
        for path, module, held in self._modules:
            now = _watched(module, "_buffers" not in held)
            for name in sorted(held.keys() | now.keys()):
                if name not in now or fingerprint(now[name]) != self._before.get((path, name)):
                    found.append(f"{path}.{name}".lstrip("."))
            for name in now.keys() - held.keys():
                del vars(module)[name]
            vars(module).update(held)
        for content in self._content:
            content.restore()
        found += self._restore_registered()
        self.parameters.restore()
        for path, buffer in self._model.named_buffers():
            if path in self.buffers:
                put_back(buffer, self.buffers[path])
        return found

    def _restore_registered(self) -> list[str]:
        found = []
        for (path, _, _), (module, parameters, buffers) in zip(self._modules, self._registered, strict=True):
            now = dict(module._buffers)
            lost = [name for name, value in module._parameters.items() if parameters.get(name) is not value]
            lost += [name for name in now if name not in buffers or (buffers[name] is None) != (now[name] is None)]
            found += [f"{path}.{name}".lstrip(".") for name in lost]
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
        return found


def _watched(module: nn.Module, registered: bool) -> dict[str, Any]:
    """Attributes, and the buffers of a module that is not registered: a graph does not write those."""
    return attributes(module) | ({} if registered else {"_buffers": module._buffers})
