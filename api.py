"""The front door: `compile`, what it returns, and `analyze`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.fx import GraphModule

from .analysis.capture import DynamicShapes, capture
from .analysis.decisions import find_decisions
from .analysis.dependence import analyze_program
from .analysis.example import Example, as_examples
from .analysis.facts import Facts
from .analysis.hashed import find_hashed
from .analysis.program import Domain
from .analysis.provenance import where
from .analysis.tokens import TokenInput
from .inspection.diff import Diff, diff_graphs
from .inspection.facts_view import facts_to_dict
from .inspection.folder import require_new
from .inspection.html import render
from .inspection.memory_view import memory_to_dict
from .inspection.outline_of import outline_of
from .inspection.report import Report
from .inspection.reproducer import write_reproducer
from .inspection.run_directory import write_run
from .passes.context import Pass
from .passes.exported_routes import exported_routes
from .passes.fold_routes import FoldRoutes
from .passes.fold_tokens import FoldTokens
from .passes.pipeline import Pipeline, Run
from .passes.probes import CONTEXTS
from .passes.rewrite import Rewrite
from .passes.tables.encode import Pack
from .passes.tables.tabulate import Progress, silent
from .passes.verification.counterexample import Counterexample
from .passes.verification.evidence import Verification
from .passes.verification.validity import Evidence, Validity
from .runtime import ObservedProgram
from .runtime.route_file import RouteFile

Objective = Literal["storage", "latency", "routes"]


@dataclass(frozen=True)
class Result:
    """What `compile` returns.

    It keeps the original model and the run, which `validity` and `revalidate` need; keep only `.module` to free them.

    Attributes:
        module: the folded model, or the captured original where nothing was accepted; called like the example. Where there
            are observables, calls set them on it at their paths.
        accepted: whether anything was folded and verified.
        report: what was done, refused and shown, at compile time.
    """

    module: GraphModule | ObservedProgram
    accepted: bool
    report: Report
    _run: Run = field(repr=False, compare=False)
    _evidence: Evidence = field(repr=False, compare=False)

    @property
    def status(self) -> str:
        """`accepted`, `unchanged` or `rolled_back`."""
        return str(self.report.data["status"])

    @property
    def counterexamples(self) -> tuple[Counterexample, ...]:
        """A call that shows why each wrong rewrite was left out, or why everything was rolled back; () where all held."""
        return self._run.counterexamples

    def write_reproducer(self, folder: str | Path, number: int = 0) -> Path:
        """Write counterexample `number` as a script that runs without foldfx's passes, the model's code or this process.

        Args:
            folder: a folder that does not exist yet, or is empty.
            number: a place in `counterexamples`.

        Returns:
            The script. It exits with 1 where the difference is still there, with 0 where it is gone.

        Raises:
            IndexError: there is no such counterexample.
            FileExistsError: the folder holds something.
            ValueError: the call cannot be written, e.g. because the original itself raises on it, with the reason.
        """
        if not self.counterexamples:
            raise IndexError("no counterexample: every rewrite held")
        if not 0 <= number < len(self.counterexamples):
            raise IndexError(f"no counterexample {number}: there are {len(self.counterexamples)}, counted from 0")
        found = self.counterexamples[number]
        reference, candidate, inputs = found.graphs(self._run.captured)
        limits = (found.limits or self._run.verification.limits).to_dict()
        threads = torch.get_num_threads()
        return write_reproducer(Path(folder), reference, candidate, inputs, title=str(found), limits=limits, threads=threads)

    @property
    def diff(self) -> Diff:
        """What makes `module` of the captured graph, value by value; empty where nothing was accepted."""
        captured, used = self._run.captured, self._run.program
        return diff_graphs(outline_of(captured, "captured"), outline_of(used, "folded"))

    def write_html(self, path: str | Path, *, title: str = "foldfx") -> Path:
        """Write the report as one page that opens offline: graphs side by side, proofs, tables, margins, evidence.

        Args:
            path: a file, replaced where it exists; its folder must exist.
            title: what to call the page.

        Returns:
            The path. The same run gives the same bytes, unless latency was measured.

        Raises:
            DiffError: a graph carries a constant that cannot be compared.
        """
        run = self._run
        steps = [(name, outline_of(program, name)) for name, program in run.steps]
        facts, memory = facts_to_dict(analyze_program(run.captured)), memory_to_dict(run.captured)
        target = Path(path)
        target.write_text(render(self.report.to_dict(), steps, facts, memory=memory, title=title), encoding="utf-8")
        return target

    def routes(self) -> RouteFile:
        """The decisions that were folded into tables, as `RouteFile.save` writes them for replay and comparison.

        Raises:
            RouteFileError: none was folded, or one over several token inputs; the message says why.
        """
        return exported_routes(self._run, self._evidence.fingerprint)

    def validity(self) -> Validity:
        """Whether the evidence still holds for `module` and the original model, as they are now.

        Looked at when asked, never on a call: every tensor of both is hashed anew, at about 1 GB/s. Not looked at are
        the original's Python code, and the contents of buffers and observables that a call writes.

        Returns:
            `stale`: contents, dtype, shape, device or presence of a tensor, or a plain attribute or class of a submodule,
            are not what they were, a module is in training mode or has hooks, or there never was evidence (a model that
            differs from itself). `historical`: strides or numerical settings are others (torch version, threads, …).
            `verified`: neither. `which` names everything that changed.
        """
        return self._evidence.validity()

    def revalidate(self, examples: Iterable[Example | tuple[Any, Any]], *, progress: Progress = silent) -> Verification:
        """Verify `module` against the original again, as they are now: tables on the full domain, and complete outputs.

        Where that succeeds, `validity` is `verified` again; otherwise it stays as it was. Nothing is folded anew: after
        a change of the weights, compile again.

        Args:
            examples: calls to compare complete outputs on, at least one.
            progress: as in `compile`.

        Returns:
            The new verification, within the limits the run was made with. `report` stays that of the compile.

        Raises:
            CaptureError: a module is in training mode or has hooks.
            ExampleError: as in `compile`.
        """
        return self._evidence.revalidate(examples, progress)


def compile(
    model: nn.Module,
    examples: Iterable[Example | tuple[Any, Any]],
    *,
    tokens: Iterable[TokenInput] | None = None,
    objective: Objective = "storage",
    max_table_bytes: int | None = None,
    pipeline: Pipeline | None = None,
    owner: nn.Module | None = None,
    dynamic: bool | DynamicShapes = True,
    observables: Collection[str] = (),
    time_budget: float | None = None,
    probe_contexts: int | None = None,
    run_dir: str | Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Fold what depends on the token id alone, verify complete outputs, and report.

    Args:
        model: in eval mode, without hooks; it is not changed. Parameters that stay are shared with the result.
        examples: calls to compare complete outputs on, at least one. The one whose smallest size is largest is traced:
            sizes of 0 and 1 would be specialised.
        tokens: the inputs that carry token ids; None infers them.
        objective: "storage": a rewrite must lower logical and backing bytes. "latency": it must measure faster on the
            examples, with tables of at most `max_table_bytes`. "routes": decisions among experts that depend on the token
            id alone become tables, so that every call takes the same ones, even where bytes grow.
        max_table_bytes: the budget of the latency objective, and one for the tables of each router under "routes".
        pipeline: the passes to run; None for the default ones.
        owner: a model that encloses `model` and may hold its state; what it holds is not counted as freed.
        dynamic, observables: as in `capture`. Observables are compared like outputs, and calls of the result set them.
        time_budget: seconds for checking each rewrite's tables one row at a time; beyond them a stratified sample and the
            rows that deviated most are checked, and the report says so. None: every row.
        probe_contexts: calls that the search for near ties of contextual decisions evaluates; None for 1,024.
        run_dir: a folder to write for reviewers, absent or empty: every graph as text and as a diff, the report, scripts for
            counterexamples. The same input gives the same bytes, but for run.json.
        progress: called as (what, done, total) during long work.

    Returns:
        A result whose module is safe to use either way: refusals and rollbacks leave the original computation. It is verified
        without gradients, and refuses them where the model was seen to return something else with them on the first example.

    Raises:
        CaptureError: the model cannot be captured faithfully.
        TokenInputError: token inputs or domains are ambiguous or stated wrongly.
        ExampleError: no examples, a malformed one, one the model fails on, none with token ids, or one of another kind than
            the one that is traced: structure, numbers, fixed sizes, dimensions of the ids, ids that were said not to occur.
        FileExistsError: `run_dir` is a file or holds something.
        NotADirectoryError, PermissionError: `run_dir` cannot be made there.
        DiffError: a graph carries a constant that has no text, so that `run_dir` cannot be written.
        ValueError: an unknown objective, one without its budget, a time budget that is not positive, negative contexts, or
            any of these beside a pipeline, which has its own.
        TypeError: `model` is no module, `pipeline` no `Pipeline`, or `observables` no list of names.
    """
    if pipeline is not None:
        _require_no_other(pipeline, objective, max_table_bytes, time_budget, probe_contexts)
    if run_dir is not None:
        require_new(Path(run_dir))
    began = time.time()
    contexts = CONTEXTS if probe_contexts is None else probe_contexts
    passes = (pass_for(objective, max_table_bytes),)
    chosen = pipeline or Pipeline(passes, time_budget=time_budget, probe_contexts=contexts)
    calls = as_examples(examples)
    traced = max(calls, key=_smallest_size)
    program = capture(model, traced.args, traced.kwargs, tokens=tokens, dynamic=dynamic, observables=observables)
    run = chosen.run(program, calls, original=model, owner=owner, progress=progress)
    module = run.program.module
    called = ObservedProgram(module, tuple(program.observables)) if program.observables else module
    facts = analyze_program(program)
    result = Result(called, run.accepted, Report(_report_data(run, facts)), run, Evidence(model, run))
    if run_dir is not None:
        _write_run(result, facts, Path(run_dir), began)
    return result


