"""Features of the target that are kept with cached blocks, for the drafters of sequences that begin with these."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.prefixes.place import PrefixNode

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Kept:
    layers: tuple[int, ...]
    features: Float32  # [BLOCK, layers * hidden]


class KeptFeatures:
    """Features by block, up to a number of bytes; the least recently used are dropped first.

    A sequence reads features from its first token on, so a block is of no use without those before it: use of a block
    is use of all of them, and of one prefix the end is dropped before the beginning.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[PrefixNode, _Kept] = OrderedDict()  # the longest unused first
        self.bytes = 0

    def keep(self, node: PrefixNode, layers: tuple[int, ...], features: Float32) -> None:
        """Keep `features` in place of what `node` had, if there is room once older ones are dropped."""
        self.drop(node)
        if features.nbytes > self._most:
            return
        self._kept[node] = _Kept(layers, features)
        self.bytes += features.nbytes
        self.use(node)
        while self.bytes > self._most:
            self.drop(next(iter(self._kept)))

    def of(self, node: PrefixNode, layers: tuple[int, ...]) -> Float32 | None:
        """Those of `layers`; None where others, or none, are kept."""
        kept = self._kept.get(node)
        return kept.features if kept is not None and kept.layers == layers else None

    def use(self, node: PrefixNode) -> None:
        """A sequence is at the end of `node`."""
        for each in node.upwards():
            if each in self._kept:
                self._kept.move_to_end(each)

    def drop(self, node: PrefixNode) -> None:
        """Forget those of `node`, if there are any."""
        kept = self._kept.pop(node, None)
        if kept is not None:
            self.bytes -= kept.features.nbytes
