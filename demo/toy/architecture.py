"""The model's shape: a Llama that is deep and narrow, so that one layer is a small part of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LONGEST_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a base or draft model; half as many key/value heads as query heads, tied embeddings."""

    layers: int = 12
    hidden: int = 256
    heads: int = 8
    intermediate: int = 704

    def config(self, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=max(1, self.heads // 2),
            head_dim=self.hidden // self.heads,
            max_position_embeddings=LONGEST_CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )

    def build(self, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
        """A freshly initialised float32 model; torch's global generator decides its weights."""
        return LlamaForCausalLM(self.config(tokenizer))
