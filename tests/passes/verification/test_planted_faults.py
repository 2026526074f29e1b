"""Faults planted into the tables of a real compile: none is in the result, each is named, and its reproducer shows it.

Every fault has a twin, the same machinery without the fault, that is accepted and leaves no counterexample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import foldfx
from foldfx.passes import FoldTokens, PassContext, PassResult, Pipeline, ladder
from foldfx.passes.builder import Builder

from .planting import (
    SEEN,
    VOCABULARY,
    Edit,
    Model,
    an_integer_is_off_by_one,
    compiled,
    examples,
    run,
    run_in_a_process,
    without_a_counterexample,
)


@dataclass(frozen=True)
class Build:
    """A table as it was built, to be spoiled in place, and the way to build it again."""

    table: Tensor
    again: Callable[[], Tensor]


Spoil = Callable[[Build, bool], None]
"""Spoils a table, or where it is told False does as much without a fault."""


def near_one(table: Tensor) -> tuple[int, int]:
    """A row the examples do not use, and a column, with an entry in [1, 2)."""
    row, column = ((table[SEEN:] >= 1) & (table[SEEN:] < 2)).nonzero()[0].tolist()
    return SEEN + row, column


def an_entry_off_by_64_ulp(build: Build, fault: bool) -> None:
    place = near_one(build.table)
    before = build.table[place].item()
    build.table.view(torch.int32)[place] += 64 if fault else 0
    assert not fault or 7e-6 < build.table[place].item() - before < foldfx.Limits().max_abs[torch.float32]


def two_rows_swapped(build: Build, fault: bool) -> None:
    one, other = (SEEN, SEEN + 3) if fault else (SEEN, SEEN)
    build.table[[one, other]] = build.table[[other, one]]


def built_in_bfloat16(build: Build, fault: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=fault):
        build.table.copy_(build.again())


def the_last_row_is_anothers(build: Build, fault: bool) -> None:
    build.table[-1] = build.table[0] if fault else build.again()[-1]


def zeros_of_the_other_sign(build: Build, fault: bool) -> None:
    row, column = (build.table[SEEN:] == 0).nonzero()[0].tolist()
    build.table[SEEN + row, column] = -0.0 if fault else 0.0


def a_nan_row_moved(build: Build, fault: bool) -> None:
    one = int(build.table.isnan().any(1).nonzero())
    other = SEEN if fault else one
    build.table[[one, other]] = build.table[[other, one]]


TABLE_FAULTS: list[Spoil] = [
    an_entry_off_by_64_ulp,
    two_rows_swapped,
    built_in_bfloat16,
    the_last_row_is_anothers,
    zeros_of_the_other_sign,
    a_nan_row_moved,
]
every_table_fault = pytest.mark.parametrize("spoil", TABLE_FAULTS, ids=lambda spoil: spoil.__name__)


@dataclass
class Planted:
    """What was planted: the node whose table it is, and the table as it should be and as it is."""

    node: str = ""
    honest: Tensor = field(default_factory=Tensor)
    wrong: Tensor = field(default_factory=Tensor)


def plant(spoil: Spoil, fault: bool, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Let the table over `ids` be spoiled after it was built."""
    honest, planted = ladder.tabulate, Planted()

    def tabulate(region, values, progress, alone):  # type: ignore[no-untyped-def]
        tables = honest(region, values, progress, alone)
        if region.name == "ids":
            planted.node, planted.honest = values[0].name, tables[0].clone()
            spoil(Build(tables[0], lambda: honest(region, values, progress, alone)[0]), fault)
            planted.wrong = tables[0].clone()
        return tables

    monkeypatch.setattr(ladder, "tabulate", tabulate)
    return planted


def with_a_nan_row() -> Model:
    model = Model()
    model.one.weight.data[VOCABULARY - 2] = torch.nan
    return model


def model_for(spoil: Spoil) -> Model:
    return with_a_nan_row() if spoil is a_nan_row_moved else Model()


def rows_that_differ(planted: Planted) -> list[int]:
    bits, others = planted.honest.view(torch.int32), planted.wrong.view(torch.int32)
    return (bits != others).any(1).nonzero().reshape(-1).tolist()


