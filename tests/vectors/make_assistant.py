"""Makes tests/vectors/assistant by transformers 5.24: what Gemma 4's assistant computes with random weights.

    python -m tests.vectors.make_assistant

For each base: the base, the assistant as it is published, a sequence of tokens, and chains of drafts behind some of its
positions, each step from the state and the token of the step before. Earlier transformers make no assistant whose
layers all read the base's keys.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.fakes.assistants import BASES, make_assistant_of
from tests.fakes.tiny_families import draw_vectors
from tests.fakes.tiny_model import make_tiny_model

FOLDER = Path(__file__).parent / "assistant"
LENGTH, ANCHORS, STEPS = 70, (3, 30, 68), 3


@torch.no_grad()
def make(name: str) -> None:
    """The vectors of a base, in a folder of its name."""
    from transformers import AutoModelForCausalLM, Gemma4AssistantForCausalLM

    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    draw_vectors(make_tiny_model(folder, **BASES[name], hidden=32, vocab=320, seed=3))
    make_assistant_of(folder, folder / "assistant")
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    base = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    model = Gemma4AssistantForCausalLM.from_pretrained(folder / "assistant", **options).eval()
    tokens = torch.randint(0, 320, (LENGTH,), generator=torch.Generator().manual_seed(1))
    found: dict[str, torch.Tensor] = {"tokens": tokens}
    for anchor in ANCHORS:
        found |= _chain(base, model, tokens[: anchor + 1], tokens[anchor + 1], f"{anchor}.")
    save_file(found, folder / "expected.safetensors")
    for each in ("generation_config.json", "chat_template.jinja"):
        (folder / each).unlink(missing_ok=True)


def _chain(base: Any, model: Any, known: torch.Tensor, token: torch.Tensor, prefix: str) -> dict[str, torch.Tensor]:
    """Drafts behind `token`, which follows the tokens that the base has computed."""
    out = base.model(known[None], return_shared_kv_states=True, use_cache=False)
    keys, hidden, position = out.shared_kv_states, out.last_hidden_state[:, -1:], torch.tensor([[len(known)]])
    states, drafts = [], []
    for _ in range(STEPS):
        embedded = base.model.embed_tokens(token.reshape(1, 1))
        inputs = torch.cat([embedded, hidden], -1)
        step = model(inputs_embeds=inputs, position_ids=position, shared_kv_states=keys)
        hidden, token = step.last_hidden_state, step.logits[0, -1].argmax()
        states.append(hidden[0, 0])
        drafts.append(token)
    return {f"{prefix}states": torch.stack(states), f"{prefix}drafts": torch.stack(drafts)}


if __name__ == "__main__":
    for each in BASES:
        make(each)
