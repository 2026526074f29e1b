"""Public reports on parameters, buffers and saved state, each under its number."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError
from foldfx.passes.tables.runner import Ids, RegionRunner

Block = Callable[..., Any]
Fold = Callable[..., foldfx.Result]
Agree = Callable[..., None]

VOCABULARY, WIDTH = 11, 32


class Tied(nn.Module):
    """Its head is its embedding; what is read beside it folds."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.gate = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return self.head(x.cumsum(1)) * torch.sigmoid(self.gate(x)).mean(-1, keepdim=True)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_pytorch_114743_125192_124132_R9_tied_head(fold: Fold, tmp_path: Path) -> None:
    """Tied weights keep both names and one storage through the fold, a deep copy, and a file."""
    model = Tied()
    result = fold(model, dynamic=True)
    save_model(result.module, str(tmp_path / "folded.safetensors"))
    other = fold(Tied()).module
    load_model(other, str(tmp_path / "folded.safetensors"), strict=True)
    ids = torch.randint(VOCABULARY, (3, 5))
    for module in (result.module, copy.deepcopy(result.module), other):
        state = module.state_dict()
        assert {"embedding.weight", "head.weight"} <= state.keys()
        assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
        assert torch.equal(module(ids), result.module(ids))


@pytest.mark.parametrize("tied", [True, False])
def test_safetensors_98_202_304_493_shared_tensors(tied: bool, fold: Fold, tmp_path: Path) -> None:
    """`save_file` refuses shared tensors: a fold adds none, and takes none away. Also unsloth#1157, LlamaFactory#10137,
    exllamav2#320."""
    model = Tied(tied)
    folded, path = fold(model).module, str(tmp_path / "state.safetensors")
    for module in (model, folded):
        if tied:
            with pytest.raises(RuntimeError, match="share memory"):
                save_file(module.state_dict(), path)
        else:
            save_file(module.state_dict(), path)
            assert load_file(path).keys() == module.state_dict().keys()


class Scale(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale


@pytest.mark.parametrize("read_again", [False, True])
def test_pytorch_127643_buffer_of_the_root_passed_to_a_layer(read_again: bool, block: Block, fold: Fold) -> None:
    """The buffer belongs to the root, its reader is elsewhere: it goes with its last reader and not before."""
    model = block(
        lambda self, ids: self.child(self.rows(ids), self.scale) + (self.scale if read_again else 0),
        child=Scale(),
        scale=torch.randn(4),
    )
    result = fold(block(lambda self, ids: model(ids).cumsum(1) * (model.scale if read_again else 1), inner=model))
    assert ("inner.scale" in result.module.state_dict()) is read_again


@pytest.mark.parametrize("persistent", [False, True])
def test_pytorch_118876_R10_buffers_that_are_not_saved(persistent: bool, block: Block, fold: Fold) -> None:
    """fx promotes non-persistent buffers to the state dict; foldfx leaves each as it was registered."""
    model = block(lambda self, ids: self.rows(ids).cumsum(1) * self.cache)
    model.register_buffer("cache", torch.randn(4), persistent=persistent)
    module = fold(model).module
    assert "cache" in dict(module.named_buffers())
    assert ("cache" in module.state_dict()) is persistent


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_pytorch_46925_deepcopy_of_a_sequential(agree: Agree, fold: Fold) -> None:
    """Names of state that start with digits survive tracing, folding, a deep copy and strict loading."""
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))
    result = fold(model.eval())
    assert {"4.weight", "4.bias"} <= result.module.state_dict().keys()
    twin = copy.deepcopy(result.module)
    twin.load_state_dict(result.module.state_dict(), strict=True)
    agree(model, twin, torch.randint(VOCABULARY, (3, 5)))


@pytest.mark.parametrize("wrap", ["the model", "a layer"])
def test_nanogpt_325_pytorch_101107_orig_mod(wrap: str, block: Block, fold: Fold, ids: Tensor) -> None:
    """torch.compile's wrapper prefixes state names with `_orig_mod`: refused by name. `Module.compile()` has no wrapper.

    Also open_clip#639, lightning#20233, timm#2003, fairseq#5096.
    """
    model = block(lambda self, ids: self.rows(ids).cumsum(1))
    if wrap == "a layer":
        model.project.compile(backend="eager")
        fold(model)
        model.project = torch.compile(model.project, backend="eager")
    compiled = model if wrap == "a layer" else torch.compile(model, backend="eager")
    place = "'project'" if wrap == "a layer" else "'<root>'"
    with pytest.raises(CaptureError, match=f"module {place}.* wrapper of torch.compile.*capture the module inside"):
        foldfx.compile(compiled, [foldfx.Example((ids,))])


def test_torchscript_is_refused(ids: Tensor) -> None:
    """A scripted module has no Python forward to trace."""
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(nn.Sequential(nn.Embedding(VOCABULARY, 4)).eval())
    with pytest.raises(CaptureError, match=r"module '<root>' .* is TorchScript; capture the nn\.Module it was made from"):
        foldfx.compile(scripted, [foldfx.Example((ids,))])


def test_pytorch_103990_the_original_goes_on_working(block: Block, fold: Fold, ids: Tensor) -> None:
    """Freezing discarded parameters that the eager model still needed; here the original keeps all of its own."""
    model = block(lambda self, ids: self.head(self.rows(ids).cumsum(1)))
    expected, names = model(ids), set(model.state_dict())
    result = fold(model)
    assert torch.equal(model(ids), expected)
    assert set(model.state_dict()) == names
    assert result.module.get_parameter("head.weight") is model.head.weight
    model.train()(ids).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_pytorch_147062_tables_are_built_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory while freezing: of a region with a wide inner value, no call computes the whole vocabulary at once."""
    vocabulary, largest = 9_000, 0
    model = nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 2)).eval()

    run = RegionRunner.__call__

    def watched(self: RegionRunner, ids: Ids, *given: Any) -> list[Tensor]:
        nonlocal largest
        largest = max(largest, *(each.numel() for each in ids.values()), 0)
        return run(self, ids, *given)

    monkeypatch.setattr(RegionRunner, "__call__", watched)
    program = foldfx.capture(model, (torch.randint(vocabulary, (2, 3)),))
    _, _, rewrites = foldfx.Pipeline().rewrite(program)
    assert rewrites
    assert 0 < largest <= vocabulary // 2


def in_place(model: Any) -> None:
    with torch.no_grad():
        model.project.weight.mul_(2)


WRITES: dict[str, Callable[[Any], object]] = {
    "in place": in_place,
    "through .data": lambda model: model.project.weight.data.mul_(2),
    "by loading": lambda model: model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}),
}


@pytest.mark.parametrize("write", WRITES)
def test_stable_fast_27_R14_weights_updated_after_the_fold(write: str, block: Block, fold: Fold) -> None:
    """Tables do not follow the weights: the result says that it is stale, by whatever means they were changed."""
    model = block(lambda self, ids: self.rows(ids).cumsum(1))
    result = fold(model)
    assert result.validity().state == "verified"
    WRITES[write](model)
    validity = result.validity()
    assert validity.state == "stale"
    assert any("project.weight" in each for each in validity.which)
