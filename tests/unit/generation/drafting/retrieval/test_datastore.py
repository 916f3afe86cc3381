"""Datastores: built whole or not at all, refused when changed, searched alike however they are cut."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Encoding

from services.generation.drafting.retrieval.builder import BuildParameters, DatastoreBuilder
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.documents import Document, read_documents
from services.generation.drafting.retrieval.errors import BuildFailed, CorpusInvalid, StoreInvalid, StoreMismatch
from services.generation.drafting.retrieval.manifest import Manifest
from tests.unit.generation.drafting.retrieval.stores import (
    BASE,
    TOKENIZER,
    TOKENIZER_CID,
    builder,
    documents,
    encode,
    store_of,
)

TEXTS = [
    "The harbour opens at six and closes at nine.",
    "",
    "def read_lines(path):\n    with open(path) as file:\n        return file.readlines()\n",
    "The harbour opens at six and closes at noon on Sundays. Fish is sold on the pier.",
    "The harbour opens at six and closes at nine.",
]


def test_a_context_is_continued_as_the_documents_do(tmp_path: Path) -> None:
    store = store_of(TEXTS, tmp_path / "store")
    hits = store.search(np.array(encode("The harbour opens at six and closes")), 3)
    texts = [
        TOKENIZER.decode([t for t in row if t >= 0]) for row in hits.continuations[hits.lengths == hits.lengths[0]]
    ]
    assert len(texts) == 3
    assert sum(text.startswith(" at n") for text in texts) == 3


def test_shards_change_nothing_but_the_files(tmp_path: Path) -> None:
    whole = store_of(TEXTS * 3, tmp_path / "whole")
    cut = store_of(TEXTS * 3, tmp_path / "cut", BuildParameters(shard_tokens=40, passage_tokens=8))
    assert len(cut.manifest.shards) > 3
    context = np.array(encode("closes at"))
    found = [sorted(map(tuple, store.search(context, 2).continuations.tolist())) for store in (whole, cut)]
    assert found[0] == found[1]


def test_the_passages_nearest_to_a_text_are_those_with_its_words(tmp_path: Path) -> None:
    store = store_of(TEXTS, tmp_path / "store", BuildParameters(passage_tokens=16))
    (near,) = store.nearest_passages(np.array(encode("Fish is sold on the pier on Sundays")), 1).tolist()
    passage = TOKENIZER.decode(store.passage(near).tolist())
    assert "Fish" in passage or "Sundays" in passage


def test_the_same_corpus_gives_the_same_name(tmp_path: Path) -> None:
    one, two = (store_of(TEXTS, tmp_path / name).manifest for name in ("one", "two"))
    assert one.cid == two.cid
    assert store_of(TEXTS[:-1], tmp_path / "other").manifest.cid != one.cid
    assert Manifest.read(tmp_path / "one") == one


def test_another_tokenizers_store_is_refused(tmp_path: Path) -> None:
    store_of(TEXTS, tmp_path / "store")
    with pytest.raises(StoreMismatch, match="built with tokenizer"):
        Datastore.open(tmp_path / "store", BASE, "cidv1:sha256:" + "0" * 64)


@pytest.mark.parametrize(
    "name", ["tokens-00000.npy", "suffixes-00000.npy", "passages.npy", "passages.faiss", "weights.npy"]
)
@pytest.mark.parametrize("damage", ["cut", "absent", "changed"])
def test_a_damaged_store_is_refused_by_the_files_name(tmp_path: Path, name: str, damage: str) -> None:
    store_of(TEXTS, tmp_path / "store")
    path = tmp_path / "store" / name
    data = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreInvalid, match=name):
        Datastore.open(tmp_path / "store", BASE, TOKENIZER_CID).verify()


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.update(type="other"),
        lambda m: m.pop("shards"),
        lambda m: m["index"].update(path="../x"),
        lambda m: m["weights"].update(size=-1),
        lambda m: m.update(tokens="many"),
        lambda m: m.update(shards=[[]]),
        lambda m: m.update(vocab_size=2**50),  # before anything is made of that size
    ],
)
def test_a_changed_manifest_is_refused(tmp_path: Path, edit: object) -> None:
    store_of(TEXTS, tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    document = json.loads(path.read_text())
    edit(document)  # type: ignore[operator]
    path.write_text(json.dumps(document))
    with pytest.raises(StoreInvalid):
        Datastore.open(tmp_path / "store", BASE, TOKENIZER_CID)


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_a_corpus_without_text_is_refused_and_leaves_nothing(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(CorpusInvalid, match="no text"):
        builder().build(documents(texts), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_already_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(BuildFailed, match="stands already"):
        builder().build(documents(TEXTS), tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_one_very_long_line_is_one_document(tmp_path: Path) -> None:
    line = "lorem ipsum dolor sit amet " * 40_000
    store = store_of([line], tmp_path / "store", BuildParameters(shard_tokens=100_000))
    assert store.manifest.documents == 1
    assert store.manifest.tokens == sum(len(s.tokens) - 1 for s in store._shards)
    assert len(store.search(np.array(encode(" dolor sit amet lorem")), 4).continuations) > 0


class _Counting:
    """The demo's tokenizer for as much of each text as it takes to know one; remembers how much came at a time."""

    def __init__(self) -> None:
        self.most = 0

    def get_vocab_size(self, with_added_tokens: bool) -> int:
        return int(TOKENIZER.get_vocab_size(with_added_tokens=with_added_tokens))

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.most = max(self.most, sum(len(text) for text in texts))
        return list(TOKENIZER.encode_batch_fast([text[:1000] for text in texts], add_special_tokens=False))


