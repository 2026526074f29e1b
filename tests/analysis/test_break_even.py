"""The vocabulary at which a fold begins or ends to pay: against a scan over vocabularies, and against real folds."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.break_even import V, break_even

FLOAT = 4
Rows, Fixed, Tables = list[tuple[str, int, int]], list[tuple[str, int, int]], list[tuple[tuple[str, int, int], int | None]]


def saved(rows: Rows, fixed: Fixed, tables: Tables, vocabulary: int) -> int:
    """Bytes freed less bytes of tables, added up."""
    freed = vocabulary * sum(width * item for _, width, item in rows) + sum(count * item for _, count, item in fixed)
    return freed - sum((vocabulary if own is None else own) * width * item for (_, width, item), own in tables)


def random_fold() -> tuple[Rows, Fixed, Tables]:
    item = random.choice((1, 2, 4, 8))
    rows = [(f"table{n}.weight", random.randint(1, 64), item) for n in range(random.randint(0, 2))]
    fixed = [(f"layer.{n}.weight", random.randint(1, 4000), item) for n in range(random.randint(0, 3))]
    tables = [
        (
            (f"value_{n}", random.randint(1, 64), random.choice((2, 4))),
            random.choice((None, None, None, random.randint(1, 300))),
        )
        for n in range(random.randint(1, 3))
    ]
    return rows, fixed, tables


@pytest.mark.parametrize("batch", range(4))
def test_the_sign_changes_exactly_there(batch: int) -> None:
    """A scan over vocabularies finds the change of sign between the two integers around it, or none."""
    changed = 0
    for _ in range(50):
        fold = random_fold()
        found = break_even(*fold)
        signs = [saved(*fold, vocabulary) for vocabulary in range(1, 9000)]
        assert found.before.subs(found.sizes).subs(V, 7) - found.after.subs(found.sizes).subs(V, 7) == saved(*fold, 7)
        change = next((v for v, (one, other) in enumerate(pairwise(signs), 1) if one * other <= 0), None)
        if change is None:
            assert found.vocabulary is None or not 1 <= found.vocabulary < 9000
        else:
            assert found.vocabulary is not None
            assert change <= found.vocabulary <= change + 1
            assert f"saves for V {'<' if signs[0] > signs[-1] else '>'} {float(found.vocabulary):,.1f}" in str(found)
            changed += 1
    assert changed > 5


def test_a_table_wider_than_the_rows_pays_below_a_narrower_one_above() -> None:
    """10 wide from 4: 4·4·V + 4·60 = 4·10·V at V = 10. 2 wide from 4, beside a table of 30 rows: at V = 15."""
    below = break_even([("e.weight", 4, 4)], [("p.weight", 60, 4)], [(("y", 10, 4), None)])
    assert (below.vocabulary, saved([("e", 4, 4)], [("p", 60, 4)], [(("y", 10, 4), None)], 10)) == (10, 0)
    assert str(below) == "4*V*e_e_weight + 4*p_p_weight → 4*V*w_y B; saves for V < 10.0"
    above = break_even([("e.weight", 4, 4)], [], [(("y", 2, 4), None), (("z", 1, 4), 30)])
    assert above.vocabulary == 15
    assert str(above).endswith("saves for V > 15.0")


@pytest.mark.parametrize(
    ("rows", "fixed", "tables", "text"),
    [
        ([("e", 4, 4)], [("p", 9, 4)], [(("y", 4, 4), None)], "saves at any V"),
        ([("e", 4, 4)], [], [(("y", 4, 4), None)], "saves at no V"),
        ([], [], [(("y", 4, 4), None)], "saves at no V"),
        ([("e", 8, 4)], [], [(("y", 2, 4), None)], "saves at any V"),
        ([], [("p", 9, 4)], [(("y", 3, 4), 2)], "saves at any V"),
        ([], [("p", 9, 4)], [(("y", 5, 4), 2)], "saves at no V"),
    ],
)
def test_where_the_vocabulary_decides_nothing(rows: Rows, fixed: Fixed, tables: Tables, text: str) -> None:
    found = break_even(rows, fixed, tables)
    assert found.vocabulary is None
    assert str(found).endswith(f"B; {text}")
    assert all((saved(rows, fixed, tables, vocabulary) > 0) is ("any" in text) for vocabulary in range(1, 500))


def test_a_name_in_several_roles_has_a_size_in_each() -> None:
    found = break_even([("a.b", 3, 4)], [("a_b", 5, 4)], [(("a.b", 7, 4), None)])
    assert sorted(found.sizes.values()) == [3, 5, 7]


def test_names_that_differ_in_their_dots_alone_stay_apart() -> None:
    """`a.b` and `a_b` are two tensors of one kind: 40 and 400 bytes."""
    found = break_even([], [("a.b", 10, 4), ("a_b", 100, 4)], [(("y", 1, 4), None)])
    assert found.vocabulary == 110


class Model(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.up = nn.Embedding(vocabulary, 6), nn.Linear(6, 16)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.up(self.embedding(ids))).cumsum(1)


def fold(vocabulary: int) -> foldfx.Result:
    model, ids = Model(vocabulary), torch.randint(vocabulary, (3, 5))
    result = foldfx.compile(model, [foldfx.Example((ids,))], dynamic=False)
    error = (result.module(ids) - model(ids)).abs().max().item()
    assert error <= 1e-5
    assert error <= 1e-5 * model(ids).norm().item()
    return result


def largest_that_pays(pays: Callable[[int], bool]) -> int:
    return max(vocabulary for vocabulary in range(1, 100) if pays(vocabulary))


def test_a_fold_pays_up_to_the_vocabulary_that_the_report_states() -> None:
    """4·(6·V + 7·16) bytes against 4·16·V: up to V = 11, by a scan; folded there, refused one above."""
    most = largest_that_pays(lambda vocabulary: 16 * vocabulary < 6 * vocabulary + 7 * 16)
    last, refused = fold(most), fold(most + 1)
    assert (last.accepted, refused.accepted) == (True, False)
    (rewrite,) = last.report.to_dict()["rewrites"]
    assert most < rewrite["break_even_vocabulary"] < most + 1
    assert f"saves for V < {rewrite['break_even_vocabulary']:,.1f}" in refused.report.to_dict()["outcomes"][0]["reason"]