@every_table_fault
def test_a_fault_in_a_table_is_left_out_named_and_reproduced(
    spoil: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_for(spoil)
    planted = plant(spoil, True, monkeypatch)
    result = compiled(model)

    state = result.module.state_dict()
    assert result.accepted
    assert [rewrite["name"] for rewrite in result.report.data["rewrites"]] == ["fold_tokens: linear_1"]
    assert not any(name.startswith("foldfx_tables.ids") for name in state)
    assert torch.equal(state["one.weight"].nan_to_num(), model.one.weight.nan_to_num())

    found = result.counterexamples[0]
    (asked,) = found.example.args
    different = [row for row in rows_that_differ(planted) if row in asked]
    assert found.node == planted.node
    assert found.inputs == ("ids",)
    assert different
    assert sorted(found.tokens) == different
    assert found.difference.where == f"table row {found.tokens[0]}"
    assert found.difference.index is not None
    entry = (found.tokens[0], *found.difference.index)
    values = [found.difference.expected, found.difference.found]
    assert list(map(repr, values)) == [repr(planted.honest[entry].item()), repr(planted.wrong[entry].item())]
    assert values[0] is not values[1]

    script = result.write_reproducer(tmp_path / "shown")
    capsys.readouterr()
    assert run(script, monkeypatch) == 1
    assert capsys.readouterr().out.startswith("different\n  example 0: output")


@every_table_fault
def test_a_table_built_as_it_should_be_is_accepted(spoil: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = plant(spoil, False, monkeypatch)
    result = compiled(model_for(spoil))
    assert rows_that_differ(planted) == []
    assert without_a_counterexample(result, tmp_path / "none")
    assert len(result.report.data["rewrites"]) == 2


def test_a_reproducer_ends_with_1_in_a_process_that_knows_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(zeros_of_the_other_sign, True, monkeypatch)
    done = run_in_a_process(compiled(Model()).write_reproducer(tmp_path / "shown"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("different\n")
    assert "1 zero(s) of the other sign" in done.stdout


# Tables that a later pass, or a rewrite left out, has to do with


def a_table_is_replaced(program: foldfx.Program, fault: bool) -> None:
    """New contents in a row the examples do not use, where the table over `ids` is there."""
    tables = program.module.get_submodule("foldfx_tables")
    for name, table in [(name, table) for name, table in tables.named_buffers() if name.startswith("ids.")]:
        path, _, leaf = name.rpartition(".")
        other = table.clone()
        other[SEEN + 1, 2] += float(fault)
        setattr(tables.get_submodule(path), leaf, other)


def test_a_table_replaced_by_a_later_pass_is_left_out_named_and_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compiled(Model(), Edit(a_table_is_replaced, True))
    assert [rewrite["name"] for rewrite in result.report.data["rewrites"]] == ["fold_tokens: linear_1"]
    found = result.counterexamples[0]
    assert (found.node, found.tokens, found.difference.index) == ("mul", (SEEN + 1,), (2,))
    assert found.difference.found == pytest.approx(found.difference.expected + 1)
    assert run(result.write_reproducer(tmp_path / "shown"), monkeypatch) == 1


def test_a_table_replaced_by_its_like_is_accepted(tmp_path: Path) -> None:
    result = compiled(Model(), Edit(a_table_is_replaced, False))
    assert without_a_counterexample(result, tmp_path / "none")
    assert len(result.report.data["rewrites"]) == 2


class AfterRejection(Edit):
    """A pass that does harm only in candidates from which a rewrite was left out."""

    name: ClassVar[str] = "after"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        if context.fuel.left_out:
            self.change(program, self.fault)
        return PassResult(program, ())


def test_evidence_for_a_table_is_not_carried_over_to_another_candidate() -> None:
    """The first candidate's table is right and the second one's, made when the integer was put right, is not."""
    model = Model()
    passes = [Edit(an_integer_is_off_by_one, True), AfterRejection(a_table_is_replaced, True)]
    result = compiled(model, *passes)
    call = torch.arange(SEEN, SEEN + 3).expand(2, 3), *examples()[0].args[1:]
    assert torch.allclose(result.module(*call)["scores"], model(*call)["scores"], atol=1e-5)
    assert {found.node for found in result.counterexamples} == {"add_tensor", "mul"}


def an_embedding_and_an_integer_change(program: foldfx.Program, fault: bool) -> None:
    """Other weights in a row the examples do not use, and an output that shows it."""
    (read,) = (node for node in program.graph.nodes if node.target == "one.weight")
    weight = program.module.one.weight.detach().clone()
    weight[SEEN + 1] += float(fault)
    read.replace_all_uses_with(Builder(program.module, read, "edit").state("one.changed", weight))
    an_integer_is_off_by_one(program, fault)


@pytest.mark.parametrize("fault", [True, False])
def test_a_table_made_of_a_rewrite_left_out_is_made_anew(fault: bool) -> None:
    """The examples cannot tell the embedding from the changed one."""
    model = Model()
    pipeline = Pipeline([Edit(an_embedding_and_an_integer_change, fault), FoldTokens()])
    result = foldfx.compile(model, examples(), pipeline=pipeline, dynamic=False)
    statuses = {each["subject"]: each["status"] for each in result.report.data["outcomes"]}
    assert statuses["edit: an_embedding_and_an_integer_change"] == ("rejected" if fault else "applied")
    assert "applied" in (statuses["token input ids, values mul"], statuses["token input kinds, values linear_1"])
    call = torch.arange(SEEN, SEEN + 3).expand(2, 3), *examples()[0].args[1:]
    assert torch.allclose(result.module(*call)["scores"], model(*call)["scores"], atol=1e-5)
