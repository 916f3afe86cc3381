"""Passages being embedded, and their index."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from services.datastores import passages
from services.datastores.builder import BuildParameters
from services.datastores.passages import PassageVectors
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.input_layer import InputLayer
from tests.fakes.datastores import BASE, TOKENIZER_CID, builder, documents, encode

TEXTS = [f"Ship {number} left the harbour at {number % 24} with {number * 7} tons of grain." for number in range(200)]


@pytest.mark.parametrize("step", [1, 3])
def test_vectors_come_in_blocks_whatever_parts_they_are_computed_in(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(passages, "_BLOCK", 8)
    tokens = np.arange(300) % 384
    np.save(tmp_path / "tokens.npy", tokens)
    table = np.array([[shard, first, 5] for shard in (0, 1) for first in range(0, 290, 7)])
    layer = InputLayer.of_base(tiny_model, np.ones(384, dtype=np.float32))
    expected = np.stack([layer.request(tokens[first : first + 5]) for _, first, _ in table[::step].tolist()])
    for part in (3, 8, 1000):
        monkeypatch.setattr("services.generation.drafting.retrieval.input_layer._PASSAGES", part)
        vectors = PassageVectors(layer, [tmp_path / "tokens.npy"] * 2, table, lambda _, __: None)
        blocks = list(vectors.blocks(step))
        assert {len(block) for block in blocks[:-1]} == {8}
        assert 0 < len(blocks[-1]) <= 8
        assert np.concatenate(blocks).tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flat", "graph", "kind"),
    [(10**9, 10**9, faiss.IndexScalarQuantizer), (100, 10**9, faiss.IndexHNSWFlat), (100, 200, faiss.IndexIVFFlat)],
)
def test_the_same_passages_give_the_same_index_and_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flat: int, graph: int, kind: type
) -> None:
    monkeypatch.setattr(passages, "FLAT_UP_TO", flat)
    monkeypatch.setattr(passages, "HNSW_UP_TO", graph)
    monkeypatch.setattr(passages, "_BLOCK", 100)
    factory = faiss.index_factory  # learning codes takes seconds; lists alone are trained alike
    monkeypatch.setattr(faiss, "index_factory", lambda d, _, metric: factory(d, "IVF4,Flat", metric))
    texts = [f"{text} {word} {word} {word}" for text in TEXTS for word in ("coal", "wood", "salt", "iron")]
    parameters = BuildParameters(shard_tokens=5000, passage_tokens=32)
    names = {builder(parameters).build(documents(texts), tmp_path / name).cid for name in ("one", "two")}
    assert len(names) == 1
    assert isinstance(faiss.read_index(str(tmp_path / "one" / "passages.faiss")), kind)
    store = Datastore.open(tmp_path / "one", BASE, TOKENIZER_CID)
    asked = encode(texts[5])[:32]
    near = store.nearest_passages(np.array(asked), 20)
    assert any(store.passage(int(passage)).tolist() == asked for passage in near)
