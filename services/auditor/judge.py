"""The replay of a receipt with its content, and what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.verdict import AUDITOR, DECODE, DEVIATION, PREFILL
from ledger.encoding.stream_digest import StreamDigest
from services.auditor.audit_error import CannotReplay
from services.auditor.comparison import compare, misstated
from services.auditor.finding import Finding
from services.auditor.replays.replayer import Replayer
from services.client.errors import FailedPrecondition, Internal, InvalidArgument, KolmError, NotFound, Unimplemented
from services.client.generation.completion import Replayed

_FINAL = (FailedPrecondition, InvalidArgument, NotFound, Unimplemented, Internal)
"""Errors about this receipt, rather than about the server or the caller."""


class Judge:
    """Replays receipts one by one. Nothing is remembered between two of them."""

    def __init__(
        self, replayer: Replayer, decode_share: float = 0.0, chance: Callable[[], float] = random.random
    ) -> None:
        """`decode_share`: of receipts, 0 to 1, to decode token by token where the replayer knows a cheaper way; decided
        by `chance`, which draws from 0 to 1.
        """
        self._replayer = replayer
        self._decode_share = decode_share
        self._chance = chance

    def judge(self, receipt: Receipt, content: Content) -> Finding:
        """The finding on a receipt that is signed, with content that it commits to.

        Raises ServiceAway, Interrupted.
        """
        if not content.output_token_ids:  # there is nothing to compute: the auditor compares by itself
            nothing = compare(receipt, (), _nothing(receipt)).noting("nothing had been emitted")
            return nothing.computed(PREFILL, AUDITOR)
        try:
            return self._confirmed(receipt, content, self._chosen_way())
        except CannotReplay as error:
            return Finding.unreplayable(str(error))
        except _FINAL as error:
            return Finding.unreplayable(_why(error))

    def _chosen_way(self) -> str:
        return DECODE if self._chance() < self._decode_share else self._replayer.ways[0]

    def _confirmed(self, receipt: Receipt, content: Content, way: str) -> Finding:
        found = self._compared(receipt, content, way)
        if found.outcome != DEVIATION or way == DECODE:
            return found
        decoded = self._compared(receipt, content, DECODE)
        if decoded.outcome == DEVIATION:
            return decoded
        return Finding.unreplayable(
            f"the auditor's engine contradicts itself ({decoded.outcome} by decoding; by prefill: {found.reason}); "
            "`kolm doctor` probes it"
        )

    def _compared(self, receipt: Receipt, content: Content, way: str) -> Finding:
        replayed = self._replayer.replay(receipt, content, way)
        if replayed.profile_cid != receipt.profile_cid:
            return Finding.unreplayable(_another_profile(receipt.profile_cid, replayed.profile_cid))
        if _reached_limit(receipt, replayed):
            return Finding.unreplayable("the grammar of its structured_outputs reached a limit in the replay")
        found = compare(receipt, content.output_token_ids, replayed).computed(way, self._replayer.by)
        lie = misstated(receipt, content, replayed) if found.passed else None
        return found if lie is None else Finding.unreplayable(lie, tampered=True)


def _reached_limit(receipt: Receipt, replayed: Replayed) -> bool:
    """Whether a grammar's limit ended the replay. A lexer's earlier work decides when: the computation is the same."""
    return replayed.finish_reason == "error" != receipt.output.finish_reason and (
        receipt.sampling.structured_outputs is not None
    )


def _nothing(receipt: Receipt) -> Replayed:
    """The replay of an output without tokens, which asks nobody."""
    return Replayed((), receipt.output.finish_reason, StreamDigest().hexdigest(), receipt.profile_cid, 0.0, ())


def _why(error: KolmError) -> str:
    return f"the generation service refuses the replay ({error.reason}): {error.message}"


def _another_profile(named: str, replayed: str) -> str:
    return f"the receipt names numerics profile {named}, the generation service replayed it on {replayed}"
