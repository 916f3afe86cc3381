"""Findings about a log, from its summary alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ledger.audit.fulfilment import open_promise_with_any_key
from ledger.documents.promise import Promise
from ledger.documents.signed_document import UNKNOWN
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import FormatError, ProofError, SignatureError
from ledger.monitor import finding as kinds
from ledger.monitor.finding import Finding
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.summary import Summary
from ledger.witness.freshness import Freshness
from ledger.witness.tlog_policy import Policy


@dataclass(frozen=True, slots=True)
class Limits:
    """The demands of the monitor's owner on the log; None demands nothing. `policy` names the witnesses whose
    cosignatures date the log; without a policy, its age is the time since the last growth that the monitor saw. `since`
    is the first entry whose findings are reported. `lag` is the largest delay of the log's files: deadlines are
    compared with the time before it.
    """

    policy: Policy | None = None
    origin: str | None = None
    max_age: timedelta | None = None
    max_unreplayable: int = 0
    since: int = 0
    lag: timedelta = timedelta()

    @property
    def witnessed(self) -> bool:
        """Whether witnesses date the checkpoints."""
        return self.policy is not None and self.policy.asks_for_witnesses


@dataclass(frozen=True, slots=True)
class Promised:
    """A caller's promise: the name of its file, and its signed bytes."""

    name: str
    data: bytes


def judge(
    summary: Summary, memory: MonitorMemory, limits: Limits, promised: tuple[Promised, ...], now: datetime
) -> list[Finding]:
    """The findings. `promised` has the promises to judge: the caller has read the log to its end. Raises StoreError."""
    as_of = _as_of(summary, limits, now)
    return [
        *_forks(memory),
        *_deviations(summary, memory, limits),
        *_inconsistent(summary, limits),
        *_breaches(summary, limits),
        *_contradictions(summary, limits),
        *_dated_ahead(summary, limits),
        *_obligations(summary, limits, as_of),
        *_unreplayable(memory, limits),
        *_heads(summary, limits),
        *_unknown(summary, limits),
        *_promises(summary, memory, promised, as_of),
        *_age(summary, limits, now),
    ]


def _as_of(summary: Summary, limits: Limits, now: datetime) -> datetime:
    """The time until which the log is known to have held no more entries: entries after the witnessed checkpoint are
    not missing yet.
    """
    as_of, head = now - limits.lag, summary.head
    if limits.witnessed and head is not None and head.vouched_at is not None:
        return min(as_of, datetime.fromtimestamp(head.vouched_at, UTC))
    return as_of


def _forks(memory: MonitorMemory) -> Iterator[Finding]:
    """Forks, which last whatever the log shows later."""
    for evidence in memory.accusations(kinds.FORK)[:1]:
        yield Finding(kinds.FORK, kinds.FORK, "the log has signed two histories", evidence=evidence)


def _deviations(summary: Summary, memory: MonitorMemory, limits: Limits) -> Iterator[Finding]:
    standing = [verdict for verdict in summary.deviations if verdict >= limits.since]
    if standing:
        verdict = max(standing)
        receipt = summary.deviations[verdict]
        ends = "operators end one by `kolm halts resume`"
        if any(scope.method == "off" for scope in memory.served_in(receipt)):
            ends = f"with speculation off nothing is halted, so only --since {verdict + 1} ends it"
        message = (
            f"entry {verdict}: a replay of the receipt at entry {receipt} came out differently "
            f"({len(standing)} such verdicts without a resume; {ends})"
        )
        yield Finding(kinds.DEVIATION, f"{kinds.DEVIATION}:{verdict}", message, verdict)


def _inconsistent(summary: Summary, limits: Limits) -> Iterator[Finding]:
    newest = summary.newest_inconsistent
    if newest is not None and newest[0] >= limits.since:
        message = (
            f"entry {newest[0]}: the output of another engine, at entry {newest[1]}, is inconsistent with the weights "
            f"({summary.inconsistent} such verdicts)"
        )
        yield Finding(kinds.INCONSISTENT, f"{kinds.INCONSISTENT}:{newest[0]}", message, newest[0])


def _breaches(summary: Summary, limits: Limits) -> Iterator[Finding]:
    breach = summary.newest_breach
    if breach is not None and breach.index >= limits.since:
        message = f"{breach} ({summary.breaches} such receipts)"
        yield Finding(kinds.DEFIED, f"{kinds.DEFIED}:{breach.index}", message, breach.index)


def _contradictions(summary: Summary, limits: Limits) -> Iterator[Finding]:
    newest = summary.newest_contradiction
    if newest is not None and newest.index >= limits.since:
        message = f"{newest} ({summary.contradictions} such verdicts)"
        yield Finding(kinds.CONTRADICTION, f"{kinds.CONTRADICTION}:{newest.index}", message, newest.index)


