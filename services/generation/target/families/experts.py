"""Experts (Shazeer et al. 2017): MLPs of which every row takes a few, as a model's configuration has them."""

from __future__ import annotations

from dataclasses import dataclass

MOST_EXPERTS = 4096  # of a layer: eight times what any published model has; each is described before a weight is read


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer: the router, and those of one expert with its number for {}."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class BesideNames:
    """Vectors of a layer whose experts stand beside its MLP (Gemma 4): each has norms, and they are added up."""

    router_norm: str  # multiplied with hidden_size^(-1/2)
    norm: str  # of the experts' input
    after: str  # of their output
    after_mlp: str  # of the MLP's output
    scales: str  # what the share of each expert is multiplied with


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts of a layer as one tensor in safetensors: gate and up together, and down."""

    module: str  # that holds `gate_up_proj` and `down_proj`
    transposed: bool  # matrices are [in, out]
    interleaved: bool  # outputs of gate and up take turns; otherwise gate's come first


@dataclass(frozen=True, slots=True)
class Clamp:
    """Bounds of gate and up (`docs/numerics.md`, clamped)."""

    slope: float
    limit: float


@dataclass(frozen=True, slots=True)
class Experts:
    """`chosen` of `count` experts compute a row; each has `size` inner activations."""

    names: ExpertNames
    layers: tuple[bool, ...]  # which have experts in place of one MLP
    count: int
    chosen: int
    size: int
    normalised: bool  # shares of the chosen sum to one, not those of all
    bias: bool = False  # of the router and of all modules
    sigmoid: bool = False  # a share is the sigmoid of its logit, and scales what the expert reads
    shared: int = 0  # inner activations of an expert beside those chosen, or 0
    beside: BesideNames | None = None  # the MLP, not in its place
