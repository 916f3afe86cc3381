"""What a build is made of: sorted suffixes, shards, a tokenizer and embeddings without torch, an index."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from services.generation.drafting.retrieval import index, passage_vectors, shard_writer, suffixes
from services.generation.drafting.retrieval.builder import BuildParameters, BuildProgress
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.embedding import Embedding
from services.generation.drafting.retrieval.fast_tokenizer import fast_tokenizer
from services.generation.drafting.retrieval.input_layer import InputLayer
from services.generation.drafting.retrieval.passage_vectors import PassageVectors
from services.generation.drafting.retrieval.shard_writer import ShardWriter
from services.generation.drafting.retrieval.token_vectors import TokenVectors
from services.generation.engine.tokenizer import Tokenizer
from services.generation.target.errors import ConfigInvalid, ModelNotFound, UnsupportedArchitecture, WeightsInvalid
from tests.unit.generation.drafting.retrieval.stores import BASE, TOKENIZER_CID, builder, documents, encode

EMBEDDINGS = "model.embed_tokens.weight"
TEXTS = [f"Ship {number} left the harbour at {number % 24} with {number * 7} tons of grain." for number in range(200)]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_a_build_needs_neither_torch_nor_transformers_nor_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    code = (
        "import sys; from pathlib import Path; from services.cli.jobs import datastore as c;"
        f"c.build([Path({str(tmp_path)!r})], Path({str(BASE)!r}), Path({str(tmp_path / 'out')!r}),"
        "c.BuildParameters(), None);"
        "print(sorted({'torch', 'transformers', 'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_tokenizer_is_the_one_that_serves(tiny_model: Path) -> None:
    for directory in (tiny_model, BASE):
        assert fast_tokenizer(directory).to_str() == Tokenizer(directory).fast.to_str()


@pytest.mark.parametrize("text", [None, "{"])
def test_a_directory_without_a_tokenizer_is_refused_by_name(model: Path, text: str | None) -> None:
    for path in model.glob("*token*"):
        path.unlink()
    if text is not None:
        (model / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigInvalid, match="the tokenizer does not load") as refused:
        fast_tokenizer(model)
    assert str(model) in str(refused.value)


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
    embedding = Embedding("base", "cidv1:sha256:" + "0" * 64, 0)
    with pytest.raises(WeightsInvalid, match="its tokenizer has 385 tokens, its weights have embeddings for 384"):
        InputLayer.of_base(embedding, model, np.ones(385, np.float32))


def test_a_passage_and_a_request_of_the_same_tokens_have_the_same_bits(tiny_model: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(384, dtype=np.float32)
    layer = InputLayer.of_base(Embedding("base", "cidv1:sha256:" + "0" * 64, 0), tiny_model, weights)
    tokens = rng.integers(0, 384, 4000)
    table = np.stack([np.zeros(2000), np.arange(2000) * 2, rng.integers(1, 40, 2000)], axis=1).astype(np.int64)
    table[:, 2] = np.minimum(table[:, 2], len(tokens) - table[:, 1])
    together = np.concatenate(list(layer.passages(tokens, table)))
    alone = [layer.request(tokens[first : first + count]) for _, first, count in table.tolist()]
    assert together.tobytes() == b"".join(row.tobytes() for row in alone)


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**24), min_size=1, max_size=60), st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_suffixes_are_sorted_in_whatever_pieces(tokens: list[int], piece: int) -> None:
    before, suffixes._PIECE = suffixes._PIECE, piece
    try:
        for dtype in (np.uint32, np.uint16):
            some = np.array(tokens, np.uint32).astype(dtype)
            found = np.concatenate(list(suffixes.sorted_suffixes(some)))
            assert found.dtype == np.int32
            assert found.tolist() == sorted(range(len(some)), key=lambda at, s=some: s[at:].tolist())  # type: ignore[misc]
    finally:
        suffixes._PIECE = before


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=25), min_size=1, max_size=40).filter(any),
    st.integers(1, 12),
    st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_shards_hold_every_token_in_order_and_passages_tell_where(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], room: int, size: int
) -> None:
    folder, counted = tmp_path_factory.mktemp("shards"), shard_writer._COUNTED
    shard_writer._COUNTED = 3
    try:
        writer = ShardWriter(folder, 10, room, size)
        for text in texts:
            writer.take(np.array(text, np.uint16))
        writer.end()
    finally:
        shard_writer._COUNTED = counted
    shards = [np.load(folder / tokens.path) for tokens, _ in writer.shards]
    spelt = [shards[shard][first : first + count].tolist() for shard, first, count in writer.passages.tolist()]
    assert [token for passage in spelt for token in passage] == [token for text in texts for token in text]
    assert all(0 < len(passage) <= size for passage in spelt)
    assert all(10 not in passage and (shard != 10).sum() <= room for shard in shards for passage in spelt)
    assert writer.counts.tolist() == [sum(text.count(token) for text in texts) for token in range(10)]
    for shard, (_, blob) in zip(shards, writer.shards, strict=True):
        expected = sorted(range(len(shard)), key=lambda at, s=shard: s[at:].tolist())  # type: ignore[misc]
        assert np.load(folder / blob.path).tolist() == expected


def test_progress_is_told_of_every_character_and_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.generation.drafting.retrieval.input_layer._PASSAGES", 64)
    read: list[int] = []
    embedded: list[tuple[int, int]] = []
    progress = BuildProgress(read.append, lambda done, count: embedded.append((done, count)))
    builder(BuildParameters(passage_tokens=16)).build(documents(TEXTS), tmp_path / "store", progress)
    passages = len(np.load(tmp_path / "store" / "passages.npy"))
    assert sum(read) == sum(map(len, TEXTS))
    assert embedded == [(min(done, passages), passages) for done in range(64, passages + 64, 64)]


@pytest.mark.parametrize("step", [1, 3])
def test_vectors_come_in_blocks_whatever_parts_they_are_computed_in(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(passage_vectors, "_BLOCK", 8)
    tokens = np.arange(300) % 384
    np.save(tmp_path / "tokens.npy", tokens)
    table = np.array([[shard, first, 5] for shard in (0, 1) for first in range(0, 290, 7)])
    layer = InputLayer.of_base(
        Embedding("base", "cidv1:sha256:" + "0" * 64, 0), tiny_model, np.ones(384, dtype=np.float32)
    )
    expected = np.stack([layer.request(tokens[first : first + 5]) for _, first, _ in table[::step].tolist()])
    for part in (3, 8, 1000):
        monkeypatch.setattr("services.generation.drafting.retrieval.input_layer._PASSAGES", part)
        vectors = PassageVectors(layer, [tmp_path / "tokens.npy"] * 2, table, lambda _, __: None)
        blocks = list(vectors.blocks(step))
        assert {len(block) for block in blocks[:-1]} == {8}
        assert 0 < len(blocks[-1]) <= 8
        assert np.concatenate(blocks).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("flat", "graph", "kind"),
    [(10**9, 10**9, faiss.IndexScalarQuantizer), (100, 10**9, faiss.IndexHNSWFlat), (100, 200, faiss.IndexIVFFlat)],
)
def test_the_same_passages_give_the_same_index_and_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flat: int, graph: int, kind: type
) -> None:
    monkeypatch.setattr(index, "FLAT_UP_TO", flat)
    monkeypatch.setattr(index, "HNSW_UP_TO", graph)
    monkeypatch.setattr(passage_vectors, "_BLOCK", 100)
    factory = faiss.index_factory  # learning codes takes seconds; lists alone are trained alike
    monkeypatch.setattr(faiss, "index_factory", lambda d, _, metric: factory(d, "IVF4,Flat", metric))
    texts = [f"{text} {word} {word} {word}" for text in TEXTS for word in ("coal", "wood", "salt", "iron")]
    parameters = BuildParameters(shard_tokens=5000, passage_tokens=32)
    names = {builder(parameters).build(documents(texts), tmp_path / name).cid for name in ("one", "two")}
    assert len(names) == 1
    assert isinstance(faiss.read_index(str(tmp_path / "one" / "passages.faiss")), kind)
    store = Datastore.open(tmp_path / "one", BASE, TOKENIZER_CID)
    near = store.nearest_passages(np.array(encode(texts[5])), 20)
    assert any(store.passage(int(passage)).tolist() == encode(texts[5])[:32] for passage in near)


def test_a_search_stays_on_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder().build(documents(TEXTS), tmp_path / "store")
    store = Datastore.open(tmp_path / "store", BASE, TOKENIZER_CID)
    before, told = faiss.omp_get_max_threads(), []
    tell = faiss.omp_set_num_threads

    def listen(count: int) -> None:
        told.append(count)
        tell(count)

    monkeypatch.setattr(faiss, "omp_set_num_threads", listen)
    assert len(store.nearest_passages(np.array(encode(TEXTS[3])), 4)) == 4
    assert told == [1, before]
    assert faiss.omp_get_max_threads() == before
