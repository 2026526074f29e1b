"""The command line: `foldfx analyze | compile | bisect | verify | diff | explain | routes | demo`.

Reports are tables on a terminal and plain text elsewhere; JSON goes to stdout with --json, progress to stderr. Exit codes:
0 done, 1 an error (one line on stderr), 2 a compile that was rolled back, a bisection that found something wrong, modules
or routes not found equal, a wrong route table, or a diff that breaks its policy, 130 where it was interrupted.
"""

from __future__ import annotations

import json
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..api import Result, analyze, compile, pass_for
from ..inspection.facts_view import facts_table, facts_text, facts_to_dict
from ..inspection.folder import require_new
from ..inspection.report import SCHEMA_VERSION
from ..inspection.run_layout import PAGE
from ..inspection.terminal import terminal_bisection, terminal_report
from ..passes.pipeline import Pipeline
from ..passes.probes import CONTEXTS
from ..passes.verification.verify_modules import verify
from .compiled import compiled
from .diff import diff_command
from .explain import explain_command
from .inputs import (
    AsJson,
    Examples,
    Factory,
    MaxTableBytes,
    Objective,
    Observables,
    Reproducer,
    RunDir,
    Static,
    TimeBudget,
    Tokens,
    UsageError,
    Weights,
    built_model,
    loaded_examples,
    parsed_tokens,
    progress_bars,
    run_folder,
)
from .routes import routes_app
from .tr_hash import tables_app

ROLLED_BACK = NOT_EQUIVALENT = 2

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Fold what depends on a token id alone into lookup tables.",
    rich_markup_mode=None,
)
routes_app.add_typer(tables_app)
app.add_typer(routes_app, name="routes")
app.command("diff")(diff_command)
app.command("explain")(explain_command)


@app.command("analyze")
def analyze_command(
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    observable: Observables = None,
    node: Annotated[str | None, typer.Option(help="Explain this value: its proof, or why it is refused.")] = None,
    as_json: AsJson = False,
    static: Static = False,
) -> None:
    """Say what every value of a model depends on; change nothing."""
    model, calls = built_model(factory, weights), loaded_examples(examples)
    facts = analyze(
        model, calls[0].args, calls[0].kwargs, tokens=parsed_tokens(token), dynamic=not static, observables=observable or ()
    )
    try:
        asked = None if node is None else facts.node(node)
    except KeyError as error:
        raise UsageError(error.args[0]) from error
    if as_json:
        print(json.dumps(facts_to_dict(facts, facts if asked is None else [asked]), indent=2))
    elif asked is not None:
        print(facts.explain(asked))
    elif (console := Console()).is_terminal:
        console.print(facts_table(facts))
    else:
        print(facts_text(facts))


@app.command("compile")
def compile_command(
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    observable: Observables = None,
    objective: Objective = "storage",
    max_table_bytes: MaxTableBytes = None,
    fuel: Annotated[int | None, typer.Option(help="The largest number of rewrites.")] = None,
    disable: Annotated[list[str] | None, typer.Option(help="A pass to leave out; repeatable.")] = None,
    time_budget: TimeBudget = None,
    probe_contexts: Annotated[int, typer.Option(help="Calls that the search for near ties evaluates; 0: none.")] = CONTEXTS,
    reproducer: Reproducer = None,
    run_dir: RunDir = None,
    as_json: AsJson = False,
    static: Static = False,
) -> None:
    """Fold a model, verify complete outputs, and report."""
    passes = (pass_for(objective, max_table_bytes),)
    pipeline = Pipeline(passes, disable=disable or (), fuel=fuel, time_budget=time_budget, probe_contexts=probe_contexts)
    folder = run_folder(run_dir)
    if reproducer is not None:
        require_new(reproducer)
    result = compiled(
        factory, weights, examples, token=token, observable=observable, static=static, pipeline=pipeline, run_dir=folder
    )
    _show(result, as_json)
    _lead_on(result, folder, reproducer)
    if result.status == "rolled_back":
        raise typer.Exit(ROLLED_BACK)


