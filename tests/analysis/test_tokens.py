"""Which inputs carry token ids, and how many there are: inferred, stated, or refused with the candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foldfx import TokenInput, capture
from foldfx.errors import TokenInputError

WIDTH = 4


class Model(nn.Module):
    """`compute(model, ids, others)`, with tables of several lengths."""

    def __init__(self, compute: Callable[[Model, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute
        self.nine, self.seven, self.five = (nn.Embedding(rows, WIDTH) for rows in (9, 7, 5))
        self.register_buffer("kinds", torch.arange(9) % 3)
        self.eval()

    def forward(self, ids: Tensor, others: Tensor) -> Any:
        return self.compute(self, ids, others)


def domains(compute: Callable[..., Any], tokens: list[TokenInput] | None = None, others: Any = None) -> Mapping[str, Any]:
    ids = torch.randint(5, (2, 3))
    others = torch.randint(5, (2, 3)) if others is None else others
    return capture(Model(compute), (ids, others), tokens=tokens, dynamic=False).tokens


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda m, ids, others: m.seven(ids) + others.unsqueeze(-1), {"ids": 7}),
        (lambda m, ids, others: m.nine(ids) + m.seven(others), {"ids": 9, "others": 7}),
        (lambda m, ids, others: m.nine(ids) + m.five(ids) + m.seven(ids), {"ids": 5}),
        (lambda m, ids, others: m.seven(ids.reshape(-1).int()).view(3, 2, -1) + m.five(others.mT), {"ids": 7, "others": 5}),
        (lambda m, ids, others: m.nine.weight[ids], {"ids": 9}),
        (lambda m, ids, others: m.seven.weight.index_select(0, ids.flatten()), {"ids": 7}),
        (lambda m, ids, others: m.five.weight.gather(0, ids.reshape(-1, 1).expand(-1, WIDTH)), {"ids": 5}),
        (lambda m, ids, others: F.one_hot(ids, 6), {"ids": 6}),
        (lambda m, ids, others: m.five(m.kinds[ids]), {"ids": 9}),
        (lambda m, ids, others: m.five(ids) + m.nine(others.clamp(max=4)), {"ids": 5}),
    ],
)
def test_the_smallest_table_read_directly_gives_the_domain(compute: Callable[..., Any], expected: dict[str, int]) -> None:
    found = domains(compute)
    assert {name: domain.size for name, domain in found.items()} == expected
    assert not any(domain.stated for domain in found.values())


def test_the_domain_says_where_it_comes_from() -> None:
    domain = domains(lambda m, ids, others: m.nine(ids) + m.five(ids))["ids"]
    assert str(domain).startswith("0..4 (rows of the smallest table it indexes, embedding_1 (5 rows, module five, ")
    assert Path(__file__).name in str(domain)


@pytest.mark.parametrize(
    ("compute", "tokens", "expected"),
    [
        (lambda m, ids, others: m.seven(ids) + m.nine(others), [TokenInput("ids")], {"ids": (7, False)}),
        (lambda m, ids, others: m.seven(ids) + m.nine(others), [TokenInput("others", 6)], {"others": (6, True)}),
        (
            lambda m, ids, others: m.seven(ids.clamp(max=6)) + others.unsqueeze(-1),
            [TokenInput("ids", 300)],
            {"ids": (300, True)},
        ),
        (
            lambda m, ids, others: ids.float() * others,
            [TokenInput("ids", 2), TokenInput("others", 3)],
            {"ids": (2, True), "others": (3, True)},
        ),
    ],
)
def test_what_is_stated_alone_counts(
    compute: Callable[..., Any], tokens: list[TokenInput], expected: dict[str, tuple[int, bool]]
) -> None:
    found = domains(compute, tokens)
    assert {name: (domain.size, domain.stated) for name, domain in found.items()} == expected


BOTH: Callable[..., Any] = lambda m, ids, others: m.seven(ids) + others.unsqueeze(-1)  # noqa: E731
REFUSED: dict[str, tuple[Callable[..., Any], list[TokenInput] | None, str]] = {
    "larger than a table": (
        BOTH,
        [TokenInput("ids", 8)],
        r"'ids' states a domain of 8 ids, but rows of the smallest table it indexes, embedding \(7 rows, .* holds 7",
    ),
    "unknown name": (BOTH, [TokenInput("tokens", 7)], r"'tokens' is not an input of .* integer inputs: \['ids', 'others'\]"),
    "no table and no domain": (BOTH, [TokenInput("others")], "'others' indexes no table directly, so state its domain"),
    "columns into different tables": (
        lambda m, ids, others: m.seven(ids[:, 0]) + m.five(ids[:, 1]),
        None,
        r"ambiguous; candidates: ids \(reaches embedding \(7 rows, .*\), embedding_1 \(5 rows, .*through operations that",
    ),
    "a clamp": (
        lambda m, ids, others: m.seven(ids.clamp(max=6)),
        None,
        r"ambiguous; candidates: ids \(reaches embedding \(7 rows, .*State it: tokens=\[foldfx\.TokenInput",
    ),
    "both inputs in one index": (
        lambda m, ids, others: m.nine(ids + others),
        None,
        r"ambiguous; candidates: ids \(reaches embedding .*; others \(reaches embedding ",
    ),
    "no table": (
        lambda m, ids, others: ids * others,
        None,
        r"no integer input indexes a table through shape-only operations; integer inputs: \['ids', 'others'\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_clear_is_refused(case: str) -> None:
    compute, tokens, why = REFUSED[case]
    with pytest.raises(TokenInputError, match=why):
        domains(compute, tokens)


def test_an_input_that_holds_no_integers_carries_no_ids() -> None:
    with pytest.raises(TokenInputError, match=r"'others' is not an integer tensor of .* integer inputs: \['ids'\]"):
        domains(lambda m, ids, others: m.seven(ids) * others, [TokenInput("others", 3)], torch.randn(2, 3, 1))
    with pytest.raises(TokenInputError, match=r"integer inputs: \['ids'\]"):
        domains(lambda m, ids, others: m.seven(others.long()) * ids.unsqueeze(-1), None, torch.ones(2, 3))


@pytest.mark.parametrize("domain", [0, -1, True, 2.0, "7"])
def test_a_domain_is_a_positive_number(domain: Any) -> None:
    with pytest.raises(TokenInputError, match="domain must be a positive int"):
        TokenInput("ids", domain)


def test_a_domain_that_cannot_be_listed_is_refused() -> None:
    with pytest.raises(TokenInputError, match=r"a domain of 1,000,000,000 is beyond 134,217,728; .* reachable="):
        TokenInput("ids", 10**9)
    assert TokenInput("ids", 10**9, reachable=[5]).reachable == (5,)
    assert TokenInput("ids", 2**27).domain == 2**27


@pytest.mark.parametrize("tokens", ["ids", ["ids"], {"ids": 7}, TokenInput("ids")], ids=["text", "texts", "mapping", "one"])
def test_tokens_are_a_list_of_token_inputs(tokens: Any) -> None:
    with pytest.raises(TokenInputError, match=r"tokens is .*; pass a list, such as \[foldfx.TokenInput\('ids'\)\]"):
        domains(lambda m, ids, others: m.seven(ids), tokens)


def test_an_input_is_stated_once() -> None:
    with pytest.raises(TokenInputError, match="tokens states 'ids' more than once"):
        domains(lambda m, ids, others: m.seven(ids), [TokenInput("ids"), TokenInput("ids", 3)])


def test_reachable_ids_are_a_collection() -> None:
    with pytest.raises(TokenInputError, match=r"reachable is 5; pass the ids"):
        TokenInput("ids", reachable=5)  # type: ignore[arg-type]
