"""Past outputs of tenants, from which drafts copy. They are kept in memory only.

After Oliaro et al., "SuffixDecoding: A Model-Free Approach to Speeding Up Large Language Model Inference" (2024).
Unlike there, past outputs are searched as they are: there is no suffix tree to update or to erase from.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np

from services.generation.drafting.acceptance import PAST, Acceptance
from services.generation.drafting.copies import END, LONGEST, Copies, OwnText, copies_from
from services.generation.engine.request import EngineRequest, RequestKey
from services.generation.target.arrays import Int64

MOST_TOKENS = 16_384  # of the outputs of one tenant with one adapter: the newest are kept
MOST_PASTS = 256  # tenants with an adapter: the least recently used one is forgotten
_PLACES = 16  # that are looked at
_SHORTEST = 2  # tokens of a match


class Past:
    """The newest outputs of one tenant with one adapter, and how often copies have held for them.

    Tenants share neither, so that not even the speed of one depends on another. `add` and `forget` exclude
    each other; `text` may be read at any time.
    """

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()
        self.text: Int64 = np.zeros(0, np.int64)  # all outputs, the newest one last, END behind each
        self._buffer, self._end = self.text, 0  # `text` ends at a place of the buffer, behind which is room for more
        self._outputs: dict[RequestKey, Int64] = {}
        self._lock = Lock()

    def copies(self, text: OwnText) -> Copies:
        """Copies of what followed the end of a text in the outputs."""
        return copies_from(self.text, PAST, text.end(LONGEST), _SHORTEST, _PLACES)

    def add(self, key: RequestKey, tokens: list[int]) -> None:
        """Keep the tokens that a request emitted, the last ones of a long output; once, if several methods add it."""
        output = np.array([*tokens[1 - MOST_TOKENS :], END], np.int64)
        with self._lock:
            if key in self._outputs:
                if np.array_equal(self._outputs[key], output):
                    return
                del self._outputs[key]
                self._join()
            while len(self.text) + len(output) > MOST_TOKENS:
                self.text = self.text[len(self._outputs.pop(next(iter(self._outputs)))) :]
            self._outputs[key] = output
            self._append(output)

    def _append(self, output: Int64) -> None:
        size = len(self.text) + len(output)
        if self._end + len(output) > len(self._buffer):
            self._buffer = np.concatenate([self.text, np.zeros(size, np.int64)])
            self._end = len(self.text)
        self._buffer[self._end : self._end + len(output)] = output
        self._end += len(output)
        self.text = self._buffer[self._end - size : self._end]

    def forget(self, key: RequestKey | None) -> None:
        """Forget the output of one request, or all."""
        with self._lock:
            if key is None:
                self._outputs.clear()
            else:
                self._outputs.pop(key, None)
            self._join()

    def _join(self) -> None:
        self.text = self._buffer = np.concatenate([np.zeros(0, np.int64), *self._outputs.values()])
        self._end = len(self.text)


class Pasts:
    """The past outputs of at most 256 tenants with an adapter, 16,384 tokens of each; one set for all methods."""

    def __init__(self) -> None:
        self._pasts: OrderedDict[tuple[str, str | None], Past] = OrderedDict()
        self._without_tenant = Acceptance()
        self._lock = Lock()

    def of(self, request: EngineRequest) -> Past:
        """The past outputs that a request copies from and adds to. A request without a tenant has its own, and they end
        with it.
        """
        if request.tenant is None:
            return Past(self._without_tenant)
        whose = request.tenant, request.adapter
        with self._lock:
            past = self._pasts.setdefault(whose, Past())
            self._pasts.move_to_end(whose)
            if len(self._pasts) > MOST_PASTS:
                self._pasts.popitem(last=False)
        return past

    def forget(self, tenant: str, request: RequestKey | None = None) -> None:
        """Forget a tenant's output of one request, or all."""
        with self._lock:
            whose = [each for each in self._pasts if each[0] == tenant]
            for each in whose:
                self._pasts[each].forget(request)
                if request is None:
                    del self._pasts[each]
