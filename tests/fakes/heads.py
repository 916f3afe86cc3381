"""Heads with random weights, written as their layouts are published: their key names, their configs."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from safetensors.torch import save_file

from services.generation.drafting.block.block_checkpoint import (
    BlockConfig,
    BlockHead,
    block_shapes,
    write_block_head,
)
from services.generation.drafting.block.block_drafter import BlockDrafter
from services.generation.drafting.draft_tree.candidates import NO_CONFIDENCE, Vocabulary
from services.generation.drafting.draft_tree.draft_tree import DraftModelState
from services.generation.drafting.eagle3.checkpoint import Head, HeadConfig, head_shapes, write_head
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.head_drafter import HeadDraft, HeadDrafter
from services.generation.drafting.mtp.block_weights import MtpBlock
from services.generation.drafting.mtp.block_weights import block_shapes as block_shapes_of_mtp
from services.generation.drafting.mtp.mtp_drafter import MtpDrafter
from services.generation.engine.drafter import Drafter, DraftRequest
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.config.config import TargetConfig
from services.generation.target.files.safetensors import Part
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.target import Target


def head_config(base: TargetConfig, **choices: Any) -> HeadConfig:
    """A small head for `base`: half of its vocabulary, two query heads for each key head."""
    members: dict[str, Any] = {
        "layers": 1, "hidden_size": base.hidden_size, "target_hidden_size": base.hidden_size,
        "intermediate_size": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "norm_epsilon": 1e-5,
        "vocab_size": base.vocab_size, "draft_vocab_size": base.vocab_size // 2,
        "feature_layers": (0, base.layers // 2, base.layers),
        "rope": {"rope_type": "default", "rope_theta": 10000.0}, "trained_length": 256, "attention_bias": False,
        "output_bias": False, "mlp_bias": False, "head_norms": False, "own_embeddings": False,
        "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
    }  # fmt: skip
    return HeadConfig(**(members | choices))


def head_tensors(config: HeadConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors under kolm's names, `d2t` included; norms near 1, so that they matter."""
    tensors = _random_tensors(head_shapes(config), config.vocab_size, config.draft_vocab_size, seed)
    return {"d2t": torch.zeros(config.draft_vocab_size, dtype=torch.int64)} | tensors


def _random_tensors(
    shapes: Mapping[str, tuple[int, ...]], vocab_size: int, draft_vocab_size: int, seed: int
) -> dict[str, torch.Tensor]:
    """Each tensor's values depend on its name and the seed alone."""

    def drawn(name: str) -> torch.Generator:
        return torch.Generator().manual_seed(seed ^ crc32(name.encode()))

    tensors = {
        name: torch.randn(shape, generator=drawn(name)) * 0.15 + float(len(shape) == 1 and "bias" not in name)
        for name, shape in shapes.items()
    }
    if draft_vocab_size == vocab_size:
        return tensors
    ids = torch.randperm(vocab_size, generator=drawn("d2t"))[:draft_vocab_size].sort().values
    return {**tensors, "d2t": ids - torch.arange(draft_vocab_size)}


def random_head(base: TargetConfig, seed: int = 0, **choices: Any) -> Head:
    """A head in memory."""
    config = head_config(base, **choices)
    tensors = head_tensors(config, seed)
    ids = np.arange(config.draft_vocab_size) + tensors.pop("d2t").numpy()
    return Head("kolm", config, {name: tensor.numpy() for name, tensor in tensors.items()}, ids)


class InformedDrafter(Drafter):
    """A drafter by a head that knows the next tokens most of the time: some of its paths are accepted.

    `truth` are the tokens that each request really emits. The rest of the time the head follows its random weights, or
    raises, in a share of its steps given by `bugs`.
    """

    def __init__(
        self,
        drafter: HeadDrafter,
        seed: int,
        truth: Mapping[tuple[str, int], Sequence[int]],
        *,
        right: float = 0.7,
        bugs: float = 0.0,
    ) -> None:
        self._drafter, self._rng, self._truth = drafter, random.Random(seed), truth
        self._right, self._bugs = right, bugs
        self.feature_layers = drafter.feature_layers

    def begin(self, request: EngineRequest) -> HeadDraft:
        draft = self._drafter.begin(request)
        draft.state = _Told(*(getattr(draft.state, each.name) for each in fields(DraftModelState)))
        draft.state.informed = self
        return draft

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        return self._drafter.propose(asks)

    def tell(self, request: EngineRequest, position: int) -> int | None:
        """The token at a position, mostly. Raises RuntimeError now and then."""
        if self._rng.random() < self._bugs:
            raise RuntimeError("a head's bug")
        output, place = self._truth.get(request.key, ()), position - len(request.prompt)
        return output[place] if place < len(output) and self._rng.random() < self._right else None

    def lead(self) -> float:
        """The distance of the true token's logit above the head's own: not always positive."""
        return self._rng.choice((6.0, 6.0, 6.0, -0.01))


