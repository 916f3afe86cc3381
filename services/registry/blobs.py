"""Blobs: bytes under their SHA-256, written once, whole or not there, in a folder or a bucket (through obstore)."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from ledger.durable_file import sync_path
from ledger.encoding.text_forms import parse_digest
from services.registry.errors import DiskFull
from services.runtime.errors import DataLoss, NotFound, Unavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
"""Most bytes of one message of an upload or a download."""

_PART_BYTES = 16 * 1024 * 1024
"""Above it, an object is written in parts of this size: create-if-absent would need all of it in memory."""

_FETCH_BYTES = 8 * CHUNK_BYTES
"""Bytes of one read request: a bucket takes tens of milliseconds to answer, for any length."""
_OPTIONS: dict[str, dict[str, str]] = {
    "s3": {"endpoint": "endpoint", "region": "region"},
    "gs": {"endpoint": "base_url"},
    "az": {"endpoint": "endpoint", "account": "account_name"},
    "memory": {},
}
"""The options after the `?` of a URL of each scheme, and their names in obstore."""

# A request may carry 16 MiB over a slow line. The uploader repeats a failed one, so the retries of a
# store that is away end within the minute that callers wait.
_CLIENT: ClientConfig = {
    "allow_http": True,  # an endpoint that is written http:// is meant
    "connect_timeout": "5s",
    "read_timeout": "30s",
    "timeout": "120s",
}
_RETRIES: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
}

_METADATA_SERVER = "169.254.169.254"
"""The address at which machines in a cloud ask for credentials; obstore does so if the environment has none."""

_CODE = re.compile(r"<Code>([^<]+)</Code>\s*(?:<Message>([^<]*)</Message>)?")
"""An error in an answer of S3, GCS or Azure."""


class BlobStore:
    """Blobs by digest (`sha256:<hex>`), in a folder or in a bucket (S3, GCS, Azure), as `<prefix>/sha256/ab/<digits>`.

    For any thread, and for several processes on one store.

    Atomicity: a blob is visible whole or not at all, whenever the process dies. Immutability: a digest's bytes never
    change; putting them again changes nothing, or repairs a damaged blob. Errors: NotFound as documented, Unavailable
    (BLOBS_UNAVAILABLE) and DiskFull for the store's own failures, DataLoss if stored bytes have another digest.
    """

    def __init__(self, store: ObjectStore, folder: Path | None = None) -> None:
        """`folder` is the folder of a local store, whose objects are synced to the disk."""
        self.store = store
        self._folder = folder
        self._whole: dict[str, str] = {}  # versions whose bytes were found to have their digest, by digest
        self._damaged: dict[str, str] = {}  # versions whose bytes were found to have another, by digest

    @classmethod
    def open(cls, location: str) -> BlobStore:
        """Open a folder's path, or s3://bucket/prefix, gs://…, az://container/prefix, file:///folder, memory://. Lists
        a bucket, so that a missing or foreign bucket fails here. Credentials come from the environment, as the tools of
        each cloud read them. Raises ValueError, OSError.
        """
        url = urlsplit(location)
        if "://" not in location or url.scheme == "file":
            folder = Path(unquote(url.path) if url.scheme == "file" else location)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(LocalStore(folder), folder)
        try:
            store = open_bucket(location)
            next(iter(obstore.list(store, "sha256")), None)
        except (BaseError, ValueError) as error:
            raise ValueError(f"{public(location)}: {error_line(error)}") from None
        return cls(store)

    def size(self, digest: str) -> int | None:
        """The number of bytes; None if there is no such blob."""
        found = self._look(digest)
        return None if found is None else found[0]

    def may_be_whole(self, digest: str, size: int) -> bool:
        """Whether a blob of this size exists and was not found damaged so far. Reads nothing."""
        found = self._look(digest)
        return found is not None and found[0] == size and self._damaged.get(digest) != found[1]

    def is_whole(self, digest: str, size: int) -> bool:
        """Whether a blob of this size and digest exists. Its bytes are read once for each version."""
        found = self._look(digest)
        if found is None or found[0] != size or self._damaged.get(digest) == found[1]:
            return False
        if self._whole.get(digest) == found[1]:
            return True
        try:
            for _ in self.chunks(digest):
                pass
        except (NotFound, DataLoss):
            return False
        self._whole[digest] = found[1]
        return True

    def _look(self, digest: str) -> tuple[int, str] | None:
        """Its size, and its version, which changes whenever it is written. None if there is no such blob."""
        try:
            found = self._ask(obstore.head, _key(digest))
        except FileNotFoundError:
            return None
        return int(found["size"]), f"{found['e_tag']} {found['last_modified']}"

    def put(self, digest: str, path: Path) -> None:
        """Store the bytes of a file, whose digest the caller has verified. A folder on the file's disk takes the file
        itself: then there is room, and `path` is gone.
        """
        size = path.stat().st_size
        self._whole.pop(digest, None)  # a disk that loses bits changes no version: read them again
        if self.is_whole(digest, size):
            return
        try:
            if not self._move(digest, path):
                if size > _PART_BYTES:
                    self._write(digest, path)
                else:
                    self._create(digest, path)
            self._sync(_key(digest))
        except FileNotFoundError as error:  # the bucket, or the blob just written, was removed meanwhile
            raise _away(error) from error

    def _move(self, digest: str, path: Path) -> bool:
        """Whether a folder took the file. If not, a copy is tried, which reports errors."""
        if self._folder is None:
            return False
        place = self._folder / _key(digest)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        except OSError:  # the file is on another disk
            return False
        return True

    def _create(self, digest: str, path: Path) -> None:
        try:
            self._ask(obstore.put, _key(digest), path, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if not self.is_whole(digest, path.stat().st_size):  # damaged by a power cut or a disk
                self._write(digest, path)

    def _write(self, digest: str, path: Path) -> None:
        self._ask(obstore.put, _key(digest), path, chunk_size=_PART_BYTES, max_concurrency=4)

    def chunks(self, digest: str, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, in pieces of at most CHUNK_BYTES. Raises NotFound; DataLoss instead of the last
        piece if the whole blob has another digest.
        """
        total, version = self._known(digest)
        position, sha256 = 0, hashlib.sha256()
        while position < total:
            fetched = self.range(digest, position, min(_FETCH_BYTES, total - position))
            sha256.update(fetched)
            skipped = min(max(0, start - position), len(fetched))
            position += len(fetched)
            if position == total and sha256.digest() != parse_digest(digest):
                self._damaged[digest] = version
                raise DataLoss(f"the blob {digest} is damaged: its bytes have another digest", reason="BLOB_DAMAGED")
            for place in range(skipped, len(fetched), CHUNK_BYTES):
                yield fetched[place : place + CHUNK_BYTES]

    def range(self, digest: str, start: int, length: int) -> bytes:
        """Some of the bytes, not verified against the digest. Raises NotFound."""
        try:
            data = bytes(self._ask(obstore.get_range, _key(digest), start=start, length=length))
        except FileNotFoundError:
            raise NotFound("blob", digest) from None
        if len(data) != length:
            raise DataLoss(f"the blob {digest} is damaged: it ends before its size", reason="BLOB_DAMAGED")
        return data

    def read(self, digest: str, most: int) -> bytes:
        """All bytes, verified. Raises NotFound; DataLoss also for more than `most` bytes."""
        if self._known(digest)[0] > most:
            raise DataLoss(f"the blob {digest} has more than {most} bytes", reason="BLOB_TOO_LARGE")
        return b"".join(self.chunks(digest))

    def _known(self, digest: str) -> tuple[int, str]:
        found = self._look(digest)
        if found is None:
            raise NotFound("blob", digest, "upload it first")
        return found

    def _ask(self, call: Any, key: Any, *arguments: Any, **options: Any) -> Any:
        """Raises FileNotFoundError, AlreadyExistsError, DiskFull, Unavailable."""
        try:
            return call(self.store, key, *arguments, **options)
        except AlreadyExistsError:
            raise
        except BaseError as error:
            if call is obstore.put and self._is_full():
                raise DiskFull() from error
            raise _away(error) from error

    def _is_full(self) -> bool:
        """Whether a folder's disk has no room for a part; obstore's error has no number for it."""
        return self._folder is not None and shutil.disk_usage(self._folder).free < _PART_BYTES

    def _sync(self, key: str) -> None:
        """Sync a local file to the disk, which obstore does not; a publication must not come before."""
        if self._folder is None:
            return
        written = self._folder / key
        for path in (written, written.parent, written.parent.parent):
            sync_path(path)


