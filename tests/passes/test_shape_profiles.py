"""Classes are found as they were planted, whatever the machine; what cannot be a rule is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import foldfx
from foldfx.passes import PassContext, shape_profiles
from foldfx.passes.ladder import Ladder
from foldfx.passes.shape_profiles import MOST, Profile, Tables, as_profiles, as_stated, discover
from foldfx.passes.tables.region import Region, RegionError
from foldfx.passes.tables.row_classes import RowClasses
from foldfx.passes.tables.runner import RegionRunner
from foldfx.passes.tables.tabulate import silent, tabulate, tokens_of, traced_place

Plan = Callable[[int], Sequence[int] | int]


def last_of_four(count: int) -> Sequence[int] | int:
    """As on a machine where, with two threads, the last n mod 4 rows of 5–7 and 9–11 differ."""
    return [*[0] * (count - count % 4), *[1] * (count % 4)] if count in (5, 6, 7, 9, 10, 11) else 0


PLANS: dict[str, Plan] = {
    "one row, few, many": lambda n: 0 if n == 1 else 1 if n < 16 else 2,
    "last n mod 4 of some": last_of_four,
    "last n mod 4 of all up to 64": lambda n: [*[0] * (n - n % 4), *[1] * (n % 4)] if n <= 64 else 0,
    "every other count": lambda n: n % 2 if n <= 64 else 0,
    "from 100 on": lambda n: int(n >= 100),
    "100 to 110, no size that is measured at first": lambda n: 0 if n < 100 else 1 if n < 111 else 2,
    "only 4096 and more": lambda n: int(n > 2500),
    "the first position alone": lambda n: [1, *[0] * (n - 1)] if n <= 64 else 0,
    "three by position": lambda n: [place * 3 // n for place in range(n)] if n < 20 else 0,
    "the table's own calls are mixed": lambda n: [*[0] * 9, *[1] * (n - 9)] if 9 < n < 45 else 0,
}


def found(region: Region, values: list[Any]) -> tuple[RowClasses, list[Tables]]:
    return discover(region, values, tabulate(region, values), silent)


def labels(plan: Plan, count: int) -> list[int]:
    return torch.as_tensor(plan(count)).expand(count).tolist()


def require_same(classes: RowClasses, plan: Plan, counts: Sequence[int]) -> None:
    """The rule found and the one planted put the same rows together, whatever the numbers of the classes."""
    pairs = {pair for n in counts for pair in zip(classes.of(n).tolist(), labels(plan, n), strict=True)}
    assert len({found for found, _ in pairs}) == len({planted for _, planted in pairs}) == len(pairs), sorted(pairs)


def require_bits(region: Region, values: list[Any], classes: RowClasses, tables: list[Tables], counts: Sequence[int]) -> None:
    """Each row of the region is the row of its class, bit by bit."""
    run, place = RegionRunner(region, values), traced_place(region)
    for count in counts:
        rows = torch.randint(region.domain, (count,))
        expected = run.rows(place(tokens_of(region, rows)))
        for value, each in enumerate(expected):
            stored = torch.stack([own[value] for own in tables])[classes.of(count), rows]
            assert torch.equal(each.view(torch.int32), stored.view(torch.int32)), count


@pytest.mark.parametrize("rare", [1, 5], ids=["all rows", "few rows"])
@pytest.mark.parametrize("name", PLANS)
def test_the_planted_rule_is_found(name: str, rare: int, planted: Any) -> None:
    """Where only one row in five shows its class, too."""
    planted.rare = rare
    planted.by_count(PLANS[name])
    region, values = planted.region()
    classes, tables = found(region, values)
    require_same(classes, PLANS[name], [*range(1, 300), 777, 1027, 2048, 2499, 2501, 4096])
    require_bits(region, values, classes, tables, [*range(1, 70), 99, 100, 105, 110, 111, 257, 2500])
    assert len(classes.built) == len(tables)
    assert classes.evidence[0].startswith("measured at 1 thread(s) for row counts 1–64, ")


def test_a_change_between_two_measured_sizes_is_found_by_bisection(planted: Any) -> None:
    planted.by_count(PLANS["from 100 on"])
    classes, _ = found(*planted.region())
    assert (classes.bounds, classes.classes) == ((99,), ((0,), (1,)))
    assert " 99, 100, " in classes.evidence[0]


def test_two_changes_between_two_measured_sizes_are_found(planted: Any) -> None:
    planted.by_count(PLANS["100 to 110, no size that is measured at first"])
    classes, _ = found(*planted.region())
    assert classes.bounds == (99, 110)
    assert len({each[0] for each in classes.classes}) == 3


REFUSED: dict[str, tuple[Plan, str]] = {
    "alike": (lambda n: 0, "rounds alike"),
    "positions of 130": (lambda n: [0] * 127 + [1] * 3 if n == 130 else 0, "positions of one call .* in calls of 130 rows"),
    "positions of 65": (lambda n: [0] * (n - 1) + [1] if n > 64 else 0, "in calls of 65 rows, more than 64"),
    "too many by count": (lambda n: min(n, MOST + 1), f"more than {MOST} execution classes: calls of {MOST} rows"),
    "too many by position": (lambda n: list(range(n)) if n < 20 else 0, f"more than {MOST} execution classes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_rule_is_refused(name: str, planted: Any) -> None:
    plan, why = REFUSED[name]
    planted.by_count(plan)
    with pytest.raises(RegionError, match=why):
        found(*planted.region())


def test_as_many_classes_as_may_be(planted: Any) -> None:
    """The twin of the refusal."""
    plan: Plan = lambda n: min(n, MOST)  # noqa: E731
    planted.by_count(plan)
    classes, tables = found(*planted.region())
    assert len(tables) == MOST
    require_same(classes, plan, range(1, 200))


def by_shape(sizes: Sequence[int]) -> Tensor:
    """Several rows of several ids round otherwise than as many ids in one row, or column."""
    several = sum(size > 1 for size in sizes[:-1]) > 1
    count = torch.Size(sizes[:-1]).numel()
    return torch.full((count,), 1 if count < 5 else 2 if several else 0)


@pytest.mark.parametrize("shape", [(3, 5), (6,), (2, 3, 4)], ids=str)
def test_rounding_by_the_shape_of_ids_is_refused(shape: tuple[int, ...], planted: Any) -> None:
    """The operations take ids of any shape, whatever they were captured with."""
    planted.plan = by_shape
    with pytest.raises(RegionError, match=r"ids of shape .* round otherwise than \d+ ids"):
        found(*planted.region(*shape))


@pytest.mark.parametrize(
    ("shape", "through"), [((6,), lambda x: x.view(x.shape[0], 8).neg()), ((4, 1), None)], ids=["row", "column"]
)
def test_shapes_that_cannot_be_called_do_not_matter(shape: tuple[int, ...], through: Any, planted: Any) -> None:
    """The twin: a view, or the capture, holds the ids to one dimension."""
    planted.plan = by_shape
    region, values = planted.region(*shape, through=through)
    if through is not None:
        values = [node for node in region.program.graph.nodes if node.name == "neg"]
    classes, _ = found(region, values)
    assert (classes.bounds, classes.classes) == ((4,), ((1,), (0,)))


def test_a_rule_that_holds_at_one_thread_only_says_so(planted: Any) -> None:
    """And one that holds at two as well says that."""
    plan: Plan = lambda n: int(n < 3) if torch.get_num_threads() == 1 else int(n < 5)  # noqa: E731
    planted.by_count(plan)
    classes, _ = found(*planted.region())
    assert classes.bounds == (2,)
    assert classes.evidence[1] == "at 2 thread(s) the row counts 3, 4 round otherwise: the rule is for 1 thread(s)"
    assert torch.get_num_threads() == 1
    planted.by_count(lambda n: int(n < 3))
    assert found(*planted.region())[0].evidence[1] == "the same at 2 thread(s), row counts 1–64"


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rule_is_found(data: st.DataObject, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of one class, or of several by position, of which some may be those of the table's own calls."""
    monkeypatch.setattr(shape_profiles, "DENSE", 16)
    monkeypatch.setattr(shape_profiles, "SPARSE", (17, 40, 41, 64, 128))
    dense = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=16, max_size=16))
    edges = sorted(data.draw(st.sets(st.integers(17, 127), max_size=2)))
    later = data.draw(st.permutations([0, 1, 2]))

    def plan(count: int) -> Sequence[int] | int:
        if count > 16:
            return later[sum(count > edge for edge in edges)]
        return [dense[count - 1][min(place, len(dense[count - 1]) - 1)] for place in range(count)]

    planted.by_count(plan)
    planted.rare = data.draw(st.sampled_from([1, 3]))
    region, values = planted.region()
    try:
        classes, tables = found(region, values)
    except RegionError as error:
        assert "rounds alike" in str(error)  # noqa: PT017
        assert len({label for n in range(1, 129) for label in labels(plan, n)}) == 1
        return
    require_bits(region, values, classes, tables, [*range(1, 33), 40, 41, 64, 128])
    if len(edges) < 2 or any(sum(low <= edge < high for edge in edges) < 2 for low, high in ((17, 40), (41, 64), (64, 128))):
        require_same(classes, plan, range(1, 17))


