"""The part of a model that each of several ranks holds: outputs of linear layers, heads, tokens of the vocabulary.

An output belongs to one rank, which computes the whole of its sum; a sum is never shared out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import ExpertsSpec, LayerSpec, ModuleSpec, layer_specs
from services.generation.target.errors import RanksUnsupported

Modules = tuple[ModuleSpec, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's, of `ranks`. By default there is one, which holds everything."""

    rank: int = 0
    ranks: int = 1

    def all(self, count: int) -> tuple[range, ...]:
        """Which of `count` things each rank holds, as evenly as can be; the first ranks hold the more."""
        borders = [-(-count * rank // self.ranks) for rank in range(self.ranks + 1)]
        return tuple(range(first, last) for first, last in pairwise(borders))

    def of(self, count: int) -> range:
        """This rank's part of them."""
        return self.all(count)[self.rank]


def check_share(config: TargetConfig, share: Share) -> None:
    """Raises RanksUnsupported where a rank would hold no output of some layer."""
    sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
    for spec in layer_specs(config):
        for modules in (spec.down, *(spec.experts.down if spec.experts else ())):
            sizes |= {f"inputs of {modules[0].name}": modules[0].inputs} if modules else {}
    name, least = min(sizes.items(), key=lambda item: item[1])
    if share.ranks > least:
        raise RanksUnsupported(f"--tensor-parallel: {share.ranks} ranks; expected at most {least}, the model's {name}")


def held(spec: LayerSpec, share: Share) -> LayerSpec:
    """The part of a layer that a rank holds: whole heads of keys with their query heads, outputs of other modules.

    Inputs stay whole. A rank may hold no head where there are more ranks than key heads. Routers, norms and what makes
    use of the inputs of a layer are held by all.
    """
    if share.ranks == 1:
        return spec
    sharing, dim, kv = spec.heads // spec.kv_heads, spec.head_dim, share.of(spec.kv_heads)
    by_rank = tuple(_scaled(each, sharing) for each in share.all(spec.kv_heads))
    heads = by_rank[share.rank]
    parts = [spec.heads] if spec.source is not None else [spec.heads, spec.kv_heads, spec.kv_heads]
    chosen = [_scaled(each, dim) for each in (heads, kv, kv)[: len(parts)]]
    return replace(
        spec,
        qkv=_chosen(spec.qkv, [dim * count for count in parts], chosen),
        output=_outputs(spec.output, share),
        gate_up=_halves(spec.gate_up, share),
        down=_outputs(spec.down, share),
        experts=_experts(spec.experts, share) if spec.experts else None,
        heads=len(heads),
        kv_heads=len(kv),
        first_head=heads.start,
        ranks_heads=by_rank,
    )


def _experts(spec: ExpertsSpec, share: Share) -> ExpertsSpec:
    """A part of every expert, so that ranks have as much to do whichever experts are chosen."""
    return replace(
        spec,
        gate_up=tuple(_halves(modules, share) for modules in spec.gate_up),
        down=tuple(_outputs(modules, share) for modules in spec.down),
    )


def _outputs(modules: Modules, share: Share) -> Modules:
    return tuple(_chosen((each,), [each.outputs], [share.of(each.outputs)])[0] for each in modules)


def _halves(modules: Modules, share: Share) -> Modules:
    """Of gate and up, two modules or one, the same outputs."""
    size = sum(module.outputs for module in modules) // 2
    return _chosen(modules, [size, size], [share.of(size)] * 2) if modules else ()


def _chosen(modules: Modules, sizes: Sequence[int], chosen: Sequence[range]) -> Modules:
    """Modules with the chosen outputs of each of their parts, which have these sizes and are one module or one each."""
    if len(modules) == len(sizes):
        return tuple(_holding(module, (rows,)) for module, rows in zip(modules, chosen, strict=True))
    starts = accumulate(sizes[:-1], initial=0)
    rows = tuple(range(start + c.start, start + c.stop) for start, c in zip(starts, chosen, strict=True))
    return (_holding(modules[0], rows),)


def _holding(module: ModuleSpec, rows: tuple[range, ...]) -> ModuleSpec:
    return replace(module, outputs=sum(len(each) for each in rows), rows=rows)


def _scaled(numbers: range, factor: int) -> range:
    return range(factor * numbers.start, factor * numbers.stop)
