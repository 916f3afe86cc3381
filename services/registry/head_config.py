"""config.json of a head in kolm's layout (kolm.eagle3.v1), and what follows from it: the tensors that must be there."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.encoding.canonical import parse_json
from ledger.encoding.fields import Fields, checked_integer
from ledger.errors import FormatError

LAYOUT = "kolm.eagle3.v1"
MAX_CONFIG_BYTES = 1024 * 1024

_LARGEST = 2**24  # of any size in a head; keeps products of two of them exact
_MOST_LAYERS = 64


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The sizes and choices that decide about names and shapes. Sizes in elements."""

    layers: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    own_embeddings: bool
    norm_before_fc: bool
    fc_norm: bool

    @classmethod
    def from_bytes(cls, data: bytes) -> HeadConfig:
        """Raises FormatError naming the member that is wrong, `layout` where it is another layout than kolm's."""
        fields = Fields(parse_json(data, "config.json"))
        if not fields.has("layout") or fields.read("layout") != LAYOUT:
            raise FormatError("layout", f"expected {LAYOUT!r}; `kolm heads convert` writes it from other layouts")

        def size(name: str) -> int:
            return fields.integer(name, 1, _LARGEST)

        return cls(
            layers=fields.integer("num_hidden_layers", 1, _MOST_LAYERS),
            hidden_size=size("hidden_size"),
            target_hidden_size=size("target_hidden_size"),
            intermediate_size=size("intermediate_size"),
            heads=size("num_attention_heads"),
            kv_heads=size("num_key_value_heads"),
            head_dim=size("head_dim"),
            vocab_size=size("vocab_size"),
            draft_vocab_size=size("draft_vocab_size"),
            feature_layers=tuple(
                checked_integer(layer, "feature_layers", 0, _LARGEST) for layer in fields.array("feature_layers")
            ),
            attention_bias=fields.boolean("attention_bias"),
            output_bias=fields.boolean("output_bias"),
            mlp_bias=fields.boolean("mlp_bias"),
            head_norms=fields.boolean("head_norms"),
            own_embeddings=fields.boolean("own_embeddings"),
            norm_before_fc=fields.boolean("norm_before_fc"),
            fc_norm=fields.boolean("fc_norm"),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every float tensor; weights are [out, in]."""
        features = len(self.feature_layers) * self.target_hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (self.hidden_size, features),
            "norm.weight": (self.hidden_size,),
            "lm_head.weight": (self.draft_vocab_size, self.hidden_size),
        }
        if self.own_embeddings:
            shapes["embed_tokens.weight"] = (self.vocab_size, self.hidden_size)
        if self.norm_before_fc:
            shapes["input_norm.weight"] = (features,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden_size,) for i in range(len(self.feature_layers))}
        for layer in range(self.layers):
            shapes |= self._layer(layer)
        return shapes

    def _layer(self, layer: int) -> dict[str, tuple[int, ...]]:
        prefix = f"layers.{layer}." if layer else "midlayer."
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys, read = self.heads * self.head_dim, self.kv_heads * self.head_dim, hidden if layer else 2 * hidden
        norms = ("input_layernorm", "post_attention_layernorm", *(() if layer else ("hidden_norm",)))
        shapes: dict[str, tuple[int, ...]] = {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
        if self.head_norms:
            shapes |= {f"{prefix}self_attn.{norm}.weight": (self.head_dim,) for norm in ("q_norm", "k_norm")}
        linears = {
            "self_attn.q_proj": (queries, read, self.attention_bias),
            "self_attn.k_proj": (keys, read, self.attention_bias),
            "self_attn.v_proj": (keys, read, self.attention_bias),
            "self_attn.o_proj": (hidden, queries, self.output_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        return shapes
