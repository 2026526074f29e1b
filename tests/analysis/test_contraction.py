"""An einsum of many operands is captured as pairs, with the bits it had; any other call of einsum as it is."""

from __future__ import annotations

import string

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.contraction import EinsumInPairs

SIZES = dict(zip("btnhde", (3, 5, 4, 33, 17, 7), strict=True))


class Weighed(nn.Module):
    """Token-only activations [b, t, n, h], projected and weighed by a gate in one einsum."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.embedding, self.gate = nn.Embedding(11, 4 * 6), nn.Linear(8, 4)
        self.down = nn.Parameter(torch.randn(4, 6, 8))
        self.equation = equation
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        experts = self.embedding(ids).unflatten(-1, (4, 6))
        operands = {"btnh": experts, "nhd": self.down, "btn": self.gate(hidden).softmax(-1)}
        inputs = self.equation.replace(" ", "").replace("...", "bt").split("->")[0]
        return torch.einsum(self.equation, *(operands[labels] for labels in inputs.split(",")))


def einsums(model: nn.Module) -> tuple[list[str], list[bool]]:
    """The equations in the captured graph, and which of them are token-only."""
    args = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.randn(2, 3, 8)
    program = foldfx.capture(model, args)
    assert torch.equal(program.module(*args), model(*args))
    facts = foldfx.analyze(model, args)
    nodes = program.graph.find_nodes(op="call_function", target=torch.ops.aten.einsum.default)
    return [str(node.args[0]) for node in nodes], [facts[facts.node(node.name)].token_only for node in nodes]


@pytest.mark.parametrize("equation", ["btnh,nhd,btn->btd", "btnh, nhd, btn -> btd"])
def test_what_a_gate_weighs_is_a_value_of_its_own(equation: str) -> None:
    assert einsums(Weighed(equation)) == (["btnh,nhd->btnd", "btnd,btn->btd"], [True, False])


@pytest.mark.parametrize("equation", ["btnh,btn,nhd->btd", "btn,btnh,nhd->btd"])
def test_a_gate_that_comes_earlier_leaves_no_token_only_product(equation: str) -> None:
    assert einsums(Weighed(equation))[1] == [False, False]


@pytest.mark.parametrize("equation", ["...nh,nhd,...n->...d", "btnh,nhd->btnd", "btnh,nhd,btn"])
def test_others_are_left_as_they_are(equation: str) -> None:
    assert einsums(Weighed(equation))[0] == [equation.replace(" ", "")]


@pytest.mark.parametrize(
    "equation",
    [
        "btnh,nhd,btn->btd",
        "btn,btnh,nhd->btd",
        "bt,te,en->bn",
        "btd,dh,he->bte",
        "btn,nd,dh,he->bte",
        "bt,n,d->",
        "bb,bt,tn->bn",
    ],
)
def test_pairs_have_the_bits_of_the_whole(equation: str) -> None:
    inputs, _ = equation.split("->")
    operands = [torch.randn([SIZES[label] for label in labels]) for labels in inputs.split(",")]
    whole = torch.einsum(equation, *operands)
    with EinsumInPairs():
        pairs = torch.einsum(equation, *operands)
        listed = torch.einsum(equation, operands)
    assert torch.equal(pairs, whole)
    assert torch.equal(listed, whole)


def test_operands_given_with_lists_of_dimensions() -> None:
    a, b, c = torch.randn(3, 5), torch.randn(5, 7), torch.randn(7, 2)
    whole = torch.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [0, 3])
    with EinsumInPairs():
        assert torch.equal(torch.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [0, 3]), whole)


def test_where_opt_einsum_chooses_the_order_nothing_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch.backends.opt_einsum._get_enabled.__globals__, "enabled", True)
    monkeypatch.setattr("foldfx.analysis.contraction._in_pairs", lambda *_: pytest.fail("split"))
    with EinsumInPairs():
        assert torch.equal(torch.einsum("ab,bc,cd->ad", *[torch.eye(2)] * 3), torch.eye(2))


def test_all_labels_of_the_alphabet() -> None:
    labels = string.ascii_letters[:26]
    one = torch.ones([1] * 26)
    with EinsumInPairs():
        assert torch.einsum(f"{labels},{labels},{labels}->a", one, one, one).item() == 1


def test_operands_with_lists_of_axes_are_left_alone() -> None:
    """In that form the first argument is a tensor, not an equation."""

    class Listed(nn.Module):
        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return torch.einsum(x, [0, 1], y, [1, 2], z, [2, 3], [0, 3])  # type: ignore[call-overload]

    operands = (torch.randn(3, 4), torch.randn(4, 5), torch.randn(5, 2))
    expected = Listed()(*operands)
    with EinsumInPairs():
        assert torch.equal(Listed()(*operands), expected)