class _Told(DraftModelState):
    """A head's draft for one request, with the true token among its likeliest ones."""

    informed: InformedDrafter

    def expand(self, logits: Float32, confidence: Float32 = NO_CONFIDENCE) -> None:
        assert self.tree is not None
        raised, ids, known = logits.copy(), self.vocabulary.target_ids.copy(), self.vocabulary
        for row in raised:
            token = self.informed.tell(self.request, self.length + self.tree.steps)
            if token is not None:
                place = known.draft_ids[token]
                place = place if place >= 0 else token % len(ids)  # a token outside of the head's vocabulary
                ids[place], row[place] = token, row.max() + self.informed.lead()
        self.vocabulary = Vocabulary(ids, known.draft_ids)
        super().expand(raised, confidence)
        self.vocabulary = known


def eagle3(target: Target, *, seed: int = 0, copies: bool = False, **choices: Any) -> Eagle3Drafter:
    """A drafter by a random head for `target`."""
    return Eagle3Drafter(random_head(target.config, seed, **choices), target, copies=copies)


def block_config(base: TargetConfig, **choices: Any) -> BlockConfig:
    """A small block head for `base`, as DSpark has them: half of its vocabulary, a Markov head, confidence."""
    members: dict[str, Any] = {
        "layers": 2, "hidden_size": base.hidden_size, "target_hidden_size": base.hidden_size, "intermediate_size": 96,
        "heads": 4, "kv_heads": 2, "head_dim": 16, "norm_epsilon": 1e-6, "vocab_size": base.vocab_size,
        "draft_vocab_size": base.vocab_size // 2, "feature_layers": (0, base.layers), "block_size": 5,
        "mask_token": 3, "from_first": True, "rope": {"rope_type": "default", "rope_theta": 10000.0},
        "trained_length": 256, "attention_bias": False, "markov_rank": 32, "confidence": True,
        "confidence_reads_token": True, "own_embeddings": False, "own_output": True,
    }  # fmt: skip
    members |= choices
    return BlockConfig(**{"windows": (0,) * members["layers"]} | members)


