"""Heads from the registry to the engine: which are loaded, which are refused with which reason, and their drafts."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from kolm.generation.v1 import generation_pb2 as pb
from kolm.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from ledger.audit.draft_head_evidence import DraftHeadEvidence
from ledger.documents.draft_head import DraftHeadWithdrawal, KScore
from ledger.documents.signed_document import sign_document
from ledger.encoding.text_forms import cid
from ledger.keys.ed25519 import SigningKey
from services.cli.heads.publish import Description, push_head
from services.client.registry import RegistryClient
from services.generation.drafting.mtp.assistant import read_assistant_beside
from services.generation.drafting.mtp.block_weights import MtpBlock, read_block
from services.generation.requests import served_heads
from services.generation.target.arrays import Int64
from services.generation.target.config.config import TargetConfig, read_config
from services.registry.__main__ import opened_servicer
from services.registry.settings import RegistrySettings
from services.runtime.process import CannotStart
from services.runtime.server import Mount, start_server
from tests.access import open_access
from tests.fakes.assistants import BASES, make_assistant_of, sidecar_of_assistant
from tests.fakes.converted_gguf import convert
from tests.fakes.heads import block_config, head_config, write_kolm, write_kolm_block
from tests.fakes.mtp_models import make_mtp_model
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.api.test_methods import build
from tests.integration.generation.deployment import Deployment, asking, failure, until
from tests.unit.ledger.builders import at, kscore

PUBLISHER = SigningKey.generate("publisher")
NAME = "support-head"


def write(model: Path, directory: Path, seed: int = 0) -> Path:
    """A head for the model, in kolm's layout."""
    config = head_config(read_config(model))
    write_kolm(directory, config, seed)
    return directory


@dataclass
class Shelf:
    """A registry beside a deployment, and a client of it for another thread."""

    address: str
    directory: Path
    client: RegistryClient

    async def push(self, model: Path, folder: Path, name: str = NAME) -> str:
        """Publish; the head's identifier."""
        pushed = await asyncio.to_thread(push_head, self.client, Description(folder, model, name, "acme"), PUBLISHER)
        return pushed.head.head_cid

    async def withdraw(self, head_cid: str) -> None:
        document = DraftHeadWithdrawal(head_cid, "trained on the wrong data", at(1))
        await asyncio.to_thread(self.client.withdraw, sign_document(document, PUBLISHER).to_bytes())

    async def score(self, score: KScore) -> None:
        await asyncio.to_thread(self.client.record_kscore, sign_document(score, PUBLISHER).to_bytes())


@pytest.fixture
async def shelf(deployment: Deployment, tmp_path: Path) -> AsyncIterator[Shelf]:
    PUBLISHER.publish(deployment.trusted)
    directory = tmp_path / "registry"
    settings = RegistrySettings(data_dir=directory, ledger=deployment.ledger_address, trusted_keys=deployment.trusted)
    with opened_servicer(settings) as opened:
        mount = Mount(
            "kolm.registry.v1.RegistryService", lambda s: add_RegistryServiceServicer_to_server(opened.servicer, s)
        )
        server = await start_server([mount], "127.0.0.1:0", access=open_access())
        with RegistryClient.connect(server.address) as client:
            yield Shelf(server.address, directory, client)
        await server.stop(None)


async def served_by(stub: Any, **members: Any) -> tuple[str, str, list[int]]:
    """Method, fallback reason and tokens of a short request."""
    answer = await stub.Generate(asking(max_tokens=12, **members))
    return answer.metrics.method, answer.metrics.fallback_reason, list(answer.choices[0].token_ids)


async def info(stub: Any) -> pb.GetModelInfoResponse:
    return await stub.GetModelInfo(pb.GetModelInfoRequest())


