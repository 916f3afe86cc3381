"""Documents of a datastore: which files are read, and how they become tokens."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from services.datastores import builder as builder_module
from services.datastores.builder import (
    BuildFailed,
    BuildParameters,
    BuildProgress,
    DatastoreBuilder,
    PassageVectors,
    ShardWriter,
)
from services.datastores.documents import Document, DocumentsInvalid, find_files, read_documents, strip_tags
from services.datastores.tokenising import fast_tokenizer
from services.generation.drafting.retrieval.input_layer import InputLayer
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.errors import ConfigInvalid, WeightsInvalid
from services.generation.target.identity import tokenizer_cid
from tests.examples import examples
from tests.fakes.datastores import base, builder, documents, encode, opened, store_of, tokenizer
from tests.forked import FORKED
from tests.unit.datastores.failing_builds import build_killed, build_without_room


def read(*paths: Path) -> tuple[list[str], list[str]]:
    skipped: list[Path] = []
    documents = list(read_documents(find_files(paths), paths, skipped.append))
    return [document.text for document in documents], [path.name for path in skipped]


def test_a_folder_is_read_in_order_without_what_is_hidden_or_binary(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.md").write_text("# first")
    (tmp_path / "c.bin").write_bytes(b"\x00\x01")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe latin")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden")
    assert read(tmp_path) == (["# first", "second"], ["c.bin", "d.txt"])


def test_lines_of_json_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "one", "id": 1}\r\n\n"two"\n')
    assert read(path) == (["one", "two"], [])


def test_a_string_of_json_may_hold_every_separator_but_a_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    texts = ["one\u2028two\u2029three\x85four", "five"]
    path.write_text("\n".join(json.dumps(text, ensure_ascii=False) for text in texts))
    assert read(path) == (texts, [])


def test_lines_of_json_are_not_in_memory_together(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'"{"one of many lines" * 50}"\n' * 10_000)
    tracemalloc.start()
    count = sum(1 for _ in read_documents([path], [path], lambda _: None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, peak < path.stat().st_size / 2) == (10_000, True)


@pytest.mark.parametrize("line", ['{"id": 1}', "[1]", "{", '{"text": 3}', "[" * 100_000, r'"\ud800"', "9" * 10_000])
def test_a_line_without_text_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('"good"\n' + line)
    with pytest.raises(DocumentsInvalid, match=r"x\.jsonl:2"):
        read(path)


def test_a_page_is_what_its_reader_sees(tmp_path: Path) -> None:
    page = (
        "<html><head><style>p {}</style><script>var a = '<p>';</script></head><body><h1>A &amp; B</h1><p>one\n two</p>"
    )
    assert strip_tags(page + "<ul><li>x<li>y</ul>").splitlines() == ["A & B", "one", "two", "x", "y"]
    (tmp_path / "x.html").write_text(page)
    texts, _ = read(tmp_path / "x.html")
    assert "A & B" in texts[0]
    assert "var a" not in texts[0]
    assert "{}" not in texts[0]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a<![foo[x]]>b", "ab"),
        ("a<![if !x]>b<![endif]>", "ab"),
        ("a<![CDATA[x]]>b", "ab"),
        ("a<![[x>b", "ab"),
        ("a<![ x>b", "ab"),
    ],
)
def test_a_marked_section_is_left_out(page: str, text: str) -> None:
    assert strip_tags(page) == text


@pytest.mark.parametrize(
    "broken",
    ["<a ", "</a ", "<a x='", '<a x=">" ', "<!-- ", "<!--x>", "<![CDATA[x>", "<![if x>", "<script></x", "<", "="],
)
def test_a_broken_page_is_read_in_linear_time(broken: str) -> None:
    assert strip_tags("text<br>" + broken * (1_000_000 // len(broken))).startswith("text")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a<br>b <i title='>'>c</i> &lt;d&gt;", "a\nb c <d>"),
        ("1 < 2 <3 </>x<?y>z", "1 < 2 <3 xz"),
        ("a<b title=5'>b<b>'c", "ab'c"),
        ("a<!-- > -->b<!-->c<!-- d", "abc"),
        ("a<SCRIPT>'</p>' <!-- </ScRiPt >b<script/>c<style>d", "abc"),
        ("a<template><p>b</template>c<noscript>d", "a\nc"),
        ("a<b", "a<b"),
    ],
)
def test_text_is_outside_of_markup(page: str, text: str) -> None:
    assert strip_tags(page) == text


def test_a_binary_file_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"abc\x00")
    with pytest.raises(DocumentsInvalid):
        read(path)


def test_what_is_neither_file_nor_folder_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentsInvalid, match="pipe: "):
        read(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("text")
    assert read(tmp_path) == (["text"], [])


_AS_OTHER_USER = """
import os, sys
from pathlib import Path
from services.datastores.documents import Document, DocumentsInvalid, find_files, read_documents
b"x".decode("utf-8-sig")  # imported now: the user `nobody` may not read Python's folder
if os.getuid() == 0:  # permissions mean nothing to root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    print(len(list(read_documents(find_files([Path("corpus")]), [], print))))
except DocumentsInvalid as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("closed", "output"),
    [
        ("corpus/b/c.txt", "corpus/b/c.txt: Permission denied; leave it out or make it readable"),
        ("corpus/b", "corpus/b: Permission denied; leave it out or make it readable"),
        ("corpus", "corpus: Permission denied; leave it out or make it readable"),
        (None, "2"),
    ],
)
def test_what_may_not_be_read_is_named_and_never_left_out_in_silence(
    tmp_path: Path, closed: str | None, output: str
) -> None:
    (tmp_path / "corpus" / "b").mkdir(parents=True)
    for name in ("a.txt", "b/c.txt"):
        (tmp_path / "corpus" / name).write_text("text")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    if closed is not None:
        (tmp_path / closed).chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", _AS_OTHER_USER], cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == output


