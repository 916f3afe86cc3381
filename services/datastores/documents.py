"""Documents of a corpus: text files, JSON lines, Markdown and HTML, read one at a time."""

from __future__ import annotations

import json
import os
import re
import stat
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from html import unescape
from itertools import chain
from pathlib import Path

from services.generation.drafting.retrieval.manifest import DatastoreError

_MARKUP = re.compile(
    r"<(?:(?P<comment>!--)|(?P<section>!\[CDATA\[)|(?P<other>[!?]|/(?![a-zA-Z]))|/?(?P<name>[a-zA-Z][^\s/>]*))"
)
_REST_OF_TAG = re.compile(r"""(?:[^>=]|=\s*"[^"]*"|=\s*'[^']*'|=)*+>""")
_ENDS = {"comment": "-->", "section": "]]>", "other": ">"}
_RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}  # without markup
_BEGINNING, _CHUNK = 8192, 1 << 20  # bytes
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
            if _is_text(file):
                yield from _documents(file)
                continue
        except OSError as error:
            raise DocumentsInvalid(f"{file}: {error.strerror}; leave it out or make it readable") from error
        if file in named:
            raise DocumentsInvalid(f"{file}: not UTF-8 text; leave it out or convert it")
        skipped(file)


def with_text(documents: Iterator[Document]) -> Iterator[Document]:
    """All documents, after one with text was found. Raises DocumentsInvalid if all are empty."""
    read = []
    for document in documents:
        read.append(document)
        if document.text:
            return chain(read, documents)
    raise DocumentsInvalid("the corpus holds no text; name files with text in them")


def _is_text(file: Path) -> bool:
    """Whether a file is UTF-8 without a zero byte at its beginning. Raises OSError."""
    decode = getincrementaldecoder("utf-8")().decode
    with file.open("rb") as data:
        chunk = data.read(_CHUNK)
        if b"\0" in chunk[:_BEGINNING]:
            return False
        try:
            while chunk:
                decode(chunk)
                chunk = data.read(_CHUNK)
            decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _documents(file: Path) -> Iterator[Document]:
    """Raises OSError, DocumentsInvalid."""
    match file.suffix.lower():
        case ".jsonl" | ".ndjson":  # of any size, unlike one document
            with file.open(encoding="utf-8-sig", newline="\n") as lines:  # a string may hold every other separator
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield Document(f"{file}:{number}", _json_text(file, number, line.rstrip("\n")))
        case ".html" | ".htm" | ".xhtml":
            yield Document(str(file), strip_tags(_read(file)))
        case _:
            yield Document(str(file), _read(file))


def _read(file: Path) -> str:
    return file.read_bytes().decode("utf-8-sig")


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
    """The visible text of a page, in time that is linear in its length, however it is broken."""
    lines = (" ".join(line.split()) for line in "".join(_visible(html)).splitlines())
    return "\n".join(line for line in lines if line)


def _visible(page: str) -> Iterator[str]:
    """Text outside of markup, with a line break for each element that has lines of its own. As in browsers, a comment
    without an end hides the rest; a tag without an end is text.
    """
    hidden, at = 0, 0
    while (start := page.find("<", at)) >= 0:
        if not hidden:
            yield unescape(page[at:start])
        at = start
        markup = _MARKUP.match(page, start)
        kind = None if markup is None else markup.lastgroup
        if markup is None or kind is None:
            at += 1
            if not hidden:
                yield "<"
        elif kind == "name":
            tag = _REST_OF_TAG.match(page, markup.end())
            if tag is None:
                break
            at = tag.end()
            name, ends, is_empty = markup["name"].lower(), page[start + 1] == "/", page[at - 2] == "/"
            if name in _BREAKS:
                yield "\n"
            if name in _HIDDEN and not is_empty:
                hidden = max(0, hidden - 1) if ends else hidden + 1
            if name in _RAW and not (ends or is_empty):
                end = _RAW[name].search(page, at)
                at = len(page) if end is None else end.start()
        else:
            end_at = page.find(_ENDS[kind], start + 2)
            at = len(page) if end_at < 0 else end_at + len(_ENDS[kind])
    if not hidden:
        yield unescape(page[at:])
