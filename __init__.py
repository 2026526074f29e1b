"""foldfx: proves which values of a traced model depend on one token id alone, and folds them into lookup tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import Example, Facts, Program, TokenInput, capture
    from .api import Result, analyze, compile
    from .passes import FoldTokens, Limits, Pipeline
    from .passes.verification.verify_modules import verify

__all__ = [
    "Example",
    "Facts",
    "FoldTokens",
    "Limits",
    "Pipeline",
    "Program",
    "Result",
    "TokenInput",
    "analyze",
    "capture",
    "compile",
    "verify",
]

# Names are fetched when they are first used, so that `import foldfx.runtime` brings no analysis and no pass along.
_HOMES = {
    ".analysis": ("Example", "Facts", "Program", "TokenInput", "capture"),
    ".api": ("Result", "analyze", "compile"),
    ".passes": ("FoldTokens", "Limits", "Pipeline"),
    ".passes.verification.verify_modules": ("verify",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
