"""The command line: `foldfx analyze | compile | bisect | verify | demo`.

JSON goes to stdout with --json, progress to stderr. Exit codes: 0 done, 1 an error (one line on stderr), 2 a compile
that was rolled back, a bisection that found something wrong, or two modules not found equivalent.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as Bars
from safetensors.torch import load_model
from torch import nn

from .analysis.example import Example, as_examples
from .analysis.tokens import TokenInput
from .api import Result, analyze, compile
from .errors import FoldfxError
from .inspection.facts_view import facts_table, facts_to_dict
from .inspection.report import SCHEMA_VERSION
from .passes.pipeline import Pipeline
from .passes.tables.tabulate import Progress
from .passes.verification.verify_modules import verify

ROLLED_BACK = NOT_EQUIVALENT = 2

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Fold what depends on a token id alone into lookup tables.",
    rich_markup_mode=None,
)

Factory = Annotated[str, typer.Option(help="Builds the model: file.py:function or package.module:function.")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file loaded strictly into the model.")]
Examples = Annotated[str, typer.Option(help="Returns example calls: file.py:function; each an Example or (args, kwargs).")]
Tokens = Annotated[list[str] | None, typer.Option("--token", help="A token input, as name or name=domain; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
TimeBudget = Annotated[float | None, typer.Option(help="Seconds for checking each rewrite's tables row by row.")]
Reproducer = Annotated[Path | None, typer.Option(help="Folder to write the first counterexample to, as a script.")]
Static = Annotated[bool, typer.Option("--static", help="Fix every size to the example's.")]


class UsageError(FoldfxError):
    """A command line that names something that is not there."""


@app.command("analyze")
def analyze_command(
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    node: Annotated[str | None, typer.Option(help="Explain this value: its proof, or why it is refused.")] = None,
    as_json: AsJson = False,
    static: Static = False,
) -> None:
    """Say what every value of a model depends on; change nothing."""
    model, calls = _model(factory, weights), _examples(examples)
    facts = analyze(model, calls[0].args, calls[0].kwargs, tokens=_tokens(token), dynamic=not static)
    if node is not None:
        print(facts.explain(node))
    elif as_json:
        print(json.dumps(facts_to_dict(facts), indent=2))
    else:
        Console().print(facts_table(facts))


@app.command("compile")
def compile_command(
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    fuel: Annotated[int | None, typer.Option(help="The largest number of rewrites.")] = None,
    disable: Annotated[list[str] | None, typer.Option(help="A pass to leave out; repeatable.")] = None,
    time_budget: TimeBudget = None,
    reproducer: Reproducer = None,
    as_json: AsJson = False,
    static: Static = False,
) -> None:
    """Fold a model, verify complete outputs, and report."""
    pipeline = Pipeline(disable=disable or (), fuel=fuel, time_budget=time_budget)
    with _progress() as progress:
        model, calls = _model(factory, weights), _examples(examples)
        result = compile(model, calls, tokens=_tokens(token), pipeline=pipeline, dynamic=not static, progress=progress)
    _show(result, as_json)
    _reproduce(result, reproducer)
    if result.status == "rolled_back":
        raise typer.Exit(ROLLED_BACK)


@app.command("bisect")
def bisect_command(
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    reproducer: Reproducer = None,
    static: Static = False,
) -> None:
    """Run a compile again for its bisection: every candidate tried, and the rewrites found wrong."""
    with _progress() as progress:
        model, calls = _model(factory, weights), _examples(examples)
        result = compile(model, calls, tokens=_tokens(token), dynamic=not static, progress=progress)
    for trial in result.report.data["trials"]:
        print(f"{', '.join(trial['rewrites']) or 'no rewrite'}: {trial['why'] or 'agrees'}")
    for outcome in result.report.data["outcomes"]:
        if outcome["status"] == "rejected":
            print(f"wrong: {outcome['subject']}: {outcome['reason']}")
    _reproduce(result, reproducer)
    if result.counterexamples:
        raise typer.Exit(ROLLED_BACK)


def _reproduce(result: Result, folder: Path | None) -> None:
    if folder is not None and result.counterexamples:
        print(f"reproducer: python {result.write_reproducer(folder)}", file=sys.stderr)


@app.command("verify")
def verify_command(
    reference: Annotated[str, typer.Argument(help="Builds the reference: file.py:function or package.module:function.")],
    candidate: Annotated[str, typer.Argument(help="Builds the candidate, in the same way.")],
    examples: Examples,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file loaded strictly into the reference.")] = None,
    candidate_weights: Annotated[Path | None, typer.Option(help="One loaded strictly into the candidate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare complete outputs of two models on examples, in eval mode."""
    found = verify(_model(reference, weights), _model(candidate, candidate_weights), _examples(examples))
    if as_json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, **found.to_dict()}, indent=2, allow_nan=False))
    else:
        print("\n".join([f"{found.verdict}: {found.examples} example(s)", *(f"  {text}" for text in found.because)]))
    if not found.success:
        raise typer.Exit(NOT_EQUIVALENT)


