"""The base's token embeddings: read without torch, pooled to the same bits alone and together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.generation.drafting.retrieval.input_layer import InputLayer, TokenVectors
from services.generation.target.errors import ModelNotFound, UnsupportedArchitecture, WeightsInvalid

EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sharded", [False, True])
def test_token_vectors_are_the_bits_that_torch_reads(model: Path, dtype: torch.dtype, sharded: bool) -> None:
    path = model / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    if sharded:
        save_file({EMBEDDINGS: tensors.pop(EMBEDDINGS)}, model / "one.safetensors")
        save_file(tensors, model / "two.safetensors")
        path.unlink()
        files = {EMBEDDINGS: "one.safetensors", **dict.fromkeys(tensors, "two.safetensors")}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        tensors = load_file(model / "one.safetensors")
    expected = tensors[EMBEDDINGS].to(torch.float32).numpy()
    vectors = TokenVectors.of_base(model)
    assert (vectors.count, vectors.dimensions) == expected.shape
    assert vectors.rows(slice(None)).tobytes() == expected.tobytes()
    assert vectors.rows(np.array([3, 0, 3])).tobytes() == expected[[3, 0, 3]].tobytes()


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


def configure(**change: object) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        document = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(document | change))

    return edit


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (shutil.rmtree, ModelNotFound, "no such directory"),
        (configure(architectures=["GPT2LMHeadModel"]), UnsupportedArchitecture, "GPT2LMHeadModel"),
        (configure(vocab_size=7), WeightsInvalid, r"\[384, 64\]; expected \[7, 64\]"),
        (rewrite(lambda t: t.pop(EMBEDDINGS)), WeightsInvalid, f"no tensor {EMBEDDINGS}"),
        (rewrite(lambda t: t.update({EMBEDDINGS: t[EMBEDDINGS].to(torch.int8)})), WeightsInvalid, "dtype I8"),
        (lambda d: (d / "model.safetensors").write_bytes(b"junk"), WeightsInvalid, "not a whole safetensors file"),
        (lambda d: (d / "model.safetensors").unlink(), WeightsInvalid, r"no model\.safetensors"),
    ],
)
def test_a_base_without_a_fitting_table_is_refused(
    model: Path, damage: Callable[[Path], object], kind: type[Exception], message: str
) -> None:
    damage(model)
    with pytest.raises(kind, match=message):
        TokenVectors.of_base(model)


def test_a_tokenizer_with_more_tokens_than_the_base_is_refused(model: Path) -> None:
    with pytest.raises(WeightsInvalid, match="its tokenizer has 385 tokens, its weights have embeddings for 384"):
        InputLayer.of_base(model, np.ones(385, np.float32))


def test_a_passage_and_a_request_of_the_same_tokens_have_the_same_bits(tiny_model: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(384, dtype=np.float32)
    layer = InputLayer.of_base(tiny_model, weights)
    tokens = rng.integers(0, 384, 4000)
    table = np.stack([np.zeros(2000), np.arange(2000) * 2, rng.integers(1, 40, 2000)], axis=1).astype(np.int64)
    table[:, 2] = np.minimum(table[:, 2], len(tokens) - table[:, 1])
    together = np.concatenate(list(layer.passages(tokens, table)))
    alone = [layer.request(tokens[first : first + count]) for _, first, count in table.tolist()]
    assert together.tobytes() == b"".join(row.tobytes() for row in alone)
