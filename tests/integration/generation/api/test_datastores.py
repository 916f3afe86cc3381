"""Datastores as callers see them: rest by name and by workload, the same tokens as without, tenants apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolm.generation.v1 import speculation_pb2
from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import Document
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.identity import tokenizer_cid
from services.runtime.process import CannotStart
from tests.integration.generation.deployment import Deployment, asking, failure

TEXT = "The ledger keeps one receipt for every request that was served, and every receipt is signed."


def build(model: Path, text: str, folder: Path) -> Path:
    builder = DatastoreBuilder(model, Tokenizer(model).fast, tokenizer_cid(model), BuildParameters())
    builder.build([Document("text", text)], folder)
    return folder


async def test_rest_serves_the_tokens_of_off(deployment: Deployment, model: Path, tmp_path: Path) -> None:
    plain = await (await deployment.start_generation()).Generate(asking(method="off", max_tokens=40, ignore_eos=True))
    await deployment.stop_generation()
    answer = plain.choices[0].text
    store = build(model, f"The ledger keeps{answer}", tmp_path / "store")
    stub = await deployment.start_generation(shared_datastore=(store,))
    drafted = await stub.Generate(asking(method="rest", verify="VERIFY_MODE_INLINE", max_tokens=40, ignore_eos=True))
    assert drafted.choices[0].token_ids == plain.choices[0].token_ids
    assert drafted.metrics.method == "rest"
    by_workload = await stub.Generate(asking(workload=speculation_pb2.WORKLOAD_RAG, max_tokens=4))
    assert (by_workload.metrics.requested_method, by_workload.metrics.method) == ("auto", "rest")
    receipts = await deployment.receipts(3)
    served = next(receipt for receipt in receipts if receipt.spec_decode.requested_method == "rest")
    assert served.spec_decode.method == "rest"
    assert served.spec_decode.verified_identical_to_off is True


async def test_without_a_datastore_the_next_method_takes_its_place_unless_it_was_named(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking(workload=speculation_pb2.WORKLOAD_RAG, max_tokens=4))
    assert (response.metrics.method, response.metrics.fallback_reason) == ("lookahead", "no_datastore")
    refused = await failure(stub.Generate(asking(method="rest", max_tokens=4)))
    assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "METHOD_NOT_LOADED")
    assert "start the server with --datastore" in refused.message


async def test_a_tenants_store_is_open_to_the_tenant(deployment: Deployment, model: Path, tmp_path: Path) -> None:
    store = build(model, TEXT, tmp_path / "store")
    stub = await deployment.start_generation(datastore=(f"acme={store}",))
    response = await stub.Generate(asking(method="rest", tenant="acme", max_tokens=8))
    assert response.metrics.method == "rest"


@pytest.mark.parametrize("damage", ["other tokenizer", "cut"])
async def test_a_store_that_is_not_right_stops_the_start(
    deployment: Deployment, model: Path, tmp_path: Path, damage: str
) -> None:
    store = tmp_path / "store"
    build(model, TEXT, store)
    if damage == "other tokenizer":
        manifest = store / "manifest.json"
        manifest.write_text(manifest.read_text().replace(tokenizer_cid(model), "cidv1:sha256:" + "0" * 64))
    if damage == "cut":
        (store / "suffixes-00000.npy").write_bytes(b"")
    with pytest.raises(CannotStart, match=r"rest \(--datastore\)"):
        await deployment.start_generation(shared_datastore=(store,))
