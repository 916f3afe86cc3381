"""The client of a registry of draft heads: its answers, resumable transfers, its calls.

with RegistryClient.connect("127.0.0.1:50054") as registry:
    registry.heads()
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Generic, TypeVar

from kolm.registry.v1 import heads_pb2
from kolm.registry.v1 import registry_pb2 as pb
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceStub
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal, KScore
from ledger.documents.manifests import DraftHeadManifest, NamedFile
from ledger.durable_file import move_durably
from services.client.channel import Client, Stream
from services.client.errors import Cancelled, DataLoss, DeadlineExceeded, KolmError, Unavailable, decoded_errors
from services.client.ledger.log import document_of_kind

_Kind = TypeVar("_Kind")


_CHUNK_BYTES = 1024 * 1024
_ATTEMPTS = 6  # in a row without a byte transferred
_PAUSE_SECONDS = 0.2  # doubles from attempt to attempt
_ATTEMPT_SECONDS = 300.0  # after which a transfer is continued by another attempt

Progress = Callable[[int], None]
"""Takes the number of bytes of a file that have been transferred so far, by all attempts."""


@dataclass(frozen=True)
class SignedWord(Generic[_Kind]):
    """A signed document about a head, of a `kind`, and its place in the ledger."""

    kind: type[_Kind]
    envelope: bytes
    ledger_index: int

    @cached_property
    def document(self) -> _Kind:
        """The signed document; its signature is not checked here. Raises FormatError, ProofError."""
        return document_of_kind(self.envelope, self.kind, self.ledger_index)


@dataclass(frozen=True)
class Head:
    """A head under all of its names, oldest first, with its newest k-score for each adapter, the bare base first."""

    manifest: bytes
    publications: tuple[SignedWord[DraftHeadPublication], ...]
    withdrawal: SignedWord[DraftHeadWithdrawal] | None
    kscores: tuple[SignedWord[KScore], ...]

    @cached_property
    def described(self) -> DraftHeadManifest:
        """Raises FormatError."""
        return DraftHeadManifest.from_bytes(self.manifest)

    @property
    def head_cid(self) -> str:
        return self.described.cid

    @property
    def base_cid(self) -> str:
        return self.described.subject

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(publication.document.name for publication in self.publications)


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """A blob that the registry lacks, and the size of an interrupted upload of it."""

    digest: str
    size: int
    committed_size: int


def head(message: heads_pb2.Head) -> Head:
    return Head(
        message.manifest,
        publications=tuple(_word(DraftHeadPublication, each) for each in message.publications),
        withdrawal=_word(DraftHeadWithdrawal, message.withdrawal) if message.HasField("withdrawal") else None,
        kscores=tuple(_word(KScore, each) for each in message.kscores),
    )


def _word(
    kind: type[_Kind], message: heads_pb2.Publication | heads_pb2.Withdrawal | heads_pb2.KScore
) -> SignedWord[_Kind]:
    return SignedWord(kind, message.envelope, message.ledger_index)


def missing(message: pb.MissingBlob) -> MissingBlob:
    return MissingBlob("sha256:" + message.blob.digest.hex(), message.blob.size, message.committed_size)


def blob(digest: str, size: int) -> heads_pb2.Blob:
    """`digest` is `sha256:<hex>`."""
    return heads_pb2.Blob(digest=bytes.fromhex(digest.removeprefix("sha256:")), size=size)


def upload(
    registry: RegistryClient, part: NamedFile, opened: Callable[[], IO[bytes]], progress: Progress = lambda _: None
) -> bool:
    """Upload bytes, `opened` again for each attempt; returns False if the registry had them.

    Raises KolmError after several failed attempts.
    """
    committed = _committed(registry, part)
    if committed is None:
        return False
    attempt = _Attempt()
    while True:
        try:
            registry.upload(part.digest, part.size, committed, _chunks(opened, committed, progress))
        except KolmError as error:
            hopeless = error.reason == "DIGEST_MISMATCH" and committed == 0  # no bytes beyond the file's end
            if hopeless or attempt.last or not _may_go_on(error):
                raise
            now = _committed_later(registry, part, committed)
            if now is None:  # another client has uploaded it
                return True
            attempt.progressed(now > committed)
            committed = now
        else:
            break
    progress(part.size)
    return True


def download(registry: RegistryClient, part: NamedFile, path: Path, progress: Progress = lambda _: None) -> None:
    """Download and verify a file; `<path>.part` has its bytes until it is complete.

    Raises KolmError after several failed attempts, DataLoss if the bytes do not have the digest.
    """
    if path.is_file() and path.stat().st_size == part.size and file_digest(path) == part.digest:
        progress(part.size)
        return
    arriving, attempt = path.with_name(path.name + ".part"), _Attempt()
    while True:
        before = _size(arriving)
        try:
            _receive(registry, part, arriving, progress)
        except KolmError as error:
            if not _may_go_on(error) or attempt.last:
                raise
            attempt.progressed(_size(arriving) > before)
        else:
            break
    if file_digest(arriving) != part.digest:
        arriving.unlink()
        raise DataLoss(f"{part.name}: the download does not have the digest {part.digest}", reason="DIGEST_MISMATCH")
    move_durably(arriving, path)


def _receive(registry: RegistryClient, part: NamedFile, path: Path, progress: Progress) -> None:
    if _size(path) > part.size:
        path.unlink()
    position = _size(path)
    with path.open("ab") as file, registry.download(part.digest, position) as chunks:
        for chunk in chunks:
            position += len(chunk)
            if position > part.size:
                raise DataLoss(f"{part.name}: more than {part.size} bytes arrived", reason="DIGEST_MISMATCH")
            file.write(chunk)
            progress(position)
    if position < part.size:
        raise Unavailable(f"{part.name}: {position} of {part.size} bytes arrived")


def _committed(registry: RegistryClient, part: NamedFile) -> int | None:
    """The number of bytes of `part` that the registry has; None if it has them all."""
    missing = registry.missing([(part.digest, part.size)])
    return missing[0].committed_size if missing else None


def _committed_later(registry: RegistryClient, part: NamedFile, before: int) -> int | None:
    """`_committed` after a failure; the former number if the registry does not answer."""
    try:
        return _committed(registry, part)
    except (Unavailable, DeadlineExceeded):
        return before


def _chunks(opened: Callable[[], IO[bytes]], start: int, progress: Progress) -> Iterator[bytes]:
    with opened() as file:
        file.seek(start)
        while chunk := file.read(_CHUNK_BYTES):
            progress(start)
            yield chunk
            start += len(chunk)


def _may_go_on(error: KolmError) -> bool:
    again = ("UPLOAD_TAKEN_OVER", "OFFSET_MISMATCH", "DIGEST_MISMATCH")
    return isinstance(error, Unavailable | DeadlineExceeded | Cancelled) or error.reason in again


class _Attempt:
    """Counts the failed attempts since the last progress."""

    def __init__(self) -> None:
        self._failed = 0

    @property
    def last(self) -> bool:
        return self._failed >= _ATTEMPTS - 1

    def progressed(self, by_something: bool) -> None:
        self._failed = 0 if by_something else self._failed + 1
        time.sleep(_PAUSE_SECONDS * 2**self._failed)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def file_digest(path: Path) -> str:
    """`sha256:<hex>` of a file's bytes."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