def block_tensors(config: BlockConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors, `d2t` included if the head has its own vocabulary."""
    return _random_tensors(block_shapes(config), config.vocab_size, config.draft_vocab_size, seed)


def random_block(base: TargetConfig, seed: int = 0, **choices: Any) -> BlockHead:
    """A head in memory."""
    config = block_config(base, **choices)
    tensors = block_tensors(config, seed)
    own = np.arange(config.draft_vocab_size)
    ids = own + tensors.pop("d2t").numpy() if "d2t" in tensors else own
    return BlockHead("kolm", config, {name: tensor.numpy() for name, tensor in tensors.items()}, ids)


def block(target: Target, *, seed: int = 0, copies: bool = False, **choices: Any) -> BlockDrafter:
    """A drafter by a random head for `target`."""
    return BlockDrafter(random_block(target.config, seed, **choices), target, copies=copies)


def random_mtp(base: TargetConfig, seed: int = 0, draft_tokens: int | None = None) -> MtpBlock:
    """A block in memory; with `draft_tokens`, of as many tokens, with an output matrix of its own."""
    shapes, count = block_shapes_of_mtp(base), draft_tokens or base.vocab_size
    drawn = _random_tensors({**shapes, "output": (count, base.hidden_size)}, base.vocab_size, base.vocab_size, seed)
    stored = {name: StoredTensor.of_values(name, tensor.numpy()) for name, tensor in drawn.items()}
    output = stored.pop("output")
    ids = np.sort(np.random.default_rng(seed).permutation(base.vocab_size)[:count])
    norm = np.ones(base.hidden_size, np.float32)
    return MtpBlock(base, f"cidv1:sha256:{seed:064x}", stored, norm, output if draft_tokens else None, ids)


def mtp(target: Target, *, seed: int = 0, copies: bool = False, draft_tokens: int | None = None) -> MtpDrafter:
    """A drafter by a random block for `target`."""
    return MtpDrafter(random_mtp(target.config, seed, draft_tokens), target, copies=copies)


def write_kolm(directory: Path, config: HeadConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    tensors = head_tensors(config, seed)
    write_head(directory, config, _parts(tensors))
    return tensors


def write_kolm_block(directory: Path, config: BlockConfig, seed: int = 0) -> None:
    write_block_head(directory, config, _parts(block_tensors(config, seed)))


def _parts(tensors: Mapping[str, torch.Tensor]) -> dict[str, Part]:
    return {name: Part.of(tensor.numpy()) for name, tensor in tensors.items()}


def write_safeailab(directory: Path, config: HeadConfig, seed: int = 0, **members: Any) -> dict[str, torch.Tensor]:
    """As SafeAILab/EAGLE and SpecForge save a head: a flat Llama config, `midlayer`, bfloat16 or float32 weights."""
    tensors = head_tensors(config, seed)
    document: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "eos_token_id": 2, "head_dim": config.head_dim, "hidden_act": "silu",
        "hidden_size": config.hidden_size, "initializer_range": 0.02, "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.trained_length, "model_type": "llama",
        "num_attention_heads": config.heads, "num_hidden_layers": 1, "num_key_value_heads": config.kv_heads,
        "pretraining_tp": 1, "rms_norm_eps": config.norm_epsilon, "rope_scaling": None,
        "rope_theta": config.rope["rope_theta"], "tie_word_embeddings": False, "torch_dtype": "float32",
        "transformers_version": "4.51.0", "use_cache": True, "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
    }  # fmt: skip
    if config.fc_norm or config.norm_output:
        document |= {"fc_norm": config.fc_norm, "norm_output": config.norm_output}
    _write(directory, document | members, tensors, config)
    return tensors


def write_speculators(directory: Path, config: HeadConfig, seed: int = 0, **members: Any) -> dict[str, torch.Tensor]:
    """As speculators saves a head: the layer's config nested, layers numbered, choices beside them."""
    tensors = head_tensors(config, seed)
    document: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"], "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": config.draft_vocab_size, "has_no_defaults_at_init": False,
        "norm_before_residual": config.norm_before_residual, "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm, "norm_output": config.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [
                {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1}
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example/base"},
        },
        "speculators_model_type": "eagle3", "speculators_version": "0.1.0.dev14", "target_hidden_size": None,
        "torch_dtype": "float32",
        "transformer_layer_config": {
            "attention_bias": False, "attention_dropout": 0.0, "head_dim": config.head_dim, "hidden_act": "silu",
            "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.trained_length, "mlp_bias": False, "model_type": "llama",
            "num_attention_heads": config.heads, "num_hidden_layers": config.layers,
            "num_key_value_heads": config.kv_heads, "rms_norm_eps": config.norm_epsilon, "rope_scaling": None,
            "rope_theta": config.rope["rope_theta"], "vocab_size": config.vocab_size,
        },
        "transformers_version": "4.53.2",
    }  # fmt: skip
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    _write(directory, document | members, renamed, config)
    return tensors


def published_block(directory: Path, config: BlockConfig, kind: str, seed: int = 0) -> Path:
    """As speculators saves a head of a kind, dflash or dspark."""
    document = {
        "speculators_model_type": kind, "speculators_version": "0.9.0", "draft_vocab_size": config.draft_vocab_size,
        "block_size": config.block_size, "mask_token_id": config.mask_token, "target_hidden_size": None,
        "sample_from_anchor": config.from_first, "aux_hidden_state_layer_ids": list(config.feature_layers),
        "markov_rank": config.markov_rank, "markov_head_type": "vanilla", "enable_confidence_head": config.confidence,
        "transformer_layer_config": {
            "model_type": "qwen3", "num_hidden_layers": config.layers, "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size, "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim, "rms_norm_eps": config.norm_epsilon,
            "vocab_size": config.vocab_size, "max_position_embeddings": config.trained_length,
            "rope_parameters": config.rope,
        },
    }  # fmt: skip
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(document))
    tensors = block_tensors(config, seed)
    if "d2t" in tensors:
        tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        tensors["t2d"][torch.arange(config.draft_vocab_size) + tensors["d2t"]] = True
    save_file(tensors, directory / "model.safetensors")
    return directory


def _write(directory: Path, document: dict[str, Any], tensors: dict[str, torch.Tensor], config: HeadConfig) -> None:
    known = torch.zeros(config.vocab_size, dtype=torch.bool)
    known[torch.arange(config.draft_vocab_size) + tensors["d2t"]] = True
    directory.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in document.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(kept))
    save_file({**tensors, "t2d": known}, directory / "model.safetensors")
