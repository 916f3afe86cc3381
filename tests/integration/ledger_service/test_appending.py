"""AppendEntry over the wire: durable, proven, and strict about what it takes."""

import json

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
from services.client.errors import InvalidArgument
from services.ledger.settings import LedgerSettings
from tests.fuzzing import flood
from tests.integration.ledger_service.conftest import Serve
from tests.serving import Served
from tests.unit.ledger import builders
from tests.unit.ledger.builders import ORIGIN, STRANGER, receipt, signed_receipt


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


def test_a_key_that_somebody_drops_beside_the_trusted_ones_of_a_running_ledger_signs_nothing(
    serve: Serve, settings: LedgerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = sign_document(receipt(0), STRANGER).to_bytes()
    with serve() as served, LedgerClient.connect(served.address, wait=60) as ledger:
        STRANGER.publish(settings.trusted_directory)
        for _ in range(3):
            with pytest.raises(InvalidArgument) as caught:
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


def test_random_messages_are_answered_or_refused(served: Served, ledger: LedgerClient) -> None:
    """Random messages to every RPC of the ledger: no bug, no loss."""
    index = ledger.append(signed_receipt(0)).index
    size = ledger.checkpoint().tree_size
    flood(served.address, ledger_pb2.DESCRIPTOR.services_by_name["LedgerService"])
    assert ledger.checkpoint().tree_size == size
    assert ledger.append(signed_receipt(0)).index == index
