"""The facts of a program as a table and as data."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import foldfx
from foldfx.inspection.facts_view import facts_table, facts_to_dict


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(5, 16), nn.Linear(16, 4)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.relu(self.project(self.embedding(ids))).cumsum(1)


@pytest.fixture(scope="module")
def facts() -> foldfx.Facts:
    return foldfx.analyze(Model(), (torch.randint(5, (2, 3)),), dynamic=False)


def test_the_data_says_what_the_facts_say(facts: foldfx.Facts) -> None:
    data = json.loads(json.dumps(facts_to_dict(facts)))
    assert data["schema_version"] == 1
    values = {value["name"]: value for value in data["values"]}
    assert list(values) == [node.name for node in facts]
    assert {name for name, value in values.items() if value["token_only"]} == {"ids", "embedding", "linear", "relu"}
    assert values["relu"]["depends_on"] == ["token(ids)"]
    assert values["relu"]["rows"] == "[ids[0]][ids[1]][4]"
    assert values["cumsum"]["rows"] is None
    assert "it would mix the rows of different tokens" in values["cumsum"]["because"]
    assert __file__.rpartition("/")[2] in values["cumsum"]["at"]


def test_the_table_shows_every_computed_value_with_its_brackets(facts: foldfx.Facts) -> None:
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(facts_table(facts))
    text = console.export_text()
    computed = [node for node in facts if node.op == "call_function"]
    for node in computed:
        (line,) = [line for line in text.splitlines() if f"│ {node.name} " in line]
        assert facts[node].because.text in line
    assert "[ids[0]][ids[1]][4]" in text
