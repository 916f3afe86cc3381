"""The checks of a bundle, one method each, in the order of `verification.CHECKS`.

A check returns its finding in words. It raises LedgerError for a failure, NothingToCheck if the bundle has nothing for
it, NotReached if a check that it needs has failed. Later checks use the results of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from ledger.audit.fulfilment import open_promise_with_any_key
from ledger.audit.log_clock import DatedAhead
from ledger.audit.log_verification import Check
from ledger.audit.obligation import Completeness
from ledger.audit.seen import SeenOnDisk
from ledger.bundle import layout
from ledger.bundle.conversation import Transcript, check_transcript, receipts_in
from ledger.bundle.draft_heads import check_draft_head, draft_head_path, without
from ledger.bundle.evidence import (
    CheckFiles,
    Evidence,
    Folded,
    check_older,
    fold_entries,
    read_evidence,
)
from ledger.bundle.file_checks import CANONICAL, COMPLETE, RULES, SIGNED
from ledger.bundle.fold import BundleFold
from ledger.bundle.layout import BundleFiles, read_hashes
from ledger.bundle.report import (
    BundleReport,
    Extent,
    JudgedPromise,
    NothingToCheck,
    NotReached,
    Trust,
    check_promises,
    judge_promise,
)
from ledger.documents.audit import CONSISTENT, EXACT, SAME
from ledger.documents.dates import MOST_SKEW_SECONDS
from ledger.documents.halt import HaltState
from ledger.documents.signed_document import counted
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import FormatError, ProofError
from ledger.tree.merkle import EMPTY_ROOT, verify_consistency
from ledger.witness.freshness import Freshness, moment_of, quorum_time

_SHOWN = 5  # the most entries that a line names

_ENTRY_CHECKS = RULES + 1  # the fold of a bundle is complete after all checks of its entries
_OUTSIDE = "verdicts, halts and replaced keys may have been left out"


def check_unreplayable(fold: BundleFold, trust: Trust) -> str:
    """The finding about receipts whose newest verdict is UNREPLAYABLE, UNSTABLE or UNCHECKED. Raises ProofError for
    more than allowed.
    """
    count, judged = len(fold.unreplayable), sum(fold.outcomes_by_kind.values())
    erased = erased_in_words(fold.unreplayable)
    found = f"{count} receipts could not be replayed or checked, which does not count as passed{erased}"
    if trust.max_unreplayable is None:
        raise NothingToCheck(f"{found}; no limit was set")
    if count > trust.max_unreplayable:
        raise ProofError(f"{found}: first in entry {min(fold.unreplayable)}; {trust.max_unreplayable} are allowed")
    if not judged:
        raise NothingToCheck("the bundle holds no verdict")
    if not count:
        return f"all {judged} verdicts reached a result"
    return f"{count} receipts could not be replayed or checked, with {judged} verdicts{erased}"


def erased_in_words(unreplayable: Mapping[int, int | None]) -> str:
    """A description of the entries that erased contents of these receipts before a replay, with the number of
    contents.
    """
    erasing = [entry for entry in unreplayable.values() if entry is not None]
    if not erasing:
        return ""
    places = sorted(set(erasing))
    shown = ", ".join(map(str, places[:_SHOWN])) + (", …" if len(places) > _SHOWN else "")
    return f" ({len(erasing)} erased by {'entry' if len(places) == 1 else 'entries'} {shown})"


def check_age(freshness: Freshness | None, trust: Trust) -> str:
    """The finding about the age of the log. Raises ProofError for a log that is older than allowed."""
    if freshness is None:
        raise NothingToCheck("the verifier has no clock")
    if trust.max_age is None:
        raise NothingToCheck(f"{freshness}; no limit was set")
    freshness.check(trust.max_age)
    return str(freshness)


def owed_in_words(found: Completeness) -> str:
    """A description of the verdicts on sampled receipts, of owed ones, and of the time of the judgement."""
    verdicts = ", ".join(f"{count} {outcome}" for outcome, count in found.outcomes.items() if count) or "no verdict yet"
    whose = f", of which the auditor computed {found.independent} itself" if found.outcomes[EXACT] else ""
    others = sum(found.outcomes.get(name, 0) for name in (SAME, CONSISTENT))
    whose += f"; {others} of another engine, without an exact check" if others else ""
    return f"{verdicts}{whose}; {found.owed} owed, not overdue; as of {found.as_of}"


class BundleChecks:
    """One run through the checklist. `seen` is empty."""

    def __init__(self, bundle: BundleFiles, trust: Trust, check_files: CheckFiles, seen: SeenOnDisk) -> None:
        self._bundle = bundle
        self._trust = trust
        self._check_files = check_files
        self._seen = seen
        self._evidence: Evidence | None = None
        self._folded: Folded | None = None
        self._cosigned: Mapping[str, int] = {}
        self._times: list[datetime] = []
        self._quorum_time: datetime | None = None  # for the newest checkpoint
        self._completeness: Completeness | None = None
        self._promises: tuple[JudgedPromise, ...] = ()

    def steps(self) -> tuple[Callable[[], str], ...]:
        return (
            self._check_form,
            self._check_log_signature,
            self._check_witnesses,
            self._check_growth,
            self._check_inclusion,
            self._check_complete,
            self._check_signatures,
            self._check_rules,
            self._check_halts,
            self._check_obligations,
            self._check_content,
            self._check_draft_heads,
            self._check_transcript,
            self._check_replayable,
            self._check_age,
            self._check_promises,
            self._check_no_contradiction,
        )

    def report(self, checks: tuple[Check, ...]) -> BundleReport:
        evidence = self._evidence
        fold = self._folded.fold if self._folded else None
        return BundleReport(
            checks=checks,
            manifest=evidence.manifest if evidence else None,
            checkpoint=evidence.checkpoint if evidence else None,
            cosigned=self._cosigned,
            kinds=dict(fold.kinds) if fold else {},
            outcomes=dict(fold.outcomes_by_kind) if fold else {},
            independent=fold.independent if fold else 0,
            unproven=fold.unproven if fold else 0,
            overclaims=fold.overclaims if fold else 0,
            halts=fold.halts if fold else HaltState(),
            defied_halts=fold.watch.pairs() if fold else (),
            dated_ahead=fold.clock.ahead if fold else DatedAhead(),
            contradictions=tuple(fold.contradictions) if fold else (),
            completeness=self._completeness,
            unreplayable=dict(fold.unreplayable) if fold else {},
            freshness=self._freshness(),
            promises=self._promises,
        )

    def _check_form(self) -> str:
        self._evidence = read_evidence(self._bundle, self._trust)
        return f"{len(self._evidence.paths)} files"

    def _check_log_signature(self) -> str:
        evidence = self._require_evidence()
        key = evidence.policy.log_key(evidence.note, evidence.checkpoint)
        evidence.keys.check_log_key(key, evidence.checkpoint.size)
        return f"{evidence.checkpoint.origin}, {evidence.checkpoint.size} entries, by {key.key_id}"

    def _check_witnesses(self) -> str:
        evidence = self._require_evidence()
        self._cosigned = evidence.policy.cosigned(evidence.note)
        moments = {name: moment_of(at) for name, at in self._cosigned.items()}
        who = ", ".join(f"{name} at {moment:%Y-%m-%d %H:%M:%S} UTC" for name, moment in moments.items())
        quorum = evidence.policy.quorum
        if not evidence.policy.is_met_by(self._cosigned):
            raise ProofError(f"cosigned by {who or 'no witness'}; the policy requires the quorum {quorum!r}")
        self._times += moments.values()
        self._quorum_time = quorum_time(evidence.policy, self._cosigned)
        if quorum == "none":
            raise NothingToCheck(f"the policy requires no witness{f'; cosigned by {who}' if who else ''}")
        return who

    def _check_growth(self) -> str:
        evidence, newest = self._require_evidence(), self._require_evidence().checkpoint
        for tree in evidence.trees:
            verify_consistency(tree.size, newest.size, tree.proof, tree.root, newest.root)
            if tree.checkpoint is not None:
                check_older(evidence, tree, tree.checkpoint.encode())
        known = evidence.roots() | (self._fold().roots if evidence.own else {}) | {0: EMPTY_ROOT}
        for own in evidence.own:
            if own.size not in known:
                raise ProofError(f"the bundle has no tree of {own.size} entries to compare with your checkpoint")
            if known[own.size] != own.root:
                raise ProofError(f"your checkpoint over {own.size} entries has another root: history was rewritten")
        if not (evidence.trees or evidence.own):
            raise NothingToCheck("no older tree in the bundle, no older checkpoint of yours")
        return f"from {len(evidence.trees)} older trees and {len(evidence.own)} checkpoints of yours"

    def _check_inclusion(self) -> str:
        evidence, fold = self._require_evidence(), self._fold_after(CANONICAL)
        proof = read_hashes(self._bundle.read(layout.PROOF), layout.PROOF)
        if evidence.checkpoint.size == 0 and evidence.checkpoint.root != EMPTY_ROOT:
            raise ProofError("the tree of no entries has another root")
        fold.shown.check(evidence.checkpoint.size, evidence.checkpoint.root)
        if fold.places.count != evidence.manifest.entries:
            raise FormatError(
                layout.MANIFEST, f"names {evidence.manifest.entries} entries, the bundle has {fold.places.count}"
            )
        return f"{fold.places.count} entries, {len(proof)} hashes"

    def _check_complete(self) -> str:
        fold = self._fold_after(COMPLETE)
        missing = fold.missing()
        if missing is not None:
            raise ProofError(missing)
        if fold.manifest.range.start == fold.manifest.range.end:
            raise NothingToCheck(f"the bundle holds chosen entries, not a range: {_OUTSIDE}")
        if fold.whole:
            return "the whole log"
        return f"entries {fold.manifest.range.start} to {fold.manifest.range.end - 1}; outside of them, {_OUTSIDE}"

    def _check_signatures(self) -> str:
        fold, evidence = self._fold_after(SIGNED), self._require_evidence()
        known = [rotation.index for rotation in evidence.keys.rotations]
        if not fold.problems and known != fold.rotations:
            raise ProofError("the entries that replace keys differ from the first read: the files have changed")
        replaced = f"{len(known)} {'key was' if len(known) == 1 else 'keys were'} replaced"
        return f"{sum(fold.kinds.values())} documents, {replaced}"

    def _check_rules(self) -> str:
        return counted(self._fold_after(RULES).kinds)

    @property
    def _latest_valid_date(self) -> datetime | None:
        """The latest date that an entry may have: a witness had cosigned the whole tree by then, or it is the
        verifier's own time. None without both.
        """
        limits = [max(self._times)] if self._times else []
        return min([*limits, *([self._trust.now] if self._trust.now else [])], default=None)

    def _check_halts(self) -> str:
        fold = self._fold_after(_ENTRY_CHECKS)
        if fold.watch.breaches:
            raise ProofError(f"{fold.watch.breaches[0]} ({len(fold.watch.breaches)} such receipts)")
        if not fold.knows_all_halts:
            held = f"no receipt breaks the {fold.halts.epoch} halts" if fold.halts.epoch else "no halt is"
            raise NothingToCheck(
                f"{held} in the bundle; only a log from its first entry proves that no halt is missing"
            )
        count, opened = fold.halts.epoch, len(fold.halts.open)
        return f"{count} halt{'' if count == 1 else 's'}, {opened} open" if count else "there was no halt"

    def _check_obligations(self) -> str:
        fold = self._fold_after(_ENTRY_CHECKS)
        if not fold.whole:
            raise NothingToCheck("this check needs the whole log")
        self._completeness = fold.obligations.completeness(self._as_of(fold))
        if self._completeness.problem is not None:
            raise ProofError(self._completeness.problem)
        if not self._completeness.policies:
            raise NothingToCheck("this log holds no promise of an auditor")
        return owed_in_words(self._completeness)

    def _check_content(self) -> str:
        self._fold()
        if self._folded is not None and self._folded.content_problem is not None:
            raise FormatError("content", self._folded.content_problem)
        if self._folded is None or not self._folded.contents:
            raise NothingToCheck("the bundle has no content")
        return f"content of {self._folded.contents} receipts matches"

    def _check_draft_heads(self) -> str:
        """A draft head that was never published is reported, and is no failure: an operator may load a private head."""
        evidence, fold = self._require_evidence(), self._fold_after(_ENTRY_CHECKS)
        bases: dict[str, str] = {}
        for each in fold.seen.publications:
            if (base := bases.setdefault(each.manifest_cid, each.base_cid)) != each.base_cid:
                raise ProofError(f"the head {each.manifest_cid} was published for {base} and for {each.base_cid}")
        manifests = [path for path in evidence.paths if path.startswith("heads/")]
        for path in manifests:
            check_draft_head(path, self._bundle.read(path), bases)
        for head, base in sorted(fold.draft_heads_used):
            if bases.get(head, base) != base:
                raise ProofError(f"the head {head} was published for {bases[head]} and served on {base}")
        heads = {head for head, _ in fold.draft_heads_used}
        if not (bases or heads or manifests):
            raise NothingToCheck("the bundle names no heads")
        absent = sorted(head for head in heads if draft_head_path(head) not in manifests)
        used = f"{len(heads)} used, of which {len(heads - bases.keys())} without a publication"
        carried = f"{len(manifests)} manifest{'' if len(manifests) == 1 else 's'}"
        return f"{len(bases)} published, {used}; {carried}{without(absent)}"

    def _check_transcript(self) -> str:
        if layout.TRANSCRIPT not in self._require_evidence().paths:
            raise NothingToCheck("the bundle holds no conversation")
        transcript = Transcript.from_bytes(self._bundle.read(layout.TRANSCRIPT))
        self._fold_after(_ENTRY_CHECKS)
        if self._folded is None or self._folded.content_problem is not None:
            raise NotReached
        receipts = receipts_in(self._bundle, {turn.receipt_id for turn in transcript.turns})
        return check_transcript(transcript, receipts, self._trust.reader)

    def _check_replayable(self) -> str:
        return check_unreplayable(self._fold_after(_ENTRY_CHECKS), self._trust)

    def _check_age(self) -> str:
        return check_age(self._freshness(), self._trust)

    def _check_promises(self) -> str:
        for data in self._trust.promises:
            open_promise_with_any_key(data, (keys for _, keys in self._require_evidence().keys.epochs))
        fold = self._fold_after(_ENTRY_CHECKS)
        log = Extent.of(fold.whole, fold.obligations.latest, self._vouched_at)
        self._promises = tuple(judge_promise(each, self._as_of(fold), log) for each in fold.promised)
        return check_promises(self._promises, log)

    def _check_no_contradiction(self) -> str:
        fold = self._fold_after(_ENTRY_CHECKS)
        if fold.contradictions:
            more = len(fold.contradictions) - 1
            raise ProofError(f"{fold.contradictions[0]}{f' ({more} more)' if more else ''}")
        judged = sum(fold.outcomes_by_kind.values())
        if not judged:
            raise NothingToCheck("the bundle holds no verdict")
        return f"{judged} verdicts"

    def _freshness(self) -> Freshness | None:
        if self._trust.now is None or self._evidence is None:
            return None
        newest = self._folded.fold.obligations.latest if self._folded else ""
        return Freshness(self._trust.now, self._quorum_time, parse_timestamp(newest) if newest else None)

    def _require_evidence(self) -> Evidence:
        if self._evidence is None:
            raise NotReached
        return self._evidence

    def _fold(self) -> BundleFold:
        if self._folded is None:
            evidence = self._require_evidence()
            self._folded = fold_entries(evidence, self._check_files, self._seen, self._latest_valid_date)
        return self._folded.fold

    def _fold_after(self, check: int) -> BundleFold:
        """The fold. Raises ProofError with the reason if `check` failed, NotReached if an earlier check failed."""
        fold = self._fold()
        problems = fold.problems | dict([self._folded.problem] if self._folded and self._folded.problem else [])
        if any(number < check for number in problems):
            raise NotReached
        if check in problems:
            raise ProofError(problems[check])
        return fold

    def _as_of(self, fold: BundleFold) -> datetime | None:
        """The time at which owed replays are counted: the latest time of the log or a quorum of its witnesses."""
        log = [parse_timestamp(fold.obligations.latest)] if fold.obligations.latest else []
        return self._trust.as_of or max([*log, *([self._vouched_at] if self._vouched_at else [])], default=None)

    @property
    def _vouched_at(self) -> datetime | None:
        """The time by which a quorum of witnesses had the tree, as far as the verifier's own time allows it."""
        if self._quorum_time is None or self._trust.now is None:
            return self._quorum_time
        return min(self._quorum_time, self._trust.now + timedelta(seconds=MOST_SKEW_SECONDS))
