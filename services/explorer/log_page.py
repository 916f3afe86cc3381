"""The page of the log itself: its signed head, who has cosigned it, whose keys are trusted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from ledger.keys.ed25519 import ROLES
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from services.client.errors import NotFound
from services.client.ledger.log import SignedCheckpoint
from services.explorer.pages import Pages
from services.explorer.source import Source


@dataclass(frozen=True, slots=True)
class WitnessState:
    """A witness of the policy; `signed_at` is None where it has not cosigned this head."""

    name: str
    signed_at: datetime | None


class LogPage:
    """GET /log. Signatures and cosignatures are checked; without a policy, cosignatures are the ledger's word."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, _: Request) -> Response:
        head = self._source.proving.head()
        newest = self._source.client.checkpoint()
        witnessed = self._witnessed()
        return self._pages.of_log(
            "log.html",
            here="log",
            head=head,
            note=newest.note.decode("utf-8", "replace"),
            witnesses=self._witnesses(witnessed or newest),
            witnessed=None if witnessed is None else self._opened(witnessed),
            policy=self._source.policy,
            keys={role: self._source.trusted.keys(role) for role in ROLES},
        )

    def _opened(self, checkpoint: SignedCheckpoint) -> Checkpoint:
        """The head that counts as witnessed: by the explorer's own policy, where it has one."""
        if self._source.policy is not None:
            return self._source.policy.open(checkpoint.note).checkpoint
        return open_checkpoint(checkpoint.note, self._source.trusted.keys("log"), self._source.origin)

    def _witnessed(self) -> SignedCheckpoint | None:
        try:
            return self._source.client.checkpoint(witnessed=True)
        except NotFound:
            return None

    def _witnesses(self, checkpoint: SignedCheckpoint) -> list[WitnessState]:
        if self._source.policy is None:
            return [WitnessState(each.witness, each.signed_at) for each in checkpoint.cosignatures]
        times = self._source.policy.cosigned(Note.from_bytes(checkpoint.note))
        return [WitnessState(each.key.name, _moment(times.get(each.name))) for each in self._source.policy.witnesses]


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