@pytest.mark.slow
def test_the_tokenizer_is_the_one_that_serves(model: Path) -> None:
    for directory in (model, base()):
        assert fast_tokenizer(directory).to_str() == Tokenizer(directory).fast.to_str()


def test_a_tokenizer_loads_in_any_locale(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    assert fast_tokenizer(model).get_vocab_size() > 0
    with pytest.raises(ConfigInvalid, match="Ā"):
        fast_tokenizer(tmp_path / "Ā")


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, "{"])
def test_a_directory_without_a_tokenizer_is_refused_by_name(own_model: Path, text: str | None) -> None:
    for path in own_model.glob("*token*"):
        path.unlink()
    if text is not None:
        (own_model / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigInvalid) as refused:
        fast_tokenizer(own_model)
    assert str(own_model) in str(refused.value)


class _Counting:
    """The demo's tokenizer for as much of each text as it takes to know one; remembers how much came at a time."""

    def __init__(self) -> None:
        self.most = 0

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        return dict(tokenizer().get_vocab(with_added_tokens=with_added_tokens))

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return dict(tokenizer().get_added_tokens_decoder())

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.most = max(self.most, sum(len(text) for text in texts))
        return list(tokenizer().encode_batch_fast([text[:1000] for text in texts], add_special_tokens=False))


