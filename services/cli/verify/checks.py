"""Offline checks of files: bundles in several processes, proofs, statements, receipt files, answers to promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.audit.processes import Processes
from ledger.bundle.conversation import is_answer, is_prompt, tokenizer_mismatch
from ledger.bundle.evidence import CheckFiles, Evidence, read_evidence
from ledger.bundle.file_checks import CheckedFile, FileCheck
from ledger.bundle.folder import open_bundle
from ledger.bundle.layout import MANIFEST, BundleFiles, BundleManifest
from ledger.bundle.proven import ProvenEntry, ProvenStatement, prove_entry, prove_statement
from ledger.bundle.receipt_file import MAX_FILE_BYTES, ReceiptFile
from ledger.bundle.report import BundleReport, Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.content import TURN_MEMBERS, Content, Turn, check_opened, check_sent
from ledger.documents.promise import ANSWER_TYPE, Promise, PromiseAnswer, open_answer, open_promise
from ledger.documents.receipt import Receipt
from ledger.errors import LedgerError, SignatureError
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.tlog_proof import TlogProof
from services.cli.frame.exits import UsageError, VerificationFailed
from services.cli.frame.output import verifying_entries
from services.cli.frame.values import read_text
from services.cli.verify.sources import ModelTextReader, TrustSources, beginning, own_trust
from services.cli.verify.tile_sources import opened_log

_KEYS_HINT = (
    "was a key replaced since you got yours? name a bundle of this log with --history (`kolm ledger export`), which "
    "holds the entries about it"
)


_TYPE = f'"{ReceiptFile.TYPE}"'.encode()

_LONGEST = 1 << 20  # bytes


def check_bundle(place: str, sources: TrustSources, workers: int = 0) -> BundleReport:
    """Check a bundle, or a log in tiles (folder or URL).

    Raises NotFound, FormatError for an archive that cannot be read, UsageError, Unreachable, StoreError.
    """
    trust = own_trust(sources)
    with ExitStack() as opened:
        with verifying_entries(verb="fetching") as fetching:
            bundle = opened.enter_context(opened_log(place, fetching))
        with verifying_entries(_claimed_entries(bundle)) as advance:
            return verify_bundle(bundle, trust, _counted(Processes(workers).map, advance))


def _claimed_entries(bundle: BundleFiles) -> int | None:
    """The number of entries in a bundle's manifest; None if it cannot be read."""
    try:
        return BundleManifest.from_bytes(bundle.read(MANIFEST)).entries
    except LedgerError:
        return None


def check_proof(proof: TlogProof, sources: TrustSources, history: Path | None = None) -> ProvenEntry:
    """Check a proof with its entry as extra data. `history` is a bundle of the same log, verified first, with the
    rotations of keys.

    Raises LedgerError for a failed check, UsageError, VerificationFailed.
    """
    trust = own_trust(sources)
    evidence = None if history is None else _history(history, trust)
    with _hinted(history):
        proven = prove_entry(proof, trust, evidence)
    if evidence is not None:
        _check_same_log(evidence, proven.witnessed.checkpoint)
    return proven


