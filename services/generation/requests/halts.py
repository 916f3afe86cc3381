"""Halted methods: by the ledger, kept over restarts, or by an inline replay before the ledger has the halt."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.dates import MOST_SKEW_SECONDS
from ledger.documents.halt import Resume, Scope
from ledger.documents.signed_document import open_document, read_document
from ledger.durable_file import write_durably
from ledger.encoding.document import decoder
from ledger.errors import LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from services.generation.ledger_link import LedgerUnreachable
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

_WARNED_SKEW = timedelta(seconds=5)
_MAX_SKEW = timedelta(seconds=MOST_SKEW_SECONDS)


@dataclass(frozen=True, slots=True)
class KnownHalt:
    """A halt in the ledger: the index of its entry and its scope."""

    index: int
    scope: Scope


class ResumeVerifier:
    """Reads resumes and checks their signatures against this server's own trusted keys and threshold.

    A server without a trusted operator key accepts all resumes of the ledger.
    """

    def __init__(self, read: Callable[[int], Awaitable[Iterable[Entry]]], trusted: TrustedKeys) -> None:
        """`read` returns the resumes from an index on; may raise LedgerUnreachable."""
        self._read = read
        self._trusted = trusted

    async def unverified(self, gone: Sequence[KnownHalt]) -> tuple[KnownHalt, ...]:
        """The halts that disappeared without a valid resume. Raises LedgerUnreachable."""
        if not gone or not self._trusted.keys("operator"):
            return ()
        entries = await self._read(min(halt.index for halt in gone) + 1)
        resumed = {halt for entry in entries if (halt := self._resumed(entry)) is not None}
        return tuple(halt for halt in gone if halt not in resumed)

    async def scopes(self, start: int) -> tuple[Scope, ...]:
        """The scopes of the valid resumes from an index on. Raises LedgerUnreachable."""
        resumed = map(self._resumed, await self._read(start))
        return tuple(halt.scope for halt in resumed if halt is not None)

    def _resumed(self, entry: Entry) -> KnownHalt | None:
        try:
            document = (
                open_document(entry.envelope, self._trusted, entry.index)
                if self._trusted.keys("operator")
                else read_document(entry.envelope)
            )
        except LedgerError as error:
            _log.error("ignoring the resume in entry %d: %s", entry.index, error)
            return None
        return KnownHalt(document.halt_index, document.scope) if isinstance(document, Resume) else None


@dataclass(frozen=True, slots=True)
class HaltKnowledge:
    """`epoch`: count of the ledger's halts; `open`: its open halts; `local`: scopes of deviations found here; `since`:
    entries of the ledger before them, None if the ledger has not been asked since.
    """

    epoch: int = 0
    open: tuple[KnownHalt, ...] = ()
    local: tuple[Scope, ...] = ()
    since: int | None = None

    def after(
        self,
        state: ledger_pb2.GetHaltStateResponse,
        unresumed: Collection[KnownHalt] = (),
        ended: Collection[Scope] = (),
    ) -> HaltKnowledge:
        """The state after a newer answer of the ledger.

        A local halt is in force until the ledger has a halt that covers it; then the ledger's resume ends it. `ended`
        are local halts whose halt and resume both came while this server was down. `unresumed` halts are missing from
        the ledger's list and remain in force.
        """
        listed = tuple(KnownHalt(halt.halt_index, _scope(halt.scope)) for halt in state.halts)
        halts = (*(halt for halt in self.open if halt in unresumed and halt not in listed), *listed)
        local = tuple(
            found
            for found in self.local
            if found not in ended and not _is_covered(found, (halt.scope for halt in halts))
        )
        since = state.tree_size if self.since is None else self.since
        return HaltKnowledge(state.epoch, halts, local, since if local else None)

    def gone(self, state: ledger_pb2.GetHaltStateResponse) -> tuple[KnownHalt, ...]:
        """Open halts that the ledger no longer lists."""
        listed = {KnownHalt(halt.halt_index, _scope(halt.scope)) for halt in state.halts}
        return tuple(halt for halt in self.open if halt not in listed)

    def with_local(self, scope: Scope, since: int | None = None) -> HaltKnowledge:
        return HaltKnowledge(self.epoch, self.open, tuple(dict.fromkeys((*self.local, scope))), since)

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return tuple(dict.fromkeys((*(halt.scope for halt in self.open), *self.local)))


async def trust_ledger(gone: Sequence[KnownHalt]) -> Sequence[KnownHalt]:
    """Trust the ledger that a halt that it no longer lists was resumed."""
    return ()


async def no_resumes(start: int) -> Sequence[Scope]:
    """Know of no resumes."""
    return ()


class LedgerClock:
    """The newest comparison of the two clocks. Before the first comparison they count as equal."""

    def __init__(self) -> None:
        self.skew = timedelta()
        """The least time by which this clock is ahead of the ledger's; negative if it is behind."""
        self._has_warned = self._is_refusing = False

    @property
    def problem(self) -> str | None:
        """The reason why no request may be served, with the remedy; None if the clocks agree well enough."""
        if abs(self.skew) <= _MAX_SKEW:
            return None
        return (
            f"this server's clock is {self._description} (limit {MOST_SKEW_SECONDS} s); compare "
            "`date -u` on both machines and set the clock that is wrong"
        )

    def compare(self, asked: datetime, shown: datetime, answered: datetime) -> None:
        """Compare the clocks. The ledger's clock showed `shown` at some time between `asked` and `answered` of this
        clock; that uncertainty does not count as skew.
        """
        self.skew = max(asked - shown, timedelta()) or min(answered - shown, timedelta())
        if self.problem is not None and not self._is_refusing:
            _log.error("refusing requests: %s", self.problem)
        elif self.problem is None and self._is_refusing:
            _log.info("serving requests again: this server's clock is %s", self._description)
        elif abs(self.skew) > _WARNED_SKEW and not self._has_warned:
            _log.warning("this server's clock is %s; check its time synchronisation (NTP)", self._description)
        self._is_refusing, self._has_warned = self.problem is not None, abs(self.skew) > _WARNED_SKEW

    @property
    def _description(self) -> str:
        return (
            f"{abs(self.skew).total_seconds():.0f} s {'behind' if self.skew < timedelta() else 'ahead of'} the ledger's"
        )


