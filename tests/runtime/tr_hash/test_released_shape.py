"""The example of the released 200M shape: its size, its tables, and a step."""

from __future__ import annotations

import torch

from foldfx.examples.tr_hash_200m import LAYERS, PARAMETERS, VOCABULARY, Decoder, layer_config, step
from foldfx.runtime.tr_hash import TRHashEngine

from .golden import routes


def test_the_decoder_has_the_released_number_of_parameters() -> None:
    model = Decoder(device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS == 201_194_368
    engine = model.layers[0].mlp
    assert isinstance(engine, TRHashEngine)
    assert sum(parameter.numel() for parameter in engine.parameters()) == 8_945_664
    assert layer_config(3).active_width_fraction == 3200 / 3328


def test_the_tables_are_the_released_ones() -> None:
    model = Decoder(device="meta")
    golden = {row[4]: row[-1] for row in routes()["large"] if row[:4] == ["token_id_multi_hash", 32_000, 4, 2] and row[6] == 2}
    assert len(golden) == 3
    for layer, digest in golden.items():
        engine = model.layers[layer].mlp
        assert isinstance(engine, TRHashEngine)
        assert engine.routes.sha256 == digest
    assert len(model.layers) == LAYERS


def test_a_step_lowers_the_loss() -> None:
    torch.manual_seed(0)
    model = Decoder()
    before, after = step(model, torch.randint(VOCABULARY, (1, 9)))
    assert after < before
