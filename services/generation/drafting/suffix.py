"""Suffix decoding: drafts are text that followed the same words in the tenant's own past outputs, or in the request.

After Oliaro et al., "SuffixDecoding: A Model-Free Approach to Speeding Up Large Language Model Inference" (2024).
Unlike there, past outputs are searched as they are: there is no suffix tree to update or to erase from.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np

from services.generation.drafting.acceptance import PAST, Acceptance
from services.generation.drafting.copies import END, LONGEST, Copies, OwnText, copies_from
from services.generation.drafting.method_spec import MethodSpec
from services.generation.drafting.text_draft import TextDraft
from services.generation.engine.drafter import Drafter, tried
from services.generation.engine.request import EngineRequest, RequestKey, SamplingParams
from services.generation.target.arrays import Int64

MOST_TOKENS = 16_384  # of the outputs of one tenant with one adapter: the newest are kept
MOST_PASTS = 256  # tenants with an adapter: the least recently used one is forgotten
_OWN, _PAST = 8, 16  # places that are looked at in the own text, and in past outputs
_SHORTEST = 2  # tokens of a match in past outputs


class Past:
    """The newest outputs of one tenant with one adapter, and how often copies have held for them.

    Tenants share neither, so that not even the speed of one depends on another. `add` and `forget` exclude
    each other; `text` may be read at any time.
    """

    def __init__(self) -> None:
        self.acceptance = Acceptance()
        self.text: Int64 = np.zeros(0, np.int64)  # all outputs, the newest one last, END behind each
        self._outputs: list[tuple[RequestKey, Int64]] = []
        self._lock = Lock()

    def add(self, key: RequestKey, tokens: list[int]) -> None:
        """Keep the tokens that a request emitted, the last ones of a long output."""
        with self._lock:
            self._outputs.append((key, np.array([*tokens[1 - MOST_TOKENS :], END], np.int64)))
            while sum(len(output) for _, output in self._outputs) > MOST_TOKENS:
                del self._outputs[0]
            self._join()

    def forget(self, key: RequestKey | None) -> None:
        """Forget the output of one request, or all."""
        with self._lock:
            self._outputs = [] if key is None else [kept for kept in self._outputs if kept[0] != key]
            self._join()

    def _join(self) -> None:
        self.text = np.concatenate([np.zeros(0, np.int64), *(output for _, output in self._outputs)])


class SuffixDrafter(Drafter):
    """The method. It keeps outputs in memory only: at most 16,384 tokens of each of 256 tenants with an adapter."""

    negligible_cost = True

    def __init__(self) -> None:
        self._pasts: OrderedDict[tuple[str, str | None], Past] = OrderedDict()
        self._lock = Lock()
        tried(self.begin(EngineRequest("", (0, 0), SamplingParams())))

    def begin(self, request: EngineRequest) -> SuffixDraft:
        return SuffixDraft(request, self._past(request))

    def _past(self, request: EngineRequest) -> Past:
        """The past outputs that a request copies from and adds to. A request without a tenant has its own, and they end
        with it.
        """
        if request.tenant is None:
            return Past()
        whose = request.tenant, request.adapter
        with self._lock:
            past = self._pasts.setdefault(whose, Past())
            self._pasts.move_to_end(whose)
            if len(self._pasts) > MOST_PASTS:
                self._pasts.popitem(last=False)
        return past

    def forget(self, tenant: str, request: RequestKey | None = None) -> None:
        with self._lock:
            whose = [each for each in self._pasts if each[0] == tenant]
            for each in whose:
                self._pasts[each].forget(request)
                if request is None:
                    del self._pasts[each]


class SuffixDraft(TextDraft):
    """Suffix decoding of one sequence."""

    def __init__(self, request: EngineRequest, past: Past) -> None:
        super().__init__(request, past.acceptance, self._look_up)
        self._request, self._past = request, past

    def _look_up(self, text: OwnText) -> list[Copies]:
        """Copies from the own text, then from past outputs."""
        past = copies_from(self._past.text, PAST, text.end(LONGEST), _SHORTEST, _PAST)
        return [text.copies(_OWN), past]

    def finish(self, tokens: list[int]) -> None:
        self._past.add(self._request.key, tokens[len(self._request.prompt) :])


METHOD = MethodSpec(
    name="suffix",
    meaning="what followed the same words in the tenant's own past outputs",
    by_name_only=True,  # it keeps text beyond a request, which a caller has to ask for
    build=lambda _: {"suffix": SuffixDrafter()},
)
