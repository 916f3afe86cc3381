"""Which head may be loaded: each check fails alone, with an error of its own."""

from pathlib import Path

import pytest

from ledger.audit.draft_head_evidence import DraftHeadEvidence, check_files, check_not_withdrawn, verify_draft_head
from ledger.documents.signed_document import Document, sign_document
from ledger.errors import (
    DraftHeadDamaged,
    DraftHeadOfAnotherBase,
    DraftHeadRefused,
    DraftHeadUnlogged,
    DraftHeadUnsigned,
    DraftHeadWithdrawn,
    FormatError,
)
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from ledger.tree.tlog_proof import TlogProof
from tests.mutations import replace
from tests.unit.ledger.builders import BASE, KEYS, ORIGIN, TRUSTED, publication, receipt, signed, withdrawal
from tests.unit.ledger.documents.test_manifests import HEAD

STRANGER = SigningKey.generate("publisher")


def logged(envelope: Envelope, log: SigningKey = KEYS["log"], extra: bytes | None = None, claims: int = 0) -> TlogProof:
    """The proof of a log that holds nothing but this envelope, in an entry that claims an index."""
    entry = Entry(claims, envelope).to_bytes()
    checkpoint = sign_checkpoint(Checkpoint(ORIGIN, 1, leaf_hash(entry)), log)
    return TlogProof(0, (), checkpoint, entry if extra is None else extra)


def evidence(
    document: Document | None = None, key: SigningKey = KEYS["publisher"], **changes: object
) -> DraftHeadEvidence:
    envelope = sign_document(document or publication(HEAD.cid), key)
    return DraftHeadEvidence(HEAD.to_bytes(), logged(envelope, **changes))  # type: ignore[arg-type]


def test_a_head_that_passes_says_where_it_was_published(tmp_path: Path) -> None:
    evidence().write(tmp_path)
    found = verify_draft_head(DraftHeadEvidence.read(tmp_path), TRUSTED, BASE, ORIGIN)
    assert (found.cid, found.publication, found.index, found.tree_size) == (HEAD.cid, publication(HEAD.cid), 0, 1)
    assert verify_draft_head(evidence(), TRUSTED) == found


def test_a_head_of_another_base_is_refused() -> None:
    with pytest.raises(DraftHeadOfAnotherBase, match=BASE):
        verify_draft_head(evidence(), TRUSTED, HEAD.cid)
    with pytest.raises(DraftHeadOfAnotherBase):
        verify_draft_head(evidence(publication(HEAD.cid, base_cid=HEAD.cid)), TRUSTED)


def test_a_head_that_no_trusted_publisher_signed_is_refused() -> None:
    without = TrustedKeys({role: TRUSTED.keys(role) for role in ("log", "receipts")})
    for case, trusted in ((evidence(key=STRANGER), TRUSTED), (evidence(), without)):
        with pytest.raises(DraftHeadUnsigned):
            verify_draft_head(case, trusted)


@pytest.mark.parametrize(
    "case",
    [
        evidence(log=SigningKey.generate("log")),
        evidence(publication(BASE)),
        evidence(withdrawal(HEAD.cid)),
        evidence(receipt(), KEYS["receipts"]),
        evidence(extra=b""),
        evidence(claims=1),
        replace(evidence(), proof=replace(evidence().proof, extra=None)),
        replace(evidence(), proof=replace(evidence().proof, index=1)),
        replace(evidence(), proof=replace(evidence().proof, checkpoint=evidence(publication(BASE)).proof.checkpoint)),
    ],
)
def test_a_head_whose_publication_is_not_in_the_log_is_refused(case: DraftHeadEvidence) -> None:
    with pytest.raises(DraftHeadUnlogged):
        verify_draft_head(case, TRUSTED)


def test_another_log_is_not_the_log() -> None:
    with pytest.raises(DraftHeadUnlogged):
        verify_draft_head(evidence(), TRUSTED, origin="elsewhere.example/log")


def test_a_folder_without_evidence_is_unlogged(tmp_path: Path) -> None:
    with pytest.raises(DraftHeadUnlogged):
        DraftHeadEvidence.read(tmp_path)
    evidence().write(tmp_path)
    (tmp_path / "provenance" / "publication.tlog-proof").write_bytes(b"junk")
    with pytest.raises(FormatError):
        DraftHeadEvidence.read(tmp_path)


def test_a_changed_manifest_is_not_what_was_published() -> None:
    with pytest.raises(DraftHeadUnlogged):
        verify_draft_head(replace(evidence(), manifest=replace(HEAD, annotations={}).to_bytes()), TRUSTED)
    with pytest.raises(DraftHeadDamaged):
        verify_draft_head(replace(evidence(), manifest=b"{}"), TRUSTED)


def test_every_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    check_files(HEAD, tmp_path)
    for name, data in (("model.safetensors", b"Weights"), ("config.json", b"{} "), ("config.json", None)):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(DraftHeadDamaged, match=name):
            check_files(HEAD, tmp_path)
        (tmp_path / name).write_bytes(before)


def test_a_withdrawal_counts_for_its_head_alone() -> None:
    def entry(document: Document) -> bytes:
        return Entry(0, Envelope.from_bytes(signed(document))).to_bytes()

    check_not_withdrawn(HEAD.cid, [entry(withdrawal(BASE)), entry(publication(HEAD.cid))])
    with pytest.raises(DraftHeadWithdrawn):
        check_not_withdrawn(HEAD.cid, [entry(withdrawal(BASE)), entry(withdrawal(HEAD.cid))])
    assert issubclass(DraftHeadWithdrawn, DraftHeadRefused)
