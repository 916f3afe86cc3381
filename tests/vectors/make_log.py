"""Makes `log/` and `tampered/`: one small log, and forgeries by an attacker or an insider with keys.

    python -m tests.vectors.make_log

Keys, times and ids are fixed, so the same code writes the same bytes; a test compares them with the files.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.documents.audit import ReferencePass
from ledger.documents.signed_document import Document, kind_of, payload_type, sign_document
from ledger.encoding.canonical import canonical, parse
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope, sign
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    OFF,
    ORIGIN,
    STRANGER,
    engine_profile,
    foreign_receipt,
    halt,
    key_entry,
    receipt,
    receipt_id,
    resume,
    signed,
    verdict,
)

HERE = Path(__file__).parent

OF_ENGINE = {"profile_cid": foreign_receipt().profile_cid}
AGAIN = {"verification": "again", "replayed_by": "engine"}
PASSED = {
    "verification": "reference",
    "replayed_by": "auditor",
    "reference": ReferencePass(BASE, mean=0.015625, largest=0.5, differing=1, surprise=-0.25, rarest=3.5),
}
NO_COUNTS = {"tokens_proposed": None, "tokens_accepted": None, "mean_acceptance_length": None}

DOCUMENTS: tuple[Document, ...] = (
    key_entry("receipts"),
    receipt(0),
    receipt(1),
    verdict(1, 0),
    verdict(2, 1, "DEVIATION"),
    halt(4),
    receipt(2, halt_epoch=1),
    resume(5),
    receipt(3, halt_epoch=1),
    engine_profile(),
    foreign_receipt(4, halt_epoch=1),
    verdict(10, 4, "SAME", **AGAIN, **OF_ENGINE),
    verdict(10, 4, "CONSISTENT", **PASSED, **OF_ENGINE),
    foreign_receipt(5, halt_epoch=1, spec_decode=replace(OFF, target_passes=None, reported_by="engine", **NO_COUNTS)),
    verdict(13, 5, "UNCHECKED", reason="no check again: the engine was updated", **OF_ENGINE),
)


@dataclass(frozen=True)
class Log:
    """Entry bytes, the checkpoint over them, and the expected verification: `check` 0 is "all is well"."""

    entries: tuple[bytes, ...]
    checkpoint: bytes
    check: int = 0
    bad_index: int | None = None
    problem: str | None = None


def chain(envelopes: Iterable[Envelope]) -> tuple[bytes, ...]:
    """Entries for some envelopes, with indexes as they should be."""
    return tuple(Entry(index, envelope).to_bytes() for index, envelope in enumerate(envelopes))


def checkpoint_over(entries: Iterable[bytes], key: SigningKey = KEYS["log"], origin: str = ORIGIN) -> bytes:
    frontier = Frontier()
    for data in entries:
        frontier = frontier.append(leaf_hash(data))
    return sign_checkpoint(Checkpoint(origin, frontier.size, frontier.root()), key)


def good_log() -> Log:
    entries = chain(Envelope.from_bytes(signed(document)) for document in DOCUMENTS)
    return Log(entries, checkpoint_over(entries))


def insider(changes: dict[int, Document | Envelope], drop: int = 0) -> tuple[bytes, ...]:
    """The log with some documents replaced by an insider who holds every key and rebuilds the whole chain."""
    documents = [changes.get(index, document) for index, document in enumerate(DOCUMENTS)]
    return chain(
        document if isinstance(document, Envelope) else Envelope.from_bytes(signed(document))
        for document in documents[: len(documents) - drop]
    )


def tampered() -> dict[str, Log]:
    good = good_log()

    def edited(index: int, change: Callable[[bytes], bytes]) -> tuple[bytes, ...]:
        changed = change(good.entries[index])
        assert changed != good.entries[index]
        return (*good.entries[:index], changed, *good.entries[index + 1 :])

    def outsider(entries: tuple[bytes, ...], check: int, bad_index: int | None, problem: str) -> Log:
        return Log(entries, good.checkpoint, check, bad_index, problem)

    def rewritten(changes: dict[int, Document | Envelope], check: int, bad_index: int, problem: str) -> Log:
        entries = insider(changes)
        return Log(entries, checkpoint_over(entries), check, bad_index, problem)

    second = Envelope.from_bytes(signed(DOCUMENTS[2]))
    stranger = sign_document(receipt(1), STRANGER)
    forged_verdict = sign(canonical(verdict(1, 0).to_document()), payload_type("verdict"), KEYS["receipts"])
    by_auditor = sign(canonical(DOCUMENTS[9].to_document()), payload_type("engine_profile"), KEYS["auditor"])
    posing = signed_claim(1, method="off", passes_by_method={"eagle3": 1})
    boasting = signed_claim(1, acceptance_rate=0.99)
    return {
        "payload_edited": outsider(edited(2, _edit_payload), 3, 2, "the signature is not one by"),
        "signature_edited": outsider(edited(6, _edit_signature), 3, 6, "the signature is not one by"),
        "index_edited": outsider(edited(3, lambda e: e.replace(b'"index":3', b'"index":4')), 2, 3, "entry 4"),
        "previous_added": outsider(edited(3, _add_previous), 2, 3, "previous: is not a"),
        "white_space_added": outsider(edited(1, lambda e: e.replace(b'"index":1', b'"index": 1')), 2, 1, "canonical"),
        "member_added": outsider(edited(1, lambda e: e.replace(b'"index":1', b'"index":1,"j":1')), 2, 1, "j: is not a"),
        "entry_cut_short": outsider(edited(4, lambda e: e[:-1]), 2, 4, "is not JSON"),
        "first_entry_removed": outsider(good.entries[1:], 2, 0, "says that it is entry 1"),
        "entry_removed": outsider((*good.entries[:3], *good.entries[4:]), 2, 3, "says that it is entry 4"),
        "entries_swapped": outsider(
            (*good.entries[:2], good.entries[3], good.entries[2], *good.entries[4:]), 2, 2, "3"
        ),
        "entry_doubled": outsider((*good.entries[:3], *good.entries[2:]), 2, 3, "says that it is entry 2"),
        "end_cut_off": outsider(good.entries[:-1], 5, None, "covers 15 entries, the log holds 14"),
        "signed_by_a_stranger": outsider(_replaced(good, 2, stranger), 3, 2, "not trusted to sign a receipt"),
        "history_rewritten_with_all_keys_but_the_log": outsider(
            insider({2: receipt(1, tenant="somebody else")}), 5, None, "another root"
        ),
        "checkpoint_by_a_stranger": Log(
            good.entries, checkpoint_over(good.entries, STRANGER), 1, None, "no signature by a trusted key"
        ),
        "checkpoint_of_another_log": Log(
            good.entries, checkpoint_over(good.entries, origin="other.example/log"), 1, None, "other.example/log"
        ),
        "checkpoint_edited": Log(
            good.entries, good.checkpoint.replace(b"\n15\n", b"\n8\n"), 1, None, "the signature is not one by"
        ),
        "junk_signature_added": rewritten(
            {2: replace(second, signatures=(*second.signatures, *stranger.signatures))}, 3, 2, "signatures[1]"
        ),
        "verdict_signed_by_the_receipts_key": rewritten({3: forged_verdict}, 3, 3, "not trusted to sign a verdict"),
        "method_off_beside_passes_of_another": rewritten({2: posing}, 3, 2, "spec_decode.method"),
        "rate_that_its_own_counts_contradict": rewritten({2: boasting}, 3, 2, "spec_decode.acceptance_rate"),
        "receipt_id_used_twice": rewritten({6: receipt(1, tenant="other", halt_epoch=1)}, 4, 6, receipt_id(1)),
        "receipt_from_the_future": rewritten({2: receipt(1, halt_epoch=1)}, 4, 2, "halt_epoch"),
        "verdict_on_another_receipt": rewritten({3: verdict(2, 0)}, 4, 3, "receipt_index"),
        "halt_for_an_exact_verdict": rewritten({5: halt(3)}, 4, 5, "verdict_index"),
        "resume_of_nothing": rewritten({7: resume(4)}, 4, 7, "halt_index"),
        "exact_of_another_engine": rewritten({11: verdict(10, 4)}, 4, 11, "outcome"),
        "same_of_our_own_engine": rewritten({3: verdict(1, 0, "SAME", **AGAIN)}, 4, 3, "outcome"),
        "unchecked_of_our_own_engine": rewritten({3: verdict(1, 0, "UNCHECKED", reason="busy")}, 4, 3, "outcome"),
        "exact_by_asking_another_engine": rewritten({11: _claim(verdict(10, 4), **AGAIN)}, 3, 11, "outcome"),
        "consistent_without_statistics": rewritten({12: _claim(DOCUMENTS[12], reference=None)}, 3, 12, "reference"),
        "engine_profile_by_the_auditor": rewritten({9: by_auditor}, 3, 9, "not trusted to sign"),
        "logits_claimed_of_another_engine": rewritten(
            {10: _claim(DOCUMENTS[10], output=DOCUMENTS[10].to_document()["output"] | {"min_margin": 0.5})},
            3,
            10,
            "output.min_margin",
        ),
        "counts_of_another_engine_as_our_own": rewritten(
            {10: _claim(DOCUMENTS[10], spec_decode=receipt(4).to_document()["spec_decode"])},
            3,
            10,
            "spec_decode.method",
        ),
    }


def _claim(document: Document, **members: Any) -> Envelope:
    """The document with other members, signed by the key of its role, against its own rules."""
    role = "receipts" if kind_of(document) == "receipt" else "auditor"
    claimed = {
        name: value
        for name, value in (document.to_document() | members).items()
        if name not in members or value is not None
    }
    return sign(canonical(claimed), payload_type(kind_of(document)), KEYS[role])


def signed_claim(number: int, **claims: Any) -> Envelope:
    """`receipt(number)` with other members in its block `spec_decode`, signed by the key of receipts: what an operator
    may sign, and no honest signer would.
    """
    document = receipt(number).to_document()
    document["spec_decode"] |= claims
    return sign(canonical(document), payload_type("receipt"), KEYS["receipts"])


def _edit_payload(entry: bytes) -> bytes:
    parsed = Entry.from_bytes(entry)
    document = parse(parsed.envelope.payload)
    document["spec_decode"]["verified_identical_to_off"] = True
    return replace(parsed, envelope=replace(parsed.envelope, payload=canonical(document))).to_bytes()


def _edit_signature(entry: bytes) -> bytes:
    parsed = Entry.from_bytes(entry)
    signature = parsed.envelope.signatures[0]
    flipped = replace(signature, signature=bytes([signature.signature[0] ^ 1]) + signature.signature[1:])
    return replace(parsed, envelope=replace(parsed.envelope, signatures=(flipped,))).to_bytes()


def _add_previous(entry: bytes) -> bytes:
    """As an entry of format 1 had it."""
    return entry[:-1] + b',"previous":"sha256:%b"}' % (b"0" * 64)


def _replaced(log: Log, index: int, envelope: Envelope) -> tuple[bytes, ...]:
    parsed = replace(Entry.from_bytes(log.entries[index]), envelope=envelope)
    return (*log.entries[:index], parsed.to_bytes(), *log.entries[index + 1 :])


def files() -> dict[str, bytes]:
    """Every file's path under `tests/vectors`, and its bytes. Entries are canonical JSON, so each fits on a line."""
    good = good_log()
    written = {"log/entries.jsonl": _lines(good.entries), "log/checkpoint": good.checkpoint}
    for role, key in KEYS.items():
        written[f"log/keys/{role}.pub"] = key.public.to_pem()
    for name, log in tampered().items():
        expected = {"check": log.check, "bad_index": log.bad_index, "problem": log.problem}
        written[f"tampered/{name}/entries.jsonl"] = _lines(log.entries)
        written[f"tampered/{name}/checkpoint"] = log.checkpoint
        written[f"tampered/{name}/expected.json"] = json.dumps(expected, indent=2).encode() + b"\n"
    return written


def _lines(entries: Iterable[bytes]) -> bytes:
    return b"".join(data + b"\n" for data in entries)


def main() -> None:
    for path, data in files().items():
        target = HERE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


if __name__ == "__main__":
    main()