def check_statement(data: bytes, sources: TrustSources, history: Path | None = None) -> ProvenStatement:
    """Check a SCITT statement. Raises LedgerError for a failed check, UsageError, VerificationFailed."""
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

    Only its keys matter here, not whether auditors kept their obligations.
    """
    trust = replace(trust, as_of=None, max_unreplayable=None, max_age=None)
    with open_bundle(history) as bundle:
        report = verify_bundle(bundle, trust)
        if report.problem is not None:
            raise VerificationFailed(f"--history: {history} does not hold: {report.problem}")
        return read_evidence(bundle, trust)


def _check_same_log(evidence: Evidence, checkpoint: Checkpoint) -> None:
    """Raises VerificationFailed if the bundle may lack keys of the proof, or has another history."""
    known = evidence.checkpoint
    if known.size < checkpoint.size:
        raise VerificationFailed(
            f"--history: holds {known.size} entries, the proof is over {checkpoint.size}: a key may have been replaced "
            "in between",
            "export a newer bundle",
        )
    if evidence.roots().get(checkpoint.size, checkpoint.root) != checkpoint.root:
        raise VerificationFailed(f"the log has signed two trees of {checkpoint.size} entries: here and in --history")


def _counted(check_files: CheckFiles, advance: Callable[[int], None]) -> CheckFiles:
    def counted(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        for checked in check_files(check, jobs):
            advance(len(checked.entries))
            yield checked

    return counted


def is_receipt_file(path: Path) -> bool:
    """Whether a file has the type of a receipt file, in any layout."""
    data = beginning(path, MAX_FILE_BYTES + 1)
    return data.lstrip()[:1] == b"{" and _TYPE in data


@dataclass(frozen=True, slots=True)
class CheckedReceipt:
    """A verified receipt, its place in the log, the promises that it keeps, and the comparison of its texts, if a
    model was given.
    """

    document: Receipt
    place: ProvenEntry
    promises: tuple[Promise, ...]
    texts: Texts | None


def check_receipt_file(
    path: Path, sources: TrustSources, history: Path | None, prompt: Path | None, output: Path | None
) -> CheckedReceipt:
    """Check a receipt file. `prompt` and `output` are files with the holder's texts; a prompt in JSON has the messages
    of a conversation.

    Raises LedgerError for a failed check, UsageError, VerificationFailed.
    """
    file = ReceiptFile.from_bytes(path.read_bytes())
    document, text = file.receipt(), file.text
    sent: str | Sequence[Turn] | None = file.sent
    if prompt is not None:
        in_turns = document.prompt.chat_template is not None or isinstance(file.sent, tuple)
        sent = remembered = _sent(prompt, in_turns=in_turns)
        check_sent(document, file.content.prompt_salt, remembered)
    if output is not None:
        text = read_text("--output", output)
        check_opened(document, file.content, text)
    texts = None if sources.model is None else compared_texts(document, file.content, sent, text, sources.model)
    if texts is not None and texts.same is False:
        raise VerificationFailed(texts.result)
    if file.proof is None:
        raise VerificationFailed(
            "the file opens the receipt, but holds no proof that the log took it",
            "`kolm receipts export RECEIPT FILE` writes a receipt file with its proof",
        )
    place = check_proof(file.proof, sources, history)
    return CheckedReceipt(document, place, _kept_promises(document, sources), texts)


def _kept_promises(document: Receipt, sources: TrustSources) -> tuple[Promise, ...]:
    """The given promises, all of which the receipt keeps.

    Raises LedgerError for a wrong signature, VerificationFailed for a promise of another request.
    """
    trust = own_trust(sources)
    promises = tuple(open_promise(data, trust.keys) for data in trust.promises)
    for promise in promises:
        if not promise.covers(document):
            raise VerificationFailed(
                f"the promise of {promise.promised_at} is about request {promise.request_id} and not kept by this "
                f"receipt, which is about {document.request_id}",
                "check it against the log: kolm receipts promised, or kolm verify of a bundle",
            )
    return promises


def _sent(path: Path, *, in_turns: bool) -> str | list[dict[str, str]]:
    text = read_text("--prompt", path)
    if not in_turns:
        return text
    try:
        return [
            {"role": str(each["role"]), "content": str(each["content"])}
            | {name: str(each[name]) for name in TURN_MEMBERS if name in each}
            for each in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f'--prompt: {path}: expected the messages, [{{"role": …, "content": …}}, …]') from error


def read_answer(path: Path) -> bytes | None:
    """The bytes of an answer; None for anything else."""
    data = beginning(path, _LONGEST)
    return data if data[:1] == b"{" and ANSWER_TYPE.encode() in data else None


def check_answer(data: bytes, sources: TrustSources) -> tuple[Promise, PromiseAnswer]:
    """A promise, and the log's signed answer. Raises LedgerError for a wrong signature and for another promise,
    UsageError without one.
    """
    trust = own_trust(sources)
    if len(trust.promises) != 1:
        raise UsageError("expected one --promise, to which this is the answer", "name it with --promise")
    (envelope,) = trust.promises
    return open_promise(envelope, trust.keys), open_answer(data, envelope, trust.keys)


@dataclass(frozen=True, slots=True)
class Texts:
    """The comparison of texts with tokens, with its result in words. `same` is None if a text could not be compared,
    and no other differs.
    """

    same: bool | None
    result: str


def compared_texts(
    receipt: Receipt, content: Content, sent: str | Sequence[Turn] | None, answer: str | None, model: Path
) -> Texts:
    """Compare the texts `sent` and `answer` with the tokens in `content`, to which the receipt commits; None is a text
    that was not kept.

    Raises UsageError for a model without a tokenizer, ProofError for a conversation that it cannot read.
    """
    reader = ModelTextReader(model)
    if (problem := tokenizer_mismatch(receipt, reader)) is not None:
        return Texts(False, f"the prompt {problem}")
    if answer is not None and not is_answer(receipt, content, answer, reader):
        return Texts(False, "the answer is not the text of the receipt's tokens")
    if sent is not None and not is_prompt(content, sent, reader):
        if not isinstance(sent, str) and any("tools" in turn for turn in sent):
            return Texts(None, "the prompt was not compared: the receipt does not have the model's tools")
        return Texts(False, "the model got another prompt than was sent")
    stated = receipt.sampling.thoughts
    if stated is not None and not reader.has_thoughts(stated, content.prompt_token_ids):
        return Texts(None, "stop strings may have counted elsewhere: sampling.thoughts is not the model's syntax")
    missing = [name for name, text in (("the prompt", sent), ("the answer", answer)) if text is None]
    if missing:
        return Texts(None, f"the file lacks the text of {' and '.join(missing)}: nothing to compare the tokens with")
    return Texts(True, "prompt and answer are the texts of these tokens")
