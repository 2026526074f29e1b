"""Reproducers: what they show, and that they are whole or absent."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

import foldfx
from foldfx._torch import copy_graph
from foldfx.analysis.program import graph_module
from foldfx.inspection.reproducer import write_reproducer

aten = torch.ops.aten
LIMITS = foldfx.Limits().to_dict()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("turned", torch.randn(4, 4).t())
        self.eval()

    def forward(self, ids: Tensor, shift: Tensor, factor: float = 2.0, flag: Any = None) -> dict[str, Tensor]:
        self.seen.add_(1)
        hidden = self.embedding(ids) @ self.turned * factor + shift
        return {"scores": self.head(hidden), "last": ids.sum(1) + 1}


@pytest.fixture(scope="module")
def program() -> GraphModule:
    return foldfx.capture(Model(), (torch.randint(7, (3, 5)), torch.randn(5, 4), 2.0, None)).module


def inputs() -> list[Any]:
    """The program's flat inputs; the tensors are neither contiguous nor of the traced sizes."""
    return [torch.randint(7, (2, 6)).t(), torch.randn(4).expand(2, 4), 2.0, None]


def write(folder: Path, reference: GraphModule, candidate: GraphModule, given: list[Any] | None = None, **other: Any) -> Path:
    options = {"title": "One element differs", "limits": LIMITS, "threads": 1, **other}
    return write_reproducer(folder, reference, candidate, inputs() if given is None else given, **options)


def changed(program: GraphModule, change: Callable[[GraphModule], None]) -> GraphModule:
    """A copy of the program, over the same tensors, with a planted fault."""
    result = graph_module(program, copy_graph(program.graph))
    change(result)
    result.recompile()
    return result


def one_element(module: GraphModule) -> None:
    wrong = module.turned.clone(memory_format=torch.preserve_format)
    wrong[1, 2] += 1e-3
    module.turned = wrong


def lose_the_update(module: GraphModule) -> None:
    (node,) = module.graph.find_nodes(op="call_function", target=aten.copy_.default)
    module.graph.erase_node(node)


def count_one_less(module: GraphModule) -> None:
    nodes = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    (node,) = [node for node in nodes if not node.meta["val"].is_floating_point()]
    node.args = (node.args[0], 0)


