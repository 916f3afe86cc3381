"""A run that is stopped continues to the same bits, and what it exports is what it trained."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from demo.toy.architecture import Architecture
from demo.toy.corpus.dialogue import SPECIAL_TOKENS
from demo.toy.corpus.drill import DRILL_LENGTH, Drill
from demo.toy.corpus.mixture import DOMAINS, WEIGHTS, Mixture, Tokens, fixed_windows, tokenise
from demo.toy.export import export
from demo.toy.trainer import Batch, DrillPlan, Trainer, token_weights
from services.training.budget import Minutes, Steps
from services.training.head.optimiser import rate_factor

LENGTH = 32
TOTAL_STEPS = 20
DRILL_STEPS = 5
DRILL_EVERY = 7

pytestmark = pytest.mark.slow  # a tokenizer is trained


@pytest.fixture(scope="module")
def tokenizer(trained_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    return trained_tokenizer


@pytest.fixture(scope="module")
def domains(tokenizer: PreTrainedTokenizerFast) -> dict[str, Tokens]:
    """A slice of each domain: some thousand tokens are enough for a few steps."""
    return {name: tokenise(tokenizer, name, "held_out", 20)[:3000] for name in DOMAINS}


def _trainer(tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens]) -> Trainer:
    torch.manual_seed(7)
    model = Architecture(layers=2, hidden=32, heads=2, intermediate=48).build(tokenizer)
    return Trainer(
        model, Mixture(domains, LENGTH, seed=3), Steps(TOTAL_STEPS), Batch(4, 2), DrillPlan(DRILL_STEPS, DRILL_EVERY)
    )


def test_a_run_that_was_stopped_and_continued_ends_in_the_same_bits(
    tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens], tmp_path: Path
) -> None:
    straight = _trainer(tokenizer, domains)
    straight_losses = [straight.step() for _ in range(TOTAL_STEPS)]

    stopped = _trainer(tokenizer, domains)
    losses = [stopped.step() for _ in range(8)]
    stopped.save(tmp_path / "checkpoint.pt")
    continued = _trainer(tokenizer, domains)
    continued.load(tmp_path / "checkpoint.pt")
    losses += [continued.step() for _ in range(TOTAL_STEPS - 8)]

    assert losses == straight_losses
    for (name, ours), theirs in zip(
        continued.model.state_dict().items(), straight.model.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_training_lowers_the_loss(tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens]) -> None:
    trainer = _trainer(tokenizer, domains)
    windows = {name: fixed_windows(tokens, LENGTH, 8) for name, tokens in domains.items()}
    before = trainer.held_out_losses(windows)
    for _ in range(TOTAL_STEPS):
        trainer.step()
    after = trainer.held_out_losses(windows)
    assert all(after[name] < before[name] - 0.1 for name in DOMAINS), (before, after)


def test_the_drill_comes_first_and_says_each_phrase_again(
    tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens]
) -> None:
    trainer = _trainer(tokenizer, domains)
    for _ in range(DRILL_STEPS):
        trainer.step()
    assert sum(trainer.state()["mixture"]["drawn"].values()) == 0
    trainer.step()
    assert sum(trainer.state()["mixture"]["drawn"].values()) == 4
    for window in Drill(len(tokenizer), seed=1).batch(step=0, size=20).tolist():
        assert any(window[:-n] == window[n:] for n in range(8, DRILL_LENGTH // 2 + 1))


def test_text_is_retold_now_and_then_once_and_in_pieces(
    tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens]
) -> None:
    drill, windows = Drill(len(tokenizer), seed=1), fixed_windows(domains["passages"], 512, 5)
    retold = drill.retold(DRILL_EVERY, windows)
    assert retold.shape == windows.shape
    for window, original in zip(retold.tolist(), windows.tolist(), strict=True):
        said, again = window[:257], window[257:]
        assert said == [token for token in original if token >= len(SPECIAL_TOKENS)][:257]
        assert said[:256] != again
        assert len(Counter(said) - Counter(again)) <= 1
        seen = {tuple(said[i : i + 4]) for i in range(len(said) - 3)}
        assert sum(tuple(again[i : i + 4]) in seen for i in range(len(again) - 3)) > 0.8 * len(again)


def test_the_drill_comes_back_now_and_then(
    tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    monkeypatch.setattr(Drill, "retold", lambda self, step, windows: steps.append(step) or windows)
    trainer = _trainer(tokenizer, domains)
    for _ in range(2 * DRILL_EVERY + 1):
        trainer.step()
    assert steps == [DRILL_EVERY, 2 * DRILL_EVERY]


def test_what_the_assistant_says_and_code_count_in_full_and_the_rest_little(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "x<|endoftext|>y<|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|><|tool|>t<|end|>"
    tokens = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    weights = token_weights(tokens)[0].tolist()
    spoken = dict(zip(tokenizer.convert_ids_to_tokens(tokens[0].tolist()[1:]), weights, strict=False))
    assert spoken["y"] == spoken["a"] == 1.0
    assert spoken["s"] == spoken["u"] == spoken["t"] < 0.5


def test_a_checkpoint_of_other_windows_is_refused(
    tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens]
) -> None:
    state = Mixture(domains, LENGTH, seed=3).state()
    with pytest.raises(ValueError, match="use the same ones"):
        Mixture(domains, LENGTH * 2, seed=3).restore(state)


def test_windows_are_drawn_in_the_proportion_of_the_weights(
    domains: dict[str, Tokens],
) -> None:
    mixture = Mixture(domains, LENGTH, seed=3)
    mixture.batch(200)
    assert mixture.drawn == {name: pytest.approx(200 * weight, abs=1) for name, weight in WEIGHTS.items()}


def test_an_epoch_reads_every_window_once(domains: dict[str, Tokens]) -> None:
    numbered = {name: np.arange(3000, dtype=np.uint16) for name in domains}
    mixture = Mixture(numbered, LENGTH, seed=3)
    firsts = {int(window[0]) for window in mixture.batch(100)}
    assert max(mixture.drawn.values()) < len(firsts)


def test_the_rate_warms_up_stays_and_falls_to_nothing() -> None:
    assert rate_factor(0.0) < 0.1
    assert rate_factor(0.2) == 1.0
    assert rate_factor(0.7, decay_from=0.4) == pytest.approx(0.5)
    assert rate_factor(1.0) == 0.0
    assert rate_factor(1.2) == 0.0


def test_a_budget_of_minutes_counts_time_and_one_of_steps_counts_steps() -> None:
    assert Minutes(10).fraction(steps=5, seconds=300.0) == 0.5
    assert Steps(10).fraction(steps=5, seconds=9000.0) == 0.5


def test_the_export_is_loaded_by_transformers_and_holds_the_trained_weights(
    tokenizer: PreTrainedTokenizerFast, domains: dict[str, Tokens], tmp_path: Path
) -> None:
    trainer = _trainer(tokenizer, domains)
    trainer.step()
    export(trainer.model, tokenizer, tmp_path / "base")
    export(trainer.model, tokenizer, tmp_path / "base")  # over a former export
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(torch.bfloat16)), name
    assert len(AutoTokenizer.from_pretrained(tmp_path / "base")) == loaded.config.vocab_size
    assert sorted(loaded.generation_config.eos_token_id) == [0, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["base"]
