"""The head's pass computes the described layers: compared with float64 code, line by line."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.loading import load_head
from services.generation.drafting.stepping.entry_pass import _KEPT, HeadOutput, KeptEmbeddings
from services.generation.target.arrays import Float32
from services.generation.target.config.config import TargetConfig
from services.generation.target.rows import RowsBuilder
from tests.fakes.heads import head_config, write_kolm, write_safeailab, write_speculators
from tests.fakes.rows import tree_rows

LENGTH = 70  # entries; crosses a cache block
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StraightLine:
    """The head in double precision, without a cache: `tensors` by name, `c` its configuration."""

    tensors: Tensors
    c: Any

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean() + self.c.norm_epsilon) * self.tensors[f"{name}.weight"]

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.tensors[f"{name}.weight"] @ x + self.tensors.get(f"{name}.bias", torch.zeros(()))

    def rotated(self, head: torch.Tensor, position: int) -> torch.Tensor:
        half = self.c.head_dim // 2
        angles = position * torch.tensor([self.c.rope["rope_theta"] ** (-i / half) for i in range(half)]).double()
        low, high = head[:half], head[half:]
        return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()])

    def fused(self, stream: torch.Tensor) -> torch.Tensor:
        """The first layer's feature."""
        if self.c.norm_before_fc:
            stream = self.norm(stream, "input_norm")
        if self.c.fc_norm:
            parts = stream.split(self.c.target_hidden_size)
            stream = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        return self.linear(stream, "fc")

    def attended(self, x: torch.Tensor, p: str, cached: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Attention over `cached` keys and values, to which the keys and values of x are added."""
        c, position = self.c, len(cached)
        q = self.linear(x, p + "self_attn.q_proj").reshape(c.heads, c.head_dim)
        k = self.linear(x, p + "self_attn.k_proj").reshape(c.kv_heads, c.head_dim)
        v = self.linear(x, p + "self_attn.v_proj").reshape(c.kv_heads, c.head_dim)
        if c.head_norms:
            q = torch.stack([self.norm(head, p + "self_attn.q_norm") for head in q])
            k = torch.stack([self.norm(head, p + "self_attn.k_norm") for head in k])
        cached.append((torch.stack([self.rotated(head, position) for head in k]), v))
        mixed = []
        for h in range(c.heads):
            g = h // (c.heads // c.kv_heads)
            keys, values = (torch.stack([pair[which][g] for pair in cached]) for which in range(2))
            weights = torch.softmax(keys @ self.rotated(q[h], position) / math.sqrt(c.head_dim), dim=0)
            mixed.append(weights @ values)
        return self.linear(torch.cat(mixed), p + "self_attn.o_proj")


def straight_line(
    tensors: Tensors, embeddings: torch.Tensor, features: torch.Tensor, tokens: list[int], drafted: list[int], c: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """States and draft logits after every entry, then after each drafted token fed back on the state before it.

    Everything is computed one entry after the other.
    """
    head = StraightLine({name: tensor.double() for name, tensor in tensors.items()}, c)
    inputs = [head.fused(stream.double()) for stream in features]
    cached: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(c.layers)]
    states, logits = [], []
    for position, token in enumerate([*tokens, *drafted]):
        hidden = inputs[position] if position < len(tokens) else states[-1]
        for layer in range(c.layers):
            p = "midlayer." if layer == 0 else f"layers.{layer}."
            if layer == 0:
                embedded = head.norm(embeddings[token].double(), p + "input_layernorm")
                feature = head.norm(hidden, p + "hidden_norm")
                residual, x = (feature if c.norm_before_residual else hidden), torch.cat([embedded, feature])
            else:
                residual, x = hidden, head.norm(hidden, p + "input_layernorm")
            residual = residual + head.attended(x, p, cached[layer])
            x = head.norm(residual, p + "post_attention_layernorm")
            gate = head.linear(x, p + "mlp.gate_proj")
            inner = gate * torch.sigmoid(gate) * head.linear(x, p + "mlp.up_proj")
            hidden = residual + head.linear(inner, p + "mlp.down_proj")
        final = head.norm(hidden, "norm")
        states.append(final if c.norm_output else hidden)
        logits.append(head.linear(final, "lm_head"))
    return torch.stack(states), torch.stack(logits)


def computed(
    directory: Path, base: TargetConfig, embeddings: torch.Tensor, features: Float32, tokens: list[int],
    drafted: list[int], chunk: int, arithmetic: str = "float32",
) -> tuple[Float32, Float32]:  # fmt: skip
    """The same by `HeadPass`: entries in chunks, then one drafted token at a time."""
    table_of_embeddings = embeddings.numpy()
    loaded, length = load_head(directory, base), base.context_length
    head = HeadPass(loaded, lambda ids: table_of_embeddings[ids], 5, length, arithmetic=arithmetic)
    table: list[int] = []
    head.blocks.extend(table, len(tokens) + len(drafted))
    states, logits = [], []
    for at in range(0, len(tokens), chunk):
        rows = tree_rows(table, at, tokens[at : at + chunk])
        out = head.read(rows, features[at : at + chunk])
        states.append(out.states.copy())
        logits.append(out.logits.copy())
    for number, token in enumerate(drafted):
        out = head.step(tree_rows(table, len(tokens) + number, [token]), states[-1][-1:])
        states.append(out.states.copy())
        logits.append(out.logits.copy())
    return np.concatenate(states), np.concatenate(logits)


CHOICES: dict[str, tuple[Callable[..., Tensors], dict[str, Any]]] = {
    "kolm": (write_kolm, {}),
    "kolm, wide heads of their own": (write_kolm, {"head_dim": 24, "heads": 6, "kv_heads": 2}),
    "kolm, biases": (write_kolm, {"attention_bias": True, "output_bias": True, "mlp_bias": True}),
    "kolm, own embeddings": (write_kolm, {"own_embeddings": True, "hidden_size": 48}),
    "kolm, head norms": (write_kolm, {"head_norms": True}),
    "kolm, three layers": (write_kolm, {"layers": 3}),
    "kolm, five streams": (write_kolm, {"feature_layers": (0, 8, 3, 4, 5)}),
    "safeailab": (write_safeailab, {}),
    "safeailab, newer": (write_safeailab, {"fc_norm": True, "norm_output": True}),
    "speculators": (write_speculators, {"norm_before_residual": True}),
    "speculators, gpt-oss": (write_speculators, {"norm_before_residual": True, "norm_before_fc": True}),
    "speculators, two layers": (write_speculators, {"layers": 2, "norm_before_residual": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CHOICES)
def test_the_head_computes_what_the_description_says(case: str, base: TargetConfig, tmp_path: Path) -> None:
    compare(case, base, tmp_path, "float32", 1e-5)


@pytest.mark.parametrize("case", ["kolm", "kolm, biases", "kolm, own embeddings"])
def test_in_4_bits_it_computes_about_that(case: str, base: TargetConfig, tmp_path: Path) -> None:
    """Where rows of 48 weights are no whole number of blocks, matrices stay as they are."""
    compare(case, base, tmp_path, "int8", 0.35)


def compare(case: str, base: TargetConfig, directory: Path, arithmetic: str, error: float) -> None:
    """`error` as a share of the largest logit and state."""
    write, choices = CHOICES[case]
    tensors = write(directory, head_config(base, **choices))
    config = load_head(directory, base).config
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(base.vocab_size, (LENGTH,), generator=random).tolist()
    drafted = torch.randint(base.vocab_size, (5,), generator=random).tolist()
    width = len(config.feature_layers) * config.target_hidden_size
    features = torch.randn(LENGTH, width, generator=random)
    embeddings = tensors.get("embed_tokens.weight", torch.randn(base.vocab_size, base.hidden_size, generator=random))
    expected = straight_line(tensors, embeddings, features, tokens, drafted, config)
    for chunk in (1, 7, LENGTH):
        found = computed(directory, base, embeddings, features.numpy(), tokens, drafted, chunk, arithmetic)
        for got, exact in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, exact.numpy(), rtol=0, atol=error * float(exact.abs().max()))


def kept(out: HeadOutput) -> HeadOutput:
    """A pass's output that outlives the next pass."""
    return HeadOutput(out.states.copy(), out.logits.copy())


@pytest.mark.parametrize("case", ["kolm", "kolm, head norms", "kolm, three layers"])
def test_rows_without_a_wanted_output_are_stored_too(case: str, base: TargetConfig, tmp_path: Path) -> None:
    write, choices = CHOICES[case]
    write(tmp_path, head_config(base, **choices))
    random = np.random.default_rng(5)
    embeddings = random.standard_normal((base.vocab_size, base.hidden_size)).astype(np.float32)
    found = []
    for every in (True, False):
        head = HeadPass(load_head(tmp_path, base), lambda ids: embeddings[ids], 4, base.context_length)
        features = np.random.default_rng(6).standard_normal((9, 3 * base.hidden_size)).astype(np.float32)
        table: list[int] = []
        head.blocks.extend(table, 9)
        out = []
        for first, last in ((0, 4), (4, 9)):
            rows = RowsBuilder()
            if every:
                rows.add_tree(table, first, range(first, last), range(-1, last - first - 1))
            else:
                rows.add_chunk(table, first, list(range(first, last)), True)
            out.append(kept(head.read(rows.build(), features[first:last])))
        found.append([(part.states[-1], part.logits[-1]) for part in out])
        assert every or all(len(part.states) == len(part.logits) == 1 for part in out)
    for whole, alone in zip(*found, strict=True):
        for expected, got in zip(whole, alone, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_more_rows_than_a_pass_has_room_for_are_those_read_one_after_another(
    base: TargetConfig, tmp_path: Path
) -> None:
    write_kolm(tmp_path, head_config(base, layers=2))
    random = np.random.default_rng(5)
    embeddings = torch.from_numpy(random.standard_normal((base.vocab_size, base.hidden_size)).astype(np.float32))
    features = random.standard_normal((300, 3 * base.hidden_size)).astype(np.float32)
    tokens = random.integers(0, base.vocab_size, 300).tolist()
    found = [computed(tmp_path, base, embeddings, features, tokens, [], chunk) for chunk in (300, 44)]
    for whole, parts in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, parts)


def test_kept_embeddings_are_those_of_the_table_also_where_two_tokens_share_a_place() -> None:
    table = np.random.default_rng(3).standard_normal((3 * _KEPT, 4)).astype(np.float32)
    kept, rng = KeptEmbeddings(lambda ids: table[ids], 4), np.random.default_rng(4)
    for _ in range(50):
        tokens = rng.integers(0, 8, 20) + _KEPT * rng.integers(0, 3, 20)
        found = np.empty((20, 4), np.float32)
        kept.read(tokens, found)
        np.testing.assert_array_equal(found, table[tokens])
