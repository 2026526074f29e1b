"""Logical and backing bytes, to the byte: repeats, views, ties, buffers, constants; and that only both together count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.storage import Storage, measure, measure_program, nbytes

DOUBLE, FLOAT, WIDTH, VOCABULARY = 8, 4, 20, 75


class Repeated(nn.Sequential):
    """One linear, called a hundred times over."""

    def __init__(self) -> None:
        linear = nn.Linear(WIDTH, WIDTH, bias=False)
        super().__init__(nn.Embedding(VOCABULARY, WIDTH), *[linear] * 100)


def view_of_a_big_tensor() -> nn.Module:
    model = nn.Embedding(3, 4)
    model.weight = nn.Parameter(torch.randn(10_000)[100:112].view(3, 4))
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6))
    model[1].weight = model[0].weight
    return model


def buffers(*persistent: bool) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Module()
        for number, each in enumerate(persistent):
            model.register_buffer(f"b{number}", torch.zeros(number + 1, dtype=torch.int16), persistent=each)
        return model

    return make


def one_buffer_under_three_names() -> nn.Module:
    model, table = nn.Module(), torch.randn(5, 2)
    for name, view in (("whole", table), ("again", table), ("turned", table.t())):
        model.register_buffer(name, view, persistent=name != "turned")
    return model


def plain_attributes() -> nn.Module:
    model = nn.Linear(2, 3)
    model.listed, model.tensor = [torch.randn(100)], torch.randn(100)
    return model


def expanded() -> nn.Module:
    """A thousand rows of one stored row: the state dict counts all of them, memory one."""
    model = nn.Module()
    model.register_buffer("rows", torch.randn(1, 8).expand(1000, 8))
    return model


SHARED = WIDTH * WIDTH
CASES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "a hundred repetitions": (
        Repeated,
        FLOAT * (VOCABULARY * WIDTH + 100 * SHARED),
        FLOAT * (VOCABULARY * WIDTH + SHARED),
    ),
    "a view of a big tensor": (view_of_a_big_tensor, FLOAT * 12, FLOAT * 10_000),
    "tied": (tied, FLOAT * (24 + 24 + 6), FLOAT * (24 + 6)),
    "buffers": (buffers(True, True), 2 * (1 + 2), 2 * (1 + 2)),
    "one buffer not persistent": (buffers(True, False, True), 2 * (1 + 3), 2 * (1 + 2 + 3)),
    "one buffer, three names": (one_buffer_under_three_names, FLOAT * 2 * 10, FLOAT * 10),
    "plain attributes": (plain_attributes, FLOAT * 9, FLOAT * 9),
    "an expanded row": (expanded, FLOAT * 8000, FLOAT * 8),
    "no state": (nn.ReLU, 0, 0),
    "mixed widths": (
        lambda: nn.Sequential(nn.Linear(2, 3).double(), nn.Linear(3, 2).half()),
        DOUBLE * 9 + 2 * 8,
        DOUBLE * 9 + 2 * 8,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_a_module(name: str) -> None:
    make, logical, backing = CASES[name]
    assert measure(make()) == Storage(logical, backing)


@pytest.mark.parametrize("name", ["a hundred repetitions", "a view of a big tensor"])
def test_a_captured_program_counts_what_its_model_does(name: str) -> None:
    make, logical, backing = CASES[name]
    program = foldfx.capture(make().eval(), (torch.randint(3, (2, 3)),), dynamic=False)
    assert measure_program(program) == Storage(logical, backing)
    assert measure_program(program.copy()) == Storage(logical, backing)


class Constants(nn.Module):
    """Adds a tensor that nobody registered; the trace has to keep it somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.shift = nn.Embedding(5, 4), torch.randn(4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embedding(ids) + self.shift


def test_constants_of_the_trace_are_no_state() -> None:
    model = Constants().eval()
    program = foldfx.capture(model, (torch.randint(5, (2, 3)),), dynamic=False)
    assert measure_program(program) == measure(model) == Storage(FLOAT * 20, FLOAT * 20)
    assert measure(program.module).backing == FLOAT * (20 + 4)


def test_a_view_counts_its_own_elements_and_a_copy_as_many() -> None:
    whole = torch.zeros(10, 6, dtype=torch.float64)
    assert nbytes(whole[2:5]) == nbytes(whole[2:5].clone()) == 3 * 6 * DOUBLE
    assert nbytes(whole[:0]) == 0


@pytest.mark.parametrize(
    ("logical", "backing", "saves"),
    [(9, 9, True), (9, 10, False), (10, 9, False), (10, 10, False), (9, 11, False), (11, 9, False)],
)
def test_both_counts_have_to_fall(logical: int, backing: int, saves: bool) -> None:
    assert Storage(logical, backing).below(Storage(10, 10)) is saves


def test_repetitions_do_not_fake_a_saving() -> None:
    """The state dict would shrink by a hundred counts of a linear that takes memory once; the table is larger than that."""
    shared, table = nn.Linear(WIDTH, WIDTH, bias=False), VOCABULARY * WIDTH * FLOAT
    model = nn.Sequential(nn.Embedding(VOCABULARY, 1), nn.Linear(1, WIDTH, bias=False), *[shared] * 100).eval()
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))], dynamic=False)
    once = FLOAT * (VOCABULARY + WIDTH)
    before = {"logical": once + 100 * FLOAT * SHARED, "backing": once + FLOAT * SHARED}
    assert before["backing"] < table < before["logical"]
    assert result.report.to_dict()["storage"] == {"before": before, "after": before}
    assert not result.accepted
    assert "both must drop" in result.report.to_dict()["outcomes"][0]["reason"]


def test_the_text() -> None:
    assert str(Storage(1_234, 56)) == "logical 1,234 B, backing 56 B"
