"""The checks of a bundle that need only one file of entries. They are most of the work; processes share the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ledger.audit.log_walk import CheckedEntry, check_entry, without_unread_members
from ledger.bundle.layout import ENTRIES_PER_FILE, BundleFiles, ContentLine, split_lines
from ledger.documents.content import Content
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.errors import FormatError, LedgerError, StoreError
from ledger.tree.entry import Entry
from ledger.tree.tile import TILE_WIDTH, full_tile_hash

CANONICAL, COMPLETE, SIGNED, RULES, CONTENT = 5, 6, 7, 8, 11
"""Numbers of checks, from 1, in `verification.CHECKS`."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The results of one file of entries and its file of content. `contents` counts the compared contents. `problem` is
    the number of a failed check and a message. `subtree` is the hash of the entries, if they are exactly a complete
    subtree of the log.
    """

    entries: tuple[CheckedEntry, ...]
    contents: int = 0
    problem: tuple[int, str] | None = None
    subtree: bytes | None = None


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The job of checking one file, sent to another process. Receipts are returned `whole` if promises are compared
    with them.
    """

    bundle: BundleFiles
    name: str
    with_content: bool
    keys: KeyHistory
    whole: bool = False


def check_file(job: FileCheck) -> CheckedFile:
    """Check the entries of one file: form, order within the file, signatures, content. Raises StoreError if it cannot
    read the bundle, and nothing for malformed bytes.
    """
    bundle = job.bundle
    try:
        lines = split_lines(bundle.read(f"entries/{job.name}.jsonl"), f"entries/{job.name}.jsonl")
        if not 1 <= len(lines) <= ENTRIES_PER_FILE:
            raise FormatError(f"entries/{job.name}.jsonl", f"expected 1 to {ENTRIES_PER_FILE} entries")
    except StoreError:  # the entries are not at fault
        raise
    except LedgerError as error:
        return CheckedFile((), problem=(CANONICAL, str(error)))
    first = int(job.name)
    entries = tuple(
        _named(check_entry(data, job.keys), f"{job.name}.jsonl line {at}") for at, data in enumerate(lines, 1)
    )
    if entries[0].document is not None and entries[0].index != first:
        return CheckedFile(
            entries, problem=(CANONICAL, f"entries/{job.name}.jsonl begins with entry {entries[0].index}")
        )
    subtree = _subtree(first, entries)
    try:
        contents = _check_contents(read_contents(bundle, job.name), entries) if job.with_content else 0
    except StoreError:  # nor are the contents
        raise
    except LedgerError as error:
        return CheckedFile(entries, problem=(CONTENT, str(error)))
    return CheckedFile(entries if job.whole else tuple(map(without_unread_members, entries)), contents, subtree=subtree)


def _subtree(first: int, entries: Sequence[CheckedEntry]) -> bytes | None:
    if first % TILE_WIDTH or [entry.index for entry in entries] != list(range(first, first + TILE_WIDTH)):
        return None
    return full_tile_hash(b"".join(entry.leaf for entry in entries))


def _named(entry: CheckedEntry, place: str) -> CheckedEntry:
    """The entry; if it is malformed and so has no index, the message names its file and line."""
    return entry if entry.malformed is None else replace(entry, malformed=f"{place}: {entry.malformed}")


def key_history(history: KeyHistory, lines: Iterable[bytes]) -> KeyHistory:
    """The history with the key entries among `lines`, in order of index. An invalid key entry is ignored here; the
    check of every entry reports it.
    """
    for data in lines:
        try:
            entry = Entry.from_bytes(data)
            history = history.after(entry.index, history.open(entry.index, entry.envelope))
        except LedgerError:
            continue
    return history


def read_contents(bundle: BundleFiles, name: str) -> dict[int, Content]:
    """The contents of a file of entries, by index. Raises FormatError."""
    path = f"content/{name}.jsonl"
    read = [ContentLine.from_bytes(line) for line in split_lines(bundle.read(path), path)]
    contents = {line.index: line.content for line in read}
    if len(contents) != len(read):
        raise FormatError(path, "has an index twice")
    return contents


def _check_contents(contents: dict[int, Content], entries: Iterable[CheckedEntry]) -> int:
    judged = {entry.index: entry.document for entry in entries if entry.document is not None}
    unjudged = {entry.index for entry in entries if entry.document is None}
    for index, content in contents.items():
        receipt = judged.get(index)
        if index in unjudged or -1 in unjudged:
            continue  # the check of the entry reports it
        if not isinstance(receipt, Receipt):
            raise FormatError(f"entry {index}", "is not a receipt, but content is given for it")
        try:
            content.check_against(receipt)
        except FormatError as error:
            raise FormatError(f"entry {index}", str(error)) from None
    return len(contents)
