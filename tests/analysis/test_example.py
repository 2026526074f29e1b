"""Calls as users write them: what is no call, or none that this program was captured for, is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import ExampleError

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(7, 32), nn.Linear(32, 32)
        self.eval()

    def forward(self, ids: Tensor, scale: Any = None) -> Tensor:
        hidden = torch.tanh(self.project(self.embedding(ids))).cumsum(1)
        return hidden if scale is None else hidden * scale


class NoArguments(nn.Module):
    def forward(self) -> Tensor:
        return torch.ones(3)


def call(*args: Any) -> foldfx.Example:
    return foldfx.Example(args)


@pytest.mark.parametrize("examples", [call(IDS), Scaled(), None, 5], ids=["one example", "the model", "None", "a number"])
def test_examples_that_are_no_list_are_refused(examples: Any) -> None:
    with pytest.raises(ExampleError, match=r"the examples are of type \w+; pass a list of foldfx.Example"):
        foldfx.compile(Scaled(), examples)


@pytest.mark.parametrize("kwargs", [[IDS], None, IDS], ids=["a list", "None", "a tensor"])
def test_keyword_arguments_are_a_mapping_of_names(kwargs: Any) -> None:
    with pytest.raises(ExampleError, match=r"Example.kwargs is a .*; pass a mapping"):
        foldfx.Example((IDS,), kwargs)


def test_keyword_arguments_of_analyze_are_a_mapping_of_names() -> None:
    with pytest.raises(ExampleError, match=r"Example.kwargs is a .*; pass a mapping"):
        foldfx.analyze(Scaled(), (), [IDS])  # type: ignore[arg-type]
    assert foldfx.analyze(Scaled(), (), {"ids": IDS}).by_node


def test_a_call_without_arguments_is_refused() -> None:
    with pytest.raises(ExampleError, match="the example has no arguments"):
        foldfx.compile(NoArguments().eval(), [call()])


def test_a_tensor_without_values_is_refused() -> None:
    with pytest.raises(ExampleError, match="example 1 has a tensor on the meta device"):
        foldfx.compile(Scaled(), [call(IDS), call(IDS.to("meta"))])


@pytest.mark.parametrize("others", [IDS[0], IDS[None]], ids=["fewer", "more"])
@pytest.mark.parametrize("first", [True, False])
def test_examples_of_several_numbers_of_dimensions_are_refused(others: Tensor, first: bool) -> None:
    examples = [call(others), call(IDS)] if first else [call(IDS), call(others)]
    with pytest.raises(ExampleError, match=r"example [01]: ids has \d dimensions, but the example that is traced has \d"):
        foldfx.compile(Scaled(), examples)


def test_a_later_example_of_another_number_of_dimensions_is_refused() -> None:
    result = foldfx.compile(Scaled(), [call(IDS)])
    with pytest.raises(ExampleError, match="example 1: ids has 3 dimensions"):
        result.revalidate([call(IDS), call(IDS[None])])


@pytest.mark.parametrize(
    ("traced", "other", "message"),
    [
        (3.0, 2.0, "scale is 2.0, but the example that is traced has 3.0"),
        (None, torch.full((32,), 2.0), "scale is a tensor, but the example that is traced has None"),
        (torch.full((32,), 2.0), None, "scale is None, but the example that is traced has a tensor"),
    ],
)
def test_an_example_with_another_value_than_the_graph_holds_is_refused(traced: Any, other: Any, message: str) -> None:
    with pytest.raises(ExampleError, match=f"example 1: {message}; compile once for each"):
        foldfx.compile(Scaled(), [call(IDS, traced), call(IDS[:1], other)])
    assert foldfx.compile(Scaled(), [call(IDS, traced), call(IDS[:1], traced)]).accepted


@pytest.mark.parametrize("first", [True, False])
def test_an_example_of_another_size_than_the_graph_holds_is_refused(first: bool) -> None:
    wide, narrow = call(torch.ones(3, 5, dtype=torch.int64)), call(IDS)
    with pytest.raises(
        ExampleError, match=rf"example {int(not first)} is no call .*ids.size\(\)\[0\] == 3.*fixes what dynamic= says"
    ):
        foldfx.compile(Scaled(), [wide, narrow] if not first else [narrow, wide], dynamic=False)
    assert foldfx.compile(Scaled(), [wide, narrow]).accepted


def test_a_later_example_of_another_size_than_the_graph_holds_is_refused() -> None:
    result = foldfx.compile(Scaled(), [call(IDS)], dynamic=False)
    with pytest.raises(ExampleError, match=r"example 0 is no call that the captured graph covers"):
        result.revalidate([call(IDS[:1])])


@pytest.mark.parametrize("stated", [{"domain": 3}, {"reachable": [1, 2]}], ids=["domain", "reachable"])
def test_an_example_with_an_id_that_is_said_not_to_occur_is_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(ExampleError, match=r"example 0: ids holds id 3, which is not in its domain 0\.\.\d.*; state all that"):
        foldfx.compile(Scaled(), [call(IDS)], tokens=[foldfx.TokenInput("ids", **stated)])
    few = call(IDS.clamp(1, 2))
    assert foldfx.compile(Scaled(), [few], tokens=[foldfx.TokenInput("ids", **stated)]).accepted
