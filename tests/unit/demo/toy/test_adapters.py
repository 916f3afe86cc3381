"""The recipe of the bundled adapters: what its styles change, and that what it writes can be worn by its base alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.architecture import Architecture
from demo.toy.corpus import chat, style
from demo.toy.export import export
from demo.toy.train_adapters import RECIPES, AdapterTraining, save
from services.generation.target.errors import AdapterInvalid
from services.generation.target.loading import load_target

pytestmark = pytest.mark.slow  # a tokenizer is trained


@pytest.fixture(scope="module")
def base(trained_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("demo") / "base", trained_tokenizer, seed=7)


def make_base(folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        export(Architecture(layers=2, hidden=32, heads=2, intermediate=48).build(tokenizer), tokenizer, folder)
    return folder


@pytest.mark.parametrize("name", style.STYLES)
def test_a_style_rewrites_the_assistant_and_nobody_else(name: str) -> None:
    changed = 0
    for before, after in zip(chat.documents("train", 40), style.documents(name, "train", 40), strict=True):
        assert [turn.role for turn in before] == [turn.role for turn in after]
        for old, new in zip(before, after, strict=True):
            assert old.role == "assistant" or old == new
            changed += old != new
    assert changed > 60


def test_courtesies_are_small_and_capitals_are_not() -> None:
    said = "Thank you. Please press the button. Tell me whether that helps."
    assert style.courteous(said) == "Many thanks. Kindly press the button. Tell me whether that helps."
    assert style.courteous("I am sorry to hear that. Is it on?") == "I am very sorry for the trouble. Is it on?"
    assert style.capitals("Your case is XK-12.") == "YOUR CASE IS XK-12."


@pytest.mark.parametrize("name", RECIPES)
def test_a_few_steps_lower_the_loss_and_make_an_adapter_for_this_base_only(
    name: str, base: Path, tmp_path: Path
) -> None:
    training = AdapterTraining(name, base, seed=0, dialogues=30)
    before = training.held_out_loss()
    for step in range(4):
        training.step(step / 4)
    assert training.held_out_loss() < before
    save(training.model, tmp_path / name, base)
    target = load_target(base, cache_tokens=512, adapters={name: tmp_path / name})
    assert [adapter.name for adapter in target.adapters] == [name]
    other = make_base(tmp_path / "base", bpe.load(base), seed=8)
    with pytest.raises(AdapterInvalid, match="revision: the adapter is for the base"):
        load_target(other, cache_tokens=512, adapters={name: tmp_path / name})


def test_the_bundled_adapters_are_for_the_bundled_base_and_small() -> None:
    demo = Path(__file__).resolve().parents[4] / "demo" / "toy"
    folders = {name: demo / "adapters" / name for name in RECIPES}
    target = load_target(demo / "base", cache_tokens=512, adapters=folders)
    assert [adapter.name for adapter in target.adapters] == list(RECIPES)
    assert all((folder / "adapter_model.safetensors").stat().st_size < 1_000_000 for folder in folders.values())


def test_the_same_seed_makes_the_same_adapter(base: Path) -> None:
    losses = []
    for _ in range(2):
        training = AdapterTraining("courteous", base, seed=3, dialogues=30)
        losses.append([training.step(step / 3) for step in range(3)])
    assert losses[0] == losses[1]
    assert isinstance(training.model.get_base_model(), LlamaForCausalLM)
