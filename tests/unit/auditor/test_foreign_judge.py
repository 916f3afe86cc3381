"""The examination of another engine's output, on honest and lying fakes of both sides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace as changed

from ledger.documents.audit import Drift, ReferencePass, ReferenceThresholds
from ledger.documents.content import Content
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import Receipt
from ledger.encoding.text_forms import cid
from services.auditor.audit_error import CannotReplay, OutOfReach
from services.auditor.examination import Finding
from services.auditor.foreign_judge import Comparison, ForeignJudge
from services.auditor.own_engine import OwnEngine
from services.auditor.reference import drawn_by_llama_server, scored
from services.auditor.settings import AuditorSettings
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.remote.dialects import About
from services.generation.verification import Verifier
from tests.unit.ledger.builders import BASE, content, engine_profile, foreign_receipt

SERVED = content().output_token_ids
HONEST = ReferencePass(BASE, 0.001, 0.05, 1)
LLAMA = ReferenceThresholds(0.02, 1.0, 5.0, 27.0, 12.0, missed=0.02)
KNOWN = engine_profile(flags={"draws": "mt19937"})


@dataclass(frozen=True)
class FakePlain:
    """A plain engine with this answer."""

    found: Comparison = Comparison()  # noqa: RUF009 - a frozen value
    engine: str = "vllm"
    version: str = "0.32.0"

    def about(self) -> About:
        return About(self.version, engine_profile().model, 4096)

    def held_against(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Comparison:
        return self.found


CHANGED = FakePlain(Comparison(1, SERVED[1], 99, -1.5, -0.25))


def judged(
    plain: FakePlain | None = None,
    found: ReferencePass | None = None,
    receipt: Receipt | None = None,
    profile: EngineProfile | None = None,
    **parts: Any,
) -> tuple[Finding, ...]:
    profile = profile or engine_profile()

    def reference(receipt: Receipt, content: Content) -> ReferencePass:
        if found is None:
            raise OutOfReach("no weights here")
        return found

    known = {cid(profile.to_bytes()): profile}
    examined = receipt or foreign_receipt(profile_cid=next(iter(known)))
    return ForeignJudge(known.get, plain, reference, **parts).judge(examined, content())


def outcomes(findings: Sequence[Finding]) -> list[str]:
    return [each.outcome for each in findings]


def test_an_honest_engine_is_the_same_and_consistent_and_never_exact() -> None:
    plain = FakePlain()
    assert outcomes(judged(plain, HONEST)) == ["SAME", "CONSISTENT"]
    assert [(each.verification, each.replayed_by) for each in judged(plain, HONEST)] == [
        ("again", "engine"),
        ("reference", "auditor"),
    ]


def test_speculation_that_changes_a_token_is_a_deviation_at_the_first_one_with_both_probabilities() -> None:
    (found,) = judged(CHANGED)
    deviation = found.deviation
    assert deviation is not None
    assert (found.outcome, deviation.position) == ("DEVIATION", 1)
    assert (deviation.expected_token, deviation.actual_token) == (99, SERVED[1])
    assert (deviation.expected_logprob, deviation.actual_logprob) == (-0.25, -1.5)


def test_an_engine_that_differs_from_itself_is_unstable_and_accuses_no_speculation() -> None:
    (found,) = judged(FakePlain(Comparison(1, unstable="it differs")))
    assert (found.outcome, found.deviation, found.passed) == ("UNSTABLE", None, False)


@pytest.mark.parametrize(
    "statistics", [{"mean": 0.5}, {"largest": 9.0}, {"surprise": 7.0}, {"surprise": -7.0}, {"rarest": 40.0}]
)
def test_each_statistic_beyond_its_threshold_is_inconsistent(statistics: dict[str, float]) -> None:
    (found,) = judged(None, changed(HONEST, **statistics))
    assert (found.outcome, next(iter(statistics)) in (found.reason or "")) == ("INCONSISTENT", True)


@pytest.mark.parametrize(("largest", "rarest", "outcome"), [
    (1.1, None, "INCONSISTENT"), (1.1, 4.0, "CONSISTENT"), (2.1, 4.0, "INCONSISTENT"),
])  # fmt: skip
def test_a_sampled_token_may_be_further_behind_what_is_left_than_one_of_temperature_0(
    largest: float, rarest: float | None, outcome: str
) -> None:
    assert outcomes(judged(None, changed(HONEST, largest=largest, rarest=rarest))) == [outcome]


@pytest.mark.parametrize(("finish", "most", "end", "outcome"), [
    ("length", len(SERVED), None, "CONSISTENT"), ("length", len(SERVED) + 1, None, "INCONSISTENT"),
    ("stop", 99, SERVED[-1], "CONSISTENT"), ("stop", 99, SERVED[-1] + 1, "INCONSISTENT"),
    ("cancelled", 99, None, "CONSISTENT"),
])  # fmt: skip
def test_an_output_without_an_end_is_inconsistent(finish: str, most: int, end: int | None, outcome: str) -> None:
    whole, ends = foreign_receipt(), () if end is None else (end,)
    receipt = foreign_receipt(
        output=changed(whole.output, finish_reason=finish), sampling=changed(whole.sampling, max_tokens=most)
    )
    assert outcomes(judged(None, HONEST, receipt, ends=lambda: ends)) == [outcome]


@pytest.mark.parametrize(("spelled", "outcome"), [
    ("It is so. END", "CONSISTENT"), ("It is so.", "INCONSISTENT"), (None, "CONSISTENT"),
])  # fmt: skip
def test_a_stop_string_that_the_output_does_not_spell_is_no_end(spelled: str | None, outcome: str) -> None:
    whole = foreign_receipt()
    receipt = foreign_receipt(
        output=changed(whole.output, finish_reason="stop", stop_reason="END"),
        sampling=changed(whole.sampling, max_tokens=99, stop=("END",)),
    )
    assert outcomes(judged(None, HONEST, receipt, spelled=lambda *_: spelled)) == [outcome]


def test_a_receipt_that_cannot_be_checked_is_unchecked_with_its_reasons() -> None:
    (found,) = judged()
    assert found.outcome == "UNCHECKED"
    assert not found.passed
    assert found.reason
    assert found.verification is None


def test_an_engine_that_was_updated_cannot_be_asked_about_what_it_was() -> None:
    (found,) = judged(FakePlain(version="0.33.0"))
    assert found.outcome == "UNCHECKED"


def test_other_weights_than_those_that_were_checked_say_nothing() -> None:
    other = cid(b"other weights")
    assert outcomes(judged(None, changed(HONEST, base_cid=other))) == ["UNCHECKED"]
    word = engine_profile(weights_checked=False)  # then the auditor's weights are all that there is
    assert outcomes(judged(None, changed(HONEST, base_cid=other), profile=word)) == ["CONSISTENT"]


@pytest.mark.parametrize("lie", [{"version": "0.31.0"}, {"base_cid": cid(b"others")}, {"engine": "sglang"}])
def test_a_profile_that_is_not_of_the_receipts_engine_and_base_leaves_it_unchecked(lie: dict[str, str]) -> None:
    profile = engine_profile(**lie)
    receipt = foreign_receipt(profile_cid=cid(profile.to_bytes()))
    assert outcomes(judged(FakePlain(), HONEST, receipt, profile)) == ["UNCHECKED"]


def test_without_a_profile_in_the_log_nothing_is_checked() -> None:
    assert outcomes(judged(FakePlain(), HONEST, foreign_receipt(profile_cid=BASE))) == ["UNCHECKED"]


def test_a_digest_of_other_tokens_is_tampering() -> None:
    whole = foreign_receipt()
    receipt = foreign_receipt(output=changed(whole.output, stream_digest="sha256:" + "0" * 64))
    (found,) = judged(FakePlain(), HONEST, receipt)
    assert (found.outcome, found.tampered) == ("UNCHECKED", True)


def test_what_the_pass_says_is_the_margin_of_every_token_after_penalties() -> None:
    logits = np.array([[3.0, 2.5, 0.0], [3.0, 2.5, 0.0]], np.float32)
    request = EngineRequest("r", (2,), SamplingParams(temperature=0.0, presence_penalty=1.0))
    found = scored(request, (0, 1), logits, (), BASE)
    assert (found.largest, found.differing, found.surprise) == (0.0, 0, None)  # 0 is penalised once it was emitted
    found = scored(request, (1, 1), logits, (), BASE)
    assert (found.largest, found.differing, found.mean) == (1.5, 2, 2.0 / 64)


def test_sampled_tokens_are_held_against_what_the_parameters_leave() -> None:
    logits = np.array([[3.0, 2.9, -9.0]] * 200, np.float32)
    sampling = SamplingParams(temperature=1.0, top_k=2)
    fair = scored(EngineRequest("r", (2,), sampling), [0, 1] * 100, logits, (), BASE)
    assert fair.largest == 0.0
    assert fair.surprise is not None
    assert abs(fair.surprise) < 1.0
    outside = scored(EngineRequest("r", (2,), sampling), [0, 1] * 99 + [0, 2], logits, (), BASE)
    assert outside.largest == pytest.approx(11.9)
    peaked = np.array([[3.0, 1.0, 1.0]] * 200, np.float32)
    greedy = scored(EngineRequest("r", (2,), SamplingParams(temperature=1.0)), [0] * 200, peaked, (), BASE)
    assert greedy.surprise is not None
    assert greedy.surprise < -5.0


def test_a_token_behind_the_end_of_top_p_lacks_what_would_have_kept_it_and_not_the_distance_to_the_last_one() -> None:
    logits = np.array([[5.0, 2.75, -9.0]], np.float32)  # the first has 0.905 of all

    def margin(top_p: float = 1.0, min_p: float = 0.0, top_k: int = 0) -> float:
        sampling = SamplingParams(1.0, top_p, top_k, min_p)
        return scored(EngineRequest("r", (2,), sampling), [1], logits, (), BASE).largest

    assert margin(top_p=0.91) == 0.0
    assert margin(top_p=0.9) == pytest.approx(np.log(np.exp(2.25) * (1 / 0.9 - 1)), abs=1e-3)
    assert margin(top_p=0.9, top_k=2) > 0.0
    assert margin(top_p=0.9, top_k=3) == margin(top_p=0.9, top_k=1000) == margin(top_p=0.9)
    assert margin(min_p=0.2) == pytest.approx(5.0 + np.log(0.2) - 2.75)


def test_llama_server_draws_what_cpp_draws() -> None:
    drawn = drawn_by_llama_server(5489)  # the seed of C++'s own examples
    assert [round(next(drawn), 6) for _ in range(3)] == [0.135477, 0.835009, 0.968868]


@pytest.mark.parametrize("sampling", [SamplingParams(1.0), SamplingParams(1.0, top_k=4), SamplingParams(1.0, 0.9)])
def test_a_sampled_token_is_the_one_that_its_seed_draws(sampling: SamplingParams) -> None:
    """Other draws of the same probabilities are as likely, and are not what the seed gives."""
    logits = np.random.default_rng(7).normal(0.0, 2.0, (200, 50)).astype(np.float32)

    def output(seed: int) -> list[int]:
        """As llama.cpp samples."""
        drawn, made = drawn_by_llama_server(seed), []
        for row in logits.astype(np.float64):
            order = np.argsort(-row, kind="stable")[: sampling.top_k or None]
            shares = np.exp(row[order] - row.max())
            if sampling.top_p < 1.0:
                order = order[: int((np.cumsum(shares / shares.sum()) < 0.9).sum()) + 1]
            order = order if sampling.top_k or sampling.top_p < 1.0 else np.sort(order)
            sums = np.cumsum(np.exp(row[order] - row.max()))
            made.append(int(order[np.searchsorted(sums, next(drawn) * sums[-1])]))
        return made

    def missed(made: list[int]) -> float:
        found = scored(EngineRequest("r", (2,), sampling), made, logits, (), BASE, drawn_by_llama_server(7)).missed
        assert found is not None
        return found

    assert missed(output(7)) < 1e-6
    assert missed(output(8)) > 0.1


def test_what_a_seed_draws_counts_where_the_thresholds_say_so() -> None:
    far = changed(HONEST, missed=0.2)
    assert outcomes(judged(None, far, profile=KNOWN)) == ["CONSISTENT"]
    for thresholds in (changed(LLAMA, drift=None), changed(LLAMA, missed=1.0, drift=10.0)):
        for profile, outcome in ((KNOWN, "INCONSISTENT"), (engine_profile(), "CONSISTENT")):
            found = judged(None, far, profile=profile, thresholds=lambda: thresholds)  # noqa: B023
            assert outcomes(found) == [outcome]


@pytest.mark.parametrize(("engine", "missed"), [("llama-server", 0.02), ("vllm", None)])
def test_draws_are_checked_by_default_where_they_are_known(engine: str, missed: float | None, tmp_path: Path) -> None:
    settings = AuditorSettings.load([f"--engine={engine}", f"--data-dir={tmp_path}"], environment={})
    assert settings.thresholds.missed == missed
    given = AuditorSettings.of_one_pass(engine=engine, reference="0.02,1,5,27,12")
    assert given.thresholds.missed is None


def test_thresholds_that_the_log_announces_decide() -> None:
    strict = ReferenceThresholds(0.0, 0.0, 0.0, 0.0)
    assert outcomes(judged(None, HONEST, thresholds=lambda: strict)) == ["INCONSISTENT"]


def judged_after(before: Drift | None, found: ReferencePass, bound: float | None) -> Finding:
    allowed, drifts = ReferenceThresholds(1.0, 9.0, 5.0, 27.0, bound, 0.02), {cid(KNOWN.to_bytes()): before}
    (finding,) = judged(None, found, profile=KNOWN, thresholds=lambda: allowed, drifts=drifts.get)
    return finding


@pytest.mark.parametrize("lie", [{"mean": 0.02}, {"surprise": 2.5}, {"surprise": -2.5}, {"missed": 0.01}])
def test_many_outputs_that_pass_alone_are_inconsistent_together(lie: dict[str, float]) -> None:
    drift, outcomes = None, []
    for _ in range(20):
        finding = judged_after(drift, changed(HONEST, **lie), 12.0)
        outcomes.append(finding.outcome)
        assert finding.reference is not None
        drift = finding.reference.drift
    assert (outcomes[0], outcomes[-1]) == ("CONSISTENT", "INCONSISTENT")


def test_honest_outputs_do_not_add_up() -> None:
    drift: Drift | None = None
    for surprise in [0.5, -1.0, 1.0, -0.5] * 100:
        finding = judged_after(drift, changed(HONEST, surprise=surprise), 12.0)
        assert finding.reference is not None
        assert finding.outcome == "CONSISTENT"
        drift = finding.reference.drift
    assert drift is not None
    assert drift.largest < 2.0


def test_a_token_that_the_weights_do_not_have_is_inconsistent_with_them() -> None:
    target = SimpleNamespace(base_cid=BASE, config=SimpleNamespace(vocab_size=1000))
    found = OwnEngine(cast(Verifier, SimpleNamespace(target=target))).refer(foreign_receipt(), content())
    assert found.differing == 1  # the other one is within the vocabulary
    assert outcomes(judged(None, found)) == ["INCONSISTENT"]


@pytest.mark.parametrize(("flags", "kept"), [
    (("--engine=vllm",), "bfloat16"), (("--engine=vllm", "--cache-dtype=float32"), "float32"), ((), None),
])  # fmt: skip
def test_passes_along_another_engine_keep_more_than_a_byte_of_each_key_and_value(
    flags: tuple[str, ...], kept: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").touch()  # which is all that is looked for
    settings = AuditorSettings.load([f"--model={tmp_path}", f"--data-dir={tmp_path}", *flags], environment={})
    assert settings.own_engine is not None
    assert settings.own_engine.cache_dtype == kept


def test_a_receipt_is_out_of_reach_of_an_auditor_without_its_engine_and_its_weights() -> None:
    other = changed(HONEST, base_cid=cid(b"other weights"))
    for findings in (judged(), judged(None, other), judged(FakePlain(engine="sglang"), other)):
        assert [(each.outcome, each.out_of_reach) for each in findings] == [("UNCHECKED", True)]


def test_a_receipt_that_its_own_engine_cannot_be_asked_about_is_in_reach() -> None:
    class Refusing(FakePlain):
        def held_against(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Comparison:
            raise CannotReplay("it refuses the request")

    for plain in (Refusing(), FakePlain(version="0.33.0")):
        (found,) = judged(plain)
        assert (found.outcome, found.out_of_reach) == ("UNCHECKED", False)


@pytest.mark.parametrize(("checked", "outcome"), [(True, "CONSISTENT"), (False, "UNCHECKED")])
def test_an_auditor_of_kolm_s_own_engine_judges_by_its_weights_only_where_the_receipt_names_them(
    checked: bool, outcome: str
) -> None:
    profile = engine_profile(weights_checked=checked)
    judge = ForeignJudge({cid(profile.to_bytes()): profile}.get, None, lambda *_: HONEST, of_engines=False)
    (found,) = judge.judge(foreign_receipt(profile_cid=cid(profile.to_bytes())), content())
    assert (found.outcome, found.out_of_reach) == (outcome, not checked)
