"""Passages near a request: embeddings by the model's input layer, and the index over them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as FastTokenizer

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.input_layer import Embedding, InputLayer, token_embeddings
from services.generation.drafting.retrieval.manifest import NAME, Blob, Manifest, StoreInvalid, StoreMismatch
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import ModelNotFound, UnsupportedArchitecture, WeightsInvalid
from services.generation.target.identity import tokenizer_cid
from tests.fakes.datastores import documents
from tests.fakes.tiny_families import MODELS, make_tiny_multimodal
from tests.fakes.tiny_head import edit_json, edit_tensors
from tests.fakes.tiny_model import make_tiny_model

TEXTS = [
    "The ledger keeps one receipt for every request.",
    "def compare(first, second):\n    return first == second\n",
] * 3
CID = "cidv1:sha256:" + "a" * 64


def store_of(base: Path, folder: Path) -> Manifest:
    tokenizer = FastTokenizer.from_file(str(base / "tokenizer.json"))
    builder = DatastoreBuilder(base, tokenizer, tokenizer_cid(base), BuildParameters(passage_tokens=16))
    return builder.build(documents(TEXTS), folder)


def test_a_store_names_its_base_and_finds_a_passage_by_its_own_text(
    target: CpuTarget, model: Path, tmp_path: Path
) -> None:
    manifest = store_of(model, tmp_path / "store")
    assert manifest.embedding == Embedding(target.base_cid)
    assert Manifest.read(tmp_path / "store") == manifest
    store = Datastore.open(tmp_path / "store", model, target.tokenizer_cid)
    for passage in (0, 2, 4):
        (nearest,) = store.nearest_passages(store.passage(passage), 1).tolist()
        assert store.passage(nearest).tolist() == store.passage(passage).tolist()


def test_a_store_of_another_base_is_refused_but_where_nothing_is_to_be_near(model: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "base", seed=1)
    cid = tokenizer_cid(model)
    assert tokenizer_cid(other) == cid
    store_of(model, tmp_path / "store")
    with pytest.raises(StoreMismatch) as refused:
        Datastore.open(tmp_path / "store", other, cid)
    assert str(tmp_path / "store") in str(refused.value)
    assert len(Datastore.open(tmp_path / "store", other, cid, near=False).nearest_passages(np.array([1]), 4)) == 0


@pytest.mark.parametrize("replaced", ["dimensions", "passages", "bytes"])
def test_an_index_of_other_dimensions_is_refused_by_its_name(
    model: Path, target: CpuTarget, tmp_path: Path, replaced: str
) -> None:
    folder = tmp_path / "store"
    manifest = store_of(model, folder)
    count = len(np.load(folder / "passages.npy"))
    index = faiss.IndexFlatIP(target.config.hidden_size + (replaced == "dimensions"))
    index.add(np.zeros((count + (replaced == "passages"), index.d), np.float32))
    faiss.write_index(index, str(folder / "passages.faiss"))
    if replaced == "bytes":
        (folder / "passages.faiss").write_bytes(b"not an index" * 10)
    signed = replace(manifest, index=Blob.of(folder, "passages.faiss"))
    (folder / NAME).write_bytes(signed.to_bytes())  # all of it agrees, so that the index itself is looked at
    with pytest.raises(StoreInvalid, match=r"passages\.faiss") as refused:
        Datastore.open(folder, model, target.tokenizer_cid)
    if replaced != "bytes":
        assert f"of {index.d} dimensions" in str(refused.value)


@pytest.mark.parametrize(
    "embedding",
    [
        {"kind": "other", "cid": CID}, {"kind": "base", "cid": CID}, {"kind": "base", "cid": CID, "layer": -1},
        {"kind": "base", "cid": CID, "layer": True}, {"kind": "base", "cid": "x", "layer": 0},
        {"kind": "base", "cid": CID, "layer": 1}, {"kind": "sentence-transformers", "cid": CID}, [], None,
    ],
)  # fmt: skip
def test_a_manifest_with_another_embedding_is_refused(model: Path, tmp_path: Path, embedding: object) -> None:
    store_of(model, tmp_path / "store")
    edit_json(tmp_path / "store" / NAME, embedding=embedding)
    with pytest.raises(StoreInvalid, match="embedding"):
        Manifest.read(tmp_path / "store")


EMBEDDINGS = "model.embed_tokens.weight"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sharded", [False, True])
def test_token_vectors_are_the_bits_that_torch_reads(own_model: Path, dtype: torch.dtype, sharded: bool) -> None:
    path = own_model / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    if sharded:
        save_file({EMBEDDINGS: tensors.pop(EMBEDDINGS)}, own_model / "one.safetensors")
        save_file(tensors, own_model / "two.safetensors")
        path.unlink()
        files = {EMBEDDINGS: "one.safetensors", **dict.fromkeys(tensors, "two.safetensors")}
        (own_model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        tensors = load_file(own_model / "one.safetensors")
    expected = tensors[EMBEDDINGS].to(torch.float32).numpy()
    vectors = token_embeddings(own_model)
    assert vectors.shape == expected.shape
    assert vectors.rows(slice(None)).tobytes() == expected.tobytes()
    assert vectors.rows(np.array([3, 0, 3])).tobytes() == expected[[3, 0, 3]].tobytes()


@pytest.mark.parametrize("family", MODELS)
def test_a_base_whose_configuration_of_text_is_nested_has_token_vectors(family: str, tmp_path: Path) -> None:
    make_tiny_multimodal(tmp_path, family)
    config = read_config(tmp_path)
    layer = InputLayer.of_base(tmp_path, np.ones(config.vocab_size, np.float32))
    assert layer.dimensions == config.hidden_size


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    return lambda directory: edit_tensors(directory / "model.safetensors", change)


def configure(**change: object) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", **change)


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
    own_model: Path, damage: Callable[[Path], object], kind: type[Exception], message: str
) -> None:
    damage(own_model)
    with pytest.raises(kind, match=message):
        token_embeddings(own_model)


def test_a_passage_and_a_request_of_the_same_tokens_have_the_same_bits(model: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(384, dtype=np.float32)
    layer = InputLayer.of_base(model, weights)
    tokens = rng.integers(0, 384, 4000)
    table = np.stack([np.zeros(2000), np.arange(2000) * 2, rng.integers(1, 40, 2000)], axis=1).astype(np.int64)
    table[:, 2] = np.minimum(table[:, 2], len(tokens) - table[:, 1])
    together = np.concatenate(list(layer.passages(tokens, table)))
    alone = [layer.request(tokens[first : first + count]) for _, first, count in table.tolist()]
    assert together.tobytes() == b"".join(row.tobytes() for row in alone)
