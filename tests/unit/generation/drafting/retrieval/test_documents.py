"""Corpora as people have them: folders of text, JSON lines, pages, and what is none of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.drafting.retrieval.documents import find_files, read_documents, strip_tags
from services.generation.drafting.retrieval.errors import CorpusInvalid


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
    path.write_text('{"text": "one", "id": 1}\n\n"two"\n')
    assert read(path) == (["one", "two"], [])


@pytest.mark.parametrize("line", ['{"id": 1}', "[1]", "{", '{"text": 3}', "[" * 100_000])
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
    with pytest.raises(CorpusInvalid, match="not UTF-8 text"):
        read(path)


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusInvalid, match="no such file"):
        read(tmp_path / "missing")