def _key(digest: str) -> str:
    hexadecimal = parse_digest(digest).hex()
    return f"sha256/{hexadecimal[:2]}/{hexadecimal}"


def _away(error: Exception) -> Unavailable:
    _log.error("failing to use the store of blobs: %s", error_line(error))
    return Unavailable("the registry's store of blobs failed; try again", reason="BLOBS_UNAVAILABLE")


def open_bucket(location: str) -> ObjectStore:
    """s3://bucket/prefix, gs://…, az://container/prefix or memory://. Credentials come from the environment, as the
    tools of each cloud read them. Asks nothing yet. Raises ValueError, obstore's BaseError.
    """
    url = urlsplit(location)
    if url.scheme not in _OPTIONS:
        raise ValueError("expected a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix")
    if "@" in url.netloc:
        raise ValueError("credentials belong into the environment, not into the URL")
    known, options = _OPTIONS[url.scheme], dict(parse_qsl(url.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(f"unknown option {unknown[0]!r}; known are {', '.join(known) or 'none'}")
    bare = url._replace(query="", fragment="").geturl()
    if url.scheme == "memory":
        return from_url(bare)
    config: Any = {known[name]: value for name, value in options.items()}
    return from_url(bare, config=config, client_options=_CLIENT, retry_config=_RETRIES)


def public(location: str) -> str:
    """The URL without what might be a secret."""
    url: SplitResult = urlsplit(location)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def error_line(error: Exception) -> str:
    """A store's error in one line: the server's own code and message if it sent any."""
    text = str(error).split("\n\nDebug source", 1)[0]
    if _METADATA_SERVER in text:
        return "there are no credentials in the environment, and this machine has no role that brings any"
    code = _CODE.search(text)
    words = ": ".join(filter(None, code.groups())) if code else text.strip()
    return words.split("\n", 1)[0]