def _require_no_other(
    pipeline: Pipeline, objective: str, max_table_bytes: int | None, time_budget: float | None, probe_contexts: int | None
) -> None:
    """Refuse what a pipeline of the user's own would not follow."""
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"pipeline is a {type(pipeline).__name__}; pass foldfx.Pipeline([…])")
    if objective != "storage" or max_table_bytes is not None:
        raise ValueError(
            "objective and max_table_bytes go to the passes of the pipeline: Pipeline([FoldTokens(max_table_bytes=…)]) for "
            "latency, Pipeline([foldfx.passes.FoldRoutes(…)]) for routes"
        )
    for name, given in (("time_budget", time_budget), ("probe_contexts", probe_contexts)):
        if given is not None:
            raise ValueError(f"{name} goes to the pipeline: Pipeline(…, {name}=…)")


def _write_run(result: Result, facts: Facts, folder: Path, began: float) -> None:
    scripts = [partial(result.write_reproducer, number=number) for number in range(len(result.counterexamples))]
    measured = {"began": datetime.fromtimestamp(began, UTC).isoformat(), "seconds": time.time() - began}
    write_run(folder, result._run.steps, facts, result.report, scripts, measured)


def pass_for(objective: str, max_table_bytes: int | None) -> Pass:
    """The pass that serves an objective.

    Raises:
        ValueError: an unknown objective, or a budget that is missing or does not go with it.
    """
    if objective not in get_args(Objective):
        raise ValueError(f"unknown objective {objective!r}; there are {get_args(Objective)}")
    if objective == "routes":
        return FoldRoutes(max_table_bytes)
    if (objective == "latency") != (max_table_bytes is not None):
        raise ValueError("max_table_bytes goes with objective='latency', which needs it, and with 'routes'")
    return FoldTokens(max_table_bytes=max_table_bytes)


