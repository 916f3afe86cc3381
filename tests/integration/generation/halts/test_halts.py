"""Halts: from the ledger, from an inline replay, over restarts; and the requests served meanwhile."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.ledger.v1 import ledger_pb2
from ledger.documents.audit import DEVIATION, Deviation, Verdict
from ledger.documents.halt import Halt, Resume, Scope
from ledger.documents.receipt import Receipt
from ledger.encoding.text_forms import timestamp
from ledger.keys.ed25519 import SigningKey
from services.generation.engine import turns
from services.generation.engine.cost import Pace, StepCost
from services.generation.target.target import Target
from tests.fakes.mtp_models import make_mtp_model, write_apart
from tests.fakes.tampered_targets import Loader, LouderTarget, UnprovableTarget, WidthDependentTarget
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment, asking, drafting_pays, failure, until

AUDITOR = SigningKey.generate("auditor")
OPERATOR = SigningKey.generate("operator")
INLINE = 2


@pytest.fixture(autouse=True)
def drafting() -> Iterator[None]:
    with drafting_pays(always=True):
        yield


def now() -> str:
    return timestamp(datetime.now(UTC))


async def halt(deployment: Deployment, receipt: Receipt) -> tuple[Scope, int]:
    """Signs what an auditor signs after a deviation in the log's first receipt."""
    request = ledger_pb2.GetReceiptRequest(receipt_id=receipt.receipt_id)
    index = (await (await deployment.ledger()).GetReceipt(request)).receipt.index
    verdict = Verdict(
        receipt_id=receipt.receipt_id,
        receipt_index=index,
        outcome=DEVIATION,
        profile_cid=receipt.profile_cid,
        tokens_compared=1,
        replayed_at=now(),
        deviation=Deviation(0, 1, 2),
    )
    scope = Scope(receipt.base_cid, "lookahead")
    verdict_index = await deployment.append(verdict, AUDITOR)
    return scope, await deployment.append(Halt(scope, verdict_index, "the replay came out differently", now()), AUDITOR)


async def resume(deployment: Deployment, scope: Scope, halt_index: int) -> None:
    await deployment.append(Resume(scope, halt_index, "the kernel was replaced", now()), OPERATOR)


async def seen(stub: GenerationServiceStub, *methods: str) -> None:
    """The server knows that exactly these methods are halted."""

    async def condition() -> bool:
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        return [scope.method for scope in info.halted_scopes] == list(methods)

    await until(condition)


async def test_a_halt_refuses_its_method_until_an_operator_resumes_it_and_receipts_tell(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    await stub.Generate(asking(max_tokens=5))
    scope, index = await halt(deployment, (await deployment.receipts(1))[0])
    await seen(stub, "lookahead")
    for method in ("lookahead", "auto"):
        refused = await failure(stub.Generate(asking(method=method)))
        assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "SPEC_DECODE_HALTED")
        assert refused.metadata["method"] == "lookahead"
    assert (await stub.Generate(asking(max_tokens=5, method="off"))).resolved.halt_epoch == 1
    await resume(deployment, scope, index)
    await seen(stub)
    response = await stub.Generate(asking(max_tokens=5, method="lookahead"))
    assert (response.resolved.method, response.resolved.halt_epoch) == ("lookahead", 1)
    assert [receipt.halt_epoch for receipt in await deployment.receipts(3)] == [0, 1, 1]


async def test_an_operator_may_have_halted_methods_served_with_speculation_off(deployment: Deployment) -> None:
    stub = await deployment.start_generation(on_halt="off")
    await stub.Generate(asking(max_tokens=5))
    await halt(deployment, (await deployment.receipts(1))[0])
    await seen(stub, "lookahead")
    response = await stub.Generate(asking(max_tokens=5))
    assert (response.resolved.method, response.resolved.fallback_reason) == ("off", "halted")


async def test_until_the_ledger_has_been_asked_speculation_is_off(deployment: Deployment) -> None:
    await deployment.stop_ledger()
    stub = await deployment.start_generation()
    response = await stub.Generate(asking(max_tokens=5, method="lookahead"))
    assert (response.resolved.method, response.resolved.fallback_reason) == ("off", "halt_state_unknown")
    await deployment.start_ledger()

    async def speculates() -> bool:
        return (await stub.Generate(asking(max_tokens=5))).resolved.method == "lookahead"

    await until(speculates)
    assert (await deployment.receipts(1))[0].spec_decode.fallback_reason == "halt_state_unknown"


