"""AppendEntry over the wire: durable, proven, idempotent, and strict about what it takes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.key_scope import KeyScope
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.merkle import leaf_hash, verify_inclusion
from services.client import Content, LedgerClient
from services.client.errors import AlreadyExists, InvalidArgument
from services.ledger.servicer import SERVICE
from services.ledger.settings import LedgerSettings
from tests.fuzzing import flood
from tests.integration.ledger_service.conftest import Serve
from tests.serving import Served
from tests.unit.ledger import builders
from tests.unit.ledger.builders import ORIGIN, STRANGER, receipt, signed, signed_receipt
from tests.vectors.make_log import signed_claim


def wire_content(number: int) -> Content:
    kept = builders.content(number)
    return Content(kept.prompt_salt, kept.prompt_token_ids, kept.output_salt, kept.output_token_ids)


def test_an_append_is_proven_by_a_checkpoint_that_the_log_signed(
    ledger: LedgerClient, settings: LedgerSettings
) -> None:
    for number in range(5):
        appended = ledger.append(signed_receipt(number))
        assert appended.index == number
    log_key = SigningKey.load(settings.log_key, "log").public
    checkpoint = open_checkpoint(appended.checkpoint, [log_key], ORIGIN)
    entry = ledger.entry(4)
    proof = appended.inclusion_proof
    verify_inclusion(leaf_hash(entry.entry), 4, proof.tree_size, proof.hashes, checkpoint.root)
    assert entry.envelope.to_bytes() == signed_receipt(4)


def test_the_same_receipt_again_gets_the_same_index(ledger: LedgerClient) -> None:
    first = ledger.append(signed_receipt(0), wire_content(0))
    ledger.append(signed_receipt(1))
    assert ledger.append(signed_receipt(0), wire_content(0)).index == first.index
    assert ledger.checkpoint().tree_size == 2


def test_other_bytes_under_a_receipt_id_conflict(ledger: LedgerClient) -> None:
    ledger.append(signed_receipt(0))
    with pytest.raises(AlreadyExists) as caught:
        ledger.append(signed_receipt(0, tenant="somebody else"))
    assert caught.value.reason == "CONFLICT"
    assert ledger.checkpoint().tree_size == 1


def test_callers_at_once_get_dense_indexes(ledger: LedgerClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        indexes = [done.index for done in pool.map(ledger.append, [signed_receipt(n) for n in range(40)])]
    assert sorted(indexes) == list(range(40))


def test_a_bad_signature_names_the_envelope(ledger: LedgerClient) -> None:
    envelope = json.loads(signed_receipt(0))
    envelope["signatures"][0]["sig"] = json.loads(signed_receipt(1))["signatures"][0]["sig"]
    with pytest.raises(InvalidArgument) as caught:
        ledger.append(json.dumps(envelope).encode())
    assert (caught.value.fields, caught.value.reason) == (("envelope",), "UNTRUSTED_SIGNATURE")


def test_a_key_that_somebody_drops_beside_the_trusted_ones_of_a_running_ledger_signs_nothing(
    serve: Serve, settings: LedgerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = sign_document(receipt(0), STRANGER).to_bytes()
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        STRANGER.publish(settings.trusted_directory)
        for _ in range(3):
            with pytest.raises(InvalidArgument, match="not trusted") as caught:
                ledger.append(envelope)
            assert caught.value.fields == ("envelope",)
        assert ledger.append(signed_receipt(1)).index == 0
    refusals = [line for line in caplog.messages if STRANGER.key_id in line and "refused the key" in line]
    assert len(refusals) == 1
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:  # a person has started it again
        assert ledger.append(envelope).index == 1


def test_a_key_that_is_trusted_for_one_tenant_signs_no_other_s_receipt(serve: Serve, settings: LedgerSettings) -> None:
    stolen = STRANGER.public.scoped(KeyScope.of(tenant=["globex"]))
    settings.trusted_directory.mkdir(parents=True, exist_ok=True)
    (settings.trusted_directory / "receipts-stolen.pub").write_bytes(stolen.to_pem())
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        with pytest.raises(InvalidArgument) as caught:
            ledger.append(sign_document(receipt(0), STRANGER).to_bytes())
        assert (caught.value.fields, caught.value.reason) == (("envelope",), "UNTRUSTED_SIGNATURE")
        assert ledger.append(sign_document(receipt(0, tenant="globex"), STRANGER).to_bytes()).index == 0


def test_a_key_of_another_role_may_not_sign_a_receipt(ledger: LedgerClient, settings: LedgerSettings) -> None:
    auditor = SigningKey.from_seed(b"\x08" * 32, "auditor")
    auditor.publish(settings.trusted_directory)
    posing = SigningKey.from_seed(b"\x08" * 32, "receipts")
    with pytest.raises(InvalidArgument, match="not trusted"):
        ledger.append(sign_document(receipt(0), posing).to_bytes())


def test_an_oversize_envelope_is_refused(ledger: LedgerClient) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ledger.append(b'{"payload":"' + b"A" * 100_000 + b'"}')
    assert caught.value.fields == ("envelope",)


def test_a_document_that_is_no_receipt_of_ours_names_its_field(ledger: LedgerClient) -> None:
    envelope = signed(receipt(0, halt_epoch=3))
    with pytest.raises(InvalidArgument, match="halt_epoch") as caught:
        ledger.append(envelope)
    assert (caught.value.fields, caught.value.reason) == (("envelope",), "BAD_DOCUMENT")


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ({"method": "off", "passes_by_method": {"eagle3": 1}}, "spec_decode.method"),
        ({"method": "off"}, "spec_decode.tokens_proposed"),
        ({"tokens_accepted": 2, "acceptance_rate": 0.5}, "spec_decode.tokens_accepted"),
        ({"acceptance_rate": 0.99}, "spec_decode.acceptance_rate"),
    ],
)
def test_a_receipt_that_contradicts_itself_is_refused_though_its_operator_signed_it(
    ledger: LedgerClient, claims: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ledger.append(signed_claim(0, **claims).to_bytes())
    assert (caught.value.fields, caught.value.reason) == (("envelope",), "BAD_DOCUMENT")
    assert named in caught.value.message
    assert ledger.checkpoint().tree_size == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (wire_content(1), "content.prompt_token_ids"),
        (Content(b"short", (1, 2, 3), b"", (40, 2**32 - 1)), "content.salt"),
    ],
)
def test_content_that_the_receipt_does_not_commit_to_is_named(ledger: LedgerClient, wrong: Content, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ledger.append(signed_receipt(0), wrong)
    assert caught.value.fields == (field,)
    assert ledger.checkpoint().tree_size == 0


def test_what_was_appended_survives_a_restart(serve: Serve) -> None:
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        before = [ledger.append(signed_receipt(number)) for number in range(3)]
        note = ledger.checkpoint().note
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        assert ledger.checkpoint().note == note
        assert ledger.append(signed_receipt(1)).index == before[1].index
        assert ledger.append(signed_receipt(3)).index == 3


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    junk=st.one_of(
        st.binary(max_size=400),
        st.builds(lambda cut, junk: signed_receipt(0)[:cut] + junk, st.integers(0, 900), st.binary(max_size=8)),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_junk_as_an_envelope_is_invalid_and_never_internal(ledger: LedgerClient, junk: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ledger.append(junk)
    assert caught.value.fields == ("envelope",)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=200), method=st.sampled_from(["AppendEntry", "GetReceipt", "ListReceipts", "GetEntry"]))
def test_junk_as_a_request_is_never_internal(served: Served, junk: bytes, method: str) -> None:
    with grpc.insecure_channel(served.address) as channel:
        code = channel.unary_unary(f"/{SERVICE}/{method}").future(junk, timeout=60).code()
    assert code.name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED")


def test_random_messages_are_answered_or_refused(served: Served, ledger: LedgerClient) -> None:
    """Random messages to every RPC of the ledger: no bug, no loss."""
    index = ledger.append(signed_receipt(0)).index
    size = ledger.checkpoint().tree_size
    flood(served.address, ledger_pb2.DESCRIPTOR.services_by_name["LedgerService"])
    assert ledger.checkpoint().tree_size == size
    assert ledger.append(signed_receipt(0)).index == index
