"""A block head as a torch module with gradients, and its lesson: blocks at every start of an answer (DSpark).

`BlockPass` computes the same for drafting; a test compares the two. Parameter names are equal in all layouts.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.generation.drafting.block.block_checkpoint import BlockConfig
from services.generation.drafting.heads import rotation_of_head
from services.training.unroll import Places, StepSums, Teacher, Window, compared


class BlockModule(nn.Module):
    """Layers over a context that the target's streams make (docs/heads.md); reads the base's embeddings."""

    embeddings: Tensor
    frequencies: Tensor

    def __init__(self, config: BlockConfig, embeddings: Tensor) -> None:
        """`embeddings` [vocab_size, hidden_size] are the base's, not trained and not saved."""
        super().__init__()
        self.config = config
        hidden, epsilon, rank = config.hidden_size, config.norm_epsilon, config.markov_rank
        self.fc = nn.Linear(len(config.feature_layers) * config.target_hidden_size, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, epsilon)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(hidden, epsilon)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.markov_head = nn.ModuleDict({
            "markov_w1": nn.Embedding(config.vocab_size, rank),
            "markov_w2": nn.Linear(rank, config.draft_vocab_size, bias=False),
        })  # fmt: skip
        self.confidence_head = nn.ModuleDict({"proj": nn.Linear(hidden + rank, 1)})
        self.register_buffer("embeddings", embeddings, persistent=False)
        rotation = rotation_of_head(config)
        self._rope_scaling = rotation.factor
        self.register_buffer("frequencies", torch.tensor(rotation.inverse_frequencies), persistent=False)

    def states(self, window: Window) -> Tensor:
        """[b, a, block, hidden], normed: row i of the block at start j has the position of the answer's token j + i."""
        config, starts = self.config, window.starts
        context = self.hidden_norm(self.fc(window.features).to(self.embeddings.dtype))
        tokens = torch.full((*window.output.shape[:1], starts, config.block_size), config.mask_token)
        tokens = tokens.to(window.output.device)
        tokens[:, :, 0] = window.output[:, :starts]
        entries = torch.arange(context.shape[1], device=tokens.device)
        last = window.first_start[:, None] + torch.arange(starts, device=tokens.device)  # entry before the anchor
        rows = last[:, :, None] + 1 + torch.arange(config.block_size, device=tokens.device)
        unseen = (entries > last[:, :, None])[:, None, :, None]  # [b, 1, a, 1, n]
        turns = self._turns(entries[None]), self._turns(rows)
        x = F.embedding(tokens, self.embeddings)
        for layer in self.layers:
            x = layer(x, context, unseen, turns)
        return self.norm(x)  # type: ignore[no-any-return]

    def before(self, window: Window) -> Tensor:
        """[b, a, block, rank]: of the token before each row's."""
        size = self.config.block_size
        tokens = F.pad(window.output, (0, size)).unfold(1, size, 1)[:, : window.starts]
        return self.markov_head["markov_w1"](tokens)  # type: ignore[no-any-return]

    def logits(self, states: Tensor, before: Tensor) -> Tensor:
        """[..., draft_vocab_size]"""
        return self.lm_head(states) + self.markov_head["markov_w2"](before)  # type: ignore[no-any-return]

    def confidence(self, states: Tensor, before: Tensor) -> Tensor:
        """[...], before the sigmoid."""
        return self.confidence_head["proj"](torch.cat([states, before], dim=-1)).squeeze(-1)  # type: ignore[no-any-return]

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None, None].float() * self.frequencies
        return angles.cos() * self._rope_scaling, angles.sin() * self._rope_scaling