async def test_a_published_head_drafts_by_default_and_stands_in_the_receipt(
    deployment: Deployment, shelf: Shelf, model: Path, tmp_path: Path
) -> None:
    head_cid = await shelf.push(model, write(model, tmp_path / "head"))
    stub = await deployment.start_generation(registry=shelf.address)
    listed = (await info(stub)).heads
    assert [(head.head_cid, head.name, head.withdrawn) for head in listed] == [(head_cid, NAME, False)]
    assert "eagle3" in (await info(stub)).methods
    *_, plain = await served_by(stub, method="off")
    digits = head_cid.removeprefix("cidv1:sha256:")
    named = {"eagle_head": f"{NAME}@sha256:{digits[:8]}"}
    for members in ({}, {"method": "eagle3"}, {"method": "eagle3", **named}, named):
        assert await served_by(stub, **members) == ("eagle3", "", plain)
    receipts = await deployment.receipts(5)
    assert [receipt.spec_decode.head_cid for receipt in receipts] == [None, *4 * [head_cid]]
    assert [receipt.spec_decode.requested_method for receipt in receipts] == ["off", "auto", *3 * ["eagle3"]]
    assert receipts[1].spec_decode.k == 16
    assert DraftHeadEvidence.read(deployment.directory / "generation" / "heads" / digits)


async def test_a_head_that_is_withdrawn_or_unfit_while_it_serves_is_picked_no_more(
    deployment: Deployment, shelf: Shelf, model: Path, tmp_path: Path
) -> None:
    head_cid = await shelf.push(model, write(model, tmp_path / "head"))
    stub = await deployment.start_generation(registry=shelf.address)
    base_cid = (await info(stub)).base_cid
    await shelf.score(kscore(head_cid, base_cid=base_cid, adapter_cid=None, mean_acceptance=0.25))

    async def reason_is(reason: str) -> bool:
        return (await served_by(stub))[:2] == ("lookahead", reason)

    await until(lambda: reason_is("head_needs_retraining"))
    assert (await served_by(stub, method="eagle3"))[0] == "eagle3"
    await shelf.withdraw(head_cid)
    await until(lambda: reason_is("head_withdrawn"))
    failed = await failure(stub.Generate(asking(method="eagle3", eagle_head=head_cid)))
    assert (failed.reason, "wrong data" in failed.message) == ("HEAD_WITHDRAWN", True)
    assert (await info(stub)).heads[0].withdrawn


async def test_every_head_that_may_not_be_loaded_has_an_error_of_its_own(
    deployment: Deployment, shelf: Shelf, model: Path, tmp_path: Path
) -> None:
    heads = {name: write(model, tmp_path / name, seed) for seed, name in enumerate(("good", "gone", "lost", "bent"))}
    cids = {name: await shelf.push(model, folder, name) for name, folder in heads.items()}
    other = make_tiny_model(tmp_path / "other-model", seed=1)
    cids["other"] = await shelf.push(other, write(other, tmp_path / "other"), "other")
    await shelf.withdraw(cids["gone"])
    with sqlite3.connect(shelf.directory / "registry.sqlite3") as catalogue:
        catalogue.execute("UPDATE documents SET ledger_index = 0 WHERE key = 'lost'")
    bent = (heads["bent"] / "model.safetensors").read_bytes()
    blobs = (path for path in (shelf.directory / "blobs").rglob("*") if path.is_file())
    weights = next(path for path in blobs if path.read_bytes() == bent)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")

    expected = {
        "gone": "HEAD_WITHDRAWN",
        "lost": "HEAD_UNLOGGED",
        "bent": "HEAD_DAMAGED",
        cids["other"]: "HEAD_BASE_MISMATCH",
        "missing": "HEAD_NOT_FOUND",
    }
    stub = await deployment.start_generation(registry=shelf.address, head=("good", *expected))
    assert [head.head_cid for head in (await info(stub)).heads] == [cids["good"]]
    for reference, reason in expected.items():
        failed = await failure(stub.Generate(asking(method="eagle3", eagle_head=reference)), reference)
        assert (failed.code.name, failed.reason) == ("FAILED_PRECONDITION", reason), reference
    assert (await served_by(stub))[0] == "eagle3"


async def test_an_unsigned_head_is_not_loaded_by_who_does_not_trust_its_publisher(
    deployment: Deployment, shelf: Shelf, model: Path, tmp_path: Path
) -> None:
    await shelf.push(model, write(model, tmp_path / "head"))
    ours = tmp_path / "ours"
    ours.mkdir()
    for path in deployment.trusted.glob("log-*.pub"):
        (ours / path.name).write_bytes(path.read_bytes())
    stub = await deployment.start_generation(registry=shelf.address, head=(NAME,), trusted_keys=ours)
    assert not (await info(stub)).heads
    failed = await failure(stub.Generate(asking(method="eagle3", eagle_head=NAME)))
    assert failed.reason == "HEAD_UNSIGNED"


