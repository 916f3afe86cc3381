"""The errors of the registry on the wire. Errors that the registry also catches have their own classes.

KolmError
├── InvalidArgument        BAD_MANIFEST        not a manifest that this registry reads
│   │                      BLOB_TOO_LARGE      more bytes than this registry takes for one blob
│   │                      DIGEST_MISMATCH     uploaded bytes have another digest
│   ├── BadDocument        BAD_DOCUMENT        the envelope contains another document than the call needs
│   │   └── DatedAhead     CLOCK_AHEAD         the ledger takes the same bytes once its clock reaches their date
│   └── UntrustedSignature UNTRUSTED_SIGNATURE not signed by a trusted publisher
├── PermissionDenied       NOT_THE_PUBLISHER   the head is another publisher's
│   └── NameTaken          NAME_TAKEN          the name is another publisher's
├── NotFound               NOT_FOUND           no such head, no such blob
├── FailedPrecondition     BLOB_MISSING        upload it first
│                          BASE_UNKNOWN        upload the base's manifest and config.json first
│                          HEAD_WITHDRAWN      a withdrawal is final
│                          AMBIGUOUS_REFERENCE several heads; the error names them
│                          OFFSET_MISMATCH     continue from committed_size
├── UploadTakenOver        UPLOAD_TAKEN_OVER   another upload of the same blob continues
├── ResourceExhausted
│   └── DiskFull           DISK_FULL
├── Unavailable            LEDGER_UNAVAILABLE, BLOBS_UNAVAILABLE, CATALOGUE_UNAVAILABLE, UPLOADS_UNAVAILABLE
└── DataLoss               BLOB_DAMAGED        stored bytes have another digest, or end early
                           BLOB_TOO_LARGE      more stored bytes than a reader takes
"""

from __future__ import annotations

import grpc

from services.runtime.errors import InvalidArgument, KolmError, PermissionDenied, ResourceExhausted


class BadDocument(InvalidArgument):
    """The envelope is malformed, or contains another document than the call needs."""

    def __init__(self, problem: str, reason: str = "BAD_DOCUMENT") -> None:
        super().__init__("envelope", problem, reason=reason)


class DatedAhead(BadDocument):
    """The document's date is after the ledger's time: one of the two clocks is wrong."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, reason="CLOCK_AHEAD")


class UntrustedSignature(InvalidArgument):
    """Not signed by a key that this registry, or the ledger, trusts as a publisher's."""

    def __init__(self, problem: str) -> None:
        super().__init__("envelope", problem, reason="UNTRUSTED_SIGNATURE")


class NameTaken(PermissionDenied):
    """Another publisher was the first to publish under this name."""

    def __init__(self, name: str, owner: str, signer: str) -> None:
        super().__init__(
            f"the name {name!r} belongs to {owner}, who published under it first; this publication is signed by "
            f"{signer}: choose another name, or have that publisher sign",
            reason="NAME_TAKEN",
        )


class UploadTakenOver(KolmError):
    """A newer upload of the same blob has replaced this one."""

    code = grpc.StatusCode.ABORTED

    def __init__(self) -> None:
        super().__init__(
            "another upload of the same blob has taken over; ask again in a moment whether the blob exists",
            reason="UPLOAD_TAKEN_OVER",
            retry_after=1.0,
        )


class DiskFull(ResourceExhausted):
    """The bytes so far are kept."""

    def __init__(self) -> None:
        super().__init__("the registry has no space left for this blob", retry_after=60.0, reason="DISK_FULL")
