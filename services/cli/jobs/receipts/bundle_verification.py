"""Offline verification of files, in several processes, with progress on stderr."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from ledger.bundle.evidence import CheckFiles, Evidence, read_evidence
from ledger.bundle.file_checks import CheckedFile, FileCheck
from ledger.bundle.folder import opened_bundle
from ledger.bundle.proven_entry import ProvenEntry, prove_entry
from ledger.bundle.proven_statement import ProvenStatement, prove_statement
from ledger.bundle.report import BundleReport, Trust
from ledger.bundle.verification import verify_bundle
from ledger.errors import SignatureError
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.tlog_proof import TlogProof
from services.cli.failures.exits import UsageError, VerificationFailed
from services.cli.jobs.receipts.bundle_trust import Sources, claimed_trust, own_trust
from services.cli.terminal.progress import verifying_entries

_ALONE = 4
"""Files of entries that are checked before other processes are started, which takes longer than these files."""


_KEYS_HINT = (
    "was a key replaced since you got yours? name a bundle of this log with --history (`kolm ledger export`), which "
    "holds the entries about it"
)


def check_bundle(path: Path, sources: Sources, workers: int = 0) -> BundleReport:
    """Raises NotFound, FormatError for an archive that cannot be read, UsageError."""
    trust = None if sources.as_claimed else own_trust(sources)
    with opened_bundle(path) as bundle, verifying_entries() as advance:
        check_files = _counted(_parallel(workers or os.cpu_count() or 1), advance)
        return verify_bundle(bundle, trust or claimed_trust(sources, bundle), check_files)


def check_proof(path: Path, sources: Sources, history: Path | None = None) -> ProvenEntry:
    """Check a proof file that carries its entry, as ours do.

    `history` is a bundle of the same log, which is verified first and shows which keys replaced which.

    Raises LedgerError for what does not hold, UsageError, VerificationFailed.
    """
    if sources.as_claimed:
        raise UsageError("--as-claimed: a proof file holds no keys")
    return check_tlog_proof(TlogProof.from_bytes(path.read_bytes()), sources, history)


def check_tlog_proof(proof: TlogProof, sources: Sources, history: Path | None = None) -> ProvenEntry:
    """The same of a proof that has been read."""
    trust = own_trust(sources)
    evidence = None if history is None else _history(history, trust)
    with _hinted(history):
        proven = prove_entry(proof, trust, evidence)
    if evidence is not None:
        _check_same_log(evidence, proven.witnessed.checkpoint)
    return proven


def check_statement(data: bytes, sources: Sources, history: Path | None = None) -> ProvenStatement:
    """Check a SCITT statement. Raises LedgerError for what does not hold, UsageError, VerificationFailed."""
    if sources.as_claimed:
        raise UsageError("--as-claimed: a statement holds no keys")
    trust = own_trust(sources)
    with _hinted(history):
        return prove_statement(data, trust, None if history is None else _history(history, trust))


@contextmanager
def _hinted(history: Path | None) -> Iterator[None]:
    try:
        yield
    except SignatureError as error:
        raise VerificationFailed(str(error), _KEYS_HINT if history is None else None) from error


def _history(history: Path, trust: Trust) -> Evidence:
    """The evidence of a bundle. Raises VerificationFailed if the bundle does not hold.

    It is asked for its keys: what an auditor still owes, or could not replay, does not matter here.
    """
    trust = replace(trust, as_of=None, max_unreplayable=None, max_age=None)
    with opened_bundle(history) as bundle:
        report = verify_bundle(bundle, trust)
        if report.problem is not None:
            raise VerificationFailed(f"--history: {history} does not hold: {report.problem}")
        return read_evidence(bundle, trust)


def _check_same_log(evidence: Evidence, checkpoint: Checkpoint) -> None:
    """Raises VerificationFailed if the bundle may lack keys of the proof, or is of another history."""
    known = evidence.checkpoint
    if known.size < checkpoint.size:
        raise VerificationFailed(
            f"--history: holds {known.size} entries, the proof is over {checkpoint.size}: a key may have been replaced "
            "in between",
            "export a newer bundle",
        )
    if evidence.roots().get(checkpoint.size, checkpoint.root) != checkpoint.root:
        raise VerificationFailed(f"the log has signed two trees of {checkpoint.size} entries: here and in --history")


def _parallel(workers: int) -> CheckFiles:
    def check_files(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        remaining = iter(jobs)
        yield from map(check, islice(remaining, _ALONE))
        first = next(remaining, None)
        if first is not None:
            yield from _in_processes(check, chain([first], remaining), workers)

    return check_files


def _in_processes(
    check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck], workers: int
) -> Iterator[CheckedFile]:
    """Results in the order of the jobs, of which only a few wait at a time, for memory's sake."""
    waiting: deque[Future[CheckedFile]] = deque()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job in jobs:
            waiting.append(pool.submit(check, job))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _counted(check_files: CheckFiles, advance: Callable[[int], None]) -> CheckFiles:
    def counted(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        for checked in check_files(check, jobs):
            advance(len(checked.entries))
            yield checked

    return counted
