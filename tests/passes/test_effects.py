"""What a model writes: buffers over several calls, and its inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import CallError

VOCABULARY = 9
Agree = Callable[..., None]


class Counter(nn.Module):
    """Counts its calls in a buffer, keeps a running mean in another, and adds both to what the ids say."""

    count: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, 32), nn.Linear(32, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.project(self.embedding(ids))) * self.scale
        self.count += 1
        self.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x + self.mean + self.count


class Writes(Counter):
    """Writes the caller's tensor."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:  # type: ignore[override]
        hidden.mul_(2).add_(torch.tanh(self.project(self.embedding(ids))))
        return hidden.sum(1)


class WritesTable(Counter):
    """The embedding's own weight is what it writes: nothing that reads it may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(VOCABULARY, 32))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.tanh(self.project(self.table[ids]))
        self.table.mul_(0.5)
        return x


def ids() -> Tensor:
    return torch.randint(VOCABULARY, (3, 5))


def test_written_buffers_behave_the_same_over_several_calls(agree: Agree) -> None:
    model = Counter()
    before = copy.deepcopy(model.state_dict())
    result = foldfx.compile(model, [foldfx.Example((ids(),)), foldfx.Example((ids(),))])
    assert result.accepted
    assert result.module.get_buffer("count").item() == 0
    twin = copy.deepcopy(model)
    for _ in range(4):
        call = ids()
        agree(twin(call), result.module(call))
    assert result.module.get_buffer("count").item() == twin.count.item() == 4
    agree(twin.mean, result.module.get_buffer("mean"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.mean.eq(0).all()


def test_rounds_that_are_timed_write_no_buffer_of_the_result(agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foldfx.passes.latency.Timing.faster", True)
    model = Counter()
    result = foldfx.compile(model, [foldfx.Example((ids(),))], objective="latency", max_table_bytes=1 << 20)
    assert result.accepted
    assert result.module.get_buffer("count").item() == 0
    call = ids()
    agree(copy.deepcopy(model)(call), result.module(call))


def test_non_persistent_buffers_stay_so() -> None:
    result = foldfx.compile(Counter(), [foldfx.Example((ids(),))], dynamic=False)
    assert result.accepted
    assert "mean" in dict(result.module.named_buffers())
    assert "mean" not in result.module.state_dict()
    assert "count" in result.module.state_dict()


def test_written_inputs_are_written_alike(agree: Agree) -> None:
    model = Writes()
    example = foldfx.Example((ids(), torch.randn(3, 5, 4)))
    untouched = example.args[1].clone()
    result = foldfx.compile(model, [example])
    assert result.accepted
    assert torch.equal(example.args[1], untouched)
    call, hidden = ids(), torch.randn(3, 5, 4)
    twin = hidden.clone()
    agree(model(call, twin), result.module(call, hidden))
    agree(twin, hidden)


class WritesFirst(Counter):
    """Writes one input, then reads another."""

    def forward(self, ids: Tensor, written: Tensor, read: Tensor) -> Tensor:  # type: ignore[override]
        written.add_(1)
        return torch.tanh(self.project(self.embedding(ids))) + read


def test_memory_that_is_written_must_be_no_other_inputs() -> None:
    result = foldfx.compile(WritesFirst(), [foldfx.Example((ids(), torch.zeros(4), torch.zeros(4)))])
    assert result.accepted
    line = torch.zeros(8)
    for written, read in ((line[:4], line[:4]), (line[:4], line[3:7]), (line[::2], line[2:6])):
        with pytest.raises(CallError, match="input written, which is written, shares memory with input read"):
            result.module(ids(), written, read)
    assert torch.equal(line, torch.zeros(8))


def test_memory_of_one_allocation_between_that_of_another_input_is_written(agree: Agree) -> None:
    model = WritesFirst()
    result = foldfx.compile(model, [foldfx.Example((ids(), torch.zeros(4), torch.zeros(4)))])
    assert result.accepted
    call, one, other = ids(), torch.zeros(4, 2), torch.zeros(4, 2)
    agree(model(call, one[:, 0], one[:, 1]), result.module(call, other[:, 0], other[:, 1]))
    agree(one, other)


def test_shared_memory_that_an_example_shows_is_admitted(agree: Agree) -> None:
    """What is written and then read by nobody may be another input's."""
    model = WritesFirst()
    model.forward = lambda ids, written, read: torch.tanh(model.project(model.embedding(ids))) + written.add_(1)  # type: ignore[assignment]
    line = torch.zeros(4)
    result = foldfx.compile(
        model, [foldfx.Example((ids(), torch.zeros(4), torch.zeros(4))), foldfx.Example((ids(), line, line))]
    )
    assert result.accepted
    call, one, other = ids(), torch.zeros(4), torch.zeros(4)
    agree(model(call, one, one), result.module(call, other, other))
    agree(one, other)


def test_a_table_the_model_writes_is_not_folded(agree: Agree) -> None:
    model = WritesTable()
    result = foldfx.compile(model, [foldfx.Example((ids(),))], dynamic=False)
    assert result.status == "unchanged"
    twin = copy.deepcopy(model)
    for _ in range(3):
        call = ids()
        agree(twin(call), result.module(call))


def test_results_of_one_captured_program_do_not_share_what_they_write() -> None:
    model, call = Counter(), foldfx.Example((ids(),))
    program = foldfx.capture(model, call.args, dynamic=False)
    first, second = (foldfx.Pipeline().run(program, [call], original=model) for _ in range(2))
    first.program.module(*call.args)
    assert second.program.module.get_buffer("count").item() == 0
    assert program.module.get_buffer("count").item() == 0
