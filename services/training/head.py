"""The head as a torch module with gradients, with the parameter names of the kolm layout.

`HeadPass` computes the same layer for drafting; a test compares the two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers.activations import ACT2FN

from services.generation.drafting.eagle3.checkpoint import HeadConfig
from services.generation.drafting.heads import rotation_of_head

_BLOCK = 32  # weights with a scale and a minimum of their own in GGUF's Q4_1
_ORIGINAL = "parametrizations.weight.original"  # torch's name of a parameter that its module reads through another


class Rounded(nn.Module):
    """A matrix as servers draft with it: GGUF's Q4_1 of its values in bfloat16. Gradients pass as if nothing were
    rounded (the straight-through estimator, arXiv 1308.3432).
    """

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix + (rounded(matrix) - matrix).detach()


@torch.no_grad()
def rounded(matrix: Tensor) -> Tensor:
    """The matrix rounded like `StoredTensor.rounded`; unchanged if its rows are no whole number of blocks."""
    if matrix.shape[1] % _BLOCK:
        return matrix
    blocks = matrix.bfloat16().float().view(len(matrix), -1, _BLOCK)
    least, most = blocks.aminmax(dim=-1, keepdim=True)
    scale = (most - least) / 15
    steps = torch.where(scale > 0, (blocks - least) * scale.reciprocal() + 0.5, 0.0).floor().clamp(0, 15)
    found: Tensor = steps * scale.half().float() + least.half().float()
    return found.view_as(matrix).to(matrix.dtype)


def learn_rounded(head: nn.Module) -> None:
    """Let the matrices that a server rounds compute rounded; `drafted_tensors` are then what it reads."""
    for name, module in head.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith("confidence_head"):
            parametrize.register_parametrization(module, "weight", Rounded())


def drafted_tensors(head: nn.Module) -> dict[str, Tensor]:
    """Tensors by their names in kolm's layout, rounded if the head was trained with rounded matrices."""
    return {
        name.replace(_ORIGINAL, "weight"): rounded(tensor) if name.endswith(_ORIGINAL) else tensor
        for name, tensor in head.state_dict().items()
    }


class HeadModule(nn.Module):
    """One decoder layer over fused features (docs/heads.md), without biases; reads the base's embeddings.

    Positions, `p` below, are the head's own: entry i holds the features of token i and the embedding of token i + 1.
    """

    embeddings: Tensor
    frequencies: Tensor

    def __init__(self, config: HeadConfig, embeddings: Tensor) -> None:
        """`embeddings` [vocab_size, hidden_size] are the base's, not trained and not saved."""
        super().__init__()
        self.config = config
        features = len(config.feature_layers) * config.target_hidden_size
        self.fc = nn.Linear(features, config.hidden_size, bias=False)
        self.midlayer = DecoderLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("embeddings", embeddings, persistent=False)
        rotation = rotation_of_head(config)
        self._rope_scaling = rotation.factor
        self.register_buffer("frequencies", torch.tensor(rotation.inverse_frequencies), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embeddings)

    def logits(self, output: Tensor) -> Tensor:
        """[..., hidden] to [..., draft_vocab_size]"""
        return self.lm_head(self.norm(output))  # type: ignore[no-any-return]

    def rotated(self, heads: Tensor, positions: Tensor) -> Tensor:
        """RoPE on heads [..., n, heads, head_dim] at positions [..., n]."""
        angles = positions[..., None, None].float() * self.frequencies
        cos, sin = ((turned * self._rope_scaling).to(heads.dtype) for turned in (angles.cos(), angles.sin()))
        first, second = heads.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class DecoderLayer(nn.Module):
    """Norms, attention projections and MLP; how they are put together over unrolled steps is `Unroll`'s."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, epsilon = config.hidden_size, config.norm_epsilon
        self.input_layernorm = nn.RMSNorm(hidden, epsilon)
        self.hidden_norm = nn.RMSNorm(hidden, epsilon)
        self.self_attn = AttentionProjections(config)
        self.post_attention_layernorm = nn.RMSNorm(hidden, epsilon)
        self.mlp = GatedMlp(config)

    def attention_input(self, embedded: Tensor, feature: Tensor) -> Tensor:
        """[..., 2 * hidden]"""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(feature)], dim=-1)

    def output(self, feature: Tensor, attended: Tensor) -> Tensor:
        """The layer's output before the final norm. The next draft step gets it in place of the feature."""
        middle = feature + self.self_attn.o_proj(attended)
        return middle + self.mlp(self.post_attention_layernorm(middle))  # type: ignore[no-any-return]


class AttentionProjections(nn.Module):
    """Queries, keys and values of twice the hidden size."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def _by_heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:-1], -1, self._head_dim)

    def queries(self, x: Tensor) -> Tensor:
        """[..., heads, head_dim]"""
        return self._by_heads(self.q_proj(x))

    def keys(self, x: Tensor) -> Tensor:
        """[..., kv_heads, head_dim]"""
        return self._by_heads(self.k_proj(x))

    def values(self, x: Tensor) -> Tensor:
        """[..., kv_heads, head_dim]"""
        return self._by_heads(self.v_proj(x))


class GatedMlp(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self._activation = ACT2FN[config.hidden_act]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]
