"""The files of a bundle, read and well-formed, but not yet verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import PurePosixPath

from ledger.audit.fulfilment import Fulfilment
from ledger.audit.seen import SeenOnDisk
from ledger.bundle import layout
from ledger.bundle.file_checks import CONTENT, CheckedFile, FileCheck, check_file, key_history
from ledger.bundle.fold import BundleFold
from ledger.bundle.layout import BundleFiles, BundleManifest, OlderTree, read_hashes, split_lines
from ledger.bundle.report import Trust
from ledger.documents.key_history import KeyHistory
from ledger.documents.promise import Promise, read_promise
from ledger.documents.signed_document import payload_type
from ledger.errors import FormatError, NotFound, ProofError
from ledger.keys.note import Note, VerifierKey
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.multiproof import GrowingTree
from ledger.witness.tlog_policy import Policy, PolicyLog

CheckFiles = Callable[[Callable[[FileCheck], CheckedFile], Iterable[FileCheck]], Iterable[CheckedFile]]
"""`map`, or a variant with several processes; results in the order of the jobs."""

KEY_ENTRY = f'"payloadType":"{payload_type("key")}"'.encode()
"""Bytes of every key entry, because entries are canonical."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A bundle's parts. `policy` is the verifier's, with the log's successor keys; `own` the verifier's checkpoints,
    `promises` the verifier's promises.
    """

    bundle: BundleFiles
    paths: tuple[str, ...]
    manifest: BundleManifest
    note: Note
    checkpoint: Checkpoint
    trees: tuple[OlderTree, ...]
    keys: KeyHistory
    policy: Policy
    own: tuple[Checkpoint, ...]
    promises: tuple[Promise, ...]

    def roots(self) -> dict[int, bytes]:
        """Every tree that the bundle names, by size; not yet known to belong to one log."""
        return {tree.size: tree.root for tree in self.trees} | {self.checkpoint.size: self.checkpoint.root}


@dataclass(frozen=True, slots=True)
class Folded:
    """All entries, read once. `problem` and `content_problem` are the faults of a whole file."""

    fold: BundleFold
    contents: int
    problem: tuple[int, str] | None
    content_problem: str | None


def read_evidence(bundle: BundleFiles, trust: Trust) -> Evidence:
    """Raises FormatError for a malformed bundle, SignatureError for a checkpoint of the verifier."""
    paths = bundle.paths()
    alone = set(_names(paths, "content/")) - set(_names(paths, "entries/"))
    if alone:
        raise FormatError("content", f"content/{min(alone)}.jsonl has no file of entries")
    manifest = BundleManifest.from_bytes(bundle.read(layout.MANIFEST))
    note = Note.from_bytes(bundle.read(layout.CHECKPOINT))
    checkpoint = Checkpoint.from_text(note.text)
    if (manifest.origin, manifest.tree_size) != (checkpoint.origin, checkpoint.size):
        raise FormatError(layout.MANIFEST, f"is about another tree than the checkpoint, {checkpoint.size} entries")
    keys = key_history(KeyHistory.of(trust.keys), _key_lines(bundle, paths))
    policy = _policy(trust, keys, checkpoint.origin)
    own = tuple(_opened(data, policy) for data in trust.earlier)
    promises = tuple(map(read_promise, trust.promises))
    trees = _trees(bundle, paths)
    return Evidence(
        bundle=bundle, paths=paths, manifest=manifest, note=note, checkpoint=checkpoint, trees=trees, keys=keys,
        policy=policy, own=own, promises=promises,
    )  # fmt: skip


def fold_entries(
    evidence: Evidence, check_files: CheckFiles, seen: SeenOnDisk, known: datetime | None = None
) -> Folded:
    """Check all entries, file by file, and fold them in order. All of them existed at `known`: later times do not
    count.
    """
    promised = tuple(map(Fulfilment, evidence.promises))
    shown = GrowingTree(proof=_proof(evidence.bundle))
    fold = BundleFold(evidence.manifest, frozenset(own.size for own in evidence.own), promised, seen, shown)
    fold.clock.now_is(known)
    contents, problem, content_problem = 0, None, None
    for checked in check_files(check_file, _jobs(evidence)):
        contents += checked.contents
        if checked.problem is not None and checked.problem[0] == CONTENT:
            content_problem = content_problem or checked.problem[1]
        elif checked.problem is not None:
            problem = problem or checked.problem
        fold.take_file(checked.entries, checked.subtree)
    return Folded(fold, contents, problem, content_problem)


def _proof(bundle: BundleFiles) -> tuple[bytes, ...]:
    """The hashes of a proof, empty if it is malformed, which the check of inclusion reports."""
    try:
        return read_hashes(bundle.read(layout.PROOF), layout.PROOF)
    except (FormatError, NotFound):
        return ()


def _jobs(evidence: Evidence) -> Iterator[FileCheck]:
    with_content = set(_names(evidence.paths, "content/"))
    for name in _names(evidence.paths, "entries/"):
        yield FileCheck(evidence.bundle, name, name in with_content, evidence.keys, bool(evidence.promises))


def _names(paths: Iterable[str], folder: str) -> Iterator[str]:
    """The names, without an ending, of the files of entries or of content."""
    return (PurePosixPath(path).stem for path in paths if path.startswith(folder))


def _key_lines(bundle: BundleFiles, paths: Iterable[str]) -> Iterator[bytes]:
    """Entries that may be key entries, found without reading other entries."""
    for path in paths:
        if path.startswith("entries/") and KEY_ENTRY in (data := bundle.read(path)):
            yield from (line for line in data.split(b"\n") if KEY_ENTRY in line)


def _trees(bundle: BundleFiles, paths: Iterable[str]) -> tuple[OlderTree, ...]:
    if layout.TREES not in paths:
        return ()
    trees = tuple(OlderTree.from_bytes(line) for line in split_lines(bundle.read(layout.TREES), layout.TREES))
    if any(one.size >= other.size for one, other in pairwise(trees)):
        raise FormatError(layout.TREES, "expected rising sizes")
    return trees


def _policy(trust: Trust, keys: KeyHistory, origin: str) -> Policy:
    """The verifier's policy, with the successor keys of a log whose key was replaced."""
    policy = trust.policy or Policy.of_log(origin, trust.keys.keys("log"))
    logs = list(policy.logs)
    for rotation in keys.rotations:
        names_of_log = {log.key.name for log in logs if log.key.key.key_id == rotation.old}
        if rotation.role == "log" and all(log.key.key != rotation.new for log in logs):
            logs += [PolicyLog(VerifierKey(name, rotation.new)) for name in sorted(names_of_log)]
    return Policy(tuple(logs), policy.witnesses, policy.groups, policy.quorum)


def _opened(data: bytes, policy: Policy) -> Checkpoint:
    note = Note.from_bytes(data)
    checkpoint = Checkpoint.from_text(note.text)
    policy.log_key(note, checkpoint)
    return checkpoint


def check_older(evidence: Evidence, tree: OlderTree, data: bytes) -> None:
    """Check an older checkpoint like the newest one, without the quorum. Raises FormatError, ProofError."""
    note = Note.from_bytes(data)
    checkpoint = Checkpoint.from_text(note.text)
    if (checkpoint.origin, checkpoint.size) != (evidence.checkpoint.origin, tree.size):
        raise FormatError(layout.TREES, f"the checkpoint of size {tree.size} is of another log or size")
    evidence.keys.check_log_key(evidence.policy.log_key(note, checkpoint), checkpoint.size)
    evidence.policy.cosigned(note)
    if checkpoint.root != tree.root:
        raise ProofError(f"the log signed two different trees of {tree.size} entries")
