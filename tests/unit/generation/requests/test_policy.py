"""The policy, case by case."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledger.documents.halt import Scope
from ledger.encoding.text_forms import cid
from ledger.keys.envelope import Envelope
from ledger.tree.entry import Entry
from services.generation.requests.parameters import SpeculationRequest
from services.generation.requests.policy import PolicyContext, decide
from services.generation.requests.served_heads import HeadBoard, HeadState, RefusedHead, ServedHead
from services.runtime.errors import FailedPrecondition, NotFound
from tests.mutations import replace
from tests.unit.ledger.builders import TRUSTED, kscore, signed

BASE = "cidv1:sha256:" + "ba" * 32
FIRST, SECOND = (
    ServedHead(f"cidv1:sha256:{digits * 16}", Path("heads"), "support-head", 7) for digits in ("ab12", "ac34")
)
ADAPTER = "cidv1:sha256:" + "ad" * 32
TODAY = PolicyContext(
    base_cid=BASE,
    loaded=("lookahead",),
    profile_passed=True,
    ledger_known=True,
    halted=(),
    max_temperature=1.2,
    off_when_halted=False,
)
EVERYTHING = replace(TODAY, loaded=("lookahead", "rest", "draft"), heads=HeadState((FIRST, SECOND)))


def halts(*methods: str, head_cid: str | None = None) -> tuple[Scope, ...]:
    return tuple(Scope(BASE, method, head_cid) for method in methods)


def outcome(asked: SpeculationRequest, now: PolicyContext = TODAY, temperature: float = 0.0) -> tuple[str, str | None]:
    decision = decide(asked, temperature, now)
    assert decision.requested_method == asked.method
    return decision.method, decision.fallback_reason


@pytest.mark.parametrize(
    ("workload", "method"),
    [
        (None, "eagle3"),
        ("single_tenant", "eagle3"),
        ("structured", "eagle3"),
        ("many_adapters", "lookahead"),
        ("code", "lookahead"),
        ("rag", "rest"),
    ],
)
def test_auto_follows_the_workload(workload: str | None, method: str) -> None:
    assert outcome(SpeculationRequest(workload=workload), EVERYTHING) == (method, None)


@pytest.mark.parametrize("method", ["off", "lookahead", "eagle3", "rest", "draft"])
def test_a_method_that_is_loaded_is_served_as_asked_whatever_the_workload(method: str) -> None:
    assert outcome(SpeculationRequest(method=method, workload="rag"), EVERYTHING) == (method, None)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (SpeculationRequest(), "no_head"),
        (SpeculationRequest(workload="rag"), "no_datastore"),
        (SpeculationRequest(workload="code"), None),
    ],
)
def test_auto_takes_the_next_method_where_one_is_not_loaded_and_says_why(
    asked: SpeculationRequest, reason: str
) -> None:
    assert outcome(asked) == ("lookahead", reason)


@pytest.mark.parametrize("method", ["eagle3", "rest", "draft"])
def test_a_method_that_is_not_loaded_is_refused_by_name(method: str) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method=method), 0.0, TODAY)
    assert refused.value.reason == "METHOD_NOT_LOADED"


@pytest.mark.parametrize(
    ("now", "temperature", "reason"),
    [
        (TODAY, 1.21, "temperature"),
        (replace(TODAY, profile_passed=False), 0.0, "profile_unproven"),
        (replace(TODAY, not_drafted="min_p"), 0.0, "min_p"),
    ],
)
def test_what_may_not_draft_for_a_request_is_an_error_where_it_was_named(
    now: PolicyContext, temperature: float, reason: str
) -> None:
    assert outcome(SpeculationRequest(), now, temperature) == ("off", reason)
    assert outcome(SpeculationRequest(method="off"), now, temperature) == ("off", None)
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="lookahead"), temperature, now)
    assert (refused.value.reason, refused.value.metadata["missing"]) == ("METHOD_CANNOT_RUN", reason)


@pytest.mark.parametrize("method", ["auto", "lookahead"])
@pytest.mark.parametrize(
    ("now", "temperature", "reason"),
    [
        (replace(TODAY, ledger_known=False), 0.0, "halt_state_unknown"),
        (replace(TODAY, ledger_known=False, halted=halts("lookahead")), 0.0, "halt_state_unknown"),
        (replace(TODAY, halted=halts("lookahead"), off_when_halted=True), 0.0, "halted"),
    ],
)
def test_speculation_is_off_where_it_cannot_be_vouched_for(
    method: str, now: PolicyContext, temperature: float, reason: str
) -> None:
    assert outcome(SpeculationRequest(method=method), now, temperature) == ("off", reason)


def test_auto_has_one_drafter_of_copies() -> None:
    now = replace(TODAY, loaded=("lookahead", "suffix"))
    assert outcome(SpeculationRequest(method="suffix"), now) == ("suffix", None)
    assert decide(SpeculationRequest(), 0.0, now).drafters == ("lookahead",)
    with pytest.raises(FailedPrecondition, check=lambda error: error.reason == "SPEC_DECODE_HALTED"):
        decide(SpeculationRequest(), 0.0, replace(now, halted=halts("lookahead")))


def test_off_is_off_for_no_reason_and_never_halted() -> None:
    worst = replace(TODAY, profile_passed=False, ledger_known=False, halted=halts("lookahead", "eagle3"))
    assert outcome(SpeculationRequest(method="off"), worst, 2.0) == ("off", None)


def test_a_halted_method_is_refused_and_the_others_are_not() -> None:
    halted = replace(EVERYTHING, halted=halts("lookahead"))
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="lookahead"), 0.0, halted)
    assert refused.value.reason == "SPEC_DECODE_HALTED"
    assert outcome(SpeculationRequest(), halted) == ("eagle3", None)


def test_auto_passes_over_what_is_halted_and_says_so() -> None:
    headless = replace(EVERYTHING, heads=HeadState(), halted=halts("rest"))
    assert outcome(SpeculationRequest(), headless) == ("draft", "halted")
    halted = replace(EVERYTHING, halted=halts("eagle3"))
    assert outcome(SpeculationRequest(), halted) == ("rest", "halted")
    with pytest.raises(FailedPrecondition):
        decide(SpeculationRequest(), 0.0, replace(TODAY, halted=halts("lookahead")))


def test_the_first_head_drafts_unless_another_is_named() -> None:
    asked = SpeculationRequest(method="eagle3")
    decision = decide(asked, 0.0, EVERYTHING)
    assert (decision.head_cid, decision.k, decision.drafters) == (FIRST.cid, 16, (FIRST.drafter,))
    for name in (SECOND.cid, f"support-head@sha256:{SECOND.cid[13:15]}"):
        named = decide(replace(asked, eagle_head=name, k=2), 0.0, EVERYTHING)
        assert (named.head_cid, named.k, named.drafters) == (SECOND.cid, 2, (SECOND.drafter,))


@pytest.mark.parametrize(
    ("asked", "drafters"),
    [
        (SpeculationRequest(), (FIRST.drafter, "rest", "draft", "lookahead")),
        (SpeculationRequest(workload="code"), ("lookahead", FIRST.drafter, "rest", "draft")),
        (SpeculationRequest(workload="rag"), ("rest", FIRST.drafter, "draft", "lookahead")),
        (SpeculationRequest(method="rest"), ("rest",)),
    ],
)
def test_where_the_server_chooses_the_other_methods_may_take_over(
    asked: SpeculationRequest, drafters: tuple[str, ...]
) -> None:
    assert decide(asked, 0.0, EVERYTHING).drafters == drafters


def test_nothing_moves_to_what_is_halted_or_advised_against() -> None:
    halted = replace(EVERYTHING, halted=halts("draft", "rest"))
    assert decide(SpeculationRequest(), 0.0, halted).drafters == (FIRST.drafter, "lookahead")
    other_head = replace(EVERYTHING, halted=halts("eagle3", head_cid=SECOND.cid))
    assert decide(SpeculationRequest(), 0.0, other_head).drafters[0] == FIRST.drafter
    unfit = HeadState((FIRST,), unfit=frozenset({(FIRST.cid, None)}))
    moved = decide(SpeculationRequest(), 0.0, replace(EVERYTHING, heads=unfit))
    assert moved.drafters == ("rest", "draft", "lookahead")


def test_a_head_that_is_named_has_to_be_there_and_to_be_one() -> None:
    for name in ("mine@sha256:ab", "support-head@sha256:ff", BASE):
        with pytest.raises(NotFound):
            decide(SpeculationRequest(method="eagle3", eagle_head=name), 0.0, EVERYTHING)
    for name in ("support-head", "support-head@sha256:a"):
        with pytest.raises(FailedPrecondition) as refused:
            decide(SpeculationRequest(method="eagle3", eagle_head=name), 0.0, EVERYTHING)
        assert refused.value.reason == "AMBIGUOUS_REFERENCE"
        assert FIRST.cid in refused.value.message


def test_a_head_that_was_refused_at_start_is_refused_with_its_reason() -> None:
    now = replace(TODAY, heads=HeadState((), (RefusedHead("evil", "HEAD_UNSIGNED", "it has no signature"),)))
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="eagle3", eagle_head="evil"), 0.0, now)
    assert refused.value.reason == "HEAD_UNSIGNED"


def test_a_withdrawn_head_drafts_no_more() -> None:
    now = replace(EVERYTHING, heads=HeadState((FIRST, SECOND), withdrawn={FIRST.cid: "wrong data"}))
    assert decide(SpeculationRequest(), 0.0, now).head_cid == SECOND.cid
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="eagle3", eagle_head=FIRST.cid), 0.0, now)
    assert refused.value.reason == "HEAD_WITHDRAWN"
    both = replace(now, heads=HeadState((FIRST,), withdrawn={FIRST.cid: "wrong data"}))
    assert outcome(SpeculationRequest(), both) == ("rest", "head_withdrawn")
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="eagle3"), 0.0, both)
    assert (refused.value.reason, refused.value.metadata["missing"]) == ("METHOD_CANNOT_RUN", "head_withdrawn")


def test_a_head_that_needs_retraining_for_an_adapter_is_not_picked_for_it() -> None:
    heads = HeadState((FIRST,), unfit=frozenset({(FIRST.cid, ADAPTER)}))
    bare = replace(EVERYTHING, heads=heads)
    worn = replace(bare, adapter_cid=ADAPTER)
    assert outcome(SpeculationRequest(), bare) == ("eagle3", None)
    assert outcome(SpeculationRequest(), worn) == ("rest", "head_needs_retraining")
    assert outcome(SpeculationRequest(method="eagle3"), worn) == ("eagle3", None)  # asked for in so many words


def test_a_halt_of_one_head_leaves_the_others_alone() -> None:
    halted = replace(EVERYTHING, halted=halts("eagle3", head_cid=FIRST.cid))
    assert decide(SpeculationRequest(), 0.0, halted).head_cid == SECOND.cid
    only = replace(halted, heads=HeadState((FIRST,)))
    assert outcome(SpeculationRequest(), only) == ("rest", "halted")
    assert decide(SpeculationRequest(method="eagle3", eagle_head=SECOND.cid), 0.0, halted).head_cid == SECOND.cid
    with pytest.raises(FailedPrecondition):
        decide(
            SpeculationRequest(method="eagle3", eagle_head=SECOND.cid), 0.0, replace(EVERYTHING, halted=halts("eagle3"))
        )


def test_with_nothing_loaded_everything_is_off() -> None:
    assert outcome(SpeculationRequest(), replace(TODAY, loaded=())) == ("off", "no_head")


def test_a_halt_of_another_base_halts_nothing_here() -> None:
    elsewhere = replace(TODAY, halted=(Scope("cidv1:sha256:" + "bb" * 32, "lookahead", None),))
    assert outcome(SpeculationRequest("auto"), elsewhere) == ("lookahead", "no_head")


BLOCK = replace(SECOND, kind="block")
INSIDE = ServedHead("cidv1:sha256:" + "ee56" * 16, Path("model"), kind="mtp")


@pytest.mark.parametrize("head", [BLOCK, INSIDE], ids=["block", "mtp"])
def test_a_named_head_s_method_is_its_kind(head: ServedHead) -> None:
    now = replace(EVERYTHING, heads=HeadState((FIRST, BLOCK, INSIDE)))
    for method in ("auto", head.kind):
        named = decide(SpeculationRequest(method=method, eagle_head=head.cid), 0.0, now)
        assert (named.requested_method, named.method, named.head_cid) == (head.kind, head.kind, head.cid)
        assert named.drafters == (f"{head.kind}/{head.cid}",)
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="eagle3", eagle_head=head.cid), 0.0, now)
    assert refused.value.reason == "HEAD_OF_ANOTHER_METHOD"


def test_heads_of_both_kinds_draft_and_a_missing_kind_is_no_error() -> None:
    both = decide(SpeculationRequest(), 0.0, replace(EVERYTHING, heads=HeadState((BLOCK, FIRST))))
    assert both.drafters[:2] == (FIRST.drafter, BLOCK.drafter)
    only = replace(EVERYTHING, heads=HeadState((BLOCK,)))
    assert outcome(SpeculationRequest(), only) == ("block", None)
    assert outcome(SpeculationRequest(workload="structured"), only) == ("block", None)
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="eagle3"), 0.0, only)
    assert refused.value.metadata["missing"] == "no_head"


def test_the_block_inside_the_model_drafts_after_heads_and_alone_and_can_be_halted() -> None:
    assert decide(SpeculationRequest(), 0.0, replace(EVERYTHING, heads=HeadState((INSIDE, FIRST)))).drafters[:2] == (
        FIRST.drafter, INSIDE.drafter,
    )  # fmt: skip
    alone = replace(EVERYTHING, heads=HeadState((INSIDE,)))
    assert outcome(SpeculationRequest(), alone) == ("mtp", None)
    halted = replace(alone, halted=halts("mtp", head_cid=INSIDE.cid))
    assert outcome(SpeculationRequest(), halted) == ("rest", "halted")


HEAD = cid(b"head")


@pytest.mark.parametrize(("acceptance", "unfit"), [(0.625, set()), (0.25, {(HEAD, None)})])
def test_a_kscore_in_the_log_says_what_a_head_is_fit_for(acceptance: float, unfit: set[tuple[str, str | None]]) -> None:
    envelope = Envelope.from_bytes(signed(kscore(HEAD, adapter_cid=None, mean_acceptance=acceptance)))

    async def read(position: int) -> AsyncIterator[Entry]:
        yield Entry(position, envelope)

    state = HeadState((ServedHead(HEAD, Path("head")),))
    board = HeadBoard(state, read, TRUSTED, every=1.0)
    asyncio.run(board.refresh())
    assert board.state.unfit == unfit
