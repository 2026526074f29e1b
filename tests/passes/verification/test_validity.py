"""Evidence over time: every way to change a tensor makes it stale, and the same way without a change does not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx

VOCABULARY = 11


class Scorer(nn.Module):
    """`embedding`, `up` and `down` fold to a table and leave; `head`, `norm`, `bias` and `shift` stay, shared."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.up, self.act, self.down = nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)
        self.head, self.norm = nn.Linear(8, 4), nn.LayerNorm(4)
        self.register_buffer("bias", torch.randn(4))
        self.shift = [torch.randn(4)]
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = torch.tanh(self.down(self.act(self.up(self.embedding(ids)))) + hidden)
        return self.norm(self.head(x)) + self.bias + self.shift[0]


def examples() -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(VOCABULARY, (2, 3)), torch.randn(2, 3, 8)))]


def compiled(model: nn.Module, **options: Any) -> foldfx.Result:
    return foldfx.compile(model, examples(), dynamic=False, **options)


@pytest.fixture(scope="module")
def shared() -> tuple[Scorer, foldfx.Result]:
    """Compiled once; tests get them through `model` and `result`."""
    torch.manual_seed(0)
    model = Scorer()
    return model, compiled(model)


@pytest.fixture
def model(shared: tuple[Scorer, foldfx.Result]) -> Iterator[Scorer]:
    """The model; it and the folded module are put back after the test, but for values of `shift` and folded code."""
    modules = [*shared[0].modules(), *shared[1].module.modules()]
    held = [
        {name: copy.copy(value) if isinstance(value, dict) else value for name, value in vars(each).items()} for each in modules
    ]
    data = [
        (tensor, tensor.data, tensor.detach().clone())
        for each in modules
        for tensor in each.state_dict(keep_vars=True).values()
    ]
    yield shared[0]
    for each, attributes in zip(modules, held, strict=True):
        vars(each).clear()
        vars(each).update(attributes)
    for tensor, before, values in data:
        tensor.data, tensor.grad, tensor._backward_hooks = before.copy_(values), None, None
    assert shared[1].validity().state != "stale"


@pytest.fixture
def result(shared: tuple[Scorer, foldfx.Result], model: Scorer) -> foldfx.Result:
    """The result of compiling `model`."""
    assert shared[0] is model
    assert shared[1].accepted
    return shared[1]


def table_of(result: foldfx.Result) -> tuple[str, Tensor]:
    return next((name, tensor) for name, tensor in result.module.named_buffers() if name.startswith("foldfx_tables"))


def numpy_write(tensor: Tensor, change: float) -> None:
    tensor.detach().numpy().reshape(-1)[0] += change


def data_assign(tensor: Tensor, change: float) -> None:
    tensor.data = tensor.data + change


def data_write(tensor: Tensor, change: float) -> None:
    tensor.data.mul_(1 + change)


def no_grad_write(tensor: Tensor, change: float) -> None:
    with torch.no_grad():
        tensor.copy_(tensor + change)


def view_write(tensor: Tensor, change: float) -> None:
    view = tensor.detach().view(-1)
    view[-1] = view[-1] + change


WRITES = (numpy_write, data_assign, data_write, no_grad_write, view_write)
PLACES = ("embedding.weight", "head.weight", "bias", "table")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_makes_stale_and_names_the_tensor_and_one_of_the_same_values_does_not(
    write: Callable[[Tensor, float], None], place: str, model: Scorer, result: foldfx.Result
) -> None:
    name, tensor = table_of(result) if place == "table" else (place, model.state_dict(keep_vars=True)[place])
    write(tensor, 0.0)
    assert result.validity().state == "verified"
    write(tensor, 0.5)
    validity = result.validity()
    holders = {"table": ["folded"], "embedding.weight": ["original"]}.get(place, ["original", "folded"])
    assert (validity.state, list(validity.which)) == ("stale", [f"{who} {name}: contents" for who in holders])


@pytest.mark.parametrize("who", ["original", "folded"])
def test_a_round_trip_through_half_makes_stale_and_one_through_double_does_not(
    who: str, model: Scorer, result: foldfx.Result
) -> None:
    module = model if who == "original" else result.module
    module.float().double().float()
    assert result.validity().state == "verified"
    module.half().float()
    validity = result.validity()
    assert validity.state == "stale"
    for name, _ in module.named_parameters():
        assert (f"{who} {name}: contents" in validity.which) is not name.startswith("norm")  # ones and zeros survive


@pytest.mark.parametrize("who", ["original", "folded"])
def test_load_state_dict_makes_stale_where_the_values_are_others(who: str, model: Scorer, result: foldfx.Result) -> None:
    module = model if who == "original" else result.module
    same = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(same)
    assert result.validity().state == "verified"
    changed = "embedding.weight" if who == "original" else table_of(result)[0]
    module.load_state_dict(same | {changed: same[changed] + 1})
    validity = result.validity()
    assert (validity.state, validity.which) == ("stale", (f"{who} {changed}: contents",))


def test_a_tensor_outside_the_registered_state_counts(model: Scorer, result: foldfx.Result) -> None:
    model.shift[0].mul_(1)
    assert result.validity().state == "verified"
    model.shift[0].mul_(2)
    validity = result.validity()
    model.shift[0].mul_(0.5)
    assert "original shift[0]: contents" in validity.which
    assert validity.state == "stale"