@pytest.mark.slow
@pytest.mark.parametrize("line", ["lorem ipsum dolor sit amet ", "x"])
def test_a_line_of_fifty_megabytes_is_tokenised_in_pieces(tmp_path: Path, line: str) -> None:
    path = tmp_path / "long.txt"
    path.write_text(line * (50_000_000 // len(line)))
    counting = _Counting()
    made = DatastoreBuilder(base(), counting, tokenizer_cid(base()), BuildParameters(shard_tokens=50_000))  # type: ignore[arg-type]
    manifest = made.build(read_documents([path], [path], lambda _: None), tmp_path / "store")
    assert manifest.documents == 1
    assert len(manifest.shards) > 1
    assert counting.most < 2_000_000


TEXTS = [f"Ship {number} left the harbour at {number % 24} with {number * 7} tons of grain." for number in range(200)]


@pytest.mark.slow
def test_a_build_needs_neither_torch_nor_transformers_nor_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    code = (
        "import sys; from pathlib import Path; from services.cli import datastore as c;"
        "from services.datastores.builder import BuildParameters;"
        f"c.build_datastore([Path({str(tmp_path)!r})], [], Path({str(base())!r}), Path({str(tmp_path / 'out')!r}),"
        "BuildParameters());"
        "print(sorted({'torch', 'transformers', 'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_a_corpus_without_text_is_refused_and_leaves_nothing(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(DocumentsInvalid):
        builder().build(documents(texts), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_already_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(BuildFailed):
        builder().build(documents(TEXTS), tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def words(*ids: int) -> FastTokenizer:
    """A tokenizer of words a, b and so on with these ids, and of markup whose id is their number."""
    made = FastTokenizer(WordLevel({chr(97 + n): index for n, index in enumerate(ids)}, unk_token="a"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens(["<image_soft_token>"])
    return made


@pytest.mark.parametrize(("ids", "stored"), [((0, 300), [0, 2, 300, 301]), ((*range(384),), [0, 1, 384])])
def test_ids_may_have_gaps_and_markup_may_have_no_embedding(
    tmp_path: Path, ids: tuple[int, ...], stored: list[int]
) -> None:
    made = DatastoreBuilder(base(), words(*ids), tokenizer_cid(base()))
    manifest = made.build(documents(["a <image_soft_token> b"]), tmp_path / "store")
    tokens = np.load(tmp_path / "store" / "tokens-00000.npy").tolist()
    assert (manifest.vocab_size, tokens) == (stored[-1], stored)


def test_a_tokenizer_of_another_base_is_refused_before_documents_are_read(tmp_path: Path) -> None:
    made, unread = DatastoreBuilder(base(), words(0, 400), tokenizer_cid(base())), iter(documents(TEXTS))
    with pytest.raises(WeightsInvalid, match="400"):
        made.build(unread, tmp_path / "store")
    assert len(list(unread)) == len(TEXTS)


def test_a_base_that_changes_while_passages_are_embedded_is_refused(tmp_path: Path) -> None:
    own = Path(shutil.copytree(base(), tmp_path / "base"))
    changes = BuildProgress(embedded=lambda *_: (own / "model.safetensors").touch())
    made = DatastoreBuilder(own, tokenizer(), tokenizer_cid(own))
    with pytest.raises(WeightsInvalid, match="safetensors"):
        made.build(documents(TEXTS), tmp_path / "store", changes)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_folder_that_is_being_built_is_left_to_that_build(tmp_path: Path) -> None:
    def texts() -> Iterator[Document]:
        yield from documents(TEXTS[:1])
        with pytest.raises(BuildFailed, match="another process"):
            builder().build(documents(TEXTS), tmp_path / "store")
        yield from documents(TEXTS[1:2])

    manifest = builder().build(texts(), tmp_path / "store")
    for blob in manifest.blobs:
        blob.check(tmp_path / "store", contents=True)
    assert (manifest.documents, [path.name for path in tmp_path.iterdir()]) == (2, ["store"])


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    process = FORKED.Process(target=build_killed, args=(base(), tmp_path / "store"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    store_of(TEXTS, tmp_path / "store")  # the leftovers block no later build
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "passage_tokens"),
    [(0, 128), (20_000, 128), (200_000, 128), (800_000, 2)],
    ids=["sources", "tokens", "suffixes", "index"],
)
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, room: int, passage_tokens: int) -> None:
    arguments = (base(), tmp_path / "store", room, passage_tokens)
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
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("services.datastores.builder._BLOCK", 8)
    tokens = np.arange(300) % 384
    np.save(tmp_path / "tokens.npy", tokens)
    table = np.array([[shard, first, 5] for shard in (0, 1) for first in range(0, 290, 7)])
    layer = InputLayer.of_base(model, np.ones(384, dtype=np.float32))
    expected = np.stack([layer.request(tokens[first : first + 5]) for _, first, _ in table[::step].tolist()])
    for part in (3, 8, 1000):
        monkeypatch.setattr("services.generation.drafting.retrieval.input_layer._PASSAGES", part)
        vectors = PassageVectors(layer, [tmp_path / "tokens.npy"] * 2, table, lambda _, __: None)
        blocks = list(vectors.blocks(step))
        assert {len(block) for block in blocks[:-1]} == {8}
        assert 0 < len(blocks[-1]) <= 8
        assert np.concatenate(blocks).tobytes() == expected.tobytes()


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Threads of FAISS that add passages in different orders, if it lets them."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(16)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("many_threads")
@pytest.mark.parametrize(
    ("flat", "graph", "kind"),
    [(10**9, 10**9, faiss.IndexScalarQuantizer), (100, 10**9, faiss.IndexHNSWFlat), (100, 200, faiss.IndexIVFFlat)],
)
def test_the_same_passages_give_the_same_index_and_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flat: int, graph: int, kind: type
) -> None:
    monkeypatch.setattr("services.datastores.builder.FLAT_UP_TO", flat)
    monkeypatch.setattr("services.datastores.builder.HNSW_UP_TO", graph)
    factory = faiss.index_factory  # learning codes takes seconds; lists alone are trained alike
    monkeypatch.setattr(faiss, "index_factory", lambda d, _, metric: factory(d, "IVF4,Flat", metric))
    texts = [f"{text} {word} {word} {word}" for text in TEXTS for word in ("coal", "wood", "salt", "iron")]
    parameters = BuildParameters(shard_tokens=5000, passage_tokens=32)
    names = {builder(parameters).build(documents(texts), tmp_path / name).cid for name in ("one", "two")}
    assert len(names) == 1
    assert isinstance(faiss.read_index(str(tmp_path / "one" / "passages.faiss")), kind)
    store = opened(tmp_path / "one")
    asked = encode(texts[5])[:32]
    near = store.nearest_passages(np.array(asked), 20)
    assert any(store.passage(int(passage)).tolist() == asked for passage in near)


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**24), min_size=1, max_size=60), st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_suffixes_are_sorted_in_whatever_pieces(tokens: list[int], piece: int) -> None:
    before, builder_module._PIECE = builder_module._PIECE, piece
    try:
        for dtype in (np.uint32, np.uint16):
            some = np.array(tokens, np.uint32).astype(dtype)
            found = np.concatenate(list(builder_module.sorted_suffixes(some)))
            assert found.dtype == np.int32
            assert found.tolist() == sorted(range(len(some)), key=lambda at, s=some: s[at:].tolist())  # type: ignore[misc]
    finally:
        builder_module._PIECE = before


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=25), min_size=1, max_size=40).filter(any),
    st.integers(1, 12),
    st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
def test_shards_hold_every_token_in_order_and_passages_tell_where(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], room: int, size: int
) -> None:
    folder, counted = tmp_path_factory.mktemp("shards"), builder_module._COUNTED
    builder_module._COUNTED = 3
    try:
        writer = ShardWriter(folder, 10, room, size)
        for text in texts:
            writer.take(np.array(text, np.uint16))
        writer.end()
    finally:
        builder_module._COUNTED = counted
    shards = [np.load(folder / tokens.path) for tokens, _ in writer.shards]
    spelt = [shards[shard][first : first + count].tolist() for shard, first, count in writer.passages.tolist()]
    assert [token for passage in spelt for token in passage] == [token for text in texts for token in text]
    assert all(0 < len(passage) <= size for passage in spelt)
    assert all(10 not in passage and (shard != 10).sum() <= room for shard in shards for passage in spelt)
    assert writer.counts.tolist() == [sum(text.count(token) for text in texts) for token in range(10)]
    for shard, (_, blob) in zip(shards, writer.shards, strict=True):
        expected = sorted(range(len(shard)), key=lambda at, s=shard: s[at:].tolist())  # type: ignore[misc]
        assert np.load(folder / blob.path).tolist() == expected
