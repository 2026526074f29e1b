"""The report as a page: complete, self-contained, deterministic, safe from what a model's names hold, and not too big."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.inspection.html import render
from foldfx.inspection.html.coverage import not_covered
from foldfx.inspection.outline import Outline

from .synthetic import EVIL, REPORT, chain, chain_page, planted_page

ROOT = Path(foldfx.__file__).parent
SECTIONS = ["summary", "graphs", "storage", "refusals", "decisions", "verification"]


class Page(HTMLParser):
    """What a page is made of.

    Attributes:
        elements: (tag, attributes), in order.
        texts: text by the element it stands in, without scripts and styles.
        scripts: the text of each script, by its type.
        unclosed: elements that were not closed, or were closed out of turn.
    """

    VOID: ClassVar = {"meta", "input", "br"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.unclosed: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.unclosed += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[str(self.elements[-1][1].get("type", "run"))] = data
        elif self._open and self._open[-1] != "style":
            self.texts.append(data)

    def all(self, tag: str, name: str) -> Iterator[str]:
        """Values of an attribute of every such element that has it."""
        yield from (str(attributes[name]) for found, attributes in self.elements if found == tag and name in attributes)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> Any:
        return json.loads(self.scripts["application/json"])


class Words(nn.Module):
    """Embedding, two layers that fold, a context, and a choice among experts by token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first, self.second = nn.Embedding(9, 32), nn.Linear(32, 48), nn.Linear(48, 4)
        self.eval()

    def forward(self, ids: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.second(torch.tanh(self.first(self.embedding(ids))))
        return scores.topk(2).indices, scores * scale


def run(**options: Any) -> foldfx.Result:
    torch.manual_seed(0)
    args = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.ones(2, 3, 1)
    return foldfx.compile(Words(), [foldfx.Example(args)], dynamic=False, **options)


@pytest.fixture(scope="module")
def result() -> foldfx.Result:
    return run()


@pytest.fixture(scope="module")
def page(result: foldfx.Result, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = result.write_html(tmp_path_factory.mktemp("page") / "report.html")
    return Page(path.read_text(encoding="utf-8"))


def test_it_is_one_well_formed_page_without_anything_from_elsewhere(page: Page) -> None:
    assert page.unclosed == []
    assert [*page.all("section", "id")] == SECTIONS
    assert [*page.all("a", "href")][1 : len(SECTIONS) + 1] == [f"#{name}" for name in SECTIONS]
    loading = {name for _, attributes in page.elements for name in attributes} & {"src", "srcset", "action", "style"}
    assert loading == set()
    assert all(address.startswith("#") for tag in ("a", "link", "image", "use") for address in page.all(tag, "href"))
    (policy,) = (content for content in page.all("meta", "content") if "default-src" in content)
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    style = (ROOT / "inspection/html/page.css").read_text()
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_identities_are_unique_and_labels_lead_somewhere(page: Page) -> None:
    names = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for attribute in ("aria-labelledby", "for"):
        assert {str(given[attribute]) for _, given in page.elements if attribute in given} <= set(names)
    used = set(re.findall(r'byId\("([\w-]+)"\)', page.scripts["run"]))
    assert used | {"lines", "panel", "hits", "found", "search", "step"} <= set(names)


def test_every_control_has_a_name_and_can_be_focused(page: Page) -> None:
    drawn = [given for tag, given in page.elements if tag == "g" and given.get("role") == "button"]
    assert drawn
    assert all(given["tabindex"] == "0" and given["data-node"] for given in drawn)
    pictures = [given for tag, given in page.elements if tag == "svg"]
    assert pictures
    assert all(given["role"] in ("img", "group") and given["aria-label"] for given in pictures)


def test_it_says_what_the_report_says(page: Page, result: foldfx.Result) -> None:
    data = result.report.to_dict()
    assert data["status"] == "accepted"
    for when in ("before", "after"):
        assert f"{data['storage'][when]['logical']:,}" in page.text
    for outcome in data["outcomes"]:
        assert outcome["reason"] in page.text
    for table_ in data["rewrites"][0]["tables"]:
        assert table_["state"] in page.text
    assert "fold_tokens ran 1×" in page.text
    assert "top-k of linear_1" in page.text
    assert "Not covered" in page.text
    for text in not_covered(data):
        assert text in page.text


def test_the_data_holds_every_graph_and_every_proof(page: Page, result: foldfx.Result) -> None:
    data = page.data
    names = [[data["values"][place][0] for place in step["rows"]] for step in data["steps"]]
    assert names == [[node.name for node in program.graph.nodes if node.op != "get_attr"] for _, program in result._run.steps]
    assert [step["name"] for step in data["steps"]] == ["captured", "fold_tokens", "lowering"]
    facts = foldfx.analysis.dependence.analyze_program(result._run.captured)
    assert data["facts"].keys() == {node.name for node in result._run.captured.graph.nodes}
    for node, fact in facts.items():
        _, _, because, _, parents, proved = data["facts"][node.name]
        assert data["strings"][because] == fact.because.text
        assert [data["strings"][each] for each in parents] == [parent.name for parent in fact.because.parents]
        assert proved == (fact.token_only or fact.constant)


def test_lines_stand_side_by_side(page: Page) -> None:
    *_, comparison = page.data["comparisons"]
    assert (comparison["before"], comparison["after"]) == (0, 2)
    sides: tuple[list[int], list[int]] = ([], [])
    for part in comparison["parts"]:
        for row in [part[:2]] if isinstance(part, list) else [(len(sides[0]) + n, len(sides[1]) + n) for n in range(part)]:
            for side, place in zip(sides, row, strict=True):
                side.extend([place] if place >= 0 else [])
    for side, step in zip(sides, ("before", "after"), strict=True):
        assert side == list(range(len(page.data["steps"][comparison[step]]["rows"])))
    assert {part[2] for part in comparison["parts"] if isinstance(part, list)} >= {"-+", "- "}


def test_a_graph_beside_itself_is_one_run_of_equal_lines(result: foldfx.Result) -> None:
    outline = chain(5)
    data = page_data([("captured", outline), ("again", outline)])
    assert [comparison["parts"] for comparison in data["comparisons"]] == [[7]]


def test_what_a_model_is_called_does_nothing(result: foldfx.Result) -> None:
    """Names of modules, state, lines, tokens and reasons hold markup; none of it becomes an element."""
    text = planted_page(result.report.to_dict())
    found = Page(text)
    assert found.unclosed == []
    assert sum(tag == "script" for tag, _ in found.elements) == 2
    assert not any(tag == "img" for tag, _ in found.elements)
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    assert "<script>alert" not in text
    assert found.scripts["run"] == (ROOT / "inspection/html/page.js").read_text()
    assert EVIL in found.text
    assert any(EVIL in text for text in found.data["strings"])


def test_the_script_makes_no_markup_of_text() -> None:
    script = (ROOT / "inspection/html/page.js").read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "http", "fetch("):
        assert way not in script


def test_files_stay_short() -> None:
    for name in ("page.css", "page.js"):
        assert len((ROOT / "inspection/html" / name).read_text().splitlines()) <= 420


def test_the_same_run_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    command = "import sys; from tests.inspection.test_html import run; run().write_html(sys.argv[1])"
    pages = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.html"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / ".typing"), str(ROOT))), "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-W", "ignore", "-c", command, str(path)], env=environment, check=True)
        pages.append(path.read_bytes())
    assert pages[0] == pages[1]


# ---- large graphs ----


def page_data(steps: Sequence[tuple[str, Outline]]) -> Any:
    return Page(render(REPORT, steps, {"values": []})).data


def test_a_graph_of_20_000_nodes_stays_small() -> None:
    began = time.process_time()
    text = chain_page(20_000, changed=1_000)
    assert time.process_time() - began < 20
    assert len(text.encode()) < 15_000_000


def test_a_llama_of_12_layers_takes_seconds(tmp_path: Path) -> None:
    ids = torch.randint(40, (2, 6))
    result = foldfx.compile(llama(40, 64, 96, 12), [foldfx.Example((ids,))], dynamic=False)
    assert result.accepted
    began = time.process_time()
    path = result.write_html(tmp_path / "llama.html", title="Llama")
    assert time.process_time() - began < 5
    found = Page(path.read_text(encoding="utf-8"))
    assert len(found.data["steps"][0]["rows"]) > 400
    assert path.stat().st_size < 2_000_000


def llama(*shape: int) -> nn.Module:
    """The model of the published case."""
    spec = importlib.util.spec_from_file_location("prior_cases", ROOT / "tests/passes/test_prior_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.Llama(*shape)
    return model
