"""What a captured program keeps of its model: sizes, numbers, effects, sharing, persistence, call structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from foldfx import Program, capture
from foldfx._torch import storage_key
from foldfx.analysis import measure

VOCABULARY, WIDTH, LIMIT = 7, 4, 1e-5

Act = Callable[["Model", Tensor, Tensor], Tensor]


class Model(nn.Module):
    """`act(model, embedded, ids)`, with a head tied to the embedding and buffers of both kinds."""

    def __init__(self, act: Act = lambda model, x, ids: model.head(x)) -> None:
        super().__init__()
        self.act = act
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.randn(WIDTH))
        self.register_buffer("hidden", torch.randn(WIDTH), persistent=False)
        self.eval()

    def forward(self, ids: Tensor, power: float = 1.0) -> Tensor:
        return self.act(self, self.embedding(ids), ids) * power


def ids_of(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Equal shape, max-abs and relative L2 within the limits; empty tensors agree where shapes do."""
    error = (found - expected).detach().double()
    return found.shape == expected.shape and bool(
        (error.abs() <= LIMIT).all() and error.norm() <= LIMIT * expected.detach().double().norm()
    )


def notes(program: Program) -> list[str]:
    return [str(each) for each in program.specialised]


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (4, 0), (1, 1), (1, 6), (5, 1), (6, 9)], ids=str)
def test_symbolic_sizes_include_none_and_one(shape: tuple[int, ...]) -> None:
    model = Model(lambda m, x, ids: m.head(x).softmax(1))
    program = capture(model, (ids_of(2, 3),))
    ids = ids_of(*shape)
    assert notes(program) == []
    assert [span.startswith("VR[0, ") for span in program.dynamic.values()] == [True, True]
    assert agree(program.module(ids), model(ids))


def test_sizes_that_the_trace_cannot_cover_are_recorded_and_refused() -> None:
    model = Model(lambda m, x, ids: x[:, 1:].reshape(x.shape[0], ids.shape[1] - 1, WIDTH))
    program = capture(model, (ids_of(2, 5),))
    assert any(note.startswith("sizes: size 1 is not covered: ") for note in notes(program))
    assert agree(program.module(ids := ids_of(4, 8)), model(ids))
    for size in (0, 1):
        with pytest.raises(AssertionError, match=r"ids\.size\(\)\[1\] >="):
            program.module(ids_of(4, size))


@pytest.mark.parametrize("dynamic", [True, False])
def test_an_example_of_size_one_fixes_that_size_and_says_so(dynamic: bool) -> None:
    model = Model()
    program = capture(model, (ids_of(1, 5),), dynamic=dynamic)
    assert "ids: dimension 0 is 1" in notes(program)
    assert ("ids: dimension 1 is 5" in notes(program)) is not dynamic
    assert agree(program.module(ids := ids_of(1, 5)), model(ids))
    with pytest.raises(AssertionError, match=r"ids.*size"):
        program.module(ids_of(2, 5))


def test_a_static_capture_fixes_every_size() -> None:
    program = capture(Model(), (ids_of(2, 3),), dynamic=False)
    assert notes(program) == ["ids: dimension 0 is 2", "ids: dimension 1 is 3"]
    assert program.dynamic == {}


def test_a_mapping_is_handed_to_export() -> None:
    program = capture(Model(), (ids_of(2, 3),), dynamic={"ids": {0: Dim("batch", min=2, max=9)}})
    assert notes(program) == ["ids: dimension 1 is 3"]
    assert list(program.dynamic.values()) == ["VR[2, 9]"]


def test_a_number_is_specialised_recorded_and_guarded() -> None:
    model, ids = Model(), ids_of(2, 3)
    program = capture(model, (ids,), {"power": 3.0})
    assert notes(program) == ["power: the number 3.0"]
    assert agree(program.module(ids, power=3.0), model(ids, power=3.0))
    with pytest.raises(AssertionError, match="power"):
        program.module(ids, power=2.0)


def test_a_written_buffer_is_an_effect_on_a_copy_of_its_own() -> None:
    model, twin, ids = Model(counting), Model(counting), ids_of(2, 3)
    twin.load_state_dict(model.state_dict())
    twin.hidden.copy_(model.hidden)
    program = capture(model, (ids,))
    assert program.effects.mutated_buffers == {"calls"}
    assert program.effects.mutated_inputs == frozenset()
    for call in (1.0, 2.0, 3.0):
        assert agree(program.module(ids), twin(ids))
        assert (program.module.calls.item(), model.calls.item()) == (call, 0.0)


def counting(model: Model, x: Tensor, ids: Tensor) -> Tensor:
    model.calls.add_(1)
    return x * model.calls


def test_a_written_input_is_an_effect() -> None:
    model, ids = Model(lambda m, x, ids: x + ids.clamp_(max=2).unsqueeze(-1)), ids_of(2, 3)
    program = capture(model, (ids,))
    one, other = ids.clone(), ids.clone()
    assert program.effects.mutated_inputs == {"ids"}
    assert agree(program.module(one), model(other))
    assert torch.equal(one, other)
    assert torch.equal(other, ids.clamp(max=2))


def test_state_keeps_its_names_its_sharing_and_its_persistence() -> None:
    model = Model(lambda m, x, ids: m.head(x * m.scale + m.hidden))
    program = capture(model, (ids_of(2, 3),))
    state, original = program.module.state_dict(keep_vars=True), model.state_dict(keep_vars=True)
    assert state.keys() == original.keys()
    assert "hidden" not in state
    assert torch.equal(program.module.get_buffer("hidden"), model.hidden)
    assert {name: storage_key(tensor) for name, tensor in state.items()} == {
        name: storage_key(tensor) for name, tensor in original.items()
    }
    assert storage_key(state["embedding.weight"]) == storage_key(state["head.weight"])
    assert measure(program.module) == measure(model)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(5, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.eval()

    def forward(self, batch: Mapping[str, Any], *more: Tensor, scale: Tensor | None = None) -> dict[str, Any]:
        total = self.first(batch["pair"][0]) + self.second(batch["pair"][1])
        for each in more:
            total = total + each
        return {"total": total if scale is None else total * scale, "parts": [self.first(batch["pair"][0])]}


def test_nested_arguments_come_in_and_go_out_as_the_model_has_them() -> None:
    model = Nested()
    one, other = torch.randint(5, (2, 3)), ids_of(2, 3)
    args, kwargs = ({"pair": (one, other)}, torch.randn(WIDTH), torch.randn(WIDTH)), {"scale": torch.randn(WIDTH)}
    program = capture(model, args, kwargs)
    found, expected = program.module(*args, **kwargs), model(*args, **kwargs)
    assert found.keys() == expected.keys()
    assert agree(found["total"], expected["total"])
    assert agree(found["parts"][0], expected["parts"][0])
    assert {domain.size for domain in program.tokens.values()} == {5, VOCABULARY}
    assert sorted(program.tokens) == [node.name for node in program.input_nodes()][:2]


def test_a_copy_of_a_program_is_another_graph_over_the_same_tensors() -> None:
    model = Model()
    program = capture(model, (ids_of(2, 3),))
    other = program.copy()
    assert other.text() == program.text()
    (output,) = (node for node in other.graph.nodes if node.op == "output")
    with other.graph.inserting_before(output):
        output.args = ((other.graph.call_function(torch.ops.aten.neg.default, (output.args[0][0],)),),)
    other.module.recompile()
    assert other.text() != program.text()
    assert agree(other.module(ids := ids_of(2, 3)), -program.module(ids))
    assert storage_key(other.module.embedding.weight) == storage_key(model.embedding.weight)
