"""The stream digest: binds a receipt to the computation that emitted its tokens, not just to their text.

    h_0     = SHA-256("kolm.stream.v1")
    h_{i+1} = SHA-256(h_i ‖ token id as u32 ‖ best logit as float32 ‖ second best logit as float32)     little-endian

A replay on the same numerics profile reproduces every bit of both logits at every emitted position; a difference is a
deviation. Receipts of other engines have no logits; the digest of their output is over the tokens alone:

    SHA-256("kolm.tokens.v1" ‖ token ids as u32)     little-endian
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Final

from ledger.errors import FormatError

_START: Final = hashlib.sha256(b"kolm.stream.v1").digest()
_LINK: Final = struct.Struct("<Iff")


class StreamDigest:
    """The running digest of one output. Feed it emitted positions in order; `copy` it where a stream forks."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = _START

    def update(self, token_id: int, best: float, second: float) -> None:
        """Chain one emitted position. `best` and `second` are float32 values (a Python float that holds one exactly).

        Raises FormatError for a NaN, whose bits are not defined, and for a token id outside of u32.
        """
        if math.isnan(best) or math.isnan(second):
            raise FormatError("stream_digest", "a logit is NaN")
        try:
            link = _LINK.pack(token_id, best, second)
        except (struct.error, OverflowError):
            raise FormatError("stream_digest", f"token {token_id} or its logits do not fit u32 and float32") from None
        self._state = hashlib.sha256(self._state + link).digest()

    def copy(self) -> StreamDigest:
        """An independent digest in the same state."""
        twin = StreamDigest()
        twin._state = self._state
        return twin

    def hexdigest(self) -> str:
        """The digest so far, as `sha256:<hex>`; h_0 for no tokens."""
        return "sha256:" + self._state.hex()


def token_digest(token_ids: Sequence[int]) -> str:
    """The digest of an output without logits, as `sha256:<hex>`. Raises FormatError for ids beyond u32."""
    try:
        packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise FormatError("stream_digest", "a token id does not fit u32") from None
    return "sha256:" + hashlib.sha256(b"kolm.tokens.v1" + packed).hexdigest()
