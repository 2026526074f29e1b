"""A table within the limits may be on the other side of a near tie: decisions behind tables are compared exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.lowering import PROVIDERS, lower
from foldfx.passes import Pipeline, Rewrite
from foldfx.passes.tables.tabulate import silent
from foldfx.passes.verification.check_decisions import check_decisions

VOCABULARY, WIDTH, EXPERTS = 40, 64, 4
TIED = 17
"""The id whose best two scores are nearly equal."""


class Routed(nn.Module):
    """Scores leave the region, and so does what is decided by them."""

    def __init__(self, decide: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.gate = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.decide = decide
        with torch.no_grad():
            self.gate.weight[1] = self.gate.weight[0]
            self.gate.bias.copy_(torch.tensor([0.0, 2e-7, -1e3, -1e3]))
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.gate(self.embedding(ids))
        return scores.cumsum(1), self.decide(scores) + ids.cumsum(1)[..., None]


DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda scores: scores.topk(2).indices,
    "argmax": lambda scores: scores.argmax(-1, keepdim=True),
    "comparison": lambda scores: (scores[..., :1] < scores[..., 1:2]).long(),
    "round": lambda scores: (scores * 0 + 0.5 + (scores[..., :1] - scores[..., 1:2])).round(),
}


@pytest.fixture
def folded() -> Callable[[str], tuple[foldfx.Program, list[Rewrite]]]:
    def fold(decision: str) -> tuple[foldfx.Program, list[Rewrite]]:
        program = foldfx.capture(Routed(DECISIONS[decision]), (torch.randint(VOCABULARY, (2, 3)),))
        rewritten, _, rewrites = Pipeline([OnlyScores()]).rewrite(program)
        candidate = rewritten.copy()
        lower(candidate.module, PROVIDERS)
        return candidate, rewrites

    return fold


class OnlyScores(foldfx.FoldTokens):
    """Tabulates the scores alone, so that decisions stay behind the table."""

    def run(self, program: foldfx.Program, context: foldfx.passes.PassContext) -> foldfx.passes.PassResult:
        part = [node.name for node in program.graph.nodes if str(node.target) == "aten.linear.default"]
        folded, outcomes, rewrites = self._ladder().climb(program, [part], context, self._choice, self._apply)
        assert rewrites, outcomes
        return foldfx.passes.PassResult(folded, tuple(outcomes), tuple(rewrites))


def table_of(candidate: foldfx.Program, rewrites: list[Rewrite]) -> Tensor:
    (pack,) = rewrites[0].tables[0].packs
    return candidate.module.get_buffer(pack.state)


@pytest.mark.parametrize("decision", DECISIONS)
def test_decisions_from_true_tables_fall_alike(
    decision: str, folded: Callable[[str], tuple[foldfx.Program, list[Rewrite]]]
) -> None:
    candidate, rewrites = folded(decision)
    evidence, wrong = check_decisions(rewrites[0], candidate, silent)
    assert wrong == []
    assert {each.kind for each in evidence} == {"decision"}
    assert {(each.tokens, each.domain) for each in evidence if each.layout == "as built"} == {(VOCABULARY, VOCABULARY)}
    assert all(each.figures.exact for each in evidence if each.layout == "as built")


@pytest.mark.parametrize("decision", DECISIONS)
def test_an_entry_within_the_limits_that_turns_a_decision_is_seen(
    decision: str, folded: Callable[[str], tuple[foldfx.Program, list[Rewrite]]]
) -> None:
    candidate, rewrites = folded(decision)
    table_of(candidate, rewrites)[TIED, 0] += 5e-6
    _, wrong = check_decisions(rewrites[0], candidate, silent)
    assert wrong
    assert all(each.tokens == (TIED,) and "another decision" in str(each) for each in wrong)
    assert wrong[0].node in {node.name for node in rewrites[0].tables[0].region.program.graph.nodes}


@pytest.mark.parametrize("decision", DECISIONS)
def test_an_entry_that_turns_no_decision_is_not_this_checks_business(
    decision: str, folded: Callable[[str], tuple[foldfx.Program, list[Rewrite]]]
) -> None:
    candidate, rewrites = folded(decision)
    table_of(candidate, rewrites)[TIED, 3] += 5e-6
    assert check_decisions(rewrites[0], candidate, silent)[1] == []


def test_near_ties_are_sampled_first_under_a_time_budget(
    folded: Callable[[str], tuple[foldfx.Program, list[Rewrite]]],
) -> None:
    candidate, rewrites = folded("argmax")
    with torch.no_grad():
        table_of(candidate, rewrites)[TIED, 0] += 5e-6
    evidence, wrong = check_decisions(rewrites[0], candidate, silent, time_budget=1e-9)
    (scalar,) = [each for each in evidence if each.layout == "scalar"]
    assert scalar.tokens <= VOCABULARY
    assert TIED in {token for each in wrong for token in each.tokens}


def test_without_decisions_there_is_nothing_to_check() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.gate = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, EXPERTS)

        def forward(self, ids: Tensor) -> Tensor:
            return self.gate(self.embedding(ids)).cumsum(1)

    program = foldfx.capture(Plain().eval(), (torch.randint(VOCABULARY, (2, 3)),))
    rewritten, _, rewrites = Pipeline([OnlyScores()]).rewrite(program)
    assert check_decisions(rewrites[0], rewritten, silent) == ([], [])
