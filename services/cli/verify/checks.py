"""Offline checks of files: bundles in several processes, proofs, statements, receipt files, answers to promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.audit.processes import Processes
from ledger.audit.seen import SeenOnDisk
from ledger.bundle.conversation import EARLIER_PROMPT, another_tokenizer, is_answer, is_earlier_prompt, is_prompt
from ledger.bundle.evidence import CheckFiles, Evidence, VerifiedLog, read_evidence
from ledger.bundle.file_checks import CheckedFile, FileCheck
from ledger.bundle.folder import opened_bundle
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
from services.cli.verify.sources import ModelTextReader, TrustSources, beginning, claimed_trust, own_trust
from services.cli.verify.tile_sources import opened_log

_KEYS_HINT = (
    "was a key replaced since you got yours? name a bundle of this log with --history (`kolm ledger export`), which "
    "holds the entries about it"
)


_TYPE = f'"{ReceiptFile.TYPE}"'.encode()

_LONGEST = 1 << 20  # bytes


def check_bundle(place: str, sources: TrustSources, workers: int = 0, state: Path | None = None) -> BundleReport:
    """A bundle, or a log in tiles (folder or URL). With a `state`, go on from what was verified before, and keep it.

    Raises NotFound, FormatError for an archive that cannot be read, UsageError, Unreachable, StoreError.
    """
    if state is not None and (sources.as_claimed or sources.promises):
        raise UsageError("--state: goes on with your own keys, and without entries that --promise would have to read")
    trust = None if sources.as_claimed else own_trust(sources)
    with closing(SeenOnDisk(state)) as seen, ExitStack() as opened:
        before = None if trust is None else VerifiedLog.read(seen, trust.keys)
        with verifying_entries(verb="fetching") as fetching:
            bundle = opened.enter_context(opened_log(place, 0 if before is None else before.size, fetching))
        with verifying_entries(_claimed_entries(bundle)) as advance:
            check_files = _counted(Processes(workers).map, advance)
            return verify_bundle(bundle, trust or claimed_trust(sources, bundle), check_files, seen)


def _claimed_entries(bundle: BundleFiles) -> int | None:
    """How many entries a bundle says that it has; None where it says nothing that can be read."""
    try:
        return BundleManifest.from_bytes(bundle.read(MANIFEST)).entries
    except LedgerError:
        return None


def check_proof(proof: TlogProof, sources: TrustSources, history: Path | None = None) -> ProvenEntry:
    """Check a proof that carries its entry, as ours do. `history` is a bundle of the same log, which is verified first
    and shows which keys replaced which.

    Raises LedgerError for what does not hold, UsageError, VerificationFailed.
    """
    if sources.as_claimed:
        raise UsageError("--as-claimed: a proof file holds no keys")
    trust = own_trust(sources)
    evidence = None if history is None else _history(history, trust)
    with _hinted(history):
        proven = prove_entry(proof, trust, evidence)
    if evidence is not None:
        _check_same_log(evidence, proven.witnessed.checkpoint)
    return proven


def check_statement(data: bytes, sources: TrustSources, history: Path | None = None) -> ProvenStatement:
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


def _counted(check_files: CheckFiles, advance: Callable[[int], None]) -> CheckFiles:
    def counted(check: Callable[[FileCheck], CheckedFile], jobs: Iterable[FileCheck]) -> Iterator[CheckedFile]:
        for checked in check_files(check, jobs):
            advance(len(checked.entries))
            yield checked

    return counted


def is_receipt_file(path: Path) -> bool:
    """Whether a file claims to be one, in whatever layout."""
    data = beginning(path, MAX_FILE_BYTES + 1)
    return data.lstrip()[:1] == b"{" and _TYPE in data


@dataclass(frozen=True, slots=True)
class CheckedReceipt:
    """A receipt that holds, its place in the log, the promises that it keeps, and its texts where a model's tokenizer
    has compared them with the tokens.
    """

    document: Receipt
    place: ProvenEntry
    promises: tuple[Promise, ...]
    texts: Texts | None


def check_receipt_file(
    path: Path, sources: TrustSources, history: Path | None, prompt: Path | None, output: Path | None
) -> CheckedReceipt:
    """`prompt` and `output` are files with what the holder remembers; a prompt in JSON is a conversation's messages.

    Raises LedgerError for what does not hold, UsageError, VerificationFailed.
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
        raise VerificationFailed(texts.said)
    if file.proof is None:
        raise VerificationFailed(
            "the file opens the receipt, but holds no proof that the log took it",
            "fetch one: kolm ledger export --proof",
        )
    place = check_proof(file.proof, sources, history)
    return CheckedReceipt(document, place, _kept_promises(document, sources), texts)


def _kept_promises(document: Receipt, sources: TrustSources) -> tuple[Promise, ...]:
    """The promises that were named, if the receipt keeps each of them.

    Raises LedgerError for a signature that does not hold, VerificationFailed for a promise of another request.
    """
    trust = own_trust(sources)
    promises = tuple(open_promise(data, trust.keys) for data in trust.promises)
    for promise in promises:
        if not promise.is_kept_by(document):
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
    """A promise, and what the log has signed about it. Raises LedgerError for a signature that does not hold and for
    another promise, UsageError without one.
    """
    trust = own_trust(sources)
    if len(trust.promises) != 1:
        raise UsageError("which promise is this the answer to?", "name it with --promise")
    (envelope,) = trust.promises
    return open_promise(envelope, trust.keys), open_answer(data, envelope, trust.keys)


@dataclass(frozen=True, slots=True)
class Texts:
    """The result, in words. `same` is None where something could not be compared, and nothing differs."""

    same: bool | None
    said: str


def compared_texts(
    receipt: Receipt, content: Content, sent: str | Sequence[Turn] | None, answer: str | None, model: Path
) -> Texts:
    """The receipt commits to `content`, to what was `sent` and to the `answer`; None is what was not kept.

    Raises UsageError for a model without a tokenizer, ProofError for a conversation that it cannot read.
    """
    reader = ModelTextReader(model)
    if (problem := another_tokenizer(receipt, reader)) is not None:
        return Texts(False, f"the prompt {problem}")
    if answer is not None and not is_answer(receipt, content, answer, reader):
        return Texts(False, "the answer is not the text of the tokens that the receipt is about")
    if sent is not None and not is_prompt(content, sent, reader):
        if not isinstance(sent, str) and any("tools" in turn for turn in sent):
            return Texts(None, "the prompt was not compared: which tools the model was told of is not in the receipt")
        if is_earlier_prompt(content, sent, reader):
            return Texts(None, EARLIER_PROMPT)
        return Texts(False, "the model was given another prompt than the one that was sent")
    missing = [name for name, text in (("the prompt", sent), ("the answer", answer)) if text is None]
    if missing:
        return Texts(None, f"the file lacks the text of {' and '.join(missing)}: nothing to compare the tokens with")
    return Texts(True, "prompt and answer are the texts of these tokens")
