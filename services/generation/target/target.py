"""The seam between the engine and a model: rows in, logits out, bit for bit the same whatever runs beside a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.generation.target.adapters import AdapterIdentity
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BlockPool
from services.generation.target.config.config import TargetConfig
from services.generation.target.rows import Rows


@dataclass(frozen=True, slots=True)
class KernelReport:
    """`compared` outputs, the descriptions of those that differed."""

    compared: int
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Results of a pass, float32. Reading features changes no bit of the logits."""

    logits: Float32  # [wanted rows, vocab_size]
    features: Float32  # [rows, layers asked for * hidden_size], of every row, wanted or not


class Target(Protocol):
    """A loaded model with its key/value cache. Used by one thread.

    Guarantee that the probe checks: the logits of a row depend on the tokens that the row sees and on the adapter of
    its sequence, and on nothing else. A row without one has the same bits whether or not adapters are loaded.
    """

    config: TargetConfig
    blocks: BlockPool
    base_cid: str
    tokenizer_cid: str
    adapters: tuple[AdapterIdentity, ...]  # those loaded; `Rows.adapter_slots` are indexes into them
    threads: int  # of the CPU that a pass may take, and so may what drafts before it
    numerics: Mapping[str, Any]  # the program that computes its bits, for the profile: JSON values

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """Compute a pass: stores keys and values of all rows.

        Feature layer i is the residual stream after i decoder layers, not normalised: 0 are the embeddings, and up to
        `config.layers` - 1 it is transformers' `hidden_states[i]`. Features stand side by side in the order asked for.
        """
        ...

    def probe_kernels(self) -> KernelReport:
        """Compare single operations at all sizes that passes may have; uses a free part of the cache."""
        ...

    def embed(self, tokens: Int64) -> Float32:
        """Token embeddings, [n] ids to [n, hidden_size] float32; drafters on this model's features read them too."""
        ...

    def unembed(self, states: Float32) -> Float32:
        """What the output matrix makes of normed states, [n, hidden_size] to [n, vocab_size] float32: the logits of
        drafters that have no output matrix of their own.
        """
        ...

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Copy cache slots, in the order given: the accepted path of a tree becomes the sequence."""
        ...

    def block_content(self, block: int) -> bytes:
        """All that the cache holds in a block; as many bytes for every block."""
        ...

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        """Make a block hold what `block_content` of a target of the same numerics has returned."""
        ...


class LoadTarget(Protocol):
    """`services.generation.target.cpu.load_target`, or what a test puts in its place."""

    def __call__(
        self,
        directory: Path,
        *,
        context_length: int | None = None,
        cache_tokens: int | None = None,
        cache_bytes: int | None = None,
        adapters: Mapping[str, Path] | None = None,
    ) -> Target: ...
