"""foldfx's own exceptions. All derive from `FoldfxError`, so one `except` catches them.

Arguments of a wrong type or value raise Python's `TypeError` and `ValueError`, places for files that are taken or cannot be
written its `OSError`s, and what is not there by that name or number `KeyError` and `IndexError`.
"""

from __future__ import annotations


class FoldfxError(Exception):
    """Base class: the message says what was found, where, and what to do."""


class CaptureError(FoldfxError):
    """The model cannot be captured faithfully (training mode, hooks, lost attribute writes, unsupported state)."""


class TokenInputError(FoldfxError):
    """The token inputs or their domains are ambiguous, unknown or stated wrongly."""


class ExampleError(FoldfxError):
    """An example is missing, malformed, or does not fit the captured program."""


class PassError(FoldfxError):
    """A pass left the working copy malformed; its transaction was discarded."""


class LoweringError(FoldfxError):
    """A semantic node found no provider, or a required provider declined it."""


class CallError(FoldfxError, TypeError):
    """A folded program was called with arguments of another kind than it was captured and verified for."""


class TokenRankError(FoldfxError, ValueError):
    """Token ids arrived with a number of dimensions the program was not verified for."""


class AutocastError(FoldfxError):
    """A folded program was called under autocast; its tables hold the values computed without."""


class GradientsError(FoldfxError):
    """A folded program was called with gradients on; with them the original was seen to do something else."""


class TrainingModeError(FoldfxError):
    """A folded program was called in training mode; it computes what the model did in eval mode."""


class UnreachableTokenError(FoldfxError, IndexError):
    """A token id that `TokenInput(reachable=…)` said would not occur."""


class RouteFileError(FoldfxError):
    """A route file is missing or malformed, or there are no routes to write."""


class DiffError(FoldfxError):
    """A side of a diff cannot be read or compared, or a policy is malformed."""
