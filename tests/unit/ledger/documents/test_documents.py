"""Receipt, verdict, halt, resume, key entry: every field is checked, and every error names it."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.documents.audit import ReferencePass, Verdict
from ledger.documents.halt import HaltState, Scope
from ledger.documents.receipt import Receipt, SpecDecode
from ledger.documents.signed_document import (
    KINDS,
    Document,
    UnknownDocument,
    open_document,
    payload_type,
    read_document,
    sign_document,
)
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.stream_digest import token_digest
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.envelope import Envelope, Signature, sign
from ledger.keys.trusted_keys import TrustedKeys
from tests.mutations import replace
from tests.unit.ledger.builders import (
    BASE,
    KEYS,
    OFF,
    SCOPE,
    STRANGER,
    TRUSTED,
    draw,
    engine_profile,
    erasure,
    expiry,
    foreign_receipt,
    halt,
    key_entry,
    kscore,
    policy,
    publication,
    receipt,
    resume,
    retention,
    verdict,
    withdrawal,
)
from tests.unit.ledger.encoding.test_canonical import JSON_VALUES

DOCUMENTS: dict[str, Document] = {
    "receipt": receipt(),
    "verdict": verdict(0, 0, "DEVIATION"),
    "halt": halt(1),
    "resume": resume(2),
    "erasure": erasure(0, 0),
    "key": key_entry("operator"),
    "head_publication": publication(),
    "head_withdrawal": withdrawal(),
    "kscore": kscore(),
    "audit_policy": policy(),
    "draw": draw(2, b"\x05" * 32),
    "retention": retention(tenant="acme"),
    "expiry": expiry(0, 1, except_tenants=("acme", "zeta")),
    "engine_profile": engine_profile(flags={}),
}


def _paths(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [found for name, member in value.items() for found in _paths(member, (*path, name))]


MEMBERS = [(kind, path) for kind, document in DOCUMENTS.items() for path in _paths(document.to_document())]
NULLABLE = {
    "receipt": {
        "adapter_cid", "output.stop_reason", "output.min_margin", "spec_decode.head_cid", "spec_decode.k",
        "spec_decode.wall_clock_speedup", "spec_decode.verified_identical_to_off",
        "spec_decode.fallback_reason", "spec_decode.speedup_basis",
    },
    "verdict": {
        "deviation.expected_token", "deviation.actual_token", "deviation.expected_margin", "deviation.actual_margin",
        "reason", "off_seconds",
    },
    "halt": {"scope.head_cid"},
    "resume": {"scope.head_cid"},
    "erasure": set(),
    "key": set(),
    "head_publication": set(),
    "head_withdrawal": set(),
    "kscore": {"adapter_cid"},
    "audit_policy": set(),
    "draw": set(),
    "retention": {"tenant", "days"},
    "expiry": {"tenant"},
    "engine_profile": {"device", "parallelism", "batch_invariant", "speculation"},
}  # fmt: skip


def _changed(document: Document, path: tuple[str, ...], value: object) -> dict[str, Any]:
    whole: dict[str, Any] = parse(canonical(document.to_document()))
    part = whole
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return whole


def wrong_field(document: object, kind: str = "receipt") -> str:
    """The field that the refusal of this document names."""
    with pytest.raises(FormatError) as refused:
        KINDS[kind].from_document(document)
    return str(refused.value.field)


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_reads_back_from_its_canonical_bytes(kind: str) -> None:
    document = DOCUMENTS[kind]
    assert type(document).from_document(parse(canonical(document.to_document()))) == document


@pytest.mark.parametrize(("kind", "path"), MEMBERS)
def test_a_missing_member_is_named(kind: str, path: tuple[str, ...]) -> None:
    whole = _changed(DOCUMENTS[kind], path, 0)
    part = whole
    for name in path[:-1]:
        part = part[name]
    del part[path[-1]]
    assert wrong_field(whole, kind) == ".".join(path)


@pytest.mark.parametrize(("kind", "path"), MEMBERS)
def test_a_member_of_another_type_is_named(kind: str, path: tuple[str, ...]) -> None:
    assert wrong_field(_changed(DOCUMENTS[kind], path, {"not": "this"}), kind) == ".".join(path)


@pytest.mark.parametrize(("kind", "path"), MEMBERS)
def test_null_is_taken_exactly_where_the_format_says_so(kind: str, path: tuple[str, ...]) -> None:
    whole = _changed(DOCUMENTS[kind], path, None)
    if ".".join(path) in NULLABLE[kind]:
        KINDS[kind].from_document(whole)
        return
    assert wrong_field(whole, kind) == ".".join(path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_member_is_refused(kind: str) -> None:
    with pytest.raises(FormatError, match="surprise"):
        KINDS[kind].from_document(DOCUMENTS[kind].to_document() | {"surprise": 1})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("receipt_id", "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"),
        ("receipt_id", "017f22e2-79b0-4cc3-98c4-dc0c0c07398f"),
        ("issued_at", "yesterday"),
        ("tenant", ""),
        ("tenant", "x" * 257),
        ("base_cid", "cidv1:sha256:00"),
        ("halt_epoch", -1),
        ("halt_epoch", 2**53),
        ("halt_epoch", True),
        ("sampling.temperature", -0.5),
        ("sampling.top_p", 1.5),
        ("sampling.max_tokens", 0),
        ("sampling.stop", ["a", ""]),
        ("sampling.stop_token_ids", [1, -1]),
        ("sampling.logit_bias", [[2, 1], [2, 1]]),
        ("sampling.logit_bias", [[2, 1], [1, 1]]),
        ("sampling.logit_bias", [[1]]),
        ("sampling.choice", 1),
        ("sampling.thoughts", {"open": "<think>", "closes": [], "begun": False}),
        ("prompt.tokens", 0),
        ("prompt.commitment", "sha256:"),
        ("output.finish_reason", "bored"),
        ("output.stop_reason", -1),
        ("output.stop_reason", 1.5),
        ("output.min_margin", -0.1),
        ("spec_decode.method", "auto"),
        ("spec_decode.requested_method", "Medusa 2"),
        ("spec_decode.k", 0),
        ("spec_decode.acceptance_rate", 1.1),
        ("spec_decode.tokens_accepted", 11),
        ("spec_decode.speedup_basis", "replayed"),
        ("spec_decode.verified_identical_to_off", 1),
    ],
)
def test_a_value_out_of_range_is_named(path: str, value: object) -> None:
    assert wrong_field(_changed(receipt(), tuple(path.split(".")), value)).startswith(path)


def test_a_verdict_carries_a_deviation_exactly_where_it_is_one() -> None:
    for outcome, deviation in (("DEVIATION", None), ("EXACT", verdict(0, 0, "DEVIATION").deviation)):
        with pytest.raises(FormatError, match="deviation"):
            type(verdict(0, 0)).from_document(verdict(0, 0, outcome, deviation=deviation).to_document())


def test_an_unreplayable_verdict_says_why() -> None:
    with pytest.raises(FormatError, match="reason"):
        type(verdict(0, 0)).from_document(verdict(0, 0, "UNREPLAYABLE", reason=None).to_document())


def test_a_kscore_says_retraining_exactly_below_its_threshold() -> None:
    assert (kscore().status, kscore(mean_acceptance=0.49).status) == ("GOOD", "NEEDS_RETRAINING")
    for score, status in ((0.6, "NEEDS_RETRAINING"), (0.4, "GOOD")):
        with pytest.raises(FormatError, match="status"):
            type(kscore()).from_document(kscore(mean_acceptance=score).to_document() | {"status": status})


def test_the_reference_method_cannot_be_halted() -> None:
    with pytest.raises(FormatError, match="method"):
        type(halt(0)).from_document(halt(0, Scope(BASE, "off")).to_document())


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_opens_only_under_the_roles_that_may_sign_its_kind(kind: str) -> None:
    document = DOCUMENTS[kind]
    allowed = {
        "receipt": {"receipts"},
        "verdict": {"auditor"},
        "halt": {"auditor"},
        "resume": {"operator"},
        "erasure": {"operator", "log"},
        "audit_policy": {"auditor"},
        "draw": {"auditor"},
        "retention": {"operator"},
        "expiry": {"log"},
        "engine_profile": {"receipts"},
    }
    allowed |= {name: {"publisher"} for name in ("head_publication", "kscore")}
    allowed["head_withdrawal"] = {"publisher", "operator"}
    for role, key in KEYS.items():
        envelope = sign(canonical(document.to_document()), payload_type(kind), key)
        if role in allowed.get(kind, KEYS):
            assert open_document(envelope, TRUSTED) == document
            assert sign_document(document, key) == envelope
        else:
            with pytest.raises(SignatureError, match=kind):
                open_document(envelope, TRUSTED)
            with pytest.raises(SignatureError, match=role):
                sign_document(document, key)


def test_an_untrusted_key_opens_nothing() -> None:
    with pytest.raises(SignatureError):
        open_document(sign_document(receipt(), STRANGER), TRUSTED)
    with pytest.raises(SignatureError):
        open_document(sign_document(receipt(), KEYS["receipts"]), TrustedKeys())


def test_a_signature_under_a_borrowed_key_id_is_refused() -> None:
    good, bad = sign_document(receipt(), KEYS["receipts"]), sign_document(receipt(), STRANGER)
    borrowed = Signature(good.signatures[0].key_id, bad.signatures[0].signature)
    forged = Envelope(good.payload, good.payload_type, (borrowed,))
    with pytest.raises(SignatureError):
        open_document(forged, TRUSTED)


def test_a_junk_or_doubled_signature_beside_a_good_one_is_refused() -> None:
    good, junk = sign_document(receipt(), KEYS["receipts"]), sign_document(receipt(), STRANGER)
    for second, why in ((junk.signatures[0], "not trusted"), (good.signatures[0], "twice")):
        with pytest.raises(SignatureError, match=why):
            open_document(Envelope(good.payload, good.payload_type, (*good.signatures, second)), TRUSTED)


def test_a_document_cannot_pass_for_one_of_another_kind() -> None:
    envelope = sign(canonical(halt(1).to_document()), payload_type("verdict"), KEYS["auditor"])
    with pytest.raises(FormatError, match=r"^type: "):
        open_document(envelope, TRUSTED)
    with pytest.raises(FormatError, match="payloadType"):
        read_document(sign(b"{}", "application/json", KEYS["auditor"]))


def test_a_payload_that_is_not_canonical_is_refused() -> None:
    payload = canonical(receipt().to_document()) + b" "
    with pytest.raises(FormatError, match="canonical"):
        open_document(sign(payload, payload_type("receipt"), KEYS["receipts"]), TRUSTED)


def test_a_key_entry_records_trust_and_does_not_create_it() -> None:
    unknown = type(key_entry("operator"))("operator", STRANGER.public, key_entry("operator").issued_at)
    with pytest.raises(SignatureError):
        open_document(sign_document(unknown, KEYS["operator"]), TRUSTED)


def test_a_kind_of_a_later_version_is_not_signed_and_is_what_its_payload_says() -> None:
    with pytest.raises(FormatError):
        sign_document(UnknownDocument("kolm.later.v1"), KEYS["operator"])
    later, other, none = (
        sign(payload, payload_type("later"), KEYS["operator"])
        for payload in (b'{"type":"kolm.later.v1"}', b'{"type":"kolm.other.v1"}', b"[]")
    )
    assert read_document(later) == UnknownDocument("kolm.later.v1")
    for envelope in (other, none):
        with pytest.raises(FormatError):
            read_document(envelope)


def test_a_document_that_would_not_read_back_is_not_signed() -> None:
    for broken in (receipt(tenant=""), receipt(halt_epoch=1.5), receipt(issued_at="now")):
        with pytest.raises(FormatError):
            sign_document(broken, KEYS["receipts"])


def test_halts_count_up_and_resumes_lift_exactly_their_halt() -> None:
    other = Scope(BASE, "eagle3", "cidv1:sha256:" + "ab" * 32)
    state = HaltState().after_halt(5, halt(4)).after_halt(7, halt(6, other))
    assert (state.epoch, [open.halt_index for open in state.open]) == (2, [5, 7])
    for wrong in (resume(7), resume(5, other), resume(6)):
        with pytest.raises(FormatError, match="halt_index"):
            state.after_resume(wrong)
    lifted = state.after_resume(resume(5))
    assert (lifted.epoch, [open.halt_index for open in lifted.open]) == (2, [7])
    with pytest.raises(FormatError):
        lifted.after_resume(resume(5))


def test_a_halt_without_a_head_stops_every_head_of_its_method() -> None:
    head, other = "cidv1:sha256:" + "ab" * 32, "cidv1:sha256:" + "cd" * 32
    all_heads, one_head = Scope(BASE, "eagle3"), Scope(BASE, "eagle3", head)
    assert all_heads.covers(BASE, "eagle3", head)
    assert all_heads.covers(BASE, "eagle3", None)
    assert one_head.covers(BASE, "eagle3", head)
    assert not one_head.covers(BASE, "eagle3", other)
    assert not all_heads.covers(BASE, "lookahead", None)
    assert not SCOPE.covers("cidv1:sha256:" + "00" * 32, "lookahead", None)


@given(st.sampled_from(MEMBERS), JSON_VALUES)
def test_whatever_stands_in_a_document_only_ledger_errors_come_out(
    member: tuple[str, tuple[str, ...]], value: object
) -> None:
    kind, path = member
    try:
        document = KINDS[kind].from_document(_changed(DOCUMENTS[kind], path, value))
    except LedgerError:
        return
    assert KINDS[kind].from_document(parse(canonical(document.to_document()))) == document


@given(st.sampled_from(list(KINDS)), JSON_VALUES)
def test_any_json_in_place_of_a_document_raises_only_ledger_errors(kind: str, value: object) -> None:
    with pytest.raises(LedgerError):
        KINDS[kind].from_document(value)


def moved(**passes: int) -> dict[str, Any]:
    """A receipt of four target passes whose method changed inside the request."""
    block = replace(receipt().spec_decode, target_passes=4, mean_acceptance_length=1.25)
    of_five = receipt(1, spec_decode=block, output=replace(receipt(1).output, tokens=5))
    return _changed(of_five, ("spec_decode", "passes_by_method"), passes)


def test_gains_stand_beside_the_passes_that_they_are_about() -> None:
    document = moved(lookahead=1, eagle3=2, off=1)
    document["spec_decode"]["gains"] = {"eagle3": -0.125, "lookahead": 0.5}
    assert Receipt.from_document(document).to_document() == document
    del document["spec_decode"]["passes_by_method"]
    assert wrong_field(document) == "spec_decode.gains"


@pytest.mark.parametrize(
    ("passes", "field"),
    [
        ({"lookahead": 3}, "passes_by_method"),
        ({}, "passes_by_method"),
        ({"lookahead": 4, "off": 0}, "passes_by_method"),
        ({"lookahead": 4, "auto": 1}, "passes_by_method.auto"),
        ({"lookahead": 4.5}, "passes_by_method"),
    ],
)
def test_passes_that_do_not_add_up_are_refused(passes: dict[str, int], field: str) -> None:
    assert wrong_field(moved(**passes)) == f"spec_decode.{field}"


HEAD_OF_NONE = cid(b"head")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens_accepted": 2}, "acceptance_rate"),
        ({"tokens_accepted": 2, "acceptance_rate": 0.5}, "tokens_accepted"),
        ({"tokens_accepted": 0, "acceptance_rate": 0.0}, "tokens_accepted"),
        ({"target_passes": 2}, "tokens_accepted"),
        ({"acceptance_rate": 0.99}, "acceptance_rate"),
        ({"acceptance_rate": None}, "acceptance_rate"),
        ({"mean_acceptance_length": 2.5}, "mean_acceptance_length"),
        ({"mean_acceptance_length": None}, "mean_acceptance_length"),
        ({"method": "off"}, "tokens_proposed"),
        ({"method": "off", "passes_by_method": {"eagle3": 1}}, "method"),
        ({"passes_by_method": {"off": 1}}, "tokens_proposed"),
        ({"requested_method": "eagle3"}, "method"),
        ({"requested_method": "off"}, "method"),
    ],
)
def test_a_receipt_that_contradicts_itself_about_its_passes_is_refused(changes: dict[str, Any], field: str) -> None:
    document = receipt(1).to_document()
    document["spec_decode"] |= changes
    assert wrong_field(document) == f"spec_decode.{field}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens_proposed": 4, "acceptance_rate": 0.0}, "tokens_proposed"),
        ({"acceptance_rate": 0.0}, "acceptance_rate"),
        ({"head_cid": HEAD_OF_NONE}, "method"),
        ({"k": 4}, "method"),
        ({"passes_by_method": {"eagle3": 1, "off": 1}}, "method"),
        ({"target_passes": 1, "mean_acceptance_length": 2.0}, "tokens_accepted"),
    ],
)
def test_a_method_that_drafted_does_not_go_by_the_name_off(changes: dict[str, Any], field: str) -> None:
    document = receipt(1, spec_decode=OFF).to_document()
    assert Receipt.from_document(document).spec_decode == OFF
    document["spec_decode"] |= changes
    assert wrong_field(document) == f"spec_decode.{field}"


def test_passes_that_drafted_have_proposed_a_token_each() -> None:
    document = moved(lookahead=2, eagle3=2)
    document["spec_decode"] |= {"tokens_proposed": 3, "acceptance_rate": 1 / 3}
    assert wrong_field(document) == "spec_decode.tokens_proposed"


def test_the_pass_in_which_an_output_broke_off_may_have_emitted_less_than_it_accepted() -> None:
    broken = replace(receipt(1).output, finish_reason="error", stop_reason=None, tokens=1)
    block = replace(receipt(1).spec_decode, mean_acceptance_length=1.0)
    document = receipt(1, output=broken, spec_decode=block).to_document()
    assert Receipt.from_document(document).output == broken


def test_nothing_drafts_on_an_unproven_profile() -> None:
    assert wrong_field(receipt(1, profile_proven=False).to_document()) == "profile_proven"


@pytest.mark.parametrize("verification", ["prefill", "decode"])
@pytest.mark.parametrize("replayed_by", ["auditor", "server"])
def test_a_verdict_says_how_and_by_whom(verification: str, replayed_by: str) -> None:
    named = verdict(0, 0, verification=verification, replayed_by=replayed_by)
    assert Verdict.from_document(parse(canonical(named.to_document()))) == named
    assert named.independent is (replayed_by == "auditor")
    assert not verdict(0, 0).independent


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"verification": "prefill"}, "verification"),
        ({"replayed_by": "auditor"}, "verification"),
        ({"verification": "guess", "replayed_by": "auditor"}, "verification"),
        ({"verification": "decode", "replayed_by": "operator"}, "replayed_by"),
        ({"verification": None, "replayed_by": None}, "replayed_by"),
    ],
)
def test_a_verdict_names_both_in_known_words_or_neither(named: dict[str, Any], field: str) -> None:
    assert wrong_field(verdict(0, 0).to_document() | named, "verdict") == field


@pytest.mark.parametrize("value", [None, 0, 1, "true", "passed", []])
def test_a_profile_is_proven_or_not_and_nothing_else(value: object) -> None:
    assert wrong_field(_changed(receipt(1), ("profile_proven",), value)) == "profile_proven"


FOREIGN = foreign_receipt().spec_decode
CACHED = replace(foreign_receipt().prompt, cached_tokens=1)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"output": receipt().output}, "output.min_margin"),
        ({"profile_proven": True}, "profile_proven"),
        ({"spec_decode": receipt().spec_decode}, "spec_decode.method"),
        ({"spec_decode": OFF}, "spec_decode.reported_by"),
        ({"spec_decode": replace(FOREIGN, target_passes=1)}, "spec_decode.tokens_proposed"),
        ({"spec_decode": SpecDecode("engine", "auto", 4, 1, 1, reported_by="engine")}, "spec_decode.acceptance_rate"),
        (
            {"spec_decode": replace(FOREIGN, unverified="UNSTABLE", verified_identical_to_off=True)},
            "spec_decode.unverified",
        ),
        ({"engine": None, "spec_decode": replace(OFF, unverified="UNCHECKED")}, "spec_decode.unverified"),
        ({"engine": None}, "spec_decode.reported_by"),
        ({"engine": None, "spec_decode": OFF, "beside_others": True}, "beside_others"),
        ({"engine": None, "spec_decode": OFF, "prompt": CACHED}, "prompt.cached_tokens"),
        ({"prompt": replace(CACHED, cached_tokens=CACHED.tokens + 1)}, "prompt.cached_tokens"),
        ({"engine": "vllm"}, "engine"),
    ],
)
def test_a_receipt_of_another_engine_states_no_logits_and_no_counts_but_its_word(
    wrong: dict[str, Any], field: str
) -> None:
    whole = foreign_receipt()
    assert type(whole).from_bytes(whole.to_bytes()) == whole
    assert wrong_field(foreign_receipt(**wrong).to_document()) == field


_SEEN = ReferencePass(BASE, 0.1, 2.5, 3)


@pytest.mark.parametrize(
    ("outcome", "more", "field"),
    [
        ("SAME", {"verification": "again", "replayed_by": "engine"}, None),
        ("UNSTABLE", {"verification": "again", "replayed_by": "engine"}, None),
        ("DEVIATION", {"verification": "again", "replayed_by": "engine"}, None),
        ("CONSISTENT", {"verification": "reference", "replayed_by": "auditor", "reference": _SEEN}, None),
        ("INCONSISTENT", {"verification": "reference", "replayed_by": "auditor", "reference": _SEEN}, None),
        ("UNCHECKED", {"reason": "the weights are missing"}, None),
        ("UNCHECKED", {}, "reason"),
        ("EXACT", {"verification": "again", "replayed_by": "engine"}, "outcome"),
        ("EXACT", {"verification": "reference", "replayed_by": "auditor", "reference": _SEEN}, "outcome"),
        ("SAME", {"verification": "decode", "replayed_by": "auditor"}, "outcome"),
        ("SAME", {}, "outcome"),
        ("CONSISTENT", {"verification": "again", "replayed_by": "engine"}, "outcome"),
        ("SAME", {"verification": "again", "replayed_by": "auditor"}, "replayed_by"),
        ("EXACT", {"verification": "decode", "replayed_by": "engine"}, "replayed_by"),
        ("CONSISTENT", {"verification": "reference", "replayed_by": "auditor"}, "reference"),
        ("EXACT", {"verification": "decode", "replayed_by": "auditor", "reference": _SEEN}, "reference"),
        ("PROBABLY", {}, "outcome"),
        ("SAME", {"verification": "dice", "replayed_by": "engine"}, "verification"),
    ],
)
def test_a_verdict_says_what_its_way_of_verifying_can_find_and_no_more(
    outcome: str, more: dict[str, Any], field: str | None
) -> None:
    document = verdict(0, 0, outcome, **more)
    if field is None:
        assert type(document).from_bytes(document.to_bytes()) == document
        return
    assert wrong_field(document.to_document(), "verdict") == field


def test_a_digest_of_tokens_alone_is_none_of_a_stream() -> None:
    assert token_digest(()) == "sha256:" + hashlib.sha256(b"kolm.tokens.v1").hexdigest()
    assert token_digest((1, 2)) == "sha256:" + hashlib.sha256(b"kolm.tokens.v1\1\0\0\0\2\0\0\0").hexdigest()
    for token in (-1, 2**32):
        with pytest.raises(FormatError):
            token_digest((token,))