async def test_a_halt_is_remembered_over_a_restart_without_the_ledger(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    await stub.Generate(asking(max_tokens=5))
    await halt(deployment, (await deployment.receipts(1))[0])
    await seen(stub, "lookahead")
    await deployment.stop_generation()
    await deployment.stop_ledger()
    stub = await deployment.start_generation()
    await seen(stub, "lookahead")
    response = await stub.Generate(asking(max_tokens=5))
    assert (response.resolved.method, response.resolved.halt_epoch) == ("off", 1)


async def test_a_deviation_found_inline_fails_the_request_receipts_it_and_halts_the_method_here(
    deployment: Deployment,
) -> None:
    stub, target = await deployment.start_wrapped(WidthDependentTarget)
    assert (await stub.Generate(asking(max_tokens=40, verify=INLINE))).choices
    target.deviating = True
    refused = await failure(stub.Generate(asking(max_tokens=40, verify=INLINE)))
    assert (refused.code.name, refused.reason) == ("INTERNAL", "SPEC_DECODE_DEVIATION")
    good, bad = await deployment.receipts(2)
    assert (good.spec_decode.verified_identical_to_off, bad.spec_decode.verified_identical_to_off) == (True, False)
    assert refused.metadata["receipt_ids"] == bad.receipt_id
    assert (await failure(stub.Generate(asking()))).reason == "SPEC_DECODE_HALTED"
    await deployment.stop_generation()
    stub, _ = await deployment.start_wrapped(WidthDependentTarget)
    assert (await failure(stub.Generate(asking()))).reason == "SPEC_DECODE_HALTED"
    scope, index = await halt(deployment, bad)
    await resume(deployment, scope, index)


async def test_a_halted_block_of_a_model_stays_halted_whichever_tokens_it_drafts_after_a_restart(
    deployment: Deployment, tmp_path: Path
) -> None:
    model, sidecar = tmp_path / "tiny.gguf", tmp_path / "mtp-tiny.gguf"
    write_apart(make_mtp_model(tmp_path / "model", vocab=384), model, sidecar)
    options = {"model": model, "own_head_tokens": 130}
    stub, target = await deployment.start_wrapped(WidthDependentTarget, **options)
    for _ in range(16):  # their tokens are drafted after the restart
        await stub.Generate(asking(max_tokens=12, method="mtp"))
    target.deviating = True
    refused = await failure(stub.Generate(asking(max_tokens=40, method="mtp", verify=INLINE)))
    assert refused.reason == "SPEC_DECODE_DEVIATION"
    halted = (await deployment.receipts(17))[-1].spec_decode.head_cid
    await deployment.stop_generation()
    stub = await deployment.start_generation(**options)
    (same,) = (await stub.GetModelInfo(pb.GetModelInfoRequest())).heads
    assert same.head_cid == halted
    assert (await failure(stub.Generate(asking(method="mtp")))).reason == "SPEC_DECODE_HALTED"
    assert (await stub.Generate(asking(max_tokens=5))).resolved.fallback_reason == "halted"
    await deployment.stop_generation()
    write_apart(make_mtp_model(tmp_path / "other", vocab=384, seed=1), tmp_path / "unused.gguf", sidecar)
    stub = await deployment.start_generation(**options)  # the same base with another block
    assert (await stub.Generate(asking(max_tokens=5, method="mtp"))).resolved.method == "mtp"


async def test_a_deviation_of_a_request_that_moved_halts_every_method_that_drafted_here(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Alternating(turns.Turns):
        def passed(self, gain: float, once: float = 0.0) -> None:
            self._methods.reverse()
            self._apply(self._choice())

    monkeypatch.setattr(turns, "Turns", Alternating)  # every pass hands over, though none has the time of cheap rows
    monkeypatch.setattr(Pace, "known", True)
    monkeypatch.setattr(StepCost, "fit", lambda *_: StepCost(fixed=0.001, row=0.001))
    loaded: list[WidthDependentTarget] = []

    class Remembered(WidthDependentTarget):
        def __init__(self, target: Target) -> None:
            super().__init__(target)
            loaded.append(self)

    small = make_tiny_model(tmp_path / "small", layers=1, seed=1)
    stub = await deployment.start_generation(Loader(Remembered), draft_model=small)
    loaded[0].deviating = True  # the base; the draft model may draft anything
    refused = await failure(stub.Generate(asking(max_tokens=80, ignore_eos=True, verify=INLINE)))
    assert refused.reason == "SPEC_DECODE_DEVIATION"
    (bad,) = await deployment.receipts(1)
    assert {"lookahead", "draft"} <= dict(bad.spec_decode.passes_by_method).keys()
    assert (refused.metadata["method"], refused.metadata["methods"]) == ("draft", "draft,lookahead")
    assert "than draft, lookahead;" in refused.message
    await seen(stub, "draft", "lookahead")
    for method in ("lookahead", "draft", "auto"):
        assert (await failure(stub.Generate(asking(method=method)))).reason == "SPEC_DECODE_HALTED"


@pytest.mark.parametrize("kind", [WidthDependentTarget, LouderTarget])
async def test_a_stream_that_deviated_ends_with_the_error_instead_of_finished(
    deployment: Deployment, kind: type[WidthDependentTarget]
) -> None:
    stub, target = await deployment.start_wrapped(kind)
    target.deviating = True
    kinds: list[str | None] = []

    async def read() -> None:
        request = pb.GenerateStreamRequest(request=asking(max_tokens=40, verify=INLINE))
        async for event in stub.GenerateStream(request):
            kinds.append(event.WhichOneof("event"))

    assert (await failure(read())).reason == "SPEC_DECODE_DEVIATION"
    assert (kinds[0], set(kinds[1:])) == ("started", {"chunk"})
    assert (await deployment.receipts(1))[0].spec_decode.verified_identical_to_off is False


async def test_a_profile_that_fails_its_probe_serves_off_only_and_says_so(deployment: Deployment) -> None:
    stub = await deployment.start_generation(Loader(UnprovableTarget))
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.probe_passed, list(info.methods)) == (False, ["off"])
    response = await stub.Generate(asking(max_tokens=5))
    assert (response.resolved.method, response.resolved.fallback_reason) == ("off", "profile_unproven")
    refused = await failure(stub.Generate(asking(max_tokens=5, method="lookahead")))
    assert (refused.reason, refused.metadata["missing"]) == ("METHOD_CANNOT_RUN", "profile_unproven")