@app.command("bisect")
def bisect_command(
    factory: Factory,
    examples: Examples,
    weights: Weights = None,
    token: Tokens = None,
    observable: Observables = None,
    reproducer: Reproducer = None,
    run_dir: RunDir = None,
    static: Static = False,
) -> None:
    """Run a compile again for its bisection: every candidate tried, and the rewrites found wrong."""
    folder = run_folder(run_dir)
    if reproducer is not None:
        require_new(reproducer)
    result = compiled(factory, weights, examples, token=token, observable=observable, static=static, run_dir=folder)
    if (console := Console()).is_terminal:
        console.print(terminal_bisection(result.report))
    else:
        _print_bisection(result)
    _lead_on(result, folder, reproducer)
    if result.counterexamples:
        raise typer.Exit(ROLLED_BACK)


def _print_bisection(result: Result) -> None:
    for trial in result.report.data["trials"]:
        print(f"{', '.join(trial['rewrites']) or 'no rewrite'}: {trial['why'] or 'agrees'}")
    for outcome in result.report.data["outcomes"]:
        if outcome["status"] == "rejected":
            print(f"wrong: {outcome['subject']}: {outcome['reason']}")


def _lead_on(result: Result, run: Path, reproducer: Path | None) -> None:
    """Say on stderr what there is to read and to run."""
    print(f"for reviewers: {run / PAGE}", file=sys.stderr)
    if reproducer is not None and result.counterexamples:
        print(f"reproducer: python {result.write_reproducer(reproducer)}", file=sys.stderr)


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
    found = verify(built_model(reference, weights), built_model(candidate, candidate_weights), loaded_examples(examples))
    if as_json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, **found.to_dict()}, indent=2, allow_nan=False))
    else:
        print("\n".join([f"{found.verdict}: {found.examples} example(s)", *(f"  {text}" for text in found.because)]))
    if not found.success:
        raise typer.Exit(NOT_EQUIVALENT)


@app.command("demo")
def demo_command(as_json: AsJson = False) -> None:
    """Fold g2p-en, a real grapheme-to-phoneme checkpoint, and pronounce five words before and after."""
    from ..examples import g2p_en

    words = ["embedding", "compiler", "token", "lookup", "gather"]
    encoder, decoder = g2p_en.load()
    before = g2p_en.pronounce(words, encoder, decoder)
    with progress_bars() as progress:
        folded_encoder = compile(encoder, g2p_en.encoder_examples(), progress=progress)
        folded_decoder = compile(decoder, g2p_en.decoder_examples(), progress=progress)
    after = g2p_en.pronounce(words, folded_encoder.module, folded_decoder.module)
    steps = {"encoder": folded_encoder, "decoder": folded_decoder}
    if as_json:
        print(json.dumps({name: result.report.to_dict() for name, result in steps.items()}, indent=2, allow_nan=False))
    else:
        for name, result in steps.items():
            _print_report(result, f"# {name} step")
    for word, one, other in zip(words, before, after, strict=True):
        verdict = "same" if one == other else "DIFFERENT"
        print(f"{word:10} {' '.join(one):32} → {' '.join(other):32} {verdict}", file=sys.stderr if as_json else sys.stdout)
    if before != after or not (folded_encoder.accepted and folded_decoder.accepted):
        raise typer.Exit(ROLLED_BACK)


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.report.to_dict(), indent=2, allow_nan=False))
    else:
        _print_report(result)


def _print_report(result: Result, *title: str) -> None:
    """Tables on a terminal, the plain text with every number elsewhere."""
    if (console := Console()).is_terminal:
        console.print(*(Text(f"\n{line}", "bold") for line in title), terminal_report(result.report), sep="\n")
    else:
        print(*title, result.report, sep="\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None takes sys.argv.

    Returns:
        The exit code.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr's: arrows have no place in every encoding
    try:
        result = app(args=arguments, standalone_mode=False)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        return 1
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click's, or that of typer's own copy of click
            print(error, file=sys.stderr)
            return 1
        message = error.format_message() if isinstance(error, typer.BadParameter) else str(error)
        text = " ".join(message.split())
        print(f"foldfx: {type(error).__name__}: {text}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
