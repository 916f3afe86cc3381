"""Documents, keys and envelopes for tests: deterministic, valid, and easy to vary."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from msgspec.structs import replace

from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.audit import AuditPolicy, Deviation, Draw, Verdict
from ledger.documents.content import Content
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal, KScore, kscore_status
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.halt import Halt, Resume, Scope
from ledger.documents.key_entry import KeyEntry
from ledger.documents.promise import Promise
from ledger.documents.receipt import OutputPart, PromptPart, Receipt, Sampling, SpecDecode
from ledger.documents.signed_document import Document, open_document, sign_document
from ledger.encoding.canonical import canonical
from ledger.encoding.commitment import OUTPUT_DOMAIN, PROMPT_DOMAIN, commit
from ledger.encoding.document import Seed
from ledger.encoding.stream_digest import StreamDigest, token_digest
from ledger.encoding.text_forms import cid, digest, new_receipt_id, timestamp
from ledger.keys.ed25519 import ROLES
from ledger.keys.envelope import sign
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from tests.keys import seeded_key

ORIGIN = "kolm.example/ledger"
START = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
KEYS = {role: seeded_key(hashlib.sha256(role.encode()).digest(), role) for role in ROLES}
TRUSTED = TrustedKeys.of(*KEYS.values())
STRANGER = seeded_key(b"\x07" * 32, "receipts")
BASE = cid(b"base weights")
PROFILE = cid(b"numerics profile")
SCOPE = Scope(BASE, "lookahead")
OFF = SpecDecode(
    method="off",
    requested_method="off",
    tokens_proposed=0,
    tokens_accepted=0,
    target_passes=2,
    mean_acceptance_length=1.0,
)
"""How `receipt()` would have been served without speculation."""


def at(number: int) -> str:
    return timestamp(START + timedelta(seconds=number))


def receipt_id(number: int) -> str:
    return new_receipt_id(START + timedelta(seconds=number), hashlib.sha256(b"id%d" % number).digest()[:10])


def content(number: int = 0) -> Content:
    return Content(
        prompt_salt=hashlib.sha256(b"prompt%d" % number).digest(),
        prompt_token_ids=(1, 2, 3 + number),
        output_salt=hashlib.sha256(b"output%d" % number).digest(),
        output_token_ids=(40 + number, 2**32 - 1),
    )


def receipt(number: int = 0, **changes: Any) -> Receipt:
    """The `number`-th valid receipt; it commits to `content(number)`."""
    kept = content(number)
    stream = StreamDigest()
    for token in kept.output_token_ids:
        stream.update(token, 1.5, 1.25)
    fields: dict[str, Any] = {
        "receipt_id": receipt_id(number),
        "issued_at": at(number),
        "tenant": "acme",
        "request_id": f"request-{number}",
        "base_cid": BASE,
        "tokenizer_cid": cid(b"tokenizer"),
        "profile_cid": PROFILE,
        "halt_epoch": 0,
        "sampling": Sampling(
            temperature=0.7, seed=Seed(7), stop=("\n\n",), stop_token_ids=(2,), logit_bias=((5, -1.5),)
        ),
        "prompt": PromptPart(3, commit(PROMPT_DOMAIN, kept.prompt_salt, kept.prompt_token_ids)),
        "output": OutputPart(
            tokens=2,
            commitment=commit(OUTPUT_DOMAIN, kept.output_salt, kept.output_token_ids),
            finish_reason="stop",
            stream_digest=stream.hexdigest(),
            stop_reason=2,
            min_margin=0.25,
        ),
        "spec_decode": SpecDecode(
            method="lookahead",
            requested_method="auto",
            tokens_proposed=4,
            tokens_accepted=1,
            target_passes=1,
            acceptance_rate=0.25,
            mean_acceptance_length=2.0,
            fallback_reason="no head is registered for the base",
        ),
    }
    return Receipt(**(fields | changes))


def promise_of(kept: Receipt, **changes: Any) -> Promise:
    """A promise that this receipt keeps, due in an hour."""
    fields: dict[str, Any] = {
        "promised_at": at(0), "due": at(3600), "tenant": kept.tenant, "request_id": kept.request_id,
        "nonce": kept.nonce, "base_cid": kept.base_cid, "profile_cid": kept.profile_cid, "prompt": kept.prompt,
        "choices": 1,
    }  # fmt: skip
    return Promise(**(fields | changes))


def engine_profile(**changes: Any) -> EngineProfile:
    """The profile of a server of another engine."""
    fields: dict[str, Any] = {
        "engine": "vllm",
        "version": "0.32.0",
        "model": "smollm2",
        "base_cid": BASE,
        "weights_checked": True,
        "issued_at": at(0),
        "flags": {"dtype": "bfloat16"},
    }
    return EngineProfile(**(fields | changes))


def foreign_receipt(number: int = 0, **changes: Any) -> Receipt:
    """A receipt of that server's engine, which states nothing about its drafts."""
    ours, profile = receipt(number), engine_profile()
    block = SpecDecode("engine", "auto", None, None, None, reported_by="engine")
    output = replace(ours.output, stream_digest=token_digest(content(number).output_token_ids), min_margin=None)
    fields = {"engine": profile.name, "profile_cid": cid(profile.to_bytes()), "spec_decode": block, "output": output}
    return replace(ours, **(fields | changes))


