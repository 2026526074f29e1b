"""Hashed choices: expert ids read from a table of integers at the token id, and their twins that are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.analysis import HashedChoice, analyze_program, find_decisions, find_hashed

IDS, HIDDEN = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.randn(2, 3, 4)
EXPERTS = 4


class Hashed(nn.Module):
    """Which experts is looked up; how much of each comes from the hidden state, or as `use` says."""

    def __init__(self, use: Callable[[Hashed, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.gate = nn.Embedding(7, 4), nn.Linear(4, EXPERTS)
        self.register_buffer("chosen", torch.randint(EXPERTS, (7, 2)))
        self.use = use
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return self.use(self, ids, hidden) + self.embedding(ids).sum()


def gathered(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    return model.gate(hidden).sigmoid().gather(-1, model.chosen[ids])


def flat(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    chosen = model.chosen[ids.reshape(-1)].long()
    return model.gate(hidden).reshape(-1, EXPERTS).gather(1, chosen)


def masked(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    return sum(hidden * (model.chosen[ids] == expert).any(-1, keepdim=True) for expert in range(EXPERTS))  # type: ignore[return-value]


def encoded(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    return F.one_hot(F.embedding(ids, model.chosen), EXPERTS).sum(-2) * model.gate(hidden)


def at_a_position(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1])
    return model.gate(hidden).gather(-1, model.chosen[positions].expand(*ids.shape, 2))


def at_what_context_chose(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    return model.gate(hidden).gather(-1, model.chosen[hidden.argmax(-1)])


def summed(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    return model.gate(hidden) + model.chosen[ids].sum(-1, keepdim=True)


def scores_by_token(model: Hashed, ids: Tensor, hidden: Tensor) -> Tensor:
    return model.gate(hidden).gather(-1, model.gate(model.embedding(ids)).topk(2).indices)


def program_of(use: Callable[[Hashed, Tensor, Tensor], Tensor]) -> foldfx.Program:
    return foldfx.capture(Hashed(use), (IDS, HIDDEN))


def hashed_in(use: Callable[[Hashed, Tensor, Tensor], Tensor]) -> list[HashedChoice]:
    program = program_of(use)
    return find_hashed(program, analyze_program(program))


@pytest.mark.parametrize(("use", "selects"), [(gathered, "gather"), (flat, "gather"), (masked, "eq"), (encoded, "one_hot")])
def test_expert_ids_read_at_the_token_id(use: Callable[[Hashed, Tensor, Tensor], Tensor], selects: str) -> None:
    choices = hashed_in(use)
    assert {choice.table for choice in choices} == {"chosen"}
    assert {str(node.target).split(".")[1] for choice in choices for node in choice.selects} == {selects}
    for choice in choices:
        assert choice.to_dict().keys() == {"node", "at", "kind", "score", "token_only", "feeds"}
        assert choice.feeds == ("output 0",)


@pytest.mark.parametrize("use", [at_a_position, at_what_context_chose, summed, scores_by_token])
def test_the_twins_are_no_hashed_choices(use: Callable[[Hashed, Tensor, Tensor], Tensor]) -> None:
    assert hashed_in(use) == []


def test_a_hashed_choice_is_no_decision_by_floats_and_a_learned_one_is_no_hashed_choice() -> None:
    by_table, by_scores = program_of(gathered), program_of(scores_by_token)
    assert find_decisions(by_table, analyze_program(by_table)) == []
    (decision,) = find_decisions(by_scores, analyze_program(by_scores))
    assert decision.token_only


def test_the_report_lists_it_among_the_decisions() -> None:
    report = foldfx.compile(Hashed(gathered), [foldfx.Example((IDS, HIDDEN))]).report
    (found,) = report.data["decisions"]
    assert (found["kind"], found["score"], found["token_only"]) == ("lookup", "chosen", True)
    assert "lookup of chosen, over token ids alone, feeds output 0" in str(report)
