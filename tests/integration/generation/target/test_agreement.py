"""The outside reference: on the bundled model, greedy tokens are those of transformers' `generate`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.engines import KINDS, load_prompts
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.cpu import load_target
from tests.fakes.engine_runs import CHEAP_ROWS, run

NEW_TOKENS, TOGETHER = 32, 12
EXPLAINED = 1e-4  # of margin between the two best logits: there, the rounding of either program decides


def by_transformers(base: Path, asked: list[list[int]], pad: int) -> list[list[int]]:
    """Greedy continuations, the end of sequence ignored, in batches padded on the left."""
    model = AutoModelForCausalLM.from_pretrained(base.parent, gguf_file=base.name, dtype=torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    outputs = []
    for at in range(0, len(asked), TOGETHER):
        batch = asked[at : at + TOGETHER]
        longest = max(map(len, batch))
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=pad
            )
        outputs += out[:, longest:].tolist()
    return outputs


def by_kolm(base: Path, asked: list[list[int]], tokenizer: Tokenizer) -> list[Outcome]:
    """The same with speculation on, all in one batch."""
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [EngineRequest(str(n), tuple(prompt), sampling, method="lookahead") for n, prompt in enumerate(asked)]
    collected = run(
        load_target(base), requests, drafters={"lookahead": LookaheadDrafter(CHEAP_ROWS)},
        settings=EngineSettings(max_sequences=TOGETHER), decoder=tokenizer.stream,
    )  # fmt: skip
    return [collected.outcomes[request.key] for request in requests]


@pytest.mark.slow
def test_greedy_tokens_are_those_of_transformers_on_24_questions(smollm2: Path) -> None:
    tokenizer = Tokenizer(smollm2)
    asked = [prompt for kind in KINDS for prompt in load_prompts(kind, tokenizer, 4)]
    expected, found = by_transformers(smollm2, asked, 0), by_kolm(smollm2, asked, tokenizer)
    misses = []
    for number, (tokens, outcome) in enumerate(zip(expected, found, strict=True)):
        assert len(tokens) == len(outcome.token_ids) == NEW_TOKENS
        at = next((i for i, pair in enumerate(zip(tokens, outcome.token_ids, strict=True)) if pair[0] != pair[1]), None)
        if at is not None:
            misses.append((number, at, outcome.margins[at]))
    assert len(asked) == 24
    assert all(margin < EXPLAINED for *_, margin in misses), misses
    assert len(misses) <= 2, misses
