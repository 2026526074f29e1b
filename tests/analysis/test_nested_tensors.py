"""Encoders that pack padded rows into nested tensors, which a trace never does, are refused where they are given a mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
PADDED = torch.tensor([[1, 0, 0], [4, 5, 0]])


class Encoder(nn.Module):
    def __init__(self, nested: bool = True, masked: bool = True) -> None:
        super().__init__()
        self.embedding, self.masked = nn.Embedding(7, 8), masked
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.encoder(self.embedding(ids), None, (ids == 0) if self.masked else None)
        return found


def test_an_encoder_with_nested_tensors_that_is_given_a_mask_is_refused() -> None:
    model = Encoder()
    with pytest.raises(CaptureError, match=r"module 'encoder' \(TransformerEncoder\) .* enable_nested_tensor=False"):
        foldfx.capture(model, (IDS,))
    assert not model.encoder._forward_pre_hooks


@pytest.mark.parametrize(("nested", "masked"), [(False, True), (True, False)], ids=["no nested tensors", "no mask"])
def test_any_other_is_captured_and_right_for_padded_calls(nested: bool, masked: bool) -> None:
    model = Encoder(nested, masked)
    program = foldfx.capture(model, (IDS,))
    for ids in (IDS, PADDED):
        with torch.no_grad():
            torch.testing.assert_close(program.module(ids), model(ids))
