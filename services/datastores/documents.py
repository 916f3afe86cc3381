"""Documents of a corpus: text files, JSON lines, Markdown and HTML, read one at a time."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

from services.generation.drafting.retrieval.manifest import DatastoreError

_HIDDEN = ("script", "style", "noscript", "template")
_BREAKS = ("p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article", "table")


class DocumentsInvalid(DatastoreError):
    """A corpus cannot be read, or holds nothing; the message names the file and a remedy."""


@dataclass(frozen=True, slots=True)
class Document:
    source: str  # the file, with the line if it has several documents
    text: str


def find_files(paths: Sequence[Path], exclude: Sequence[str] = ()) -> list[Path]:
    """All files under the paths, in order, without hidden files and files that a pattern of `exclude` matches by their
    own name or a folder's (`fnmatch`: `tests`, `*.css`).

    Raises DocumentsInvalid for a path that is neither file nor folder, and for a folder that may not be read.
    """
    files: list[Path] = []
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise DocumentsInvalid(f"{path}: {error.strerror}") from error
        if stat.S_ISDIR(mode):
            files += sorted(_files_under(path, exclude))
        elif stat.S_ISREG(mode):
            files.append(path)
        else:
            raise DocumentsInvalid(f"{path}: neither a file nor a folder")
    return files


def _files_under(folder: Path, exclude: Sequence[str]) -> Iterator[Path]:
    def wanted(name: str) -> bool:
        return not name.startswith(".") and not any(fnmatch(name, pattern) for pattern in exclude)

    def refuse(error: OSError) -> None:
        raise DocumentsInvalid(f"{error.filename}: {error.strerror}; leave it out or make it readable") from error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = filter(wanted, folders)
        paths = (Path(place, name) for name in filter(wanted, names))
        yield from (path for path in paths if path.is_file())


def read_documents(
    files: Sequence[Path], asked_for: Sequence[Path], skipped: Callable[[Path], None]
) -> Iterator[Document]:
    """The documents of the files, in order.

    A file that is not UTF-8 text is `skipped`, unless it was `asked_for` by its own name: then it is DocumentsInvalid,
    as is a line of JSON that holds no text.
    """
    named = set(asked_for)
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise DocumentsInvalid(f"{file}: {error.strerror}; leave it out or make it readable") from error
        try:
            text = _text(data)
        except ValueError:
            if file in named:
                raise DocumentsInvalid(f"{file}: not UTF-8 text; leave it out or convert it") from None
            skipped(file)
            continue
        yield from _documents(file, text)


def with_text(documents: Iterator[Document]) -> Iterator[Document]:
    """All documents, after one with text was found. Raises DocumentsInvalid if all are empty."""
    read = []
    for document in documents:
        read.append(document)
        if document.text:
            return chain(read, documents)
    raise DocumentsInvalid("the corpus holds no text; name files with text in them")


def _text(data: bytes) -> str:
    if b"\0" in data[:8192]:
        raise ValueError("binary")
    return data.decode("utf-8-sig")


def _documents(file: Path, text: str) -> Iterator[Document]:
    match file.suffix.lower():
        case ".jsonl" | ".ndjson":
            for number, line in enumerate(text.split("\n"), 1):  # a string may hold every other separator of lines
                if line.strip():
                    yield Document(f"{file}:{number}", _json_text(file, number, line))
        case ".html" | ".htm" | ".xhtml":
            yield Document(str(file), strip_tags(text))
        case _:
            yield Document(str(file), text)


def _json_text(file: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentsInvalid(f"{file}:{number}: not JSON: {error}") from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise DocumentsInvalid(f'{file}:{number}: expected a string or an object with a string "text"')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentsInvalid(f"{file}:{number}: not Unicode: {error.reason}") from error
    return text


def strip_tags(html: str) -> str:
    """The visible text of a page."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).splitlines())
    return "\n".join(line for line in lines if line)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BREAKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        if tag in _BREAKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """A section with an unknown keyword is a comment, as in browsers: Python 3.11 raises AssertionError for it."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i, report)
