"""Documents of a datastore: which files are read, and how they become tokens."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Encoding

from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import CorpusInvalid, find_files, read_documents, strip_tags
from services.datastores.tokenising import fast_tokenizer
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.errors import ConfigInvalid
from tests.fakes.datastores import BASE, TOKENIZER, TOKENIZER_CID


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


@pytest.mark.parametrize("line", ['{"id": 1}', "[1]", "{", '{"text": 3}', "[" * 100_000, r'"\ud800"', "9" * 10_000])
def test_a_line_without_text_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('"good"\n' + line)
    with pytest.raises(CorpusInvalid, match=r"x\.jsonl:2"):
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


def test_a_binary_file_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"abc\x00")
    with pytest.raises(CorpusInvalid):
        read(path)


def test_what_is_neither_file_nor_folder_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusInvalid, match="pipe: "):
        read(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("text")
    assert read(tmp_path) == (["text"], [])


_AS_NOBODY = """
import os, sys
from pathlib import Path
from services.datastores.documents import CorpusInvalid, find_files, read_documents
b"x".decode("utf-8-sig")  # found now: nobody may not read where Python is installed
if os.getuid() == 0:  # permissions mean nothing to root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    print(len(list(read_documents(find_files([Path("corpus")]), [], print))))
except CorpusInvalid as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ("corpus/b/c.txt", "corpus/b/c.txt: Permission denied; leave it out or make it readable"),
        ("corpus/b", "corpus/b: Permission denied; leave it out or make it readable"),
        ("corpus", "corpus: Permission denied; leave it out or make it readable"),
        (None, "2"),
    ],
)
def test_what_may_not_be_read_is_named_and_never_left_out_in_silence(
    tmp_path: Path, closed: str | None, said: str
) -> None:
    (tmp_path / "corpus" / "b").mkdir(parents=True)
    for name in ("a.txt", "b/c.txt"):
        (tmp_path / "corpus" / name).write_text("text")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    if closed is not None:
        (tmp_path / closed).chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY], cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == said


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.mark.slow
def test_the_tokenizer_is_the_one_that_serves(tiny_model: Path) -> None:
    for directory in (tiny_model, BASE):
        assert fast_tokenizer(directory).to_str() == Tokenizer(directory).fast.to_str()


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, "{"])
def test_a_directory_without_a_tokenizer_is_refused_by_name(model: Path, text: str | None) -> None:
    for path in model.glob("*token*"):
        path.unlink()
    if text is not None:
        (model / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigInvalid) as refused:
        fast_tokenizer(model)
    assert str(model) in str(refused.value)


class _Counting:
    """The demo's tokenizer for as much of each text as it takes to know one; remembers how much came at a time."""

    def __init__(self) -> None:
        self.most = 0

    def get_vocab_size(self, with_added_tokens: bool) -> int:
        return int(TOKENIZER.get_vocab_size(with_added_tokens=with_added_tokens))

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.most = max(self.most, sum(len(text) for text in texts))
        return list(TOKENIZER.encode_batch_fast([text[:1000] for text in texts], add_special_tokens=False))


@pytest.mark.slow
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