def _dated_ahead(summary: Summary, limits: Limits) -> Iterator[Finding]:
    ahead = summary.walk.clock.ahead
    if ahead.newest >= limits.since:
        yield Finding(kinds.DATED_AHEAD, f"{kinds.DATED_AHEAD}:{ahead.newest}", str(ahead), ahead.newest)


def _obligations(summary: Summary, limits: Limits, as_of: datetime) -> Iterator[Finding]:
    owed = summary.obligations.completeness(as_of)
    overdue = [one for one in owed.overdue if one.index >= limits.since]
    if overdue:
        first = overdue[0]
        message = f"entry {first.index}: has no verdict, promised by {first.due_by} ({len(overdue)} such receipts)"
        yield Finding(kinds.OVERDUE, kinds.OVERDUE, message, first.index)
    late = summary.newest_late
    if late is not None and late.index >= limits.since:
        message = (
            f"entry {late.index}: got its verdict too late, at {late.judged_at}, promised by {late.due_by} "
            f"({summary.late} such receipts)"
        )
        yield Finding(kinds.LATE, f"{kinds.LATE}:{late.index}", message, late.index)
    void = max(owed.void_draws, default=-1)
    if void >= limits.since:
        message = f"entry {void}: this draw is over another log than this one"
        yield Finding(kinds.VOID_DRAW, f"{kinds.VOID_DRAW}:{void}", message, void)


def _unreplayable(memory: MonitorMemory, limits: Limits) -> Iterator[Finding]:
    count, first = memory.unreplayable(limits.since)
    if count > limits.max_unreplayable:
        message = (
            f"{count} receipts could not be replayed or checked, which is not a pass: first in entry {first}; "
            f"{limits.max_unreplayable} are allowed"
        )
        yield Finding(kinds.UNREPLAYABLE, kinds.UNREPLAYABLE, message, first)


def _heads(summary: Summary, limits: Limits) -> Iterator[Finding]:
    for (head, base), index in summary.heads_used.items():
        published = summary.heads_published.get(head, base)
        if published != base and index >= limits.since:
            message = f"entry {index}: the head {head} was published for {published} and served on {base}"
            yield Finding(kinds.HEAD, f"{kinds.HEAD}:{index}", message, index)


def _unknown(summary: Summary, limits: Limits) -> Iterator[Finding]:
    """An unknown kind: an older monitor continues with the log, and reports that not every entry was checked."""
    if summary.newest_unknown is not None and summary.newest_unknown[0] >= limits.since:
        index, name = summary.newest_unknown
        message = (
            f"entry {index}: is of the kind {name}, which this version does not know: only its place and its signature "
            f"were checked ({summary.walk.kinds[UNKNOWN]} such entries); update kolm"
        )
        yield Finding(kinds.UNKNOWN, f"{kinds.UNKNOWN}:{index}", message, index)


def _promises(
    summary: Summary, memory: MonitorMemory, promised: tuple[Promised, ...], as_of: datetime
) -> Iterator[Finding]:
    for each in promised:
        key = f"{kinds.PROMISE}:{each.name}"
        try:
            promise = open_promise_with_any_key(each.data, (trusted for _, trusted in summary.walk.keys.epochs))
        except (FormatError, SignatureError) as error:
            yield Finding(kinds.PROMISE, key, f"{each.name}: is not a promise that a trusted key has signed: {error}")
            continue
        missing = promise.choices - memory.holds(promise.digests())
        if missing and as_of > parse_timestamp(promise.due):
            yield Finding(kinds.PROMISE, key, f"{each.name}: {_broken(promise, missing, summary.size)}")


def _broken(promise: Promise, missing: int, size: int) -> str:
    return (
        f"{missing} of {promise.choices} receipts of request {promise.request_id}, promised by {promise.due}, "
        f"are not among the log's {size} entries"
    )


def _age(summary: Summary, limits: Limits, now: datetime) -> Iterator[Finding]:
    head = summary.head
    if limits.max_age is None or head is None:
        return
    if limits.witnessed:
        vouched = None if head.vouched_at is None else datetime.fromtimestamp(head.vouched_at, UTC)
        try:
            Freshness(now, vouched, _latest(summary)).check(limits.max_age)
        except ProofError as error:
            yield Finding(kinds.STALE, kinds.STALE, str(error))
        return
    seen_at = datetime.fromtimestamp(head.seen_at, UTC)
    grown_at = min(seen_at, _latest(summary) or seen_at)  # a log that had stopped before the first poll
    if now - grown_at > limits.max_age:
        message = f"the log has not grown since {grown_at:%Y-%m-%d %H:%M:%S} UTC, at {summary.size} entries"
        yield Finding(kinds.STALE, kinds.STALE, message)


def _latest(summary: Summary) -> datetime | None:
    latest = summary.obligations.latest
    return parse_timestamp(latest) if latest else None
