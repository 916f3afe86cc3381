"""The registry's own reading of kolm's layout and the loader's agree, for every choice that decides about tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.client.registry.head_folder import manifest_of
from services.generation.drafting.eagle3.config import head_shapes
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.folders.identity import base_manifest
from services.registry.errors import BaseMismatch
from services.registry.head_check import check_fits, check_head
from services.registry.head_config import HeadConfig
from services.registry.object_blobs import ObjectBlobStore
from tests.fakes.heads import head_config, write_kolm, write_safeailab, write_speculators
from tests.fakes.tiny_model import make_tiny_model

CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"layers": 2},
    "biases": {"attention_bias": True, "output_bias": True, "mlp_bias": True},
    "norms": {"head_norms": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True},
    "own embeddings, other width": {"own_embeddings": True, "hidden_size": 32},
    "the whole vocabulary, five streams": {"draft_vocab_size": 384, "feature_layers": (0, 0, 1, 2, 2)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), layers=6)


@pytest.fixture
def base(model: Path) -> TargetConfig:
    return read_config(model)


def keep(store: ObjectBlobStore, paths: dict[str, Path]) -> None:
    for digest, path in paths.items():
        store.put(digest, path)


@pytest.mark.parametrize("choice", CHOICES)
def test_what_the_loader_takes_the_registry_takes(model: Path, base: TargetConfig, tmp_path: Path, choice: str) -> None:
    config = head_config(base, **CHOICES[choice])
    folder = tmp_path / "head"
    write_kolm(folder, config)
    assert HeadConfig.from_bytes((folder / "config.json").read_bytes()).shapes() == head_shapes(config)
    load_head(folder, base)

    described, store = base_manifest(model), ObjectBlobStore.open(str(tmp_path / "blobs"))
    manifest = manifest_of(folder, described.cid)
    (tmp_path / "base").write_bytes(described.to_bytes())
    keep(store, {part.digest: folder / part.name for part in manifest.files})
    keep(
        store, {"sha256:" + described.cid[13:]: tmp_path / "base", described.model_config.digest: model / "config.json"}
    )
    check_head(manifest, store)


@pytest.mark.parametrize("vocabulary", [{}, {"vocab_size": 384}])
def test_a_head_is_held_against_the_part_for_text(base: TargetConfig, tmp_path: Path, vocabulary: Any) -> None:
    write_kolm(tmp_path, head_config(base))
    config = HeadConfig.from_bytes((tmp_path / "config.json").read_bytes())
    text = {"hidden_size": base.hidden_size, "num_hidden_layers": base.layers}
    check_fits(config, json.dumps({"text_config": text | vocabulary}).encode())
    with pytest.raises(BaseMismatch, match="the base's hidden size is 63"):
        check_fits(config, json.dumps({"text_config": text | vocabulary | {"hidden_size": 63}}).encode())


@pytest.mark.parametrize("write", [write_kolm, write_safeailab, write_speculators])
def test_convert_writes_what_loads_to_the_same_head(
    model: Path, base: TargetConfig, tmp_path: Path, write: Any
) -> None:
    write(tmp_path / "theirs", head_config(base))
    words = ["heads", "convert", str(tmp_path / "theirs"), str(tmp_path / "ours"), "--model", str(model), "--json"]
    converted = CliRunner().invoke(app, words)
    assert converted.exit_code == 0, converted.stderr
    theirs, ours = load_head(tmp_path / "theirs", base), load_head(tmp_path / "ours", base)
    assert ours.config.feature_layers in (theirs.config.feature_layers, *theirs.other_layers)
    assert replace(ours.config, feature_layers=theirs.config.feature_layers) == theirs.config
    assert (ours.target_ids == theirs.target_ids).all()
    assert all((ours.tensors[name] == tensor).all() for name, tensor in theirs.tensors.items())
    document = json.loads((tmp_path / "ours" / "config.json").read_bytes())
    assert document["layout"] == "kolm.eagle3.v1"

    chosen = CliRunner().invoke(app, [*words, "--feature-layers", "0,1,2"])
    assert json.loads(chosen.stdout)["feature_layers"] == [0, 1, 2]
    refused = CliRunner().invoke(app, [*words, "--feature-layers", "0,1,9"])
    assert (refused.exit_code, "[9]" in refused.stderr) == (2, True)
