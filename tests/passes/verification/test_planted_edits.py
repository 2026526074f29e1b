"""Faults planted into the graph of a real compile: none is in the result, each is named, and its reproducer shows it.

Every fault has a twin, an edit without the fault, that is accepted and leaves no counterexample.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import foldfx

from .planting import (
    VOCABULARY,
    WIDTH,
    Change,
    Edit,
    Model,
    add,
    an_integer_is_off_by_one,
    aten,
    compiled,
    examples,
    return_instead,
    returned,
    run,
    run_in_a_process,
    without_a_counterexample,
)


def unclone(program: foldfx.Program, leaf: str, fault: bool) -> None:
    """Return what a clone was made of; without the fault another clone."""
    clone = returned(program, leaf)
    assert clone.target is aten.clone.default
    source = clone.all_input_nodes[0]
    return_instead(program, clone, source if fault else add(program, clone, aten.clone.default, source))


def two_outputs_share_memory(program: foldfx.Program, fault: bool) -> None:
    unclone(program, "again", fault)


def an_output_is_an_input(program: foldfx.Program, fault: bool) -> None:
    unclone(program, "given", fault)


def an_output_is_state(program: foldfx.Program, fault: bool) -> None:
    unclone(program, "state", fault)


def an_update_is_lost(program: foldfx.Program, fault: bool) -> None:
    (update,) = program.graph.find_nodes(op="call_function", target=aten.copy_.default)
    count, more = update.all_input_nodes
    if fault:
        program.graph.erase_node(update)
    else:
        more.replace_input_with(count, add(program, count, aten.clone.default, count))


def strides_change(program: foldfx.Program, fault: bool) -> None:
    sums = returned(program, "sums")
    turned = add(program, sums, aten.transpose.int, sums, 1, 2)
    copied = add(program, turned, aten.clone.default, turned, memory_format=torch.contiguous_format)
    back = add(program, copied, aten.transpose.int, copied, 1, 2)
    if not fault:
        back = add(program, back, aten.clone.default, back, memory_format=torch.contiguous_format)
    return_instead(program, sums, back)


GRAPH_FAULTS: dict[Change, tuple[str, str, str]] = {
    two_outputs_share_memory: ("output ['again']", "shares memory with output ['scores'], not in the original", "output [0]"),
    an_output_is_an_input: ("output ['given']", "shares memory with input [0][2], not in the original", "output [3]"),
    an_output_is_state: ("output ['state']", "shares memory with the module's state, not in the original", "output [4]"),
    an_update_is_lost: ("buffer calls", "not written, as it is in the original", "buffer calls"),
    an_integer_is_off_by_one: ("output ['top']", "torch.int64 values differ, by up to 1", "output [5]"),
    strides_change: ("output ['sums']", "strides (72, 1, 3) where the original is contiguous, (72, 24, 1)", "output [2]"),
}
"""Where the difference is and what it is, and where it is among the flat outputs of the reproducer."""
every_graph_fault = pytest.mark.parametrize("change", GRAPH_FAULTS, ids=lambda change: change.__name__)


@cache
def code_without_an_edit() -> str:
    return compiled(Model()).module.code


@every_graph_fault
def test_a_fault_in_the_graph_is_left_out_named_and_reproduced(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = compiled(Model(), Edit(change, True))
    assert result.accepted
    assert result.module.code == code_without_an_edit()
    assert [each["status"] for each in result.report.data["outcomes"]] == ["applied", "applied", "rejected"]

    found = result.counterexamples[0]
    where, what, flat = GRAPH_FAULTS[change]
    assert (found.call, found.difference.where, found.difference.what) == ("example 0", where, what)
    assert (found.tokens, found.inputs) == ((), ())
    if change is an_integer_is_off_by_one:
        assert found.node == "add_tensor"
        assert found.difference.index is not None
        assert found.difference.found == found.difference.expected + 1

    for number in (-1, len(result.counterexamples)):
        with pytest.raises(IndexError, match=rf"no counterexample {number}: there are \d+, counted from 0"):
            result.write_reproducer(tmp_path / "shown", number)
    script = result.write_reproducer(tmp_path / "shown")
    capsys.readouterr()
    assert run(script, monkeypatch) == 1
    assert f"example 0: {flat}: {what.partition(' output')[0]}" in capsys.readouterr().out


@every_graph_fault
def test_an_edit_without_a_fault_is_accepted(change: Change, tmp_path: Path) -> None:
    result = compiled(Model(), Edit(change, False))
    assert without_a_counterexample(result, tmp_path / "none")
    assert [each["status"] for each in result.report.data["outcomes"]] == ["applied"] * 3


def test_a_reproducer_ends_with_1_in_a_process_that_knows_nothing_else(tmp_path: Path) -> None:
    result = compiled(Model(), Edit(two_outputs_share_memory, True))
    done = run_in_a_process(result.write_reproducer(tmp_path / "shown"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "different\n  example 0: output [0]: shares memory with output [1], not in the original\n"


# Outputs that share memory in the original


def the_view_is_made_otherwise(program: foldfx.Program, fault: bool) -> None:
    """Another view of the same memory; with the fault a copy of it."""
    view = returned(program, "again")
    again = add(program, view, aten.view.default, view.all_input_nodes[0], [-1])
    return_instead(program, view, add(program, again, aten.clone.default, again) if fault else again)


def test_outputs_that_share_memory_in_both_are_accepted(tmp_path: Path) -> None:
    result = compiled(Model(views=True), Edit(the_view_is_made_otherwise, False))
    assert without_a_counterexample(result, tmp_path / "none")
    found = result.module(*examples()[0].args)
    assert found["again"].data_ptr() == found["scores"].data_ptr()


def test_memory_no_longer_shared_is_left_out_named_and_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compiled(Model(views=True), Edit(the_view_is_made_otherwise, True))
    assert [each["status"] for each in result.report.data["outcomes"]] == ["applied", "applied", "rejected"]
    found = result.module(*examples()[0].args)
    assert found["again"].data_ptr() == found["scores"].data_ptr()
    expected = "example 0: output ['again']: shares no memory with output ['scores'], as in the original"
    assert str(result.counterexamples[0]) == expected
    assert run(result.write_reproducer(tmp_path / "shown"), monkeypatch) == 1


# State that is written


class Remembers(nn.Module):
    """Writes a token-only value to a buffer."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("last", torch.zeros(2, 3, WIDTH))
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        rows = torch.relu(self.up(self.embedding(ids)))
        self.last.copy_(rows)
        return rows.cumsum(1) + hidden


def test_a_value_written_to_a_buffer_is_folded() -> None:
    model = Remembers()
    call = torch.randint(VOCABULARY, (2, 3)), torch.randn(2, 3, WIDTH)
    result = foldfx.compile(model, [foldfx.Example(call)], dynamic=False)
    assert result.accepted
    result.module(*call)
    model(*call)
    assert torch.equal(result.module.get_buffer("last"), model.last)
    assert model.last.any()
