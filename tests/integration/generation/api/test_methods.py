"""Methods over the wire: their sources of drafts, and the choice of auto."""

from pathlib import Path

import pytest

from kolm.generation.v1 import generation_pb2, speculation_pb2
from kolm.generation.v1 import generation_pb2 as pb
from services.datastores.builder import BuildParameters, DatastoreBuilder
from services.datastores.documents import Document
from services.generation.drafting.past_outputs import Pasts
from services.generation.engine import turns
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.identity import tokenizer_cid
from services.runtime.process import CannotStart
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment, asking, until


async def test_a_request_that_hands_over_says_so(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = turns.Turns.passed
    monkeypatch.setattr(turns.Turns, "passed", lambda self, gain, once=0.0: passed(self, gain - 100.0, once))
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    response = await stub.Generate(asking(verify="VERIFY_MODE_INLINE", max_tokens=80, ignore_eos=True))
    metrics = response.metrics
    assert (metrics.requested_method, metrics.method, metrics.fallback_reason) == ("auto", "draft", "no_head")
    assert sum(metrics.passes_by_method.values()) == metrics.target_passes
    assert metrics.passes_by_method["off"] >= 16
    (receipt,) = await deployment.receipts(1)
    assert dict(receipt.spec_decode.passes_by_method) == dict(metrics.passes_by_method)
    assert receipt.spec_decode.gains.keys() <= {"lookahead", "draft"}
    assert receipt.spec_decode.gains
    assert receipt.spec_decode.verified_identical_to_off is True


async def test_a_declared_workload_begins_with_its_method(deployment: Deployment, tmp_path: Path) -> None:
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    await stub.Generate(asking(workload=speculation_pb2.WORKLOAD_CODE, max_tokens=40, ignore_eos=True))
    (receipt,) = await deployment.receipts(1)
    assert (receipt.spec_decode.method, receipt.spec_decode.fallback_reason) == ("lookahead", None)


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
    with pytest.raises(CannotStart, match=rf"--shared-datastore\): {store}"):
        await deployment.start_generation(shared_datastore=(store,))


@pytest.mark.parametrize("vocabulary", [384, 300], ids=["its tokenizer", "another tokenizer"])
async def test_draft_serves_the_tokens_of_off(deployment: Deployment, tmp_path: Path, vocabulary: int) -> None:
    small = make_tiny_model(tmp_path / "small", layers=1, seed=1, vocab=vocabulary)
    assert (tokenizer_cid(small) == tokenizer_cid(deployment.model)) == (vocabulary == 384)
    stub = await deployment.start_generation(draft_model=small)
    assert "draft" in (await stub.GetModelInfo(pb.GetModelInfoRequest())).methods
    response = await stub.Generate(asking(method="draft", verify="VERIFY_MODE_INLINE", max_tokens=30, ignore_eos=True))
    assert (response.metrics.method, response.metrics.fallback_reason) == ("draft", "")
    (receipt,) = await deployment.receipts(1)
    assert (receipt.spec_decode.method, receipt.spec_decode.verified_identical_to_off) == ("draft", True)
    assert vocabulary != 384 or receipt.spec_decode.k == 8


async def test_an_erased_output_is_kept_by_no_drafter(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    pasts, begin = list[Pasts](), Pasts.__init__
    monkeypatch.setattr(Pasts, "__init__", lambda self: (begin(self), pasts.append(self))[0])
    stub = await deployment.start_generation()
    for tenant in ("a", "b"):
        for method in ("off", "auto", "suffix"):
            answer = await stub.Generate(asking(tenant=tenant, method=method, max_tokens=20, ignore_eos=True))
    (every,) = pasts

    def kept() -> list[int]:
        return [len(every._pasts[tenant, None].text) for tenant in ("a", "b")]

    assert kept() == [42, 42]  # twenty tokens and an end, twice; `off` leaves nothing
    await deployment.erase(answer)

    async def forgotten() -> bool:
        await stub.GetLoad(generation_pb2.GetLoadRequest())
        return kept() == [42, 21]

    await until(forgotten)
