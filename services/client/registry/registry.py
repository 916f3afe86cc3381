"""The client of a registry server.

with RegistryClient.connect("127.0.0.1:50054") as registry:
    head = registry.resolve("support-head", base_cid=base_cid)
    for part in DraftHeadManifest.from_bytes(head.manifest).files:
        download(registry, part, folder / part.name)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Self, TypeVar

from kolm.registry.v1 import registry_pb2 as pb
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.client.connection.channel import Connection, Stream
from services.client.connection.tls import ClientTls
from services.client.errors import DataLoss, decoded_errors
from services.client.registry import heads_wire
from services.client.registry.heads import Collected, Head, MissingBlob, StoredBlob

SERVICE = "kolm.registry.v1.RegistryService"

_SECONDS = 60.0

_Response = TypeVar("_Response")


class RegistryClient:
    """One connection to a registry. Every method raises KolmError; unary calls give up after `timeout` seconds."""

    def __init__(self, connection: Connection, timeout: float | None = _SECONDS) -> None:
        self.connection = connection
        self._timeout = timeout
        self._stub = RegistryServiceStub(connection.channel)

    @classmethod
    def connect(
        cls,
        target: str,
        *,
        wait: float = 0.0,
        timeout: float | None = _SECONDS,
        token: str | None = None,
        tls: ClientTls | None = None,
    ) -> Self:
        """Connect as `Connection` does: waits `wait` seconds for the server, or connects lazily."""
        return cls(Connection(target, token, wait, tls), timeout)

    def publish(self, manifest: bytes, envelope: bytes) -> tuple[Head, bool]:
        """Publish a head, whose blobs are uploaded; returns it, and whether this call gave it its name."""
        answer = self._call(self._stub.PublishHead, pb.PublishHeadRequest(manifest=manifest, envelope=envelope))
        return heads_wire.head(answer.head), answer.created

    def head(self, head_cid: str) -> Head:
        """A head by its identifier, withdrawn or not."""
        return heads_wire.head(self._call(self._stub.GetHead, pb.GetHeadRequest(head_cid=head_cid)).head)

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
        pages = self.connection.pages(self._stub.ListHeads, request, self._timeout)
        return (heads_wire.head(each) for page in pages for each in page.heads)

    def resolve(self, reference: str = "", *, base_cid: str | None = None, include_withdrawn: bool = False) -> Head:
        """The head that `name`, `name@sha256:<prefix>` or `cidv1:sha256:…` names; without one, the base's newest."""
        request = pb.ResolveHeadRequest(reference=reference, base_cid=base_cid, include_withdrawn=include_withdrawn)
        return heads_wire.head(self._call(self._stub.ResolveHead, request).head)

    def withdraw(self, envelope: bytes) -> Head:
        """Withdraw a head for good."""
        return heads_wire.head(self._call(self._stub.WithdrawHead, pb.WithdrawHeadRequest(envelope=envelope)).head)

    def record_kscore(self, envelope: bytes) -> Head:
        """Keep a signed kolm.kscore.v1 document."""
        return heads_wire.head(self._call(self._stub.RecordKScore, pb.RecordKScoreRequest(envelope=envelope)).head)

    def missing(self, blobs: Iterable[tuple[str, int]]) -> list[MissingBlob]:
        """Those of these blobs (digest, size) that the registry lacks."""
        request = pb.FindMissingBlobsRequest(blobs=[heads_wire.blob(*blob) for blob in blobs])
        return [heads_wire.missing(each) for each in self._call(self._stub.FindMissingBlobs, request).missing]

    def upload(self, digest: str, size: int, offset: int, chunks: Iterable[bytes]) -> None:
        """One attempt at one blob; `services.client.registry.transfer.upload` continues after a failed one."""

        def messages() -> Iterator[pb.UploadBlobRequest]:
            yield pb.UploadBlobRequest(start=pb.UploadStart(blob=heads_wire.blob(digest, size), offset=offset))
            for chunk in chunks:
                yield pb.UploadBlobRequest(data=chunk)

        with decoded_errors():
            self._stub.UploadBlob(messages(), metadata=self.connection.metadata)

    def download(self, digest: str, offset: int = 0) -> Stream[bytes]:
        """The bytes of a blob from `offset` on, in pieces; `registry.transfer` keeps and checks them."""
        request = pb.DownloadBlobRequest(digest=heads_wire.blob(digest, 0).digest, offset=offset)
        return Stream(self._stub.DownloadBlob(request, metadata=self.connection.metadata), lambda answer: answer.data)

    def collect(self, older_than: timedelta, *, dry_run: bool = False) -> Collected:
        """Remove the blobs of at least this age that no head refers to. Role: operate."""
        request = pb.CollectBlobsRequest(dry_run=dry_run)
        request.older_than.FromTimedelta(older_than)
        removed: list[StoredBlob] = []
        with Stream(self._stub.CollectBlobs(request, metadata=self.connection.metadata), _itself) as answers:
            for answer in answers:
                removed += map(heads_wire.stored, answer.removed)
                if answer.HasField("summary"):
                    left = answer.summary
                    return Collected(tuple(removed), left.referenced, left.young, left.swept_bytes)
        raise DataLoss("the registry ended its answer before the end of the collection", reason="ANSWER_CUT")

    def serving(self, timeout: float = 5.0) -> bool:
        """Whether the server is there and says that it serves."""
        return self.connection.serving(SERVICE, timeout)

    def close(self) -> None:
        """Cancel running calls and disconnect."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., _Response], request: Any) -> _Response:
        return self.connection.call(method, request, self._timeout)


def _itself(answer: pb.CollectBlobsResponse) -> pb.CollectBlobsResponse:
    return answer