async def test_while_the_registry_is_away_verified_heads_come_from_the_cache(
    deployment: Deployment, shelf: Shelf, model: Path, tmp_path: Path
) -> None:
    head_cid = await shelf.push(model, write(model, tmp_path / "head"))
    await deployment.start_generation(registry=shelf.address)
    await deployment.stop_generation()
    stub = await deployment.start_generation(registry="127.0.0.1:1")
    assert [head.head_cid for head in (await info(stub)).heads] == [head_cid]
    await deployment.stop_generation()
    cached = (
        deployment.directory / "generation" / "heads" / head_cid.removeprefix("cidv1:sha256:") / "model.safetensors"
    )
    cached.write_bytes(cached.read_bytes()[:-1] + b"\x7f")
    stub = await deployment.start_generation(registry="127.0.0.1:1")
    assert not (await info(stub)).heads
    assert (await served_by(stub))[:2] == ("lookahead", "no_head")


async def test_a_folder_given_directly_drafts_and_is_marked_as_unsigned(
    deployment: Deployment, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(model, tmp_path / "head")
    stub = await deployment.start_generation(head=(str(folder),))
    head = (await info(stub)).heads[0]
    assert not head.HasField("name")
    assert not head.HasField("publication_index")
    assert any(str(folder) in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert (await served_by(stub))[0] == "eagle3"
    assert (await deployment.receipts(1))[0].spec_decode.head_cid == head.head_cid != cid(b"")
    await deployment.stop_generation()
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CannotStart, match=f"^--head: {folder}: "):
        await deployment.start_generation(head=(str(folder),))


@pytest.fixture
def base(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "models" / "base"))


