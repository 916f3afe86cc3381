"""RFC 3161 timestamps over checkpoints: an authority signs that a checkpoint's text existed at some time.

Needs rfc3161-client (the extra `timestamp`); nothing else of the ledger imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography.x509 import Certificate, load_pem_x509_certificates
from rfc3161_client import HashAlgorithm, TimestampRequestBuilder, VerifierBuilder, decode_timestamp_response
from rfc3161_client.errors import VerificationError

from ledger.errors import FormatError, SignatureError

CONTENT_TYPE = "application/timestamp-query"
MAX_RESPONSE_BYTES = 64 * 1024


def timestamp_request(text: bytes) -> bytes:
    """The request (DER) for a timestamp over a checkpoint's note text: SHA-256, a nonce, the certificate included."""
    request = TimestampRequestBuilder().data(text).hash_algorithm(HashAlgorithm.SHA256).build()
    return bytes(request.as_bytes())


@dataclass(frozen=True, slots=True)
class Authority:
    """A timestamping authority, by the certificates that a verifier trusts for it: its own, or what it is issued by."""

    roots: tuple[Certificate, ...]

    @classmethod
    def from_pem(cls, data: bytes) -> Authority:
        """The certificates of a PEM file. Raises FormatError where there are none."""
        try:
            return cls(tuple(load_pem_x509_certificates(data)))
        except ValueError as error:
            raise FormatError("certificate", f"is not PEM: {error}") from None

    def check(self, response: bytes, text: bytes) -> datetime:
        """The time of a response (DER) over a checkpoint's note text. Raises FormatError, SignatureError.

        The answer stays the same for ever: certificates are judged as of the stamped time, not as of today.
        """
        if len(response) > MAX_RESPONSE_BYTES:
            raise FormatError("timestamp", f"measures {len(response)} bytes, at most {MAX_RESPONSE_BYTES} are allowed")
        try:
            parsed = decode_timestamp_response(response)
        except Exception as error:  # the parser's own kinds, which it does not document
            raise FormatError("timestamp", f"is no RFC 3161 response: {error}") from None
        try:
            VerifierBuilder(roots=list(self.roots)).build().verify_message(parsed, text)
            return parsed.tst_info.gen_time
        except (VerificationError, ValueError, TypeError) as error:
            raise SignatureError(f"the timestamp is not one by the authority over this checkpoint: {error}") from None
