"""Makes tests/vectors/mtp/trained: a tiny Qwen3.5-shaped model and its MTP block, both trained for some minutes.

    python -m tests.vectors.make_mtp_trained

The text is a random Markov chain of second order, so that the next token depends on the last but one, which a block
knows from the hidden state alone. The block is trained as speculators 0.9.0 trains (MTPDraftModel, three steps).
`expected.json` has prompts, the base's greedy answers by transformers, and how many of the block's drafts hold at each
depth of chains that are drafted one after another over these answers.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from safetensors.torch import save_file

from tests.fakes.mtp_models import MODELS, add_block, random_block_tensors
from tests.fakes.tiny_model import make_tiny_model
from tests.vectors.make_mtp import FOLDER, entries_of

TRAINED = FOLDER / "trained"
SYMBOLS, FIRST_SYMBOL, DEPTH, PROMPTS, PROMPT, ANSWER = 24, 40, 3, 24, 12, 48
_HIDDEN, _LENGTH, _BATCH, _STEPS, _BLOCK_STEPS = 64, 32, 48, 1000, 130
_SHARES = (0.75, 0.2, 0.05)
_NAMES = {
    "input_proj": "fc", "final_layernorm": "norm", "hidden_layernorm": "pre_fc_norm_hidden",
    "token_layernorm": "pre_fc_norm_embedding",
}  # fmt: skip
"""Names of modules in MTPDraftModel and in checkpoints."""


def texts(generator: torch.Generator, count: int, length: int) -> torch.Tensor:
    """Samples of the chain, [count, length] token ids."""
    table = torch.rand(SYMBOLS, SYMBOLS, SYMBOLS, generator=torch.Generator().manual_seed(11)).argsort(-1)[..., :3]
    found = torch.randint(0, SYMBOLS, (count, length), generator=generator)
    choices = torch.multinomial(torch.tensor(_SHARES), count * length, True, generator=generator).view(count, length)
    for at in range(2, length):
        found[:, at] = table[found[:, at - 2], found[:, at - 1], choices[:, at]]
    return found + FIRST_SYMBOL


def make() -> None:
    """Train the model, then its block, and write both with the expected results."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    torch.manual_seed(1)
    torch.set_num_threads(1)
    modeling_qwen3_5.torch_chunk_gated_delta_rule = partial(
        modeling_qwen3_5.torch_chunk_gated_delta_rule, chunk_size=8
    )  # seven steps of Python in place of 63
    shutil.rmtree(TRAINED, ignore_errors=True)
    make_tiny_model(TRAINED, **{**MODELS["qwen3_5"], "hidden": _HIDDEN, "vocab": 320, "context": 256})
    base = _base()
    base.model.norm.weight.data = torch.exp(1.2 * torch.randn(_HIDDEN)) - 1.0  # uneven, as in published models
    base.model.norm.requires_grad_(False)
    _train(base, _STEPS, lambda batch: base(batch, labels=batch).loss)
    tensors = {name: tensor.contiguous() for name, tensor in base.bfloat16().state_dict().items()}
    tensors.pop("lm_head.weight")
    save_file(tensors, TRAINED / "model.safetensors", {"format": "pt"})
    base = _base().eval().requires_grad_(False)
    drawn = random_block_tensors(TRAINED)
    add_block(TRAINED, {name: tensor if tensor.dim() > 1 else 0 * tensor for name, tensor in drawn.items()})
    block = _block()
    _train(
        block,
        _BLOCK_STEPS,
        lambda batch: block(batch, base.model(batch).last_hidden_state, step_weights=[1.0, 0.6, 0.36])[1],
    )
    _write(block)
    expected = _expected(base, _block().eval())
    (TRAINED / "expected.json").write_text(json.dumps(expected) + "\n")
    for each in ("generation_config.json", "chat_template.jinja"):
        (TRAINED / each).unlink(missing_ok=True)


def _base() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TRAINED, attn_implementation="eager", dtype=torch.float32)


def _block() -> Any:
    """The block that is written."""
    from speculators.models.mtp import MTPDraftModel
    from transformers import AutoConfig

    block = MTPDraftModel.from_training_args(
        AutoConfig.from_pretrained(TRAINED), num_speculative_steps=DEPTH, verifier_name_or_path=str(TRAINED)
    ).float()
    block.embed_tokens.requires_grad_(False)
    block.lm_head.requires_grad_(False)
    return block


def _train(model: Any, steps: int, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimiser = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], weight_decay=0.01)
    generator = torch.Generator().manual_seed(2)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 4e-3 * min(1.0, step / 50) * (1.0 - step / steps)
        loss = loss_of(texts(generator, _BATCH, _LENGTH))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 0:
            print(step, loss.item(), flush=True)


def _write(block: Any) -> None:
    tensors = {}
    for name, tensor in block.mtp_layers[0].bfloat16().state_dict().items():
        module = name.removesuffix(".weight")
        tensors[f"{_NAMES[module]}.weight" if module in _NAMES else f"layers.0.{name}"] = tensor.contiguous()
    add_block(TRAINED, tensors)


@torch.no_grad()
def _expected(base: Any, block: Any) -> dict[str, Any]:
    sequences = texts(torch.Generator().manual_seed(3), PROMPTS, PROMPT)
    for _ in range(ANSWER):
        sequences = torch.cat([sequences, base(sequences).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    hidden = base.model(sequences).last_hidden_state
    drafts, held = 0, [0] * DEPTH
    for tokens, states in zip(sequences, hidden, strict=True):
        known = PROMPT + 1  # the pass over the prompt gives the first token
        while (depth := min(DEPTH, len(tokens) - known - 1)) > 0:
            accepted = _accepted(block, tokens, states, known, depth)
            drafts, known = drafts + 1, known + accepted + 1
            held = [count + (at < accepted) for at, count in enumerate(held)]
    return {
        "prompts": sequences[:, :PROMPT].tolist(),
        "answers": sequences[:, PROMPT:].tolist(),
        "acceptance": [count / drafts for count in held],
    }


def _accepted(block: Any, tokens: torch.Tensor, states: torch.Tensor, known: int, depth: int) -> int:
    """Drafts of a chain behind the first `known` tokens that are the next ones."""
    following, hidden = tokens[1:known], states[: known - 1]
    for place in range(depth):
        state = entries_of(block, following, hidden)[-1]
        if block.lm_head(state).argmax() != tokens[known + place]:
            return place
        following, hidden = tokens[1 : known + place + 1], torch.cat([hidden, state[None]])
    return depth


if __name__ == "__main__":
    make()
