"""Route files keep every bit, and are read strictly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foldfx.errors import RouteFileError
from foldfx.inspection.route_diff import compare_routes
from foldfx.inspection.route_text import route_text, routes_to_dict
from foldfx.runtime.route_file import RouteFile, Routes

TOKENS, CHOSEN, CLASSES = 7, 2, 2


def routes(name: str = "topk", **changed: Any) -> Routes:
    experts = torch.stack([torch.randperm(5)[:CHOSEN] for _ in range(TOKENS)], 1).expand(CLASSES, -1, -1)
    plain = Routes(
        name,
        "model.py:3",
        experts.to(torch.uint8).contiguous(),
        {"softmax": torch.rand(CLASSES, CHOSEN, TOKENS)},
        torch.rand(TOKENS, dtype=torch.float64),
        torch.tensor([3]),
        None,
        "1 rows: class 1, 2 or more rows: class 0",
    )
    return replace(plain, **changed)


def test_a_file_holds_what_was_saved(tmp_path: Path) -> None:
    held = RouteFile((routes(), routes("argmax", weights={}, ids=torch.arange(0, 14, 2), rule="")), "ab" * 32)
    read = RouteFile.load(held.save(tmp_path / "routes.safetensors"))
    assert (read.fingerprint, read.torch_version, read.threads) == (
        held.fingerprint,
        torch.__version__,
        torch.get_num_threads(),
    )
    for one, other in zip(held.routes, read.routes, strict=True):
        assert (one.name, one.at, one.rule, one.weights.keys()) == (other.name, other.at, other.rule, other.weights.keys())
        for name in ("experts", "margins", "fragile"):
            assert torch.equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype
        assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
        assert torch.equal(one.tokens(), other.tokens())
    assert [path.name for path in tmp_path.iterdir()] == ["routes.safetensors"]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "floats as experts": ({"experts": torch.rand(1, CHOSEN, TOKENS)}, "not integers"),
    "too few tokens": ({"experts": torch.zeros(1, CHOSEN, TOKENS - 1, dtype=torch.uint8)}, "not integers [classes, K, 7]"),
    "a negative expert": ({"experts": -torch.ones(CLASSES, CHOSEN, TOKENS, dtype=torch.int8)}, "the number -1"),
    "weights of another width": ({"weights": {"w": torch.rand(CLASSES, CHOSEN, TOKENS + 1)}}, "weights w are [2, 2, 8]"),
    "too few ids": ({"ids": torch.arange(3)}, "3 ids for 7 tokens"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_tables_that_do_not_fit_together_are_refused(name: str, tmp_path: Path) -> None:
    changed, why = FAULTS[name]
    path = RouteFile((routes(**changed),), "").save(tmp_path / "file")
    with pytest.raises(RouteFileError, match="decision topk") as caught:
        RouteFile.load(path)
    assert why in str(caught.value)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RouteFileError, match="there is no file"):
        RouteFile.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("not tensors")
    with pytest.raises(RouteFileError, match="is not a safetensors file"):
        RouteFile.load(tmp_path / "text")
    save_file({"x": torch.ones(1)}, tmp_path / "tensors")
    with pytest.raises(RouteFileError, match="holds no routes"):
        RouteFile.load(tmp_path / "tensors")


def rewritten(path: Path, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path, {"foldfx_routes": json.dumps(header)})
    return path


def test_missing_and_additional_tensors_and_other_versions_are_refused(tmp_path: Path) -> None:
    path = RouteFile((routes(),), "").save(tmp_path / "file")
    tensors = load_file(path)
    described = {"name": "topk", "at": "", "rule": "", "weights": ["softmax"]}
    header = {"schema_version": 1, "routes": [described], "fingerprint": "", "torch": "", "threads": 1}
    RouteFile.load(rewritten(path, header, tensors))
    with pytest.raises(RouteFileError, match="schema version 2, this foldfx reads 1"):
        RouteFile.load(rewritten(path, {**header, "schema_version": 2}, tensors))
    with pytest.raises(RouteFileError, match="belong to no decision: \\['more'\\]"):
        RouteFile.load(rewritten(path, header, {**tensors, "more": torch.ones(1)}))
    for name in tensors:
        with pytest.raises(RouteFileError, match=f"has no tensor {name}"):
            RouteFile.load(rewritten(path, header, {key: tensor for key, tensor in tensors.items() if key != name}))


@pytest.mark.parametrize("header", [[], {}, {"schema_version": 1, "routes": [{}]}], ids=["list", "empty", "half a decision"])
def test_a_malformed_header_is_refused(header: Any, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "file", header, {"x": torch.ones(1)})
    with pytest.raises(RouteFileError, match=r"file: its entry foldfx_routes is malformed"):
        RouteFile.load(path)


def test_a_place_where_no_file_can_be_written_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "is a directory; name a file"), (tmp_path / "absent" / "file", "there is no folder")):
        with pytest.raises(RouteFileError, match=why):
            RouteFile((routes(),), "").save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = RouteFile((routes(),), "old").save(tmp_path / "file")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        RouteFile((routes(),), "new").save(path)
    assert RouteFile.load(path).fingerprint == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def file_of(*each: Routes) -> RouteFile:
    return RouteFile(each, "")


def test_comparison_names_tokens_that_choose_otherwise() -> None:
    one = routes()
    assert [str(each) for each in compare_routes(file_of(one), file_of(one))] == ["topk: equal"]
    sets, orders = one.experts.clone(), one.experts.flip(1)
    sets[1, 0, 4] = 9
    (found,) = compare_routes(file_of(one), file_of(replace(one, experts=sets)))
    assert (found.sets, found.orders, found.equal) == ((4,), (), False)
    (found,) = compare_routes(file_of(one), file_of(replace(one, experts=orders)))
    assert (found.sets, found.orders) == ((), tuple(range(TOKENS)))
    weights = {"softmax": one.weights["softmax"] + torch.eye(2, 7)[None] * 0.5}
    (found,) = compare_routes(file_of(one), file_of(replace(one, weights=weights)))
    assert str(found) == "topk: weights differ by up to 5.00e-01"
    (found,) = compare_routes(file_of(one), file_of(replace(one, weights={})))
    assert found.to_dict()["weights"] is None


def test_what_cannot_be_compared_is_said() -> None:
    one = routes()
    said = [str(each) for each in compare_routes(file_of(one), file_of(replace(one, name="argmax")))]
    assert said == ["topk: only in the first file", "argmax: only in the second file"]
    (found,) = compare_routes(file_of(one), file_of(replace(one, rule="")))
    assert "different classes" in found.problem
    (found,) = compare_routes(file_of(one), file_of(replace(one, ids=torch.arange(1, 8))))
    assert "not the same" in found.problem


def test_text_and_data_say_what_a_file_holds() -> None:
    held = file_of(routes())
    text = route_text(held)
    assert "topk (model.py:3): 2 expert(s) for each of 7 tokens, torch.uint8, 2 execution classes" in text
    assert "1 fragile token(s): 3" in text
    (found,) = routes_to_dict(held)["routes"]
    assert sum(found["occupancy"]) == TOKENS * CHOSEN
    assert found["fragile"] == [3]
    json.dumps(found, allow_nan=False)