def analyze(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    tokens: Iterable[TokenInput] | None = None,
    dynamic: bool | DynamicShapes = True,
    observables: Collection[str] = (),
) -> Facts:
    """What every value of a model depends on; nothing is rewritten.

    Args:
        model, args, kwargs, tokens, dynamic, observables: as in `capture`.

    Returns:
        The facts; `facts.explain(node)` prints a proof or a refusal with file:line.

    Raises:
        CaptureError, ExampleError, TokenInputError: as in `capture`.
    """
    return analyze_program(capture(model, args, kwargs, tokens=tokens, dynamic=dynamic, observables=observables))


def _smallest_size(example: Example) -> int:
    sizes = [size for leaf in example.leaves() if isinstance(leaf, torch.Tensor) for size in leaf.shape]
    return min(sizes, default=0)


def _report_data(run: Run, facts: Facts) -> dict[str, Any]:
    probes = run.probes.to_dict()
    decisions = find_decisions(run.captured, facts)
    return {
        "status": run.status,
        "observables": list(run.captured.observables),
        "tokens": {name: _domain_data(domain) for name, domain in run.captured.tokens.items()},
        "storage": {"before": asdict(run.before), "after": asdict(run.after)},
        "outcomes": [outcome.to_dict() for outcome in run.outcomes],
        "rewrites": [_rewrite_data(rewrite) for rewrite in run.rewrites],
        "kernels": [asdict(claim) for claim in run.claims],
        "blockers": blockers(facts),
        "decisions": [
            *({**choice.to_dict(), "probe": None} for choice in find_hashed(run.captured, facts)),
            *({**decision.to_dict(), "probe": probes.get(decision.node.name)} for decision in decisions),
        ],
        "verification": run.verification.to_dict(),
        "counterexamples": [each.to_dict() for each in run.counterexamples],
        "trials": [asdict(trial) for trial in run.trials],
        "specialised": [asdict(each) for each in run.captured.specialised],
        "dynamic": dict(run.captured.dynamic),
        "timing": None if run.timing is None else {**asdict(run.timing), "text": str(run.timing)},
    }