MALFORMED: dict[str, Any] = {
    "nothing": [],
    "no sequence": 3,
    "a mapping": {"max_rows": 1, "evaluation_rows": 1},
    "a set": {Profile(1, 1)},
    "text": "max_rows",
    "an entry that is no mapping": [3],
    "an entry that is a pair": [(1, 1)],
    "None": [None],
    "a key missing": [{"max_rows": 1}],
    "a key too many": [{"max_rows": 1, "evaluation_rows": 1, "rows": 1}],
    "other keys": [{"max_row": 1, "evaluation_rows": 1}],
    "keys of several types": [{"max_rows": 1, 3: 1}],
    "a bool": [{"max_rows": True, "evaluation_rows": 1}],
    "a bool to evaluate": [{"max_rows": 1, "evaluation_rows": True}],
    "a float": [{"max_rows": 1.0, "evaluation_rows": 1}],
    "text in place of a number": [{"max_rows": "1", "evaluation_rows": 1}],
    "a tensor": [{"max_rows": torch.tensor(1), "evaluation_rows": 1}],
    "None in place of a number": [{"max_rows": 1, "evaluation_rows": None}],
    "zero": [{"max_rows": 0, "evaluation_rows": 1}],
    "negative": [{"max_rows": -1, "evaluation_rows": 1}],
    "zero to evaluate": [{"max_rows": 1, "evaluation_rows": 0}],
    "twice": [{"max_rows": 2, "evaluation_rows": 1}, {"max_rows": 2, "evaluation_rows": 2}],
    "descending": [{"max_rows": 2, "evaluation_rows": 1}, {"max_rows": 1, "evaluation_rows": 1}],
    "beyond int64": [{"max_rows": 2**63, "evaluation_rows": 1}],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_profiles_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="profile"):
        as_profiles(MALFORMED[name])
    with pytest.raises(ValueError, match="profile"):
        foldfx.FoldTokens(profiles=MALFORMED[name])


