"""What commands are given: options they share, models, examples and tokens named on the command line, and progress bars."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from ..analysis.example import Example, as_examples
from ..analysis.tokens import TokenInput
from ..errors import FoldfxError
from ..passes.tables.tabulate import Progress

T = TypeVar("T")

Factory = Annotated[str, typer.Option(help="Builds the model: file.py:function or package.module:function.")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file loaded strictly into the model.")]
Examples = Annotated[str, typer.Option(help="Returns example calls: file.py:function; each an Example or (args, kwargs).")]
Tokens = Annotated[list[str] | None, typer.Option("--token", help="A token input, as name or name=domain; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Objective = Annotated[str, typer.Option(help="What rewrites are for: storage, latency or routes.")]
MaxTableBytes = Annotated[int | None, typer.Option(help="The budget of tables, for latency and routes.")]
TimeBudget = Annotated[float | None, typer.Option(help="Seconds for checking each rewrite's tables row by row.")]
Reproducer = Annotated[Path | None, typer.Option(help="Folder to write the first counterexample to, as a script.")]
RunDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder to write graphs, diffs, report and reproducers to, for reviewers; by default the next of foldfx-runs/."
    ),
]
Observables = Annotated[
    list[str] | None,
    typer.Option("--observable", help="An attribute that forward writes, as layers.3.mlp.router_logits; repeatable."),
]
Static = Annotated[bool, typer.Option("--static", help="Fix every size to the example's.")]


class UsageError(FoldfxError):
    """A command line that names something that is not there."""


def load_function(reference: str) -> Callable[[], Any]:
    """The function named by file.py:function or package.module:function.

    Raises:
        UsageError: there is no such file, module or function, or it cannot be loaded.
    """
    place, colon, name = reference.rpartition(":")
    if not colon:
        raise UsageError(f"{reference!r} names no function; write file.py:function")
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise UsageError(f"there is no file {place}")
        module = _ran(place, lambda: _load_file(path.resolve()))
    else:
        module = _ran(place, lambda: _imported(place))
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UsageError(f"{place} has no function {name!r}; it has {known}")
    return function  # type: ignore[no-any-return]


def called(reference: str) -> Any:
    """What the function named by file.py:function or package.module:function returns.

    Raises:
        UsageError: it cannot be had, or fails.
    """
    return _ran(reference, load_function(reference))


def _ran(name: str, code: Callable[[], T]) -> T:
    """What a user's code returns.

    Raises:
        UsageError: it fails; with the file and line where.
    """
    try:
        return code()
    except UsageError:
        raise
    except Exception as error:
        own = [
            each for each in traceback.extract_tb(error.__traceback__) if each.filename not in (__file__, importlib.__file__)
        ]
        places = [f"{each.filename}:{each.lineno}" for each in own if not each.filename.startswith("<")]
        at = f", at {places[-1]}" if places else ""
        raise UsageError(f"{name} fails: {type(error).__name__}: {error}{at}") from error


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"there is no module {name}: {error}") from error


@cache
def _load_file(path: Path) -> ModuleType:
    """The module a file holds, run once."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def built_model(factory: str, weights: Path | None) -> nn.Module:
    model = called(factory)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{factory} returned a {type(model).__name__}, not an nn.Module")
    if weights is not None:
        if not weights.is_file():
            raise UsageError(f"there is no weights file {weights}")
        try:
            load_model(model, weights, strict=True)
        except SafetensorError as error:
            raise UsageError(f"{weights} is not a safetensors file: {error}") from error
    return model.eval()


def loaded_examples(reference: str) -> list[Example]:
    return as_examples(called(reference))


def parsed_tokens(written: list[str] | None) -> list[TokenInput] | None:
    if not written:
        return None
    tokens = []
    for text in written:
        name, equals, domain = text.partition("=")
        if equals and not domain.isdecimal():
            raise UsageError(f"--token {text}: the domain must be a number, as in {name}=32000")
        tokens.append(TokenInput(name, int(domain) if equals else None))
    return tokens


def run_folder(given: Path | None) -> Path:
    """`given`, or the first of foldfx-runs/0001, foldfx-runs/0002, … that is not there yet."""
    if given is not None:
        return given
    runs = Path("foldfx-runs")
    return next(folder for number in count(1) if not (folder := runs / f"{number:04}").exists())


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars on stderr where that is a terminal, nothing otherwise: one of the whole run, one of the stage at work."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}", justify="right"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remaining]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bars:
        bars.add_task("whole run", total=None, count="", remaining="")
        stages: dict[str, TaskID] = {}
        seen = 0

        def report(what: str, done: int, total: int) -> None:
            nonlocal seen
            count = f"{done:,}/{total:,}"
            if what not in stages or done < seen:
                for stage in stages.values():
                    bars.remove_task(stage)
                stages.clear()
                stages[what] = bars.add_task(what, total=total, completed=done, count=count, remaining="ETA")
            seen = done
            bars.update(stages[what], total=total, completed=done, count=count)
            if done >= total:
                bars.remove_task(stages.pop(what))

        yield report
