"""Makes tests/vectors/block_heads by speculators 0.9.0: heads as it saves them, and its outputs.

    python -m tests.vectors.make_block_heads

Random weights; a sequence of features, an anchor in it, and at that anchor the block's states, logits, drafts and
confidence.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent / "block_heads"
VOCABULARY, HIDDEN, LAYERS_READ, LENGTH, ANCHOR, BLOCK = 96, 32, (1, 3), 90, 70, 5
_LAYER = {
    "num_hidden_layers": 2, "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 256,
}  # fmt: skip


def make(kind: str, folder: Path, seed: int) -> None:
    """A head of a kind (dflash, dspark, dflash2) with its results, in `folder`."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers.models.qwen3 import Qwen3Config

    torch.manual_seed(seed)
    dspark = kind == "dspark"
    layer = Qwen3Config(**_LAYER)
    layer._attn_implementation = "eager"
    config_class, model_class, choices = {
        "dflash": (DFlashSpeculatorConfig, DFlashDraftModel, {"draft_vocab_size": VOCABULARY}),
        "dspark": (DSparkSpeculatorConfig, DSparkDraftModel, {"draft_vocab_size": 40, "markov_rank": 8}),
        "dflash2": (
            DFlash2SpeculatorConfig, DFlash2DraftModel,
            {"draft_vocab_size": VOCABULARY, "conv_group_size": 8, "selector_rank": 8, "selector_top_k": 6},
        ),
    }[kind]  # fmt: skip
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    proposal = GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)
    config = config_class(
        transformer_layer_config=layer, block_size=BLOCK, mask_token_id=5, aux_hidden_state_layer_ids=LAYERS_READ,
        speculators_config=SpeculatorsConfig(
            algorithm=kind, proposal_methods=[proposal], default_proposal_method="greedy", verifier=verifier
        ), **choices,
    )  # fmt: skip
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0))
    if dspark:
        ids = torch.randperm(VOCABULARY)[:40].sort().values
        known = torch.zeros(VOCABULARY, dtype=torch.bool)
        known[ids] = True
        model.load_vocab_mappings(known, ids - torch.arange(40))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    for name in ("README.md", "config.py"):
        (folder / name).unlink(missing_ok=True)
    save_file(_expected(model), folder / "expected.safetensors")


@torch.no_grad()
def _expected(model: Any) -> dict[str, torch.Tensor]:
    features = torch.randn(LENGTH, len(LAYERS_READ) * HIDDEN)
    tokens = torch.randint(0, VOCABULARY, (LENGTH,))
    chosen = torch.zeros(1, LENGTH)
    chosen[0, ANCHOR] = 1.0
    hidden, logits, *_ = model._backbone_forward(
        features[None], tokens[None], chosen, torch.zeros(1, LENGTH, HIDDEN), torch.zeros(1, LENGTH, dtype=torch.long),
        max_anchors=1,
    )  # fmt: skip
    first = 0 if model.config.sample_from_anchor else 1
    states, logits = hidden[0, first:], logits[0, first:].clone()
    markov, selector = getattr(model, "markov_head", None), getattr(model, "candidate_selector", None)
    before, drafts, sure = tokens[ANCHOR], [], []
    for position, state in enumerate(states):
        if markov is not None:
            embedded = markov.prev_embeddings(before[None])[0]
            logits[position] += markov.block_bias(prev_token_ids=before[None, None], hidden_states=state[None, None])[
                0, 0
            ]
            sure.append(model.confidence_head(torch.cat([state, embedded])).sigmoid())
        if selector is not None:
            tokens_of, scores = selector.select(logits[position][None], state[None], before[None])
            logits[position] = torch.full_like(logits[position], -torch.inf).scatter(0, tokens_of[0], scores[0])
        draft = logits[position].argmax()
        before = draft if model.d2t is None else draft + model.d2t[draft]
        drafts.append(before)
    return {
        "features": features, "tokens": tokens, "embeddings": model.embed_tokens.weight.clone(),
        "output": model.lm_head.weight.clone(), "states": states.contiguous(), "logits": logits,
        "drafts": torch.stack(drafts), "confidence": torch.stack(sure) if sure else torch.zeros(0),
    }  # fmt: skip


if __name__ == "__main__":
    for each in ("dflash", "dspark", "dflash2"):
        make(each, FOLDER / each, seed=1)
