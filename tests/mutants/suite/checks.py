"""The checks of the verifier by name: how each reports, how a test takes it out, and the mutant that needs it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from foldfx.passes import pipeline, structure, verify
from foldfx.passes.probes import Probes
from foldfx.passes.rewrite import Tables
from foldfx.passes.verification import check_decisions, check_tables, compare, references
from foldfx.passes.verification.compare import Comparison
from foldfx.passes.verification.figures import Figures, exceeds
from foldfx.passes.verification.layout import Layout

Remove = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: as mutants and the documentation call it.
        what: what it compares, for the documentation.
        report: a pattern that its reports, and nobody else's, match.
        remove: takes it out of the verifier.
        only: the mutant that no other check rejects.
    """

    name: str
    what: str
    report: str
    remove: Remove
    only: str


def _instead(holder: Any, name: str, value: Any) -> Remove:
    return lambda monkeypatch: monkeypatch.setattr(holder, name, value)


def _says(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


AGREE = Comparison((), Figures())


class _NeverOther:
    """A tree structure that differs from none."""

    def __ne__(self, other: object) -> bool:
        return False


def _without_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    flatten = compare.tree_flatten
    monkeypatch.setattr(compare, "tree_flatten", lambda tree: (flatten(tree)[0], _NeverOther()))


def _without_lint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lint also runs when a lowered graph is done."""
    monkeypatch.setattr("torch.fx.Graph.lint", _says(None))


def _without_limit(name: str) -> Remove:
    def lenient(figures: Figures, dtype: Any, limits: Any) -> str:
        infinite = dict.fromkeys(getattr(limits, name), math.inf)
        return exceeds(figures, dtype, dataclasses.replace(limits, **{name: infinite}))

    return _instead(compare, "exceeds", lenient)


def _without_discrete(monkeypatch: pytest.MonkeyPatch) -> None:
    def floats_only(figures: Figures, dtype: Any, limits: Any) -> str:
        return exceeds(figures, dtype, limits) if dtype in limits.max_abs else ""

    monkeypatch.setattr(compare, "exceeds", floats_only)


def _without_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = check_tables.layouts_of
    monkeypatch.setattr(check_tables, "layouts_of", lambda *args: [each for each in honest(*args) if each.as_built])


def _without_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = check_tables.layouts_of
    for module in (check_tables, check_decisions):
        monkeypatch.setattr(module, "layouts_of", lambda *args: [each for each in honest(*args) if each.name != "row counts"])


def _without_fragile_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (check_tables, check_decisions):
        monkeypatch.setattr(module, "fragile_layouts", lambda *args: [])


def _is_end(layout: Layout) -> bool:
    return re.fullmatch(r"\d+ rows", layout.name) is not None


def _without_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Tables.class_layouts
    monkeypatch.setattr(Tables, "class_layouts", lambda self: [each for each in honest(self) if not _is_end(each)])


OUTPUT = r"^example \d+: (?!second call)"

CHECKS: tuple[Check, ...] = (
    Check("lint", "torch.fx's own: order, names, state that is read", "malformed", _without_lint, "two_values_of_one_name"),
    Check(
        "state",
        "dtype and shape of a tensor against those recorded where it is read",
        r"state .* is .* recorded as",
        _instead(structure, "_verify_state", _says(None)),
        "state_of_another_shape",
    ),
    Check(
        "metadata",
        "dtype and shape recorded for a new call against those its operation yields",
        "its operation yields|no traced value",
        _instead(structure, "_verify_metadata", _says(None)),
        "metadata_wrong",
    ),
    Check(
        "origins",
        "every new node says what it stands for",
        "has no origins",
        _instead(structure, "_verify_origins", _says(None)),
        "provenance_lost",
    ),
    Check(
        "kinds of state",
        "parameters, buffers and non-persistent buffers stay what they are",
        "was a .* and is a",
        _instead(structure, "_verify_kinds", _says(None)),
        "buffer_made_persistent",
    ),
    Check(
        "values of state",
        "captured state that keeps its name holds what it held",
        "holds other values than the captured",
        _instead(pipeline, "verify_values", _says(None)),
        "weight_exchanged",
    ),
    Check(
        "input check",
        "the graph still calls it on every input",
        "no longer checked",
        _instead(structure, "_verify_input_check", _says(None)),
        "input_check_blinded",
    ),
    Check(
        "sizes of outputs",
        "symbolic sizes recorded for what is returned stay as they are",
        "an output of sizes",
        _instead(structure, "_verify_sizes", _says(None)),
        "positions_beyond_the_examples_dropped",
    ),
    Check(
        "writes in place",
        "no operation of a pass writes a tensor of the state; it is refused before it runs",
        "writes the tensors",
        _instead(pipeline, "read_only", lambda module: nullcontext()),
        "rows_exchanged_in_place",
    ),
    Check(
        "writes seen afterwards",
        "version counter and a sum over the bits of every tensor of the state",
        "wrote the tensors",
        _instead(pipeline, "state_versions", _says({})),
        "weight_edited_through_numpy",
    ),
    Check(
        "exceptions",
        "whether a call raises, and the class",
        OUTPUT + r".*where the original (raised|returned)",
        _instead(compare, "_compare_errors", _says(AGREE)),
        "rows_not_in_the_first_example_removed",
    ),
    Check(
        "output tree",
        "structure of what is returned",
        OUTPUT + "output: structure",
        _without_trees,
        "tuple_returned_as_list",
    ),
    Check(
        "properties",
        "dtype, shape, device, layout of each tensor",
        OUTPUT + ".*: (dtype|shape|device|layout) .* instead of",
        _instead(compare, "PROPERTIES", ()),
        "output_in_double",
    ),
    Check(
        "strides",
        "those of tensors that are contiguous in the original",
        OUTPUT + ".*: strides",
        _instead(compare, "_broken_layout", _says("")),
        "strides_changed",
    ),
    Check(
        "max-abs",
        "the largest difference of floats",
        OUTPUT + ".*max-abs .* exceeds",
        _without_limit("max_abs"),
        "one_element_off",
    ),
    Check(
        "relative L2",
        "the norm of the difference, so that small values count",
        OUTPUT + ".*relative L2 .* exceeds .* for",
        _without_limit("relative_l2"),
        "small_values_off",
    ),
    Check(
        "discrete values",
        "integers and booleans are equal",
        OUTPUT + ".*values differ, by up to",
        _without_discrete,
        "other_choice",
    ),
    Check(
        "sign of zero",
        "±0 where nothing else differs",
        OUTPUT + ".*zero.s. of the other sign",
        _instead(compare, "_zeros", _says("")),
        "zeros_negative",
    ),
    Check(
        "float64 reference",
        "low-precision outputs are no further from it than the original's",
        OUTPUT + ".*from the float64 reference",
        _instead(compare, "further_from", _says("")),
        "rounded_once_more",
    ),
    Check(
        "shared memory",
        "outputs with each other, with inputs and with the state",
        OUTPUT + ".*shares (no )?memory",
        _instead(compare, "_compare_memory", _says(AGREE)),
        "clone_dropped",
    ),
    Check(
        "inputs after the call",
        "what the model writes into its arguments",
        OUTPUT + "input after the call",
        _instead(compare, "_compare_inputs", _says(AGREE)),
        "input_write_lost",
    ),
    Check(
        "buffers",
        "which are written, and their values",
        OUTPUT + "buffer",
        _instead(compare, "_compare_buffers", _says(AGREE)),
        "buffer_write_lost",
    ),
    Check(
        "second call",
        "the same call on the buffers that the first one left",
        r"^example \d+: second call",
        _instead(compare, "_compare_again", _says(AGREE)),
        "written_buffer_folded",
    ),
    Check(
        "random state",
        "of the generator after the call",
        OUTPUT + "random generator",
        _instead(compare, "_compare_random", _says(AGREE)),
        "random_state_advanced",
    ),
    Check(
        "second seed",
        "models that draw random numbers are called under two seeds",
        r"^\b$",
        _instead(references, "SEEDS", (references.SEED,) * 2),
        "random_value_folded",
    ),
    Check(
        "tables, as built",
        "every row equal to its region in the very calls that built it",
        r"^table .*in the very calls",
        _instead(check_tables, "_unequal", _says("")),
        "entry_off_by_64_ulp",
    ),
    Check(
        "tables, other layouts",
        "every row within the limits in chunks, 2-D, strided, one at a time, none",
        r"^table .*, layout (?!as built|class |\d+ rows|row counts|near ties)",
        _without_layouts,
        "one_table_for_two_classes",
    ),
    Check(
        "other row counts",
        "rows in calls of 2 to 1,031 of them, along every axis",
        "^(table|decision) .*, layout row counts",
        _without_row_counts,
        "one_table_though_64_rows_round_otherwise",
    ),
    Check(
        "fragile tokens",
        "tokens near a tie in every call of 1 to 1,031 rows that was made to find those that fall otherwise",
        "^(table|decision) .*, layout near ties",
        _without_fragile_tokens,
        "one_table_though_6_rows_choose_otherwise",
    ),
    Check(
        "tables, ends of classes",
        "calls of as many rows as where a class ends or begins",
        r"^table .*, layout \d+ rows(?!.*the graph)",
        _without_ends,
        "class_boundary_off_by_one",
    ),
    Check(
        "tables, in the graph",
        "what the graph looks up against what the tables hold",
        "^table .*the graph looks up",
        _instead(check_tables.TableCheck, "looked_up", _says([])),
        "rule_of_classes_off_by_one",
    ),
    Check(
        "decisions behind tables",
        "what tables decide falls for every row as the original decides it, in the same layouts",
        "^decision (?!.*layout (row counts|near ties))",
        _instead(verify, "check_decisions", _says(([], []))),
        "near_tie_decided_otherwise",
    ),
    Check(
        "calls near a tie",
        "complete outputs on the calls that the search found nearest to a tie of a contextual decision",
        "^near tie ",
        _instead(pipeline, "probe_decisions", _says(Probes())),
        "score_moved_at_a_near_tie",
    ),
    Check(
        "ids outside the domain",
        "raise what they raised",
        "^.*outside the domain",
        _instead(verify, "probe_outside", _says([])),
        "negative_ids_wrap",
    ),
    Check(
        "sizes 0 and 1",
        "the first example cut down to them",
        "^example 0 with size",
        _instead(verify, "probe_small_sizes", _says([])),
        "size_specialised",
    ),
)
BY_NAME = {check.name: check for check in CHECKS}
