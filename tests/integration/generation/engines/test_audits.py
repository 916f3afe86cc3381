"""An auditor of another engine: it asks the plain upstream again, and passes along the output."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.documents.halt import Resume, Scope
from ledger.encoding.text_forms import timestamp
from ledger.keys.ed25519 import SigningKey
from services.auditor.audit_error import EngineAway
from services.auditor.auditor import Examined
from services.auditor.examination import EnginePlan
from services.auditor.serving import LoadedWhenAsked, connected
from services.auditor.settings import AuditorSettings
from tests.integration.generation.deployment import Deployment
from tests.integration.generation.engines.conftest import KINDS, Engines


async def audited(engines: Engines, *, weights: bool = False, announces: bool = False, **more: Any) -> list[Examined]:
    """The findings of a pass over the log."""
    deployment, plain = engines.deployment, engines.plain
    key = SigningKey.load_or_create(deployment.directory / "auditor.pem", "auditor")
    key.publish(deployment.trusted)
    settings = AuditorSettings.of_one_pass(
        ledger=deployment.ledger_address,
        key_file=deployment.directory / "auditor.pem",
        trusted_keys=deployment.trusted,
        data_dir=deployment.directory / "auditor",
        engine=plain.kind,
        plain_url=plain.url,
        **more,
    )
    engine = LoadedWhenAsked(EnginePlan(engines.model) if weights else None, threading.Event(), lambda: None)

    def look() -> list[Examined]:
        with connected(settings, engine, spot_checks=1.0, announces=announces) as auditor:
            return list(auditor.run_pass())

    return await asyncio.to_thread(look)


def outcomes(found: Sequence[Examined]) -> Counter[str]:
    return Counter(each.finding.outcome for each in found)


async def test_a_deviation_that_an_audit_finds_halts_speculation_until_a_resume(engines: Engines) -> None:
    await engines.start()
    await engines.receipt(max_tokens=5)
    assert outcomes(await audited(engines)) == {"SAME": 1}
    engines.fast.differs_at = 3
    await engines.receipt(max_tokens=5)
    (found,) = await audited(engines)
    assert found.finding.outcome == "DEVIATION"
    assert found.finding.deviation is not None
    assert found.finding.deviation.position == 3
    assert found.halt_index is not None
    await engines.until_answered_by("off")
    operator = SigningKey.load_or_create(engines.deployment.directory / "operator.pem", "operator")
    await lift(engines.deployment, found, operator)
    engines.fast.differs_at = None
    await engines.until_answered_by("engine")


async def lift(deployment: Deployment, found: Examined, operator: SigningKey) -> None:
    assert found.halt_index is not None
    scope = Scope(found.receipt.base_cid, "engine")
    now = timestamp(datetime.now(UTC))
    await deployment.append(Resume(scope, found.halt_index, "the engine was updated", now), operator)


@pytest.mark.parametrize(("gap", "flags", "outcome"), [
    (0.2, (), "UNSTABLE"), (2.0, (), "DEVIATION"), (0.2, ("batch_invariant=true",), "DEVIATION"),
    (2.0, ("prefix_cache=true",), "UNSTABLE"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["vllm", "llama-server"])
async def test_what_rounding_or_a_prefix_cache_may_explain_accuses_no_speculation(
    engines: Engines, kind: str, gap: float, flags: tuple[str, ...], outcome: str
) -> None:
    await engines.start(kind, engine_flag=flags)
    engines.plain.gap, engines.fast.differs_at = gap, 3
    await engines.receipt(max_tokens=5)
    (found,) = await audited(engines)
    assert (found.finding.outcome, found.halt_index is not None) == (outcome, outcome == "DEVIATION")


@pytest.mark.parametrize(("kind", "plain", "fast"), [
    ("vllm", {"fault": "unsteady"}, {}), *((kind, {"fault": "crowded"}, {"differs_at": 3}) for kind in KINDS),
    ("vllm", {}, {"differs_at": 3, "cached": 1}), ("vllm", {"gap": None}, {"differs_at": 3, "gap": None}),
])  # fmt: skip
async def test_a_difference_is_unstable_if_load_or_a_cache_explains_it_or_no_near_tie_is_excluded(
    engines: Engines, kind: str, plain: dict[str, Any], fast: dict[str, Any]
) -> None:
    await engines.start(kind)
    vars(engines.plain).update(plain)
    vars(engines.fast).update(fast)
    await engines.receipt(max_tokens=5)
    (found,) = await audited(engines)
    assert (found.finding.outcome, found.halt_index) == ("UNSTABLE", None)


@pytest.mark.parametrize("kind", ["vllm", "llama-server"])
async def test_a_difference_that_load_may_explain_hides_no_fault_after_it(engines: Engines, kind: str) -> None:
    await engines.start(kind)
    engines.fast.differs_at, engines.plain.fault = (3, 4), "crowded"
    await engines.receipt(max_tokens=6)
    (found,) = await audited(engines)
    assert (found.finding.outcome, found.halt_index is not None) == ("DEVIATION", True)
    assert found.finding.deviation is not None
    assert found.finding.deviation.position == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_whose_prefix_cache_changes_answers_is_served_and_checked_without_it(
    engines: Engines, kind: str
) -> None:
    await engines.start(kind)
    engines.plain.fault = engines.fast.fault = "cached"
    for _ in range(2):
        await engines.receipt(max_tokens=5)
    assert outcomes(await audited(engines)) == {"SAME": 2}


@pytest.mark.parametrize(
    "change", [{"model": "another"}, {"ftype": "Q4_0"}, {"speculates": True}, {"version": "1.2.4"}]
)
async def test_a_plain_upstream_that_has_become_another_is_not_asked(engines: Engines, change: dict[str, Any]) -> None:
    await engines.start("llama-server")
    engines.fast.differs_at = 3
    await engines.receipt(max_tokens=5)
    vars(engines.plain).update(change)
    (found,) = await audited(engines)
    assert (found.finding.outcome, found.finding.passed) == ("UNCHECKED", False)


@pytest.mark.parametrize("fault", ["busy", "locked"])
async def test_a_receipt_is_examined_later_if_the_plain_upstream_refuses_for_now(engines: Engines, fault: str) -> None:
    await engines.start()
    await engines.receipt(max_tokens=5)
    engines.plain.fault = fault
    with pytest.raises(EngineAway):
        await audited(engines)
    engines.plain.fault = None
    assert outcomes(await audited(engines)) == {"SAME": 1}


async def test_tokens_that_the_weights_would_not_give_are_inconsistent_whatever_both_upstreams_say(
    engines: Engines,
) -> None:
    await engines.start()  # the fakes draw their tokens from a digest, and not from the weights
    await engines.receipt(max_tokens=12)
    found = await audited(engines, weights=True)
    assert [each.finding.outcome for each in found] == ["SAME", "INCONSISTENT"]
    reference = found[-1].finding.reference
    assert reference is not None
    assert reference.differing > 6
    assert len({each.verdict_index for each in found}) == 2


async def test_an_inconsistent_output_halts_if_the_operator_has_chosen_so(engines: Engines) -> None:
    await engines.start()
    await engines.receipt(max_tokens=12)
    first = await audited(engines, weights=True, announces=True, rate=0.0, halt_inconsistent=True)
    assert [each.halt_index is not None for each in first] == [False, True]
    await engines.until_answered_by("off")