def verdict(receipt_index: int, number: int, outcome: str = "EXACT", **changes: Any) -> Verdict:
    """A verdict on `receipt(number)`, at `receipt_index`."""
    fields: dict[str, Any] = {
        "receipt_id": receipt_id(number),
        "receipt_index": receipt_index,
        "outcome": outcome,
        "profile_cid": PROFILE,
        "tokens_compared": 2,
        "replayed_at": at(100 + number),
        "deviation": Deviation(1, 7, 8, 0.5, None) if outcome == "DEVIATION" else None,
        "reason": "its content has been erased" if outcome == "UNREPLAYABLE" else None,
        "off_seconds": 0.5,
    }
    return Verdict(**(fields | changes))


def halt(verdict_index: int, scope: Scope = SCOPE) -> Halt:
    return Halt(scope, verdict_index, "the replay came out differently", at(200))


def resume(halt_index: int, scope: Scope = SCOPE) -> Resume:
    return Resume(scope, halt_index, "the kernel was replaced", at(300))


def erasure(receipt_index: int, number: int, **changes: Any) -> Erasure:
    """An erasure of the content of `receipt(number)`, at `receipt_index`."""
    fields: dict[str, Any] = {
        "receipt_id": receipt_id(number),
        "receipt_index": receipt_index,
        "reason": "the tenant asked for it",
        "issued_at": at(350),
    }
    return Erasure(**(fields | changes))


def key_entry(role: str) -> KeyEntry:
    return KeyEntry(role, KEYS[role].public, at(0))


def publication(
    manifest_cid: str = cid(b"head"), name: str = "support-head", base_cid: str = BASE
) -> DraftHeadPublication:
    return DraftHeadPublication(manifest_cid, name, base_cid, "acme models", at(400))


def withdrawal(manifest_cid: str = cid(b"head"), reason: str = "trained on the wrong data") -> DraftHeadWithdrawal:
    return DraftHeadWithdrawal(manifest_cid, reason, at(500))


def kscore(manifest_cid: str = cid(b"head"), **changes: Any) -> KScore:
    fields: dict[str, Any] = {
        "manifest_cid": manifest_cid,
        "base_cid": BASE,
        "adapter_cid": cid(b"adapter"),
        "profile_cid": PROFILE,
        "k": 4,
        "prompts": 16,
        "prompts_digest": digest(b"prompts"),
        "tokens": 900,
        "mean_acceptance": 0.625,
        "mean_acceptance_length": 2.5,
        "acceptance_by_depth": (0.75, 0.5),
        "threshold": 0.5,
        "measured_at": at(600),
    }
    fields |= changes
    return KScore(**({"status": kscore_status(fields["mean_acceptance"], fields["threshold"])} | fields))


def policy(rate: float = 0.5, within_seconds: int = 3600, number: int = 0) -> AuditPolicy:
    return AuditPolicy(rate, within_seconds, at(number))


def retention(days: int | None = 30, tenant: str | None = None, number: int = 0) -> Retention:
    return Retention(tenant, days, at(number))


def expiry(retention_index: int, end_index: int, days: int = 30, **changes: Any) -> Expiry:
    """An expiry by a general policy of so many days, one second after `receipt(0)` is over."""
    issued_at = at(86_400 * days + 1)
    fields: dict[str, Any] = {
        "retention_index": retention_index,
        "tenant": None,
        "except_tenants": (),
        "issued_before": at(1),
        "end_index": end_index,
        "issued_at": issued_at,
    }
    return Expiry(**(fields | changes))


def draw(tree_size: int, root: bytes, number: int = 50) -> Draw:
    return Draw(tree_size, "sha256:" + root.hex(), at(number))


def signed(document: Document) -> bytes:
    """The DSSE bytes of a document, signed by the key of the role that signs its kind."""
    roles: dict[type[Document], str] = {
        Receipt: "receipts",
        Verdict: "auditor",
        Halt: "auditor",
        Resume: "operator",
        Erasure: "operator",
        Retention: "operator",
        Expiry: "log",
        DraftHeadPublication: "publisher",
        DraftHeadWithdrawal: "publisher",
        KScore: "publisher",
        AuditPolicy: "auditor",
        Draw: "auditor",
        EngineProfile: "receipts",
    }
    role = document.role if isinstance(document, KeyEntry) else roles[type(document)]
    return sign_document(document, KEYS[role]).to_bytes()


def of_a_later_version(key: Signer = KEYS["receipts"], kind: str = "kolm.weather.v1") -> bytes:
    """The DSSE bytes of a document of an unknown kind; it names a tenant."""
    payload = canonical({"type": kind, "tenant": "other", "rain": 3})
    return sign(payload, f"application/vnd.{kind}+json", key).to_bytes()


@cache
def signed_receipt(number: int = 0, **changes: Any) -> bytes:
    return signed(receipt(number, **changes))


def fold_obligations(entries: Iterable[bytes], trusted: TrustedKeys = TRUSTED) -> ObligationFold:
    """The fold over the bytes of a whole log."""
    fold = ObligationFold()
    for data in entries:
        envelope = Entry.from_bytes(data).envelope
        fold.observe(leaf_hash(data), envelope, open_document(envelope, trusted, fold.size))
    return fold