def run(script: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The script's exit code, run in this process."""
    monkeypatch.syspath_prepend(script.parent)
    for name in ("reference", "candidate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    for name in ("reference", "candidate"):
        sys.modules.pop(name, None)
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (one_element, "output ['scores']: max-abs"),
        (lose_the_update, "buffer"),
        (count_one_less, "output ['last']: "),
    ],
)
def test_the_script_shows_a_planted_fault(
    program: GraphModule,
    fault: Callable[[GraphModule], None],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = write(tmp_path / "shown", program, changed(program, fault))
    assert run(script, monkeypatch) == 1
    out = capsys.readouterr().out
    assert out.startswith("different\n  example 0: ")
    assert said in out
    twin = write(tmp_path / "twin", program, changed(program, lambda module: None))
    assert run(twin, monkeypatch) == 0
    assert capsys.readouterr().out == "equivalent_on\n"


def test_a_difference_within_the_limits_is_none(program: GraphModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loose = foldfx.Limits(max_abs={torch.float32: 1.0}, relative_l2={torch.float32: float("inf")}).to_dict()
    script = write(tmp_path / "here", program, changed(program, one_element), limits=loose)
    assert "relative_l2={torch.float32: float('inf')}" in script.read_text()
    assert run(script, monkeypatch) == 0


def test_it_runs_on_its_own_from_anywhere(program: GraphModule, tmp_path: Path) -> None:
    """In a process and a working directory of its own, after the directory was moved."""
    write(tmp_path / "first", program, changed(program, one_element))
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = Path(foldfx.__file__).resolve().parent / ".typing"
    done = subprocess.run(
        [sys.executable, moved / "reproduce.py"],
        cwd=elsewhere,
        env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "different"), done.stderr


def test_the_directory_holds_these_files(program: GraphModule, tmp_path: Path) -> None:
    script = write(tmp_path / "new" / "here", program, changed(program, one_element))
    files = {file.name: file for file in script.parent.iterdir()}
    assert files.keys() == {
        *("reproduce.py", "reference.py", "candidate.py", "state.json", "state.safetensors"),
        *("inputs.json", "inputs.safetensors"),
    }
    assert all(file.read_text().endswith("\n") for name, file in files.items() if not name.endswith(".safetensors"))
    assert files["reproduce.py"].read_text().startswith('"""One element differs\n')
    assert "THREADS = 1\n" in files["reproduce.py"].read_text()
    assert "torch.bfloat16: 0.016" in files["reproduce.py"].read_text()
    assert list((tmp_path / "new").iterdir()) == [script.parent]


def test_a_tensor_under_several_names_is_stored_once(program: GraphModule, tmp_path: Path) -> None:
    script = write(tmp_path / "here", program, changed(program, one_element))
    stored = load_file(script.parent / "state.safetensors")
    names = json.loads((script.parent / "state.json").read_text())
    assert names["candidate"]["names"]["embedding.weight"] == "reference.embedding.weight"
    assert names["reference"]["names"]["head.weight"] == "reference.embedding.weight"
    assert stored.keys() == {*(f"reference.{name}" for name in ("embedding.weight", "seen", "turned")), "candidate.turned"}


def test_the_call_comes_back_as_it_was(program: GraphModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, dtypes, strides, what is one tensor, limits and threads, as the script hands them to `foldfx.verify`."""
    seen: dict[str, Any] = {}

    def verify(reference: nn.Module, candidate: nn.Module, examples: list[foldfx.Example], limits: foldfx.Limits) -> Any:
        seen.update(modules=(reference, candidate), args=examples[0].args, limits=limits)
        return SimpleNamespace(verdict="undecided", because=("the reference differs from itself",))

    monkeypatch.setattr(foldfx, "verify", verify)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: seen.update(threads=threads))
    given = inputs()
    assert run(write(tmp_path / "here", program, program, given, threads=3), monkeypatch) == 2
    assert seen["limits"] == foldfx.Limits()
    assert seen["threads"] == 3
    assert_alike(list(seen["args"]), given)
    for module in seen["modules"]:
        assert_alike(
            [module.turned, module.seen, module.embedding.weight], [program.turned, program.seen, program.embedding.weight]
        )
        assert module.head.weight is module.embedding.weight
    one, other = seen["modules"]
    assert one.seen.data_ptr() != other.seen.data_ptr(), "what one program writes, the other would read"


def assert_alike(found: list[Any], given: list[Any]) -> None:
    assert len(found) == len(given)
    for one, other in zip(found, given, strict=True):
        if isinstance(other, Tensor):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            assert one.equal(other)
        else:
            assert (type(one), repr(one)) == (type(other), repr(other))


def identity(count: int) -> GraphModule:
    """A program that returns its inputs."""
    graph = Graph()
    graph.output(tuple(graph.placeholder(f"input{place}") for place in range(count)))
    return GraphModule(nn.Module(), graph)


def test_inputs_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.randn(3)
    given = [
        *(True, 3, -2.5, float("-inf"), "text \\ 'ü'", None, shared, shared),
        *(torch.empty(0, 4), torch.tensor(2, dtype=torch.uint8), torch.randn(2, 3, 4).transpose(0, 2)[::2]),
        *(
            torch.randn(6).bfloat16().as_strided((4, 3), (1, 1)),
            torch.tensor([1 + 2j]).conj(),
            torch.randn(2, 1, 3).expand(2, 5, 3),
        ),
    ]
    seen: list[Any] = []
    monkeypatch.setattr(
        foldfx, "verify", lambda *of, **_: seen.extend(of[2][0].args) or SimpleNamespace(verdict="", because=())
    )
    run(write(tmp_path / "here", identity(len(given)), identity(len(given)), given), monkeypatch)
    assert_alike(seen, given)
    assert seen[6] is seen[7]


@pytest.mark.parametrize("title", ['say "so"', '"""', 'ends with a "', "back\\slash \\N{x} \\", "two\nlines", "größer"])
def test_any_title_is_a_docstring(title: str, tmp_path: Path) -> None:
    script = write(tmp_path / "here", identity(1), identity(1), [1], title=title)
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")), clean=False)
    assert docstring is not None
    assert docstring.startswith(f"{title}\n\nRuns wherever")


def test_an_empty_directory_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert write(tmp_path / "empty", identity(1), identity(1), [1]) == tmp_path / "empty" / "reproduce.py"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    (tmp_path / "file").write_text("")
    for name in ("full", "file"):
        with pytest.raises(FileExistsError, match="is not an empty directory"):
            write(tmp_path / name, identity(1), identity(1), [1])
    assert {each.name for each in tmp_path.iterdir()} == {"empty", "full", "file"}
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["mine"]


def nested_graph() -> GraphModule:
    graph = Graph()
    graph.placeholder("x")
    graph.output(graph.get_attr("inner"))
    return GraphModule({"inner": identity(1)}, graph)


@pytest.mark.parametrize(
    ("candidate", "given", "other", "why"),
    [
        (nested_graph(), [1], {}, "node inner reads inner, a nested graph"),
        (identity(2), [1], {}, "the candidate takes 2 inputs and 1 are given"),
        (identity(1), [[1]], {}, "input 0 is a list"),
        (identity(1), [torch.eye(2).to_sparse()], {}, "input.0 is a tensor of torch.float32, torch.sparse_coo"),
        (identity(1), [torch.ones(2, dtype=torch.complex128)], {}, "input.0 is a tensor of torch.complex128"),
        (identity(1), [torch.ones(2, device="meta")], {}, "on meta, which safetensors cannot hold"),
        (identity(1), [1], {"threads": 0}, "threads is 0"),
        (
            identity(1),
            [1],
            {"limits": {**LIMITS, "max_abs": {"float": 1.0, "torch.nn": 1.0}}},
            "dtype 'torch.nn', which torch has not",
        ),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    candidate: GraphModule, given: list[Any], other: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        write(tmp_path / "here", identity(1), candidate, given, **other)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("foldfx.inspection.reproducer.save_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path / "here", identity(1), identity(1), [1])
    assert list(tmp_path.iterdir()) == []
