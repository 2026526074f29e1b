"""`foldfx routes build | check`: what is printed and written, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from foldfx import cli
from foldfx.runtime.tr_hash import TRHashEngine, TRHashEngineConfig

BUILD = ["routes", "build", "token_id_multi_hash", "--vocab-size", "32000", "--num-experts", "4", "--top-k", "2"]
FIRST_LAYER = "4e47a3ce"


def test_build_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The released first layer: digest and occupancy as published."""
    out = tmp_path / "table.safetensors"
    assert cli.main([*BUILD, "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"route_table: K=2, V=32,000, E=4, sha256 {FIRST_LAYER}")
    assert printed[1:] == ["  route 0: 7,897 8,068 8,016 8,019 tokens", "  route 1: 8,057 8,050 7,901 7,992 tokens"]
    assert load_file(out)["route_table"].dtype == torch.uint8
    assert cli.main(["routes", "check", str(out), "--strategy", "token_id_multi_hash"]) == 0
    capsys.readouterr()
    assert cli.main(["routes", "check", str(out), "--strategy", "modulo_cyclic"]) == 2
    assert "tokens are routed otherwise than by modulo_cyclic" in capsys.readouterr().out


@pytest.mark.parametrize(
    "said", [["--layer-index", "3"], ["--route-seed", "5"], ["--route-hash-count", "4"]], ids=lambda said: said[0]
)
def test_check_takes_from_a_built_file_what_build_was_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: list[str]
) -> None:
    """Without options and with the strategy; what options say counts more."""
    out = tmp_path / "table.safetensors"
    assert cli.main([*BUILD, *said, "--out", str(out)]) == 0
    assert cli.main(["routes", "check", str(out)]) == 0
    assert cli.main(["routes", "check", str(out), "--strategy", "token_id_multi_hash"]) == 0
    capsys.readouterr()
    assert cli.main(["routes", "check", str(out), "--route-seed", "6"]) == 2
    assert "tokens are routed otherwise than by token_id_multi_hash" in capsys.readouterr().out


def test_check_compares_a_built_table_with_its_digest_and_construction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.safetensors"
    assert cli.main([*BUILD, "--out", str(out)]) == 0
    with safe_open(out, framework="pt") as held:
        table, said = held.get_tensor("route_table"), held.metadata()
    for changed, message in (
        ({"sha256": "0" * 64}, f"its sha256 is {FIRST_LAYER}"),
        ({"layer_index": "1"}, "tokens are routed otherwise than by token_id_multi_hash"),
        ({"strategy": "round_robin"}, "'round_robin' is not a valid TRHashStrategy"),
    ):
        save_file({"route_table": table}, out, said | changed)
        capsys.readouterr()
        assert cli.main(["routes", "check", str(out)]) == 2
        assert message in capsys.readouterr().out
    save_file({"route_table": table}, out, said)
    assert cli.main(["routes", "check", str(out)]) == 0


def test_check_refuses_another_number_of_experts_than_the_file_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights or metadata tell; a table for 4 experts would be in range for 16, too."""
    out = tmp_path / "table.safetensors"
    assert cli.main([*BUILD, "--out", str(out)]) == 0
    for file in (out, checkpoint(tmp_path)):
        for experts in ("16", "0"):
            assert cli.main(["routes", "check", str(file), "--num-experts", experts]) == 1
            assert f"--num-experts {experts}, but {file} has 4 for" in capsys.readouterr().err
        assert cli.main(["routes", "check", str(file), "--num-experts", "4"]) == 0


def test_build_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BUILD[:-1], "3"]) == 1
    assert capsys.readouterr().err == "foldfx: ValueError: top_k must be one of (1, 2, 4), got 3\n"
    assert cli.main([*BUILD[:2], "round_robin", *BUILD[3:]]) != 0


def test_files_that_cannot_be_written_or_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "absent" / "table.safetensors"
    assert cli.main([*BUILD, "--out", str(out)]) == 1
    assert f"--out {out} cannot be written: " in capsys.readouterr().err
    (text := tmp_path / "text").write_text("no tensors")
    assert cli.main(["routes", "check", str(text)]) == 1
    assert f"{text} is not a safetensors file: " in capsys.readouterr().err
    save_file({"route_table": torch.tensor([[0], [1]], dtype=torch.uint8)}, text, {"num_experts": "four"})
    assert cli.main(["routes", "check", str(text)]) == 1
    assert f"the metadata of {text} says that num_experts is 'four', no number" in capsys.readouterr().err


def checkpoint(folder: Path, **changes: torch.Tensor) -> Path:
    """Two layers of a model, as safetensors."""
    state = {}
    for layer in range(2):
        engine = TRHashEngine(TRHashEngineConfig(4, 20, 4, 2, 3, 2, layer_index=layer))
        state |= {f"layers.{layer}.mlp.engine.{name}": entry for name, entry in engine.state_dict().items()}
    file = folder / "model.safetensors"
    save_file(state | {f"layers.1.mlp.engine.{name}": entry for name, entry in changes.items()}, file)
    return file


def test_check_reads_every_layer_of_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkpoint(tmp_path)
    assert cli.main(["routes", "check", str(file), "--strategy", "token_id_balanced_hash", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == [f"layers.{layer}.mlp.engine.route_table" for layer in range(2)]
    assert {each["num_experts"] for each in found} == {4}
    assert cli.main(["routes", "check", str(file), "--strategy", "token_id_balanced_hash", "--route-seed", "1"]) == 2
    capsys.readouterr()
    assert cli.main(["routes", "check", str(file), "--strategy", "token_id_hierarchical_hash", "--json"]) == 2
    assert {each["num_experts"] for each in json.loads(capsys.readouterr().out)} == {4}


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("route_table", torch.full((2, 20), 7), "layers.1.mlp.engine.route_table: route_table contains an out-of-range"),
        ("route_table", torch.zeros(2, 20, dtype=torch.int64), "routes must select distinct experts"),
        ("fused_route_codes", torch.zeros(20, dtype=torch.uint8), "fused_route_codes disagrees with the route table"),
    ],
)
def test_check_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, entry: torch.Tensor, message: str
) -> None:
    assert cli.main(["routes", "check", str(checkpoint(tmp_path, **{name: entry}))]) == 2
    assert message in capsys.readouterr().out


def test_check_asks_for_what_the_file_does_not_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tables.safetensors"
    save_file({"topk_token_to_expert": torch.tensor([[0, 1], [1, 0]])}, file)
    assert cli.main(["routes", "check", str(file)]) == 1
    assert "pass --num-experts" in capsys.readouterr().err
    assert cli.main(["routes", "check", str(file), "--num-experts", "2"]) == 0
    save_file({"other": torch.zeros(1)}, file)
    assert cli.main(["routes", "check", str(file)]) == 1
    assert "holds no entry named route_table" in capsys.readouterr().err
    assert cli.main(["routes", "check", str(tmp_path / "none")]) == 1
    assert "there is no file" in capsys.readouterr().err