async def test_they_draft_and_the_log_says_so(
    deployment: Deployment, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(base, base.parent / "head")
    build(base, "The ledger keeps one receipt for every request.", base / "store")
    with caplog.at_level(logging.INFO):
        stub = await deployment.start_generation(model=base)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    for folder in (base.parent / "head", base / "store"):
        assert any(str(folder) in line for line in lines), folder
    response = await stub.Generate(asking(max_tokens=4))
    assert (response.metrics.method, response.metrics.HasField("fallback_reason")) == ("eagle3", False)
    assert (await stub.Generate(asking(max_tokens=4, method="rest"))).metrics.method == "rest"


async def test_a_block_head_drafts_by_the_method_of_its_kind(deployment: Deployment, base: Path) -> None:
    config = block_config(read_config(base))
    write_kolm_block(base.parent / "head", config)
    stub = await deployment.start_generation(model=base)
    plain = await stub.Generate(asking(max_tokens=24, method="off"))
    for members in ({}, {"method": "block"}):
        response = await stub.Generate(asking(max_tokens=24, **members))
        assert (response.metrics.method, response.metrics.HasField("fallback_reason")) == ("block", False)
        assert [each.text for each in response.choices] == [each.text for each in plain.choices]
    assert (await failure(stub.Generate(asking(max_tokens=4, method="eagle3")))).reason == "METHOD_NOT_LOADED"


async def test_nothing_is_taken_where_the_operator_says_so(deployment: Deployment, base: Path) -> None:
    write(base, base / "head")
    stub = await deployment.start_generation(model=base, auto_discover=False)
    assert (await failure(stub.Generate(asking(max_tokens=4, method="eagle3")))).reason == "METHOD_NOT_LOADED"


async def test_what_is_for_another_model_is_left_out(deployment: Deployment, base: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", hidden=128)
    write(other, base / "head")
    build(base, "The ledger keeps", base / "store")
    manifest = base / "store" / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"tokenizer_cid":"cidv1:sha256:', '"tokenizer_cid":"cidv1:sha256:0')
    )
    stub = await deployment.start_generation(model=base)
    for method in ("eagle3", "rest"):
        assert (await failure(stub.Generate(asking(max_tokens=4, method=method)))).reason == "METHOD_NOT_LOADED"


async def test_the_block_inside_of_a_model_drafts_without_being_named(deployment: Deployment, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model", vocab=384)
    stub = await deployment.start_generation(model=model)
    block = read_block(model, read_config(model))
    assert block is not None
    *_, plain = await served_by(stub, method="off")
    for members in ({}, {"method": "mtp"}, {"eagle_head": block.cid}):
        assert await served_by(stub, **members) == ("mtp", "", plain)
    listed = await info(stub)
    assert [each.head_cid for each in listed.heads] == [block.cid]
    assert "mtp" in {each.name for each in listed.draft_methods}
    receipts = [receipt.spec_decode for receipt in await deployment.receipts(4)]
    assert [receipt.method for receipt in receipts] == ["off", *3 * ["mtp"]]
    assert [receipt.head_cid for receipt in receipts] == [None, *3 * [block.cid]]


@pytest.mark.parametrize("tokens", [0, 40])
async def test_the_block_inside_drafts_as_many_tokens_as_the_operator_says(
    deployment: Deployment, tmp_path: Path, tokens: int
) -> None:
    stub = await deployment.start_generation(
        model=make_mtp_model(tmp_path / "model", vocab=384), own_head_tokens=tokens
    )
    *_, plain = await served_by(stub, method="off")
    assert await served_by(stub, method="mtp") == ("mtp", "", plain)


async def test_the_block_inside_drafts_what_was_answered_before_under_the_same_identifier(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted: list[set[int]] = []

    def reading(model: Path, config: TargetConfig, tokens: Int64) -> MtpBlock | None:
        drafted.append({*tokens.tolist()})
        return read_block(model, config, tokens)

    monkeypatch.setattr(served_heads, "read_block", reading)
    model = make_mtp_model(tmp_path / "model", vocab=384)
    stub = await deployment.start_generation(model=model, own_head_tokens=130, replicas=2)
    *_, plain = await served_by(stub, method="off")
    (first,) = (await info(stub)).heads
    for _ in range(16):
        assert await served_by(stub, method="mtp") == ("mtp", "", plain)
    again = await deployment.start_generation(model=model, own_head_tokens=130, replicas=2)
    (second,) = (await info(again)).heads
    assert second.head_cid == first.head_cid
    assert drafted[0] != drafted[1] >= {*plain}
    assert await served_by(again, method="mtp") == ("mtp", "", plain)


async def test_the_assistant_in_a_sidecar_drafts_without_being_named(deployment: Deployment, tmp_path: Path) -> None:
    folder, model = make_tiny_model(tmp_path / "base", **BASES["own_keys"]), tmp_path / "tiny-Q8_0.gguf"
    convert(folder, model)
    sidecar_of_assistant(make_assistant_of(folder, tmp_path / "assistant"), tmp_path / "mtp-tiny-F32.gguf")
    stub = await deployment.start_generation(model=model)
    *_, plain = await served_by(stub, method="off")
    assert await served_by(stub) == ("mtp", "", plain)
    found = read_assistant_beside(model, read_config(model))
    assert found is not None
    assert [receipt.spec_decode.head_cid for receipt in await deployment.receipts(2)] == [None, found.cid]


async def test_a_head_beside_the_model_goes_before_the_block_inside(deployment: Deployment, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model", vocab=384)
    write(model, model / "head")
    stub = await deployment.start_generation(model=model)
    assert (await stub.Generate(asking(max_tokens=8))).metrics.method == "eagle3"
    assert (await stub.Generate(asking(max_tokens=8, method="mtp"))).metrics.method == "mtp"


async def test_the_block_inside_is_left_out_where_the_operator_says_so(deployment: Deployment, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model", vocab=384)
    stub = await deployment.start_generation(model=model, own_head=False)
    assert (await failure(stub.Generate(asking(max_tokens=4, method="mtp")))).reason == "METHOD_NOT_LOADED"


async def test_a_broken_block_inside_is_refused_and_the_model_serves_on(deployment: Deployment, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model", vocab=384)
    tensors = load_file(model / "model.safetensors")
    del tensors["mtp.fc.weight"]
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    stub = await deployment.start_generation(model=model)
    response = await stub.Generate(asking(max_tokens=4))
    assert response.metrics.method not in ("off", "mtp")
    assert (await failure(stub.Generate(asking(max_tokens=4, eagle_head="mtp")))).reason == "HEAD_INVALID"
