"""The embedding of a store: named by its manifest, opened with the same base alone, its index as it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.input_layer import Embedding
from services.generation.drafting.retrieval.manifest import NAME, Blob, Manifest, StoreInvalid, StoreMismatch
from services.generation.target.cpu import CpuTarget
from services.generation.target.identity import tokenizer_cid
from tests.fakes.datastores import documents
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
    target: CpuTarget, tiny_model: Path, tmp_path: Path
) -> None:
    manifest = store_of(tiny_model, tmp_path / "store")
    assert manifest.embedding == Embedding(target.base_cid)
    assert Manifest.read(tmp_path / "store") == manifest
    store = Datastore.open(tmp_path / "store", tiny_model, target.tokenizer_cid)
    for passage in (0, 2, 4):
        (nearest,) = store.nearest_passages(store.passage(passage), 1).tolist()
        assert store.passage(nearest).tolist() == store.passage(passage).tolist()


def test_a_store_of_another_base_is_refused_but_where_nothing_is_to_be_near(tiny_model: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "base", seed=1)
    cid = tokenizer_cid(tiny_model)
    assert tokenizer_cid(other) == cid
    store_of(tiny_model, tmp_path / "store")
    with pytest.raises(StoreMismatch) as refused:
        Datastore.open(tmp_path / "store", other, cid)
    assert str(tmp_path / "store") in str(refused.value)
    assert len(Datastore.open(tmp_path / "store", other, cid, near=False).nearest_passages(np.array([1]), 4)) == 0


@pytest.mark.parametrize("replaced", ["dimensions", "passages", "bytes"])
def test_an_index_of_other_dimensions_is_refused_by_its_name(
    tiny_model: Path, target: CpuTarget, tmp_path: Path, replaced: str
) -> None:
    folder = tmp_path / "store"
    manifest = store_of(tiny_model, folder)
    count = len(np.load(folder / "passages.npy"))
    index = faiss.IndexFlatIP(target.config.hidden_size + (replaced == "dimensions"))
    index.add(np.zeros((count + (replaced == "passages"), index.d), np.float32))
    faiss.write_index(index, str(folder / "passages.faiss"))
    if replaced == "bytes":
        (folder / "passages.faiss").write_bytes(b"not an index" * 10)
    signed = replace(manifest, index=Blob.of(folder, "passages.faiss"))
    (folder / NAME).write_bytes(signed.to_bytes())  # all of it agrees, so that the index itself is looked at
    with pytest.raises(StoreInvalid, match=r"passages\.faiss") as refused:
        Datastore.open(folder, tiny_model, target.tokenizer_cid)
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
def test_a_manifest_with_another_embedding_is_refused(tiny_model: Path, tmp_path: Path, embedding: object) -> None:
    store_of(tiny_model, tmp_path / "store")
    path = tmp_path / "store" / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"embedding": embedding}))
    with pytest.raises(StoreInvalid, match="embedding"):
        Manifest.read(tmp_path / "store")
