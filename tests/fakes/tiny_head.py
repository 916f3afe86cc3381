"""Tiny random heads and adapters, and changes of files like theirs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from safetensors.torch import load_file, save_file

from ledger.documents.manifests import BaseManifest, DraftHeadManifest, HeadConfig, HeadWeights, NamedFile, Vocabulary
from ledger.encoding.text_forms import cid, cid_of_json
from services.generation.drafting.eagle3.checkpoint import head_shapes, parse_config
from services.generation.target.config.config import read_config
from services.generation.target.weights import expected_shapes
from tests.mutations import replace

BASE_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
}  # fmt: skip
HEAD_CONFIG: dict[str, Any] = {
    "layout": "kolm.eagle3.v1", "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
    "hidden_act": "silu", "num_hidden_layers": 1, "hidden_size": 16, "target_hidden_size": 16, "intermediate_size": 24,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-5, "vocab_size": 40,
    "draft_vocab_size": 10, "feature_layers": [1, 2, 3], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "max_position_embeddings": 128, "attention_bias": False, "output_bias": False, "mlp_bias": False,
    "head_norms": False, "own_embeddings": False, "norm_before_residual": False, "norm_before_fc": False,
    "fc_norm": False, "norm_output": False,
}  # fmt: skip


def tensors(config: dict[str, Any] = HEAD_CONFIG, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor of a head with this config; draft id i is token 2 i."""
    random = np.random.default_rng(seed)
    shapes = head_shapes(parse_config(config))
    made: dict[str, Any] = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    drafts = np.arange(config["draft_vocab_size"])
    made["d2t"] = drafts.astype(np.int64)
    made["t2d"] = np.isin(np.arange(config["vocab_size"]), 2 * drafts)
    return made


@dataclass(frozen=True)
class TinyHead:
    """The files of a head and of the description of its base, by name, and the manifest over them."""

    config: bytes
    weights: bytes
    base_config: bytes
    base: BaseManifest
    changes: dict[str, Any]

    @property
    def manifest(self) -> DraftHeadManifest:
        made = DraftHeadManifest(
            subject=self.base.cid,
            config=HeadConfig(NamedFile.of("config.json", self.config)),
            weights=HeadWeights((NamedFile.of("model.safetensors", self.weights),)),
            hidden_size=16,
            feature_layers=(1, 2, 3),
            vocabulary=Vocabulary(self.changes.get("vocab_size", 40), self.changes.get("draft_vocab_size", 10)),
        )
        return replace(made, **{name: value for name, value in self.changes.items() if "vocab_size" not in name})

    @property
    def blobs(self) -> list[bytes]:
        """All files to upload, by the manifest."""
        return [self.config, self.weights, self.base.to_bytes(), self.base_config]

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_bytes(self.config)
        (directory / "model.safetensors").write_bytes(self.weights)
        return directory

    def write_base(self, directory: Path) -> Path:
        """A folder whose base_cid is the head's subject; its weights are no model."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_bytes(self.base_config)
        (directory / "tokenizer.json").write_bytes(b"{}")
        (directory / "model.safetensors").write_bytes(b"weights")
        return directory


def tiny_head(seed: int = 0, *, head: bytes | None = None, weights: bytes | None = None, **changes: Any) -> TinyHead:
    """A whole head; `head` and `weights` replace its files, other names change its manifest."""
    base_config = json.dumps(BASE_CONFIG).encode()
    tokenizer = {"type": "kolm.tokenizer.v1", "files": [NamedFile.of("tokenizer.json", b"{}").to_document()]}
    base = BaseManifest(
        config=(NamedFile.of("config.json", base_config),),
        tokenizer_cid=cid_of_json(tokenizer),
        weights=(NamedFile.of("model.safetensors", b"weights"),),
    )
    config = json.dumps(HEAD_CONFIG).encode() if head is None else head
    return TinyHead(config, save(tensors(seed=seed)) if weights is None else weights, base_config, base, changes)


def changed_weights(**changes: Any) -> bytes:
    """The head's weights with some tensors changed, added, or (None) left out."""
    made = tensors() | changes
    return save({name: tensor for name, tensor in made.items() if tensor is not None})


OTHER_BASE = cid(b"another base")


MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_tiny_adapter(
    directory: Path,
    base: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    modules: Sequence[str] = MODULES,
    ranks: Mapping[str, int] | None = None,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write adapter_config.json and adapter_model.safetensors for the model in `base`; returns `directory`.

    `ranks` are other ranks by module (peft's rank_pattern), `layers` the decoder layers that are adapted, all by
    default. The weights are drawn wide enough to change the greedy output. `config` overrides members of the file.
    """
    generator = torch.Generator().manual_seed(seed)
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.1,
        "target_modules": list(modules),
        "rank_pattern": dict(ranks or {}),
        "layers_to_transform": None if layers is None else list(layers),
        "bias": "none",
        "inference_mode": True,
    }
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(read_config(base)).items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        if module in modules and (layers is None or int(name.split(".")[2]) in layers):
            r, prefix = (ranks or {}).get(module, rank), "base_model.model." + name.removesuffix("weight")
            tensors[prefix + "lora_A.weight"] = 0.2 * torch.randn(r, shape[1], generator=generator)
            tensors[prefix + "lora_B.weight"] = 0.2 * torch.randn(shape[0], r, generator=generator)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(document | config))
    save_file({n: t.to(dtype).contiguous() for n, t in tensors.items()}, directory / "adapter_model.safetensors")
    return directory


def make_tiny_adapters(folder: Path, base: Path, kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """An adapter of each kind, by name, with a seed of its own."""
    named = enumerate(kinds.items())
    return {name: make_tiny_adapter(folder / name, base, seed=seed, **kind) for seed, (name, kind) in named}


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
