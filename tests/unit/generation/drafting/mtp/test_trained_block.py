"""How often the drafts of a trained block hold (tests/vectors/make_mtp_trained): as often as speculators', less
with each fault that changes no token, and as often whatever the way by which its prompt was computed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.generation.drafting.head_drafter import HeadDraft
from services.generation.drafting.mtp.block_weights import MtpBlock, read_block
from services.generation.drafting.mtp.mtp_drafter import MtpDrafter
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.events import Outcome
from services.generation.engine.prefix_disk import PrefixDisk, PrefixFolder
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget, load_target
from services.training.kscore import measure
from tests.fakes.drafters import LetterDecoder
from tests.fakes.engine_runs import Collected, run
from tests.vectors.make_mtp_trained import ANSWER, DEPTH, TRAINED, texts

EXPECTED = json.loads((TRAINED / "expected.json").read_text())
PROMPTS = [tuple(prompt) for prompt in EXPECTED["prompts"]]
LEAST = 0.6
"""The share of first drafts of this block that hold."""


@pytest.fixture(scope="module")
def trained() -> CpuTarget:
    return load_target(TRAINED, cache_tokens=40 * 64)


def block_of(target: CpuTarget) -> MtpBlock:
    block = read_block(TRAINED, target.config)
    assert block is not None
    return block


def requests(method: str = "mtp", prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[EngineRequest]:
    sampling, shape = SamplingParams(max_tokens=ANSWER, ignore_eos=True), {"tree_width": 1} if method == "mtp" else {}
    return [
        EngineRequest(f"r{number}", prompt, sampling, method=method, k=DEPTH if shape else None, parameters=shape)
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def right(trained: CpuTarget) -> float:
    """The share of first drafts of the right block that hold."""
    return measure(trained, block_of(trained), PROMPTS, k=DEPTH).acceptance_by_depth[0]


@pytest.fixture(scope="module")
def plain(trained: CpuTarget) -> list[tuple[int, ...]]:
    return tokens_of(run(trained, requests("off")))


def tokens_of(collected: Collected) -> list[tuple[int, ...]]:
    return [collected.outcomes[request.key].token_ids for request in requests()]


def test_drafts_hold_as_often_as_speculators_says(trained: CpuTarget) -> None:
    found = measure(trained, block_of(trained), PROMPTS, k=DEPTH, max_tokens=ANSWER).acceptance_by_depth
    assert np.abs(np.array(found) - EXPECTED["acceptance"]).max() <= 0.02
    assert found[0] >= LEAST


def _before_the_final_norm(block: MtpBlock) -> MtpBlock:
    return replace(block, base_norm=np.ones_like(block.base_norm))


def _norms_without_one(block: MtpBlock) -> MtpBlock:
    return replace(block, base=replace(block.base, norm_offset=0.0))


FAULTS: dict[str, tuple[Callable[[MtpBlock], MtpBlock], float]] = {
    "hidden states before the final norm": (_before_the_final_norm, 0.9),
    "norms of w": (_norms_without_one, 0.5),
}
"""Faults, and the share of the right block's first drafts that may hold at most."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_norm_costs_acceptance_and_changes_no_token(
    trained: CpuTarget, right: float, plain: list[tuple[int, ...]], fault: str
) -> None:
    spoil, most = FAULTS[fault]
    wrong = spoil(block_of(trained))
    assert measure(trained, wrong, PROMPTS, k=DEPTH).acceptance_by_depth[0] < most * right
    assert tokens_of(run(trained, requests(), drafters={"mtp": MtpDrafter(wrong, trained)})) == plain


def test_a_token_paired_with_its_own_state_costs_acceptance_and_changes_no_token(
    trained: CpuTarget, right: float, plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = HeadDraft.read
    monkeypatch.setattr(HeadDraft, "read", lambda self, tokens, start, rows: read(self, [0, *tokens], start, rows))
    assert measure(trained, block_of(trained), PROMPTS, k=DEPTH).acceptance_by_depth[0] < 0.5 * right
    assert tokens_of(run(trained, requests(), drafters={"mtp": MtpDrafter(block_of(trained), trained)})) == plain


LONG = [tuple(text) for text in texts(torch.Generator().manual_seed(5), 3, 150).tolist()]
FREE_ROWS = PassCost.line(fixed=1e9, row=1.0)  # every draft token is worth its row


def held(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    """The passes of each request, and its accepted drafts by depth."""
    return [(each.metrics.target_passes, *each.metrics.num_accepted_tokens_per_pos) for each in outcomes]


def outcomes_of(
    target: CpuTarget, settings: EngineSettings, prompts: Sequence[tuple[int, ...]] = LONG,
    disk: PrefixDisk | None = None,
) -> list[Outcome]:  # fmt: skip
    """The outcomes of prompts that are answered one after another."""
    drafters, collected = {"mtp": MtpDrafter(block_of(target), target)}, Collected()
    core = EngineCore(target, drafters, LetterDecoder, FREE_ROWS, settings, lambda: 0.0, disk=disk)
    for request in requests(prompts=prompts):
        core.add(request, collected.sink)
        while not core.idle:
            core.step()
    return [collected.outcomes[request.key] for request in requests(prompts=prompts)]


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_chunks_of_a_prompt_are_read_as_one(trained: CpuTarget, rows: int) -> None:
    settings = EngineSettings(prefill_rows=rows, prefix_caching=False)
    whole = outcomes_of(trained, EngineSettings(prefix_caching=False))
    chunked = outcomes_of(trained, settings)
    assert [each.token_ids for each in chunked] == [each.token_ids for each in whole]
    drafted = [held([each])[0][1:] for each in chunked]
    assert drafted == [held([each])[0][1:] for each in whole]


def test_a_prefix_from_the_disk_drafts_as_one_that_was_computed(trained: CpuTarget, tmp_path: Path) -> None:
    found, path = [], tmp_path / "prefixes"
    path.mkdir()
    for _ in range(2):
        folder = PrefixFolder(path, 1 << 26)
        disk = PrefixDisk(folder, ["base"], len(trained.block_content(0)), seconds=60.0)
        found.append(outcomes_of(trained, EngineSettings(), disk=disk))
        disk.close()
        folder.close()
    assert [each.metrics.cached_prompt_tokens for each in found[0]] == [0, 0, 0]
    assert all(each.metrics.cached_prompt_tokens >= 128 for each in found[1])
    assert held(found[1]) == held(found[0])


def test_a_prefix_in_memory_drafts_as_one_that_was_computed(trained: CpuTarget) -> None:
    prompts = [LONG[0], LONG[0][:128] + LONG[1][:22]]
    shared, alone = (outcomes_of(trained, EngineSettings(), asked)[-1] for asked in (prompts, prompts[1:]))
    assert (shared.metrics.cached_prompt_tokens, alone.metrics.cached_prompt_tokens) == (128, 0)
    assert held([shared]) == held([alone])


def test_sequences_that_preempt_each_other_are_read_again(trained: CpuTarget) -> None:
    cramped, prompts = load_target(TRAINED, cache_tokens=6 * 64), LONG[:3]
    drafters = {"mtp": MtpDrafter(block_of(cramped), cramped)}
    collected = run(cramped, requests(prompts=prompts), drafters=drafters, cost=FREE_ROWS, clock=lambda: 0.0)
    plain = run(trained, requests("off", prompts))
    assert collected.preemptions > 0
    for request in requests(prompts=prompts):
        outcome = collected.outcomes[request.key]
        assert outcome.token_ids == plain.outcomes[request.key].token_ids
        assert outcome.metrics.num_accepted_tokens >= LEAST * outcome.metrics.num_draft_tokens