@app.command("demo")
def demo_command(as_json: AsJson = False) -> None:
    """Fold g2p-en, a real grapheme-to-phoneme checkpoint, and pronounce five words before and after."""
    from .examples import g2p_en

    words = ["embedding", "compiler", "token", "lookup", "gather"]
    encoder, decoder = g2p_en.load()
    before = g2p_en.pronounce(words, encoder, decoder)
    with _progress() as progress:
        folded_encoder = compile(encoder, g2p_en.encoder_examples(), progress=progress)
        folded_decoder = compile(decoder, g2p_en.decoder_examples(), progress=progress)
    after = g2p_en.pronounce(words, folded_encoder.module, folded_decoder.module)
    steps = {"encoder": folded_encoder, "decoder": folded_decoder}
    if as_json:
        print(json.dumps({name: result.report.to_dict() for name, result in steps.items()}, indent=2, allow_nan=False))
    else:
        print("\n".join(f"# {name} step\n{result.report}" for name, result in steps.items()))
    for word, one, other in zip(words, before, after, strict=True):
        verdict = "same" if one == other else "DIFFERENT"
        print(f"{word:10} {' '.join(one):32} → {' '.join(other):32} {verdict}", file=sys.stderr if as_json else sys.stdout)
    if before != after or not (folded_encoder.accepted and folded_decoder.accepted):
        raise typer.Exit(ROLLED_BACK)


def _show(result: Result, as_json: bool) -> None:
    print(json.dumps(result.report.to_dict(), indent=2, allow_nan=False) if as_json else result.report)


def _load(reference: str) -> Callable[[], Any]:
    """The function named by file.py:function or package.module:function.

    Raises:
        UsageError: there is no such file, module or function.
    """
    place, colon, name = reference.rpartition(":")
    if not colon:
        raise UsageError(f"{reference!r} names no function; write file.py:function")
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise UsageError(f"there is no file {place}")
        module = _load_file(path.resolve())
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise UsageError(f"there is no module {place}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UsageError(f"{place} has no function {name!r}; it has {known}")
    return function  # type: ignore[no-any-return]


@cache
def _load_file(path: Path) -> ModuleType:
    """The module a file holds, run once."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _model(factory: str, weights: Path | None) -> nn.Module:
    model = _load(factory)()
    if not isinstance(model, nn.Module):
        raise UsageError(f"{factory} returned a {type(model).__name__}, not an nn.Module")
    if weights is not None:
        if not weights.is_file():
            raise UsageError(f"there is no weights file {weights}")
        load_model(model, weights, strict=True)
    return model.eval()


def _examples(reference: str) -> list[Example]:
    return as_examples(_load(reference)())


def _tokens(written: list[str] | None) -> list[TokenInput] | None:
    if not written:
        return None
    tokens = []
    for text in written:
        name, equals, domain = text.partition("=")
        if equals and not domain.isdigit():
            raise UsageError(f"--token {text}: the domain must be a number, as in {name}=32000")
        tokens.append(TokenInput(name, int(domain) if equals else None))
    return tokens


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars on stderr where that is a terminal; nothing otherwise."""
    with Bars(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield report


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None takes sys.argv.

    Returns:
        The exit code.
    """
    try:
        result = app(args=arguments, standalone_mode=False)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        return 1
    except Exception as error:
        message = error.format_message() if isinstance(error, typer.BadParameter) else str(error)
        text = " ".join(message.split())
        print(f"foldfx: {type(error).__name__}: {text}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