def unregister(model: Scorer) -> None:
    model.head.bias = None  # type: ignore[assignment]


def grow(model: Scorer) -> None:
    model.embedding.weight = nn.Parameter(torch.cat([model.embedding.weight, model.embedding.weight[:1]]))


OTHER_CHANGES: dict[str, tuple[Callable[[Scorer], Any], str]] = {
    "dtype": (lambda model: model.double(), "original down.bias: dtype torch.float64, was torch.float32"),
    "shape": (grow, "original embedding.weight: shape [12, 32], was [11, 32]"),
    "device": (lambda model: model.up.to("meta"), "original up.weight: device meta, was cpu"),
    "a tensor gone": (unregister, "original head.bias: gone"),
    "a tensor more": (lambda model: model.register_buffer("more", torch.ones(1)), "original more: was not there"),
    "training mode": (lambda model: model.train(), "original <root>: training mode and 6 more"),
    "a hook": (lambda model: model.up.register_forward_hook(print), "original up: hooks (_forward_hooks)"),
}


@pytest.mark.parametrize("kind", OTHER_CHANGES)
def test_other_changes_make_stale(kind: str, model: Scorer, result: foldfx.Result) -> None:
    change, named = OTHER_CHANGES[kind]
    change(model)
    assert named in result.validity().which
    assert result.validity().state == "stale"


UNCHANGED: dict[str, Callable[[Scorer], Any]] = {
    "dtype": lambda model: model.float(),
    "parameters replaced by equal ones": lambda model: setattr(
        model.embedding, "weight", nn.Parameter(model.embedding.weight.detach().clone())
    ),
    "device": lambda model: model.to("cpu"),
    "training mode and back": lambda model: model.train().eval(),
    "a call": lambda model: model(*examples()[0].args),
    "gradients": lambda model: model(*examples()[0].args).sum().backward(),
}


@pytest.mark.parametrize("kind", UNCHANGED)
def test_what_changes_nothing_does_not(kind: str, model: Scorer, result: foldfx.Result) -> None:
    UNCHANGED[kind](model)
    assert str(result.validity()) == "verified"


def test_mode_hooks_and_code_of_the_folded_module_count(result: foldfx.Result) -> None:
    result.module.train()
    assert any(text.startswith("folded <root>: training mode") for text in result.validity().which)
    result.module.eval()
    handle = result.module.register_forward_pre_hook(print)
    assert result.validity().which == ("folded <root>: hooks (_forward_pre_hooks)",)
    handle.remove()
    result.module.recompile()
    assert result.validity().state == "verified"
    last = next(node for node in result.module.graph.nodes if node.target is torch.ops.aten.tanh.default)
    last.target = torch.ops.aten.sigmoid.default
    result.module.recompile()
    validity = result.validity()
    last.target = torch.ops.aten.tanh.default
    result.module.recompile()
    assert validity.which == ("folded code: other code",)


def test_an_attribute_that_comes_is_named(model: Scorer, result: foldfx.Result) -> None:
    model.temperature, model._calls = 2.0, 1
    assert result.validity().which == ("original temperature: 2.0, was absent",)


def test_an_attribute_of_the_class_is_named(model: Scorer, result: foldfx.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.act), "slope", 0.5, raising=False)
    assert "original act.slope: 0.5, was absent" in result.validity().which


def test_process_wide_hooks_count(result: foldfx.Result) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert result.validity().state == "stale"
        assert "process-wide hooks" in str(result.validity())
    finally:
        handle.remove()
    assert result.validity().state == "verified"


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_other_settings_make_historical(model: Scorer, result: foldfx.Result, request: pytest.FixtureRequest) -> None:
    assert result.validity().state == "verified"
    request.getfixturevalue("two_threads")
    assert str(result.validity()) == "historical\n  setting threads: 2, was 1"
    model.head.weight.data.mul_(2)
    assert result.validity().state == "stale"
    assert "setting" not in str(result.validity())


def test_strides_alone_make_historical(model: Scorer, result: foldfx.Result) -> None:
    model.up.weight.data = model.up.weight.data.t().contiguous().t()
    validity = result.validity()
    assert (validity.state, validity.which) == ("historical", ("original up.weight: strides (1, 64), were (32, 1)",))


class Counting(Scorer):
    """Writes a buffer when called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        self.count += 1
        return super().forward(ids, hidden)


def test_calls_that_write_a_buffer_do_not_make_stale_but_other_buffers_do() -> None:
    model = Counting()
    result = compiled(model)
    model(*examples()[0].args)
    result.module(*examples()[0].args)
    assert model.count == result.module.count == 1
    assert result.validity().state == "verified"
    model.count = model.count.double()
    assert result.validity().which == ("original count: dtype torch.float64, was torch.float32",)


def test_a_long_answer_is_cut_short(model: Scorer, result: foldfx.Result) -> None:
    model.half().float()
    validity = result.validity()
    lines = str(validity).splitlines()
    assert lines[:2] == ["stale", "  original embedding.weight: contents"]
    assert lines[-1] == f"  and {len(validity.which) - 8} more"
    assert validity.to_dict() == {"state": "stale", "which": list(validity.which)}