def test_well_formed_profiles() -> None:
    stated = ({"max_rows": 1, "evaluation_rows": 1}, {"evaluation_rows": 300, "max_rows": 2**63 - 1})
    assert as_profiles(stated) == as_profiles([*stated]) == (Profile(1, 1), Profile(2**63 - 1, 300))
    assert Ladder.of("fold_tokens", None, stated).profiles == as_profiles(as_profiles(stated))
    assert foldfx.FoldTokens().profiles is None


def test_stated_profiles_are_tables_of_their_evaluation_sizes(planted: Any) -> None:
    """The first profile with room is chosen, for no rows at all the first one, beyond all the bulk table."""
    planted.by_count(lambda n: min(n, 6))
    region, values = planted.region()
    bulk = tabulate(region, values)
    classes, tables = as_stated(region, values, bulk, as_profiles([Profile(1, 1), Profile(4, 3), Profile(9, 5)]))
    sizes = [each.count for each in classes.built]
    assert sizes == [0, 1, 3, 5]
    chosen = [sizes[int(classes.rule()[1][torch.bucketize(torch.tensor(n), classes.rule()[0]), 0])] for n in range(11)]
    assert chosen == [1, 1, 3, 3, 3, 5, 5, 5, 5, 5, 0]
    run = RegionRunner(region, values)
    for number, size in enumerate(sizes[1:], 1):
        rows = torch.randint(region.domain, (size,))
        (computed,) = run.rows(traced_place(region)(tokens_of(region, rows)))
        assert torch.equal(computed, tables[number][0][rows])


def test_profiles_with_equal_tables_are_one_class(planted: Any) -> None:
    planted.by_count(lambda n: int(n < 4))
    region, values = planted.region()
    stated = as_profiles([Profile(1, 2), Profile(2, 7), Profile(3, 1), Profile(8, 2)])
    classes, tables = as_stated(region, values, tabulate(region, values), stated)
    assert (len(tables), classes.classes) == (2, ((1,), (0,), (1,), (1,), (0,)))
    assert classes.evidence[0] == "stated by the user"


def test_an_evaluation_whose_positions_disagree_is_refused(planted: Any) -> None:
    """Four rows at once agree, five do not; and one row in five is enough."""
    planted.by_count(last_of_four)
    region, values = planted.region()
    bulk = tabulate(region, values)
    as_stated(region, values, bulk, as_profiles([Profile(8, 4)]))
    planted.rare = 5
    with pytest.raises(RegionError, match=r"a profile of 5 evaluation rows is not possible: the positions .* disagree"):
        as_stated(region, values, bulk, as_profiles([Profile(1, 4), Profile(8, 5)]))


@pytest.mark.parametrize("width", [48, 128])
def test_the_kernels_of_this_machine(width: int) -> None:
    """Whatever they do: what is found holds bit by bit, or it is refused."""
    model = nn.Sequential(nn.Embedding(20, width), nn.Linear(width, width)).eval().requires_grad_(False)
    program = foldfx.capture(model, (torch.randint(20, (3, 5)),))
    region = Region(program, PassContext().facts(program), tuple(program.input_nodes()))
    values = [node for node in program.graph.nodes if node.name == "linear"]
    try:
        classes, tables = found(region, values)
    except RegionError as error:
        whys = ("rounds alike", "positions of one call", "execution classes", "ids of shape")
        assert any(why in str(error) for why in whys)  # noqa: PT017
        return
    require_bits(region, values, classes, tables, [*range(1, 65), 100, 257])
