"""Publish, withdraw, score, find: over real stubs, with a real ledger behind."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.manifests import HeadWeights
from ledger.documents.signed_document import open_document, sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from services.cli.foreign_heads import convert
from services.cli.frame.exits import UsageError
from services.client.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unavailable
from services.client.head_folder import manifest_of
from services.client.registry import RegistryClient
from services.generation.drafting.block.block_checkpoint import load_block_head
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.identity import base_manifest
from services.registry.__main__ import opened_servicer
from services.registry.settings import RegistrySettings
from tests.fakes.heads import (
    block_config,
    head_config,
    published_block,
    write_kolm,
    write_kolm_block,
    write_safeailab,
    write_speculators,
)
from tests.fakes.tiny_head import OTHER_BASE, tiny_head
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.auditor.deployment import Deployment
from tests.integration.registry.conftest import Serve
from tests.integration.registry.pushing import NAME, PUBLISHER, envelope, publish, send
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, TRUSTED, kscore, signed, withdrawal


def entries(deployment: Deployment) -> int:
    return deployment.ledger.checkpoint().tree_size


def test_a_published_head_is_found_under_every_reference_and_stands_in_the_ledger(
    registry: RegistryClient, deployment: Deployment
) -> None:
    head = tiny_head()
    cid, digits = head.manifest.cid, head.manifest.cid.removeprefix("cidv1:sha256:")
    published = publish(registry, head)
    assert (published.head_cid, published.names, published.base_cid) == (cid, (NAME,), head.base.cid)
    assert published.manifest == head.manifest.to_bytes()
    for reference in (NAME, f"{NAME}@sha256:{digits[:6]}", f"{NAME}@sha256:{digits}", cid):
        assert registry.resolve(reference) == published
    assert registry.resolve(base_cid=head.base.cid) == published
    assert registry.head(cid) == published
    entry = Entry.from_bytes(deployment.ledger.entry(published.publications[0].ledger_index).entry)
    assert entry.envelope.to_bytes() == published.publications[0].envelope
    assert open_document(entry.envelope, TRUSTED).to_document()["manifest_cid"] == cid


def test_two_publishers_at_once_get_one_result(registry: RegistryClient, deployment: Deployment) -> None:
    head, before = tiny_head(), entries(deployment)
    send(registry, head.blobs)
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: registry.publish(head.manifest.to_bytes(), envelope(head, issued=n)), range(8))
        )
    assert sum(created for _, created in answers) == 1
    assert len({answer.publications for answer, _ in answers}) == 1
    assert entries(deployment) == before + 1


def test_a_name_means_its_newest_head_and_digits_have_to_mean_one(registry: RegistryClient) -> None:
    heads = [publish(registry, tiny_head(seed)) for seed in range(20)]
    assert registry.resolve(NAME) == heads[-1]
    firsts = [head.head_cid.removeprefix("cidv1:sha256:")[0] for head in heads]
    shared = next(digit for digit in firsts if firsts.count(digit) > 1)
    with pytest.raises(FailedPrecondition) as caught:
        registry.resolve(f"{NAME}@sha256:{shared}")
    assert caught.value.reason == "AMBIGUOUS_REFERENCE"
    named = [head.head_cid.removeprefix("cidv1:") for head, first in zip(heads, firsts, strict=True) if first == shared]
    assert all(f"{NAME}@{digest}" in caught.value.message for digest in named[:4])
    with pytest.raises(NotFound):
        registry.resolve(f"other-name@sha256:{shared}")


def test_a_reference_of_another_form_is_refused(registry: RegistryClient) -> None:
    for reference in ("../etc", "a/b", "@sha256:00", "name@sha256:", "name@sha256:XY", "cidv1:sha256:00"):
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("reference",)):
            registry.resolve(reference)


def test_a_withdrawal_is_final_and_stands_in_the_ledger(registry: RegistryClient, deployment: Deployment) -> None:
    older, head = tiny_head(1), tiny_head()
    publish(registry, older)
    publish(registry, head)
    withdrawn = registry.withdraw(signed(withdrawal(head.manifest.cid)))
    assert withdrawn.withdrawal is not None
    assert withdrawn.withdrawal.document.reason == "trained on the wrong data"
    assert deployment.ledger.entry(withdrawn.withdrawal.ledger_index).kind == "head_withdrawal"
    assert registry.resolve(NAME).head_cid == older.manifest.cid
    for call in (
        lambda: registry.resolve(head.manifest.cid),
        lambda: registry.publish(head.manifest.to_bytes(), envelope(head, "another-name")),
    ):
        with pytest.raises(FailedPrecondition) as caught:
            call()
        assert caught.value.reason == "HEAD_WITHDRAWN"
    assert registry.resolve(head.manifest.cid, include_withdrawn=True) == withdrawn
    assert registry.withdraw(signed(withdrawal(head.manifest.cid, "again"))) == withdrawn
    assert [each.head_cid for each in registry.heads()] == [older.manifest.cid]
    assert len(list(registry.heads(include_withdrawn=True))) == 2


def test_an_unpublished_head_has_no_answer(registry: RegistryClient) -> None:
    for call in (
        lambda: registry.withdraw(signed(withdrawal())),
        lambda: registry.record_kscore(signed(kscore())),
        lambda: registry.head(OTHER_BASE),
        lambda: registry.resolve("missing"),
    ):
        with pytest.raises(NotFound):
            call()


def test_a_manifest_that_lies_about_a_digest_or_a_size_is_refused(registry: RegistryClient) -> None:
    honest = tiny_head()
    send(registry, honest.blobs)
    weights = honest.manifest.weights.files[0]
    for lie, reason in (
        (replace(weights, digest="sha256:" + "ab" * 32), "BLOB_MISSING"),
        (replace(weights, size=weights.size + 1), "BLOB_MISSING"),
    ):
        liar = replace(honest, changes={"weights": HeadWeights((lie,))})
        with pytest.raises((InvalidArgument, FailedPrecondition)) as caught:
            registry.publish(liar.manifest.to_bytes(), envelope(liar))
        assert caught.value.reason == reason
        assert "model.safetensors" in caught.value.message


def test_a_head_for_another_base_than_was_described_is_refused(
    registry: RegistryClient, deployment: Deployment
) -> None:
    head, before = tiny_head(subject=OTHER_BASE), entries(deployment)
    send(registry, head.blobs)
    with pytest.raises(FailedPrecondition, check=lambda error: error.reason == "BASE_UNKNOWN"):
        registry.publish(head.manifest.to_bytes(), envelope(head))
    assert list(registry.heads(include_withdrawn=True)) == []
    assert entries(deployment) == before


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_head_without_all_of_its_blobs_is_not_published(registry: RegistryClient, missing: int) -> None:
    head = tiny_head()
    send(registry, [data for place, data in enumerate(head.blobs) if place != missing])
    with pytest.raises(FailedPrecondition) as caught:
        registry.publish(head.manifest.to_bytes(), envelope(head))
    assert caught.value.reason == ("BLOB_MISSING" if missing < 2 else "BASE_UNKNOWN")


def test_only_a_trusted_publisher_publishes(registry: RegistryClient) -> None:
    head = tiny_head()
    send(registry, head.blobs)
    stranger = SigningKey.generate("publisher")
    with pytest.raises(InvalidArgument) as caught:
        registry.publish(head.manifest.to_bytes(), envelope(head, key=stranger))
    assert caught.value.reason == "UNTRUSTED_SIGNATURE"
    for other in (
        signed(withdrawal(head.manifest.cid)),
        b"{}",
        envelope(tiny_head(1)),
        envelope(head, base_cid=OTHER_BASE),
    ):
        with pytest.raises(InvalidArgument) as caught:
            registry.publish(head.manifest.to_bytes(), other)
        assert caught.value.reason == "BAD_DOCUMENT"
    with pytest.raises(InvalidArgument) as caught:
        registry.publish(head.manifest.to_bytes() + b" ", envelope(head))
    assert caught.value.reason == "BAD_MANIFEST"


def test_a_publisher_that_the_ledger_does_not_trust_leaves_room_for_one_that_it_does(
    serve: Serve, deployment: Deployment, tmp_path: Path
) -> None:
    head, stranger = tiny_head(), SigningKey.generate("publisher")
    ours = tmp_path / "registry-trusted"
    ours.mkdir()
    for path in (tmp_path / "trusted").iterdir():
        (ours / path.name).write_bytes(path.read_bytes())
    stranger.publish(ours)
    with serve(trusted_keys=ours) as served, RegistryClient.connect(served.address, wait=60) as registry:
        send(registry, head.blobs)
        with pytest.raises(InvalidArgument, check=lambda error: error.reason == "UNTRUSTED_SIGNATURE"):
            registry.publish(head.manifest.to_bytes(), envelope(head, key=stranger))
        assert list(registry.heads()) == []
        assert registry.publish(head.manifest.to_bytes(), envelope(head))[1]
    assert TrustedKeys.load(ours).find("publisher", stranger.key_id)


def test_without_the_ledger_nothing_is_published_until_it_is_back(
    serve: Serve, deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = tiny_head()
    with serve(ledger="127.0.0.1:1") as served, RegistryClient.connect(served.address, wait=60) as registry:
        send(registry, head.blobs)
        with pytest.raises(Unavailable) as caught:
            registry.publish(head.manifest.to_bytes(), envelope(head))
        assert caught.value.reason == "LEDGER_UNAVAILABLE"
        assert list(registry.heads()) == []
    away = RegistrySettings(data_dir=tmp_path / "registry", ledger="127.0.0.1:1", trusted_keys=tmp_path / "trusted")
    with opened_servicer(away) as opened:
        assert [opened.publishing.finish_proposals() for _ in range(3)] == [False] * 3
    waits = [record for record in caplog.records if record.name == "services.registry.publishing"]
    assert len(waits) == 1
    with serve() as served, RegistryClient.connect(served.address, wait=60) as registry:
        published = registry.resolve(NAME)  # the start has finished what was proposed
        assert deployment.ledger.entry(published.publications[0].ledger_index).envelope.to_bytes() == envelope(head)
        assert registry.publish(head.manifest.to_bytes(), envelope(head, issued=1)) == (published, False)


def test_a_name_that_is_a_path_is_not_even_signed(registry: RegistryClient) -> None:
    with pytest.raises(Exception, match="plain name"):
        envelope(tiny_head(), "../../etc/passwd")
    document = sign_document(kscore(), KEYS["publisher"])
    assert document.payload  # the same key signs what is in order


@pytest.fixture
def rival(tmp_path: Path, deployment: Deployment) -> SigningKey:
    """A second publisher, trusted by registry and ledger."""
    key = seeded_key(bytes([77]) * 32, "publisher")
    key.publish(tmp_path / "trusted")
    return key


def test_a_name_belongs_to_its_first_publisher(
    rival: SigningKey, registry: RegistryClient, deployment: Deployment
) -> None:
    mine, theirs = tiny_head(1), tiny_head(2)
    publish(registry, mine)
    send(registry, theirs.blobs)
    before = entries(deployment)
    for head in (theirs, mine):
        with pytest.raises(PermissionDenied) as caught:
            registry.publish(head.manifest.to_bytes(), envelope(head, key=rival))
        assert caught.value.reason == "NAME_TAKEN"
        assert f"acme models ({PUBLISHER.key_id})" in caught.value.message
        assert f"acme models ({rival.key_id})" in caught.value.message
    for alike in (NAME.upper(), NAME.capitalize()):
        with pytest.raises(PermissionDenied) as caught:
            registry.publish(theirs.manifest.to_bytes(), envelope(theirs, alike, key=rival))
        assert caught.value.reason == "NAME_TAKEN"
    for key in (rival, PUBLISHER):
        with pytest.raises(InvalidArgument) as refused:
            registry.publish(theirs.manifest.to_bytes(), envelope(theirs, f"{NAME}.", key=key))
        assert refused.value.reason == "BAD_DOCUMENT"
    assert entries(deployment) == before
    assert registry.resolve(NAME).head_cid == mine.manifest.cid
    assert registry.publish(theirs.manifest.to_bytes(), envelope(theirs, "another-name", key=rival))[1]
    assert publish(registry, tiny_head(3)).names == (NAME,)


def test_a_head_is_withdrawn_by_its_publisher_or_by_an_operator(rival: SigningKey, registry: RegistryClient) -> None:
    head, other = tiny_head(1), tiny_head(2)
    publish(registry, head)
    publish(registry, other)
    registry.publish(head.manifest.to_bytes(), envelope(head, "a-name-of-the-rival-s", key=rival))
    document = withdrawal(head.manifest.cid)
    with pytest.raises(PermissionDenied) as caught:
        registry.withdraw(sign_document(document, rival).to_bytes())
    assert caught.value.reason == "NOT_THE_PUBLISHER"
    assert PUBLISHER.key_id in caught.value.message
    assert rival.key_id in caught.value.message
    assert registry.head(head.manifest.cid).withdrawal is None
    assert registry.withdraw(sign_document(document, KEYS["operator"]).to_bytes()).withdrawal is not None
    assert registry.withdraw(signed(withdrawal(other.manifest.cid))).withdrawal is not None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), layers=6)


@pytest.fixture
def base(model: Path) -> TargetConfig:
    return read_config(model)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_a_block_head_is_converted_and_described(model: Path, base: TargetConfig, tmp_path: Path, kind: str) -> None:
    dspark = kind == "dspark"
    choices = {} if dspark else {"draft_vocab_size": base.vocab_size, "own_output": False, "markov_rank": 0}
    config = block_config(base, confidence=dspark, confidence_reads_token=dspark, from_first=dspark, **choices)
    write_kolm_block(tmp_path / "written", config)
    theirs = published_block(tmp_path / "theirs", config, kind)
    convert(theirs, tmp_path / "head", model, None)
    assert load_block_head(tmp_path / "head", base).config == config
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "head" / name).read_bytes() == (tmp_path / "written" / name).read_bytes()
    assert manifest_of(tmp_path / "head", base_manifest(model).cid).kind == "block"


@pytest.mark.parametrize("write", [write_kolm, write_safeailab, write_speculators])
def test_a_conversion_writes_what_loads_to_the_same_head(
    model: Path, base: TargetConfig, tmp_path: Path, write: Any
) -> None:
    write(tmp_path / "theirs", head_config(base))
    convert(tmp_path / "theirs", tmp_path / "ours", model, None)
    theirs, ours = load_head(tmp_path / "theirs", base), load_head(tmp_path / "ours", base)
    assert ours.config.feature_layers in (theirs.config.feature_layers, *theirs.other_layers)
    assert replace(ours.config, feature_layers=theirs.config.feature_layers) == theirs.config
    assert (ours.target_ids == theirs.target_ids).all()
    assert all((ours.tensors[name] == tensor).all() for name, tensor in theirs.tensors.items())
    document = json.loads((tmp_path / "ours" / "config.json").read_bytes())
    assert document["layout"] == "kolm.eagle3.v1"

    chosen = convert(tmp_path / "theirs", tmp_path / "chosen", model, (0, 1, 2))
    assert chosen.feature_layers == (0, 1, 2)
    with pytest.raises(UsageError, match=r"\[9\]"):
        convert(tmp_path / "theirs", tmp_path / "refused", model, (0, 1, 9))