class RegistryClient(Client):
    """One connection to a registry. Every method raises KolmError; unary calls give up after `timeout` seconds."""

    service, seconds, stub = "kolm.registry.v1.RegistryService", 60.0, RegistryServiceStub
    _stub: RegistryServiceStub

    def publish(self, manifest: bytes, envelope: bytes) -> tuple[Head, bool]:
        """Publish a head, whose blobs are uploaded; returns it, and whether this call gave it its name."""
        answer = self._call(self._stub.PublishHead, pb.PublishHeadRequest(manifest=manifest, envelope=envelope))
        return head(answer.head), answer.created

    def head(self, head_cid: str) -> Head:
        """A head by its identifier, withdrawn or not."""
        return head(self._call(self._stub.GetHead, pb.GetHeadRequest(head_cid=head_cid)).head)

    def heads(
        self,
        *,
        base_cid: str | None = None,
        name: str | None = None,
        include_withdrawn: bool = False,
        page_size: int = 0,
    ) -> Iterator[Head]:
        """Every matching head, oldest first; pages are fetched as the iteration gets there."""
        request = pb.ListHeadsRequest(
            base_cid=base_cid, name=name, include_withdrawn=include_withdrawn, page_size=page_size
        )
        pages = self._pages(self._stub.ListHeads, request)
        return (head(each) for page in pages for each in page.heads)

    def resolve(self, reference: str = "", *, base_cid: str | None = None, include_withdrawn: bool = False) -> Head:
        """The head that `name`, `name@sha256:<prefix>` or `cidv1:sha256:…` names; without one, the base's newest."""
        request = pb.ResolveHeadRequest(reference=reference, base_cid=base_cid, include_withdrawn=include_withdrawn)
        return head(self._call(self._stub.ResolveHead, request).head)

    def withdraw(self, envelope: bytes) -> Head:
        """Withdraw a head for good."""
        return head(self._call(self._stub.WithdrawHead, pb.WithdrawHeadRequest(envelope=envelope)).head)

    def record_kscore(self, envelope: bytes) -> Head:
        """Keep a signed kolm.kscore.v1 document."""
        return head(self._call(self._stub.RecordKScore, pb.RecordKScoreRequest(envelope=envelope)).head)

    def missing(self, blobs: Iterable[tuple[str, int]]) -> list[MissingBlob]:
        """The blobs among these (digest, size) that the registry lacks."""
        request = pb.FindMissingBlobsRequest(blobs=[blob(*each) for each in blobs])
        return [missing(each) for each in self._call(self._stub.FindMissingBlobs, request).missing]

    def upload(self, digest: str, size: int, offset: int, chunks: Iterable[bytes]) -> None:
        """One attempt at one blob; `upload` above continues after a failed one."""

        def messages() -> Iterator[pb.UploadBlobRequest]:
            yield pb.UploadBlobRequest(start=pb.UploadStart(blob=blob(digest, size), offset=offset))
            for chunk in chunks:
                yield pb.UploadBlobRequest(data=chunk)

        with decoded_errors():
            self._stub.UploadBlob(messages(), timeout=_ATTEMPT_SECONDS, metadata=self.connection.metadata)

    def download(self, digest: str, offset: int = 0) -> Stream[bytes]:
        """The bytes of a blob from `offset` on, in pieces; `download` above keeps and checks them."""
        request = pb.DownloadBlobRequest(digest=blob(digest, 0).digest, offset=offset)
        call = self._stub.DownloadBlob(request, timeout=_ATTEMPT_SECONDS, metadata=self.connection.metadata)
        return Stream(call, lambda answer: answer.data)
