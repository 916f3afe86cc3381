"""Builds: whole or not at all, without what they do not need, and their progress is told."""

import signal
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.datastores import shard_writer
from services.datastores.builder import BuildFailed, BuildParameters, PassageVectors
from services.datastores.documents import CorpusInvalid
from services.datastores.shard_writer import ShardWriter
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.input_layer import InputLayer
from tests.examples import examples
from tests.fakes.datastores import BASE, TOKENIZER_CID, builder, documents, encode, store_of
from tests.forked import FORKED
from tests.unit.datastores.failing_builds import build_killed, build_without_room

TEXTS = [f"Ship {number} left the harbour at {number % 24} with {number * 7} tons of grain." for number in range(200)]


@pytest.mark.slow
def test_a_build_needs_neither_torch_nor_transformers_nor_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    code = (
        "import sys; from pathlib import Path; from services.cli import datastore as c;"
        "from services.datastores.builder import BuildParameters;"
        f"c.build_datastore([Path({str(tmp_path)!r})], [], Path({str(BASE)!r}), Path({str(tmp_path / 'out')!r}),"
        "BuildParameters());"
        "print(sorted({'torch', 'transformers', 'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_a_corpus_without_text_is_refused_and_leaves_nothing(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(CorpusInvalid):
        builder().build(documents(texts), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_already_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(BuildFailed):
        builder().build(documents(TEXTS), tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    process = FORKED.Process(
        target=build_killed,
        args=(
            BASE,
            tmp_path / "store",
        ),
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    store_of(TEXTS, tmp_path / "store")  # what was left is in nobody's way
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "passage_tokens"),
    [(0, 128), (20_000, 128), (200_000, 128), (800_000, 2)],
    ids=["sources", "tokens", "suffixes", "index"],
)
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, room: int, passage_tokens: int) -> None:
    arguments = (BASE, tmp_path / "store", room, passage_tokens)
    process = FORKED.Process(target=build_without_room, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BuildFailed, match="file/store: "):
        builder().build(documents(TEXTS), tmp_path / "file" / "store")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BuildFailed):
        builder().build(documents(TEXTS), tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize("step", [1, 3])
def test_vectors_come_in_blocks_whatever_parts_they_are_computed_in(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("services.datastores.builder._BLOCK", 8)
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
    monkeypatch.setattr("services.datastores.builder.FLAT_UP_TO", flat)
    monkeypatch.setattr("services.datastores.builder.HNSW_UP_TO", graph)
    monkeypatch.setattr("services.datastores.builder._BLOCK", 100)
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


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**24), min_size=1, max_size=60), st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_suffixes_are_sorted_in_whatever_pieces(tokens: list[int], piece: int) -> None:
    before, shard_writer._PIECE = shard_writer._PIECE, piece
    try:
        for dtype in (np.uint32, np.uint16):
            some = np.array(tokens, np.uint32).astype(dtype)
            found = np.concatenate(list(shard_writer.sorted_suffixes(some)))
            assert found.dtype == np.int32
            assert found.tolist() == sorted(range(len(some)), key=lambda at, s=some: s[at:].tolist())  # type: ignore[misc]
    finally:
        shard_writer._PIECE = before


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=25), min_size=1, max_size=40).filter(any),
    st.integers(1, 12),
    st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
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