@pytest.mark.parametrize("line", ["lorem ipsum dolor sit amet ", "x"])
def test_a_line_of_fifty_megabytes_is_tokenised_in_pieces(tmp_path: Path, line: str) -> None:
    path = tmp_path / "long.txt"
    path.write_text(line * (50_000_000 // len(line)))
    counting = _Counting()
    made = DatastoreBuilder(BASE, counting, TOKENIZER_CID, BuildParameters(shard_tokens=50_000))  # type: ignore[arg-type]
    manifest = made.build(read_documents([path], [path], lambda _: None), tmp_path / "store")
    assert manifest.documents == 1
    assert len(manifest.shards) > 1
    assert counting.most < 2_000_000


def _build_killed(folder: Path) -> None:
    def slow() -> object:
        yield Document("one", "words and more words " * 300_000)
        os.kill(os.getpid(), signal.SIGKILL)

    builder(BuildParameters(shard_tokens=1000)).build(slow(), folder)  # type: ignore[arg-type]


def test_a_killed_build_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_build_killed, args=(tmp_path / "store",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    store_of(TEXTS, tmp_path / "store")  # what was left is in nobody's way
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def _build_without_room(folder: Path, room: int, passage_tokens: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    made = builder(BuildParameters(passage_tokens=passage_tokens))
    try:
        made.build(documents(["words and more words " * 20_000]), folder)
    except BuildFailed as error:
        os._exit(0 if str(folder) in str(error) and "nothing was kept" in str(error) else 2)


@pytest.mark.parametrize(
    ("room", "passage_tokens"),
    [(0, 128), (20_000, 128), (200_000, 128), (800_000, 2)],
    ids=["sources", "tokens", "suffixes", "index"],
)
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, room: int, passage_tokens: int) -> None:
    arguments = (tmp_path / "store", room, passage_tokens)
    process = multiprocessing.get_context("spawn").Process(target=_build_without_room, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BuildFailed, match=r"file/store: cannot be written: Not a directory"):
        builder().build(documents(TEXTS), tmp_path / "file" / "store")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BuildFailed, match="stands already"):
        builder().build(documents(TEXTS), tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
