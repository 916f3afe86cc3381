"""The errors of the registry, as they go over the wire.

KolmError
├── InvalidArgument
│   ├── BadManifest        BAD_MANIFEST        no manifest that this registry reads
│   ├── BadDocument        BAD_DOCUMENT        the envelope does not hold what the call is about
│   ├── UntrustedSignature UNTRUSTED_SIGNATURE not signed by a trusted publisher
│   ├── BlobTooLarge       BLOB_TOO_LARGE      more bytes than this registry takes for one blob
│   └── DigestMismatch     DIGEST_MISMATCH     uploaded bytes are not those of the digest
├── PermissionDenied
│   ├── NameTaken          NAME_TAKEN          the name is another publisher's
│   └── NotThePublisher    NOT_THE_PUBLISHER   the head is another publisher's
├── NotFound               NOT_FOUND           no such head, no such blob
├── FailedPrecondition
│   ├── BlobMissing        BLOB_MISSING        upload it first
│   ├── BaseUnknown        BASE_UNKNOWN        upload the base's manifest and config.json first
│   ├── HeadWithdrawn      HEAD_WITHDRAWN      for good
│   ├── AmbiguousReference AMBIGUOUS_REFERENCE several heads; names them
│   └── OffsetMismatch     OFFSET_MISMATCH     go on from committed_size
├── UploadTakenOver        UPLOAD_TAKEN_OVER   another upload of the same blob goes on
├── ResourceExhausted
│   └── DiskFull           DISK_FULL
├── Unavailable            LEDGER_UNAVAILABLE, BLOBS_UNAVAILABLE, CATALOGUE_UNAVAILABLE
└── DataLoss               stored bytes are not those of their digest
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from services.runtime.errors import FailedPrecondition, InvalidArgument, KolmError, PermissionDenied, ResourceExhausted


class BadManifest(InvalidArgument):
    """`field` is the path inside the manifest."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__("manifest", problem if field == "manifest" else f"{field}: {problem}", reason="BAD_MANIFEST")


class BadDocument(InvalidArgument):
    """The envelope is none, or holds another document than the call is about."""

    def __init__(self, problem: str) -> None:
        super().__init__("envelope", problem, reason="BAD_DOCUMENT")


class UntrustedSignature(InvalidArgument):
    """Not signed by a key that this registry, or the ledger, trusts as a publisher's."""

    def __init__(self, problem: str) -> None:
        super().__init__("envelope", problem, reason="UNTRUSTED_SIGNATURE")


class BlobTooLarge(InvalidArgument):
    """Declared or sent."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(
            "blob.size", f"is {size:,} bytes; this registry takes at most {most:,}", reason="BLOB_TOO_LARGE"
        )


class DigestMismatch(InvalidArgument):
    """All bytes have arrived and they are others. The bytes so far are removed."""

    def __init__(self, declared: str, found: str) -> None:
        problem = f"the bytes that were sent are {found}, not {declared}; upload it again from its start"
        super().__init__("blob.digest", problem, reason="DIGEST_MISMATCH")


class NameTaken(PermissionDenied):
    """Another publisher was the first to publish under this name."""

    def __init__(self, name: str, owner: str, signer: str) -> None:
        super().__init__(
            f"the name {name!r} belongs to {owner}, who published under it first; this publication is signed by "
            f"{signer}: choose another name, or have that publisher sign",
            reason="NAME_TAKEN",
        )


class NotThePublisher(PermissionDenied):
    """Neither the head's first publisher nor an operator asks for its end."""

    def __init__(self, head_cid: str, owner: str, signer: str) -> None:
        super().__init__(
            f"{head_cid} was published by {owner}; the withdrawal is signed by {signer}: have that publisher, or an "
            "operator, sign it",
            reason="NOT_THE_PUBLISHER",
        )


class BlobMissing(FailedPrecondition):
    """`names` are the files that have no blob."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(f"upload these files first: {', '.join(names)}", reason="BLOB_MISSING")


class BaseUnknown(FailedPrecondition):
    """Nobody has described the base yet."""

    def __init__(self, base_cid: str, problem: str) -> None:
        super().__init__(
            f"the base {base_cid} is not known here ({problem}); upload its manifest and its config.json first",
            reason="BASE_UNKNOWN",
        )


class HeadWithdrawn(FailedPrecondition):
    """A publisher has ended it."""

    def __init__(self, head_cid: str, reason: str) -> None:
        super().__init__(
            f"{head_cid} was withdrawn: {reason}", reason="HEAD_WITHDRAWN", metadata={"head_cid": head_cid}
        )


class AmbiguousReference(FailedPrecondition):
    """Several heads answer to it."""

    def __init__(self, reference: str, candidates: Iterable[str]) -> None:
        names = ", ".join(candidates)
        super().__init__(
            f"{reference!r} names several heads: {names}; write more digits of the one that is meant",
            reason="AMBIGUOUS_REFERENCE",
            metadata={"candidates": names},
        )


class OffsetMismatch(FailedPrecondition):
    """The upload does not go on where the one before it ended."""

    def __init__(self, offset: int, committed: int) -> None:
        super().__init__(
            f"offset {offset} is not where this upload goes on; {committed} bytes are here",
            reason="OFFSET_MISMATCH",
            metadata={"committed_size": str(committed)},
        )


class UploadTakenOver(KolmError):
    """A newer upload of the same blob has begun where this one was."""

    code = grpc.StatusCode.ABORTED

    def __init__(self) -> None:
        super().__init__(
            "another upload of the same blob goes on; ask whether it is there in a moment",
            reason="UPLOAD_TAKEN_OVER",
            retry_after=1.0,
        )


class DiskFull(ResourceExhausted):
    """The bytes so far are kept."""

    def __init__(self) -> None:
        super().__init__("the registry has no space left for this blob", retry_after=60.0, reason="DISK_FULL")
