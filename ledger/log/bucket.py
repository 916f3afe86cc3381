"""A log's files as objects of an S3 bucket, and one object in front of them that holds the newest batch.

    journal   the newest batch, and the entries before it that are in no full bundle; replaced by the next one if it is
              still what this process has put there (If-Match)

That compare-and-swap is the commit of a batch, and what keeps a second writer out: of two that go on from one batch,
one succeeds, and the other stops. The checkpoint is replaced the same way, so that a writer that was late does not put
an old one over a new one. An object is there for good once its request has been answered: files of a batch are there
before the next batch takes its place in the journal.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import ObjectStore

from ledger.bundle.tiles import CHECKPOINT
from ledger.errors import NotFound, StoreDamaged, StoreError, StoreLocked
from ledger.log.tiled_log import Journalled, records
from ledger.object_store import open_bucket, public, said

_JOURNAL = "journal"
_WRITER_BYTES, _NONCE_BYTES = 16, 16
"""Before the record: who has written it, and bytes that no two writes have in common. So a request whose answer was
lost cannot take effect later, behind another write: S3's entity tags are digests of what an object holds.
"""

_TOGETHER = 8
"""Objects that are put at once: bundles and tiles that a batch has filled."""


class Bucket:
    """`tiled_log.Place`. Made by `open`. The bucket has to show what was written at once, as S3 does since 2020."""

    keeps_batches = False
    is_full = False

    def __init__(self, store: ObjectStore, name: str) -> None:
        self.name = name
        self.is_open = False
        self._doubtful: set[str] = set()  # objects whose last swap was not answered
        self._store = store
        self._writer = secrets.token_bytes(_WRITER_BYTES)
        self._has_begun = False  # and nobody else's record is there since
        self._tags: dict[str, Any] = {}
        self._threads = ThreadPoolExecutor(_TOGETHER, "log-bucket")

    @classmethod
    def open(cls, location: str) -> Bucket:
        """s3://bucket/prefix, with the options of `object_store.open_bucket`; it is asked for its list, so that one
        that is not there or not ours is found at once. Raises StoreError.
        """
        try:
            store = open_bucket(location)
            next(iter(obstore.list(store)), None)
        except (BaseError, ValueError) as error:
            raise StoreError(f"the log in {public(location)} cannot be opened: {said(error)}") from None
        return cls(store, public(location))

    @property
    def unsure(self) -> bool:
        return bool(self._doubtful)

    def journals(self) -> Sequence[tuple[int, Iterable[Journalled]]]:
        self.is_open, self._tags = False, {}
        for path in (_JOURNAL, CHECKPOINT):
            data = self._find(path)
            if path == CHECKPOINT or data is None:
                continue
            if self._has_begun and data[:_WRITER_BYTES] != self._writer:
                raise self._taken_over()
            newest = list(records(data[_WRITER_BYTES + _NONCE_BYTES :]))
            if len(newest) != 1:
                raise StoreDamaged(f"the object {_JOURNAL} in {self.name} is damaged")
        self._doubtful.clear()
        return [(newest[0].start - len(newest[0].tail), newest)] if _JOURNAL in self._tags else []

    def record(self, batch: bytes) -> bytes:
        self._swap(_JOURNAL, self._writer + secrets.token_bytes(_NONCE_BYTES) + batch)
        return self.read(_JOURNAL, -1)[_WRITER_BYTES + _NONCE_BYTES :]

    def check_held(self) -> None:
        """Each swap of the journal asks this."""

    def turn(self, size: int) -> None:
        """Locks out the writers of before: none of them can append."""
        self.record(Journalled(size, ()).to_bytes())
        self.is_open = self._has_begun = True

    def wait(self) -> None:
        """There is nothing to wait for."""

    def read(self, path: str, most: int) -> bytes:
        return self._get(path)[0]

    def put(self, files: Mapping[str, bytes]) -> None:
        list(self._threads.map(lambda file: self._ask(obstore.put, *file, use_multipart=False), files.items()))

    def drop(self, path: str, first: int) -> None:
        partial = [each["path"] for page in self._ask(obstore.list, f"{path}.p") for each in page]
        if partial:
            self._ask(obstore.delete, partial)

    def publish(self, note: bytes) -> None:
        self._swap(CHECKPOINT, note)

    def close(self) -> None:
        self.is_open = False
        self._threads.shutdown()

    def _swap(self, path: str, data: bytes) -> None:
        """Put an object in the place of the one that this process knows there. Raises StoreLocked, StoreError."""
        self._doubtful.add(path)
        mode = self._tags.get(path, "create")
        try:
            put = self._ask(obstore.put, path, data, mode=mode, use_multipart=False)
            self._tags[path] = {"e_tag": put["e_tag"]}
        except NotFound as error:
            raise StoreError(f"the log in {self.name} failed: {error}") from error
        except (AlreadyExistsError, PreconditionError):
            if self._find(path) != data:  # it is, where the answer to a first request was lost
                raise self._taken_over() from None
        self._doubtful.discard(path)

    def _find(self, path: str) -> bytes | None:
        """An object, whose tag is known from here on; None if it is missing."""
        try:
            data, self._tags[path] = self._get(path)
        except NotFound:
            return None
        return data

    def _get(self, path: str) -> tuple[bytes, Any]:
        """An object, and what a swap names it by."""
        found: tuple[bytes, Any] = self._ask(_fetch, path)
        return found

    def _taken_over(self) -> StoreLocked:
        self.is_open = False
        return StoreLocked(f"another process writes to the log in {self.name}; run one ledger service for a log")

    def _ask(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Raises NotFound, AlreadyExistsError, PreconditionError, StoreError."""
        try:
            return call(self._store, *arguments, **options)
        except (AlreadyExistsError, PreconditionError):
            raise
        except FileNotFoundError:
            raise NotFound(f"there is no {arguments[0]} in {self.name}") from None
        except BaseError as error:
            raise StoreError(f"the log in {self.name} failed: {said(error)}") from error


def _fetch(store: ObjectStore, path: str) -> tuple[bytes, Any]:
    found = obstore.get(store, path)
    return bytes(found.bytes()), {"e_tag": found.meta["e_tag"]}
