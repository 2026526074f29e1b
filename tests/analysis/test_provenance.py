"""Source lines name files as they are imported, so that reports do not depend on where a machine keeps them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import foldfx

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.grow = nn.Embedding(7, 8), nn.Linear(8, 32)
        self.eval()

    def forward(self, ids):
        return self.grow(self.embedding(ids)).mean(1)
"""


def model(file: Path) -> nn.Module:
    spec = importlib.util.spec_from_file_location(f"model_{file.parent.parent.name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    made = module.Model()
    assert isinstance(made, nn.Module)
    return made


@pytest.mark.parametrize("importable", [True, False])
def test_a_file_is_named_within_the_folder_it_is_imported_from(
    importable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in full where it is in none: then that is the only name it has."""
    reports = []
    for machine in ("one", "other"):
        file = tmp_path / machine / "models" / "tagger.py"
        file.parent.mkdir(parents=True)
        file.write_text(SOURCE)
        with monkeypatch.context() as patched:
            if importable:
                patched.syspath_prepend(tmp_path / machine)
            result = foldfx.compile(model(file), [foldfx.Example((torch.arange(6).reshape(2, 3),))])
        reports.append(json.dumps(result.report.to_dict()))
        assert result.accepted
        assert (str(tmp_path) in reports[-1]) is not importable
        assert "models/tagger.py:13" in reports[-1]
    assert (reports[0] == reports[1]) is importable