class BlockLayer(nn.Module):
    """A layer of Qwen3's whose keys and values are of the context and of the row's own block."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        hidden, inner, epsilon = config.hidden_size, config.intermediate_size, config.norm_epsilon
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self._head_dim = config.head_dim
        self.input_layernorm = nn.RMSNorm(hidden, epsilon)
        self.self_attn = nn.ModuleDict({
            "q_proj": nn.Linear(hidden, queries, bias=False), "k_proj": nn.Linear(hidden, keys, bias=False),
            "v_proj": nn.Linear(hidden, keys, bias=False), "o_proj": nn.Linear(queries, hidden, bias=False),
            "q_norm": nn.RMSNorm(config.head_dim, epsilon), "k_norm": nn.RMSNorm(config.head_dim, epsilon),
        })  # fmt: skip
        self.post_attention_layernorm = nn.RMSNorm(hidden, epsilon)
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(hidden, inner, bias=False), "up_proj": nn.Linear(hidden, inner, bias=False),
            "down_proj": nn.Linear(inner, hidden, bias=False),
        })  # fmt: skip

    def forward(self, x: Tensor, context: Tensor, unseen: Tensor, turns: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        """x [b, a, block, hidden], context [b, n, hidden], unseen [b, 1, a, 1, n]; rotations of context and rows."""
        normed = self.input_layernorm(x)
        x = x + self.self_attn["o_proj"](self._attend(normed, context, unseen, *turns))
        normed = self.post_attention_layernorm(x)
        inner = F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return x + self.mlp["down_proj"](inner)  # type: ignore[no-any-return]

    def _attend(
        self, x: Tensor, context: Tensor, unseen: Tensor, of_context: tuple[Tensor, Tensor],
        of_rows: tuple[Tensor, Tensor],
    ) -> Tensor:  # fmt: skip
        queries = _turned(self._normed("q", x), of_rows)
        own, keys = _turned(self._normed("k", x), of_rows), _turned(self._normed("k", context), of_context)
        values, own_values = self._heads("v_proj", context), self._heads("v_proj", x)
        shared = queries.shape[-2] // keys.shape[-2]
        keys, values, own, own_values = (
            each.repeat_interleave(shared, dim=-2) for each in (keys, values, own, own_values)
        )
        scale = self._head_dim**-0.5
        far = torch.einsum("barhd,bnhd->bharn", queries, keys) * scale
        near = torch.einsum("barhd,bashd->bhars", queries, own) * scale
        scores = torch.cat([far.masked_fill(unseen, -math.inf), near], dim=-1)
        weights = scores.float().softmax(dim=-1).to(values.dtype)
        n = context.shape[1]
        mixed = torch.einsum("bharn,bnhd->barhd", weights[..., :n], values)
        return (mixed + torch.einsum("bhars,bashd->barhd", weights[..., n:], own_values)).flatten(-2)

    def _normed(self, part: str, x: Tensor) -> Tensor:
        """Queries or keys, normed in float32."""
        heads = self._heads(f"{part}_proj", x)
        return self.self_attn[f"{part}_norm"](heads.float()).to(heads.dtype)  # type: ignore[no-any-return]

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return self.self_attn[name](x).unflatten(-1, (-1, self._head_dim))  # type: ignore[no-any-return]


def _turned(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (each.to(heads.dtype) for each in turns)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def block_sums(head: BlockModule, teacher: Teacher, window: Window, weights: Tensor) -> StepSums:
    """The cross-entropy of each row against the target's distribution, and of the confidence against the overlap of
    both, which is the probability that a draft is accepted; `weights` [block] of their sums.

    The token before a row is the answer's own, as in drafts whose earlier tokens were accepted.
    """
    places = Places.of(window, teacher)
    states, before = head.states(window), head.before(window)

    def foreseen(values: Tensor) -> Tensor:
        return torch.stack([places.from_starts(values[:, :, row], row + 1) for row in range(len(weights))])

    states, before = foreseen(states), foreseen(before)
    following = head.markov_head["markov_w2"].weight
    assert isinstance(following, Tensor)
    matrix = torch.cat([head.lm_head.weight, following], dim=1)
    drafted = torch.cat([states, before.to(states.dtype)], dim=-1)
    found = compared(drafted, matrix, weights, teacher, places, overlap=True)
    sure = head.confidence(states.detach(), before.detach()).to(found.overlaps.dtype)
    doubts = F.binary_cross_entropy_with_logits(sure, found.overlaps, reduction="none")
    doubts = (doubts * places.counted(len(weights))).sum(-1)
    return StepSums(found.loss + (doubts * weights).sum(), found.losses.sum(-1) + doubts.detach(), found.right.sum(-1))
