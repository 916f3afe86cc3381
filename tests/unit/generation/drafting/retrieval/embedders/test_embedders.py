"""Embedders of passages: pooled hidden states of any layer, or a sentence-transformers model; never mixed."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoModelForCausalLM

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.generation.drafting.copies import OwnText
from services.generation.drafting.draft_tree.candidates import sampling_of
from services.generation.drafting.rest import Retrieval
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.datastore_error import EmbedderInvalid, StoreInvalid, StoreMismatch
from services.generation.drafting.retrieval.embedders.embedder import Embedding
from services.generation.drafting.retrieval.embedders.hidden_states import HiddenStates
from services.generation.drafting.retrieval.embedders.models import Models
from services.generation.drafting.retrieval.embedders.sentence_model import SentenceModel, directory_cid
from services.generation.drafting.retrieval.manifest import NAME, Blob, Manifest
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget
from services.generation.target.folders.identity import tokenizer_cid
from services.generation.target.loading import load_target
from tests.fakes.datastores import documents
from tests.fakes.sentence_model import make_sentence_model
from tests.fakes.tiny_model import make_tiny_model

TEXTS = [
    "The ledger keeps one receipt for every request.",
    "def compare(first, second):\n    return first == second\n",
] * 3
SMALL = BuildParameters(passage_tokens=16)
CID = "cidv1:sha256:" + "a" * 64


@pytest.fixture(scope="module")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sentence_model(tmp_path_factory.mktemp("sentences") / "model")


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> FastTokenizer:
    return FastTokenizer.from_file(str(tiny_model / "tokenizer.json"))


def store_of(
    base: Path, folder: Path, parameters: BuildParameters, models: Models, texts: list[str] = TEXTS
) -> Manifest:
    tokenizer = FastTokenizer.from_file(str(base / "tokenizer.json"))
    builder = DatastoreBuilder(base, tokenizer, tokenizer_cid(base), parameters, models)
    return builder.build(documents(texts), folder)


def hidden_of(target: CpuTarget, layer: int, window: int = 64) -> HiddenStates:
    weights = np.linspace(0.1, 1.0, target.config.vocab_size, dtype=np.float32)
    return HiddenStates(Embedding("base", target.base_cid, layer), target, weights, window)


@pytest.mark.parametrize("layer", [1, 2])
def test_a_vector_is_the_weighted_mean_of_hidden_states(target: CpuTarget, tiny_model: Path, layer: int) -> None:
    embedder = hidden_of(target, layer)
    text = list(range(5, 35))
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    states: dict[str, torch.Tensor] = {}
    model.model.layers[layer - 1].register_forward_hook(lambda _module, _in, out: states.update(out=out))
    with torch.inference_mode():
        model(torch.tensor([text]))
    hidden = states["out"].reshape(len(text), -1).numpy()
    weights = np.linspace(0.1, 1.0, target.config.vocab_size, dtype=np.float32)[text]
    expected = (hidden[1:] * weights[1:, None]).sum(axis=0)
    found = embedder.request(np.array(text))
    assert np.abs(found - expected / np.linalg.norm(expected)).max() < 1e-5
    assert found.shape == (embedder.dimensions,)


def test_the_bits_of_a_passage_do_not_depend_on_its_batch(target: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = hidden_of(target, 1)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 384, 2000)
    firsts = np.arange(0, 1800, 60)
    table = np.stack([np.zeros_like(firsts), firsts, rng.integers(1, 64, len(firsts))], axis=1)
    together = np.concatenate(list(embedder.passages(tokens, table)))
    assert [embedder.request(tokens[first : first + n]).tobytes() for _, first, n in table.tolist()] == [
        row.tobytes() for row in together
    ]
    monkeypatch.setattr("services.generation.drafting.retrieval.embedders.hidden_states._ROWS", 70)
    assert np.concatenate(list(embedder.passages(tokens, table))).tobytes() == together.tobytes()
    assert target.blocks.used == 0


@pytest.mark.slow
def test_a_full_cache_leaves_nothing_behind_and_nothing_near(
    target: CpuTarget, tiny_model: Path, tmp_path: Path
) -> None:
    models = Models(tiny_model, target)
    store_of(tiny_model, tmp_path / "store", replace(SMALL, layer=1), models)
    store = Datastore.open(tmp_path / "store", tiny_model, target.tokenizer_cid, models)
    retrieval = Retrieval([store], sampling_of(EngineRequest("", (0,), SamplingParams())))
    text, taken = OwnText(), list[int]()
    text.extend([1, 2, 3])
    target.blocks.extend(taken, target.blocks.free * 64)
    try:
        retrieval.look(text)
        assert retrieval._topic is None
    finally:
        target.blocks.release(taken)
    retrieval.look(text)
    assert retrieval._topic is not None
    assert target.blocks.used == 0


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_store_says_its_layer_and_finds_a_passage_by_its_own_text(
    target: CpuTarget, tiny_model: Path, tmp_path: Path, layer: int
) -> None:
    models = Models(tiny_model, target)
    manifest = store_of(tiny_model, tmp_path / "store", replace(SMALL, layer=layer), models)
    assert manifest.embedding == Embedding("base", target.base_cid, layer)
    assert Manifest.read(tmp_path / "store") == manifest
    store = Datastore.open(tmp_path / "store", tiny_model, target.tokenizer_cid, models)
    for passage in (0, 2, 4):
        (nearest,) = store.nearest_passages(store.passage(passage), 1).tolist()
        assert store.passage(nearest).tolist() == store.passage(passage).tolist()


def test_a_sentence_model_embeds_passages_and_requests(
    tiny_model: Path, tokenizer: FastTokenizer, sentence_model: Path, tmp_path: Path
) -> None:
    sentences = SentenceModel.load(sentence_model)
    models = Models(tiny_model, sentences=sentences, tokenizer=tokenizer)
    manifest = store_of(tiny_model, tmp_path / "store", SMALL, models)
    assert manifest.embedding == Embedding("sentence-transformers", directory_cid(sentence_model), None)
    store = Datastore.open(tmp_path / "store", tiny_model, tokenizer_cid(tiny_model), models)
    index = faiss.read_index(str(tmp_path / "store" / "passages.faiss"))
    assert index.d == sentences.dimensions == 32
    for passage in (0, 2, 4):
        text = tokenizer.decode(store.passage(passage).tolist(), skip_special_tokens=False)
        assert np.allclose(index.reconstruct(passage), sentences.embed([text])[0], atol=1e-3)  # in half precision
        (nearest,) = store.nearest_passages(store.passage(passage), 1).tolist()
        assert store.passage(nearest).tolist() == store.passage(passage).tolist()


def test_a_store_of_one_embedder_refuses_every_other(
    target: CpuTarget, tiny_model: Path, tokenizer: FastTokenizer, sentence_model: Path, tmp_path: Path
) -> None:
    other_base = make_tiny_model(tmp_path / "base", seed=1)
    cid = tokenizer_cid(tiny_model)
    assert tokenizer_cid(other_base) == cid
    one = SentenceModel.load(sentence_model)
    two = SentenceModel.load(make_sentence_model(tmp_path / "other", seed=1))
    by_sentences = Models(tiny_model, sentences=one, tokenizer=tokenizer)
    store_of(tiny_model, tmp_path / "input", SMALL, Models(tiny_model))
    store_of(tiny_model, tmp_path / "hidden", replace(SMALL, layer=1), Models(tiny_model, target))
    store_of(tiny_model, tmp_path / "sentences", SMALL, by_sentences)
    refusals: list[tuple[str, Models, str]] = [
        ("input", Models(other_base), "build it again with this base"),
        ("hidden", Models(other_base, load_target(other_base, cache_tokens=64)), "build it again with this base"),
        ("hidden", Models(tiny_model), "is not loaded"),
        ("sentences", Models(tiny_model, target), "--embedder"),
        ("sentences", Models(tiny_model, sentences=two, tokenizer=tokenizer), "expected the same model"),
    ]
    for name, models, message in refusals:
        with pytest.raises(StoreMismatch, match=message) as refused:
            Datastore.open(tmp_path / name, models.base, cid, models)
        assert str(tmp_path / name) in str(refused.value)
        assert (
            len(Datastore.open(tmp_path / name, models.base, cid, near=False).nearest_passages(np.array([1]), 4)) == 0
        )
    Datastore.open(tmp_path / "sentences", tiny_model, cid, by_sentences)
    Datastore.open(tmp_path / "input", tiny_model, cid, by_sentences)


@pytest.mark.parametrize("file", ["model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json"])
def test_any_change_of_a_sentence_model_is_another_model(sentence_model: Path, tmp_path: Path, file: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sentence_model, copy)
    (copy / "README.md").write_text("about it")
    assert directory_cid(copy) == directory_cid(sentence_model)
    (copy / file).write_bytes((copy / file).read_bytes() + b" ")
    assert directory_cid(copy) != directory_cid(sentence_model)


def _modules(**change: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        modules = json.loads((directory / "modules.json").read_text())
        modules[0] |= change
        (directory / "modules.json").write_text(json.dumps(modules))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "modules.json").unlink(), "no modules.json"),
        (lambda d: (d / "modules.json").write_text("{"), "not JSON"),
        (lambda d: (d / "modules.json").write_text("[" * 100_000), "not JSON"),
        (lambda d: (d / "modules.json").write_text("[]"), "list of modules"),
        (lambda d: (d / "modules.json").write_text("[3]"), "type and a path"),
        (_modules(type="os.system"), "'os.system' is not supported"),
        (_modules(type="sentence_transformers.models.CNN"), "is not supported"),
        (_modules(path="../elsewhere"), "outside"),
        (lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"), "safetensors"),
        (lambda d: (d / "model.safetensors").write_bytes(b"x"), "does not load"),
        (lambda d: (d / "config.json").write_text("{"), "does not load"),
    ],
)  # fmt: skip
def test_what_is_no_sentence_model_is_refused_by_name(
    sentence_model: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sentence_model, copy)
    damage(copy)
    with pytest.raises(EmbedderInvalid, match=message) as refused:
        SentenceModel.load(copy)
    assert str(copy) in str(refused.value)


def test_without_the_package_it_says_what_to_install(sentence_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "sentence_transformers":
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(EmbedderInvalid, match=r"install kolm-serve\[embedder\]"):
        SentenceModel.load(sentence_model)


@pytest.mark.parametrize("replaced", ["dimensions", "passages", "bytes"])
def test_an_index_of_other_dimensions_is_refused_by_its_name(
    tiny_model: Path, target: CpuTarget, tmp_path: Path, replaced: str
) -> None:
    folder = tmp_path / "store"
    manifest = store_of(tiny_model, folder, SMALL, Models(tiny_model))
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
        {"kind": "sentence-transformers"}, [], None,
    ],
)  # fmt: skip
def test_a_manifest_with_another_embedding_is_refused(tiny_model: Path, tmp_path: Path, embedding: object) -> None:
    store_of(tiny_model, tmp_path / "store", SMALL, Models(tiny_model))
    path = tmp_path / "store" / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"embedding": embedding}))
    with pytest.raises(StoreInvalid, match="embedding"):
        Manifest.read(tmp_path / "store")
