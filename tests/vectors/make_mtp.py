"""Makes tests/vectors/mtp by speculators 0.9.0: what MTPDraftModel computes with random blocks inside tiny models.

    python -m tests.vectors.make_mtp

For each family: the model with its block as it is published; a sequence of tokens and the base's hidden states after
its final norm, by transformers; states of the block's entries over it; and a chain of drafts behind one of them.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.fakes.mtp_models import MODELS, make_mtp_model
from tests.fakes.tiny_families import draw_vectors

FOLDER = Path(__file__).parent / "mtp"
LENGTH, ANCHOR, STEPS = 70, 60, 4


@torch.no_grad()
def make(name: str) -> None:
    """The vectors of a family, in a folder of its name."""
    from speculators.models.mtp import MTPDraftModel
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    draw_vectors(make_mtp_model(folder, name, seed=3))
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    model = MTPDraftModel.from_training_args(config, verifier_name_or_path=str(folder)).float().eval()
    tokens = torch.randint(0, config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(1))
    hidden = base.model(tokens[None]).last_hidden_state
    states = entries_of(model, tokens[1:], hidden[0, :-1])
    save_file(
        {
            "tokens": tokens, "hidden": hidden[0].contiguous(), "states": states,
            **_chain(model, tokens[1 : ANCHOR + 2], hidden[0, : ANCHOR + 1]),
        },
        folder / "expected.safetensors",
    )  # fmt: skip
    for each in ("generation_config.json", "chat_template.jinja"):
        (folder / each).unlink(missing_ok=True)


def entries_of(model: Any, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """States [n, hidden] of entries 0 to n - 1: of hidden states, and of the tokens that follow each."""
    count = len(following)
    positions = torch.arange(count)[None]
    turned = (
        positions.expand(3, 1, count) if "qwen3_5" in model.config.transformer_layer_config.model_type else positions
    )
    mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
    states: torch.Tensor = model.mtp_layers[0](
        hidden_states=hidden[None], token_embeddings=model.embed_tokens(following)[None], attention_mask=mask,
        position_ids=positions, position_embeddings=model.rotary_emb(hidden[None], turned),
    )  # fmt: skip
    return states[0]


def _chain(model: Any, following: torch.Tensor, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """Drafts behind the last entry: each step reads the state and the draft of the step before."""
    states, drafts = [], []
    for _ in range(STEPS):
        state = entries_of(model, following, hidden)[-1]
        draft = model.lm_head(state).argmax()
        states.append(state)
        drafts.append(draft)
        following, hidden = torch.cat([following, draft[None]]), torch.cat([hidden, state[None]])
    return {"chain_states": torch.stack(states), "drafts": torch.stack(drafts)}


if __name__ == "__main__":
    for each in MODELS:
        make(each)