class HaltBoard:
    """The halts that decide requests. Used on one event loop.

    `known` is False until the ledger has answered, and again when the last answered query is older than `lease`
    seconds: a method may have been halted since.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[], Awaitable[ledger_pb2.GetHaltStateResponse]],
        every: float,
        unverified: Callable[[Sequence[KnownHalt]], Awaitable[Sequence[KnownHalt]]] = trust_ledger,
        resumed: Callable[[int], Awaitable[Sequence[Scope]]] = no_resumes,
        lease: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`unverified` returns the halts without a valid resume among those that the ledger no longer lists, `resumed`
        the scopes of valid resumes from an index on. `every`, `lease` and `clock` count seconds. `wall_clock` is
        compared with the ledger's clock at each answer.
        """
        self._path = path
        self._read = read
        self._every = every
        self._unverified = unverified
        self._resumed = resumed
        self._size: int | None = None  # of the ledger, at its last answer
        self._knowledge = _load(path)
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self._lease = lease
        self._clock = clock
        self._queried_at = -math.inf  # start of the last query that the ledger has answered
        self._wall_clock = wall_clock
        self.ledger_clock = LedgerClock()

    @property
    def known(self) -> bool:
        return self._clock() - self._queried_at < self._lease

    @property
    def epoch(self) -> int:
        return self._knowledge.epoch

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return self._knowledge.scopes

    async def deviated(self, scope: Scope) -> None:
        """Halt `scope` on this server, over restarts too, because an inline replay found a deviation."""
        _log.critical(
            "halting %s until the ledger has its halt and resume: it deviated from decoding without speculation on %s",
            scope.method, scope.base_cid,
        )  # fmt: skip
        await self._keep(self._knowledge.with_local(scope, self._size))

    def noticed(self, epoch: int) -> None:
        """Note the epoch of a ledger's answer; a new epoch triggers a query now."""
        if epoch != self.epoch:
            self._news.set()

    async def refresh(self) -> None:
        """Query the ledger once. Raises LedgerUnreachable."""
        asked, began = self._clock(), self._wall_clock()
        state, before = await self._read(), self._knowledge
        if state.HasField("answer_time"):
            self.ledger_clock.compare(began, _moment(state.answer_time), self._wall_clock())
        unresumed = await self._unverified(before.gone(state))
        resumed: Sequence[Scope] = ()
        for halt in unresumed:
            _log.critical("keeping halt %d: the ledger dropped it without a valid resume", halt.index)
        if before.since is not None and before.epoch != state.epoch:
            resumed = await self._resumed(before.since)
        ended = [found for found in before.local if _is_covered(found, resumed)]
        knowledge = self._knowledge.after(state, unresumed, ended)  # of the state after the calls
        self._size = state.tree_size
        await self._keep(knowledge)
        if not self.known:
            _log.info("updating halts: %d in the ledger, %d open", knowledge.epoch, len(knowledge.open))
        self._queried_at = asked  # the answer may be as old as the query

    async def follow(self) -> None:
        """Poll every `every` seconds, and immediately after news, until cancelled."""
        outage = Outage(_log, "ask the ledger for halts", LedgerUnreachable)
        while True:
            self._news.clear()
            with outage:
                await self.refresh()
            try:
                await asyncio.wait_for(self._news.wait(), self._every)
            except TimeoutError:
                continue

    async def _keep(self, knowledge: HaltKnowledge) -> None:
        if knowledge == self._knowledge:
            return
        if set(knowledge.scopes) != set(self.scopes):
            _log.warning("halted now: %s", ", ".join(scope.method for scope in knowledge.scopes) or "nothing")
        self._knowledge = knowledge
        async with self._writing:
            data = msgspec.json.encode(self._knowledge)
            try:
                await asyncio.to_thread(write_durably, self._path, data)
            except OSError as error:
                _log.error("writing halts to %s failed; they are lost at a restart: %s", self._path, error)


def _moment(stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise LedgerUnreachable("its answer has a time outside of the years 1 to 9999") from None


def _is_covered(found: Scope, scopes: Iterable[Scope]) -> bool:
    return any(scope.covers(found.base_cid, found.method, found.head_cid) for scope in scopes)


def _scope(message: Any) -> Scope:
    return Scope(message.base_cid, message.method, message.head_cid if message.HasField("head_cid") else None)


def _load(path: Path) -> HaltKnowledge:
    try:
        knowledge: HaltKnowledge = decoder(HaltKnowledge).decode(path.read_bytes())
        return knowledge
    except FileNotFoundError:
        return HaltKnowledge()
    except (OSError, ValueError, RecursionError) as error:
        _log.error("reading halts from %s failed; using the ledger's halts only: %s", path, error)
        return HaltKnowledge()