def _domain_data(domain: Domain) -> dict[str, Any]:
    return {"size": domain.size, "reachable": domain.rows, "stated": domain.stated, "because": domain.because}


def _rewrite_data(rewrite: Rewrite) -> dict[str, Any]:
    return {
        "name": rewrite.name,
        "tables": [
            {
                "inputs": [node.name for node in tables.region.inputs],
                "state": pack.state,
                "rows": pack.rows,
                "values": [{"name": part.value.name, "at": where(part.value), "width": part.width} for part in pack.parts],
                "stored": _stored(pack),
            }
            for tables in rewrite.tables
            for pack in tables.packs
        ],
        "classes": [tables.classes.to_dict() for tables in rewrite.tables if tables.classes is not None],
        "removed": list(rewrite.removed),
        "bytes_before": rewrite.bytes_before,
        "bytes_after": rewrite.bytes_after,
        "balance": str(rewrite.balance),
        "break_even_vocabulary": None if rewrite.balance.vocabulary is None else float(rewrite.balance.vocabulary),
    }


def _stored(pack: Pack) -> str:
    """How a pack saves bytes beyond being a table, in words."""
    ways = [
        *(["one row, all are equal"] if pack.constant else []),
        *([f"rows of {pack.classes} execution classes, equal ones once"] if pack.classes > 1 else []),
        *(["equal rows once"] if pack.remap and pack.classes == 1 else []),
        *(["equal columns once"] if pack.columns else []),
    ]
    return ", ".join(ways) or "plain"


def blockers(facts: Facts) -> list[str]:
    """Where token-only values end: one sentence for each operation that reads one and is not token-only itself."""
    found = []
    for node, fact in facts.items():
        ends = (
            isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
            and node.op == "call_function"
            and not (fact.token_only or fact.constant)
            and fact.because.rule != "effect"
        )
        if ends and any(facts[operand].token_only for operand in node.all_input_nodes):
            found.append(f"{node.name} ({where(node)}): {fact.because.text}")
    return found
