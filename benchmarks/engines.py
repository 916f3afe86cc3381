"""kolm's engine as a contender, the protocol of contenders, and the demo's questions for them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.method_spec import DrafterInputs
from services.generation.drafting.methods import METHODS, load_head
from services.generation.drafting.rest import RestDrafter
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Drafter
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.turns import Gains
from services.generation.target.cpu import load_target
from services.generation.target.timing import time_keys, time_passes, time_seen

KINDS = ("question", "code", "rewrite", "summary", "data", "maths")
_FILE = Path(__file__).parents[1] / "demo" / "main_job" / "questions.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    """One timed call: seconds from the prompts to the last token, and the output tokens of each prompt."""

    seconds: float
    tokens: list[tuple[int, ...]]
    digests: tuple[str, ...]  # stream digests of the answers
    mean_acceptance_length: float = 1.0
    passes_by_method: tuple[tuple[str, int], ...] = ()
    decode_seconds: float = 0.0  # kolm: of the slowest request, from its first token to its last

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


class Contender(Protocol):
    name: str

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Run:
        """Generate for all prompts together."""
        ...


class KolmEngine:
    """kolm's engine without its service: the code that serves, so that only decoding is timed."""

    def __init__(
        self, directory: Path, head: Path | None = None, arithmetic: str | None = None, store: Path | None = None
    ) -> None:
        """`store`: a datastore for `rest`, opened without its search for similar passages."""
        self.settings = EngineSettings()
        self.target = load_target(directory, arithmetic=arithmetic)
        self.tokenizer = Tokenizer(directory)
        self.cost = PassCost.measured(time_passes(self.target).samples, time_keys(self.target), time_seen(self.target))
        self.drafters: dict[str, Drafter] = {"lookahead": LookaheadDrafter()}
        if head is not None:
            loaded = load_head(head, self.target.config)
            (method,) = (method for method in METHODS if method.name == loaded.kind)
            inputs = DrafterInputs(directory, self.target, self.tokenizer, load_target, {loaded.kind: loaded})
            self.drafters |= method.build(inputs)
        if store is not None:
            opened = Datastore.open(store, directory, self.target.tokenizer_cid, near=False)
            self.drafters["rest"] = RestDrafter({None: [opened]})

    def contender(self, method: str, name: str | None = None, **options: Any) -> Kolm:
        """A contender that drafts by `method`; `options` are further members of its EngineRequest."""
        return Kolm(self, name or method, {"method": method, **options})


class Kolm:
    def __init__(self, engine: KolmEngine, name: str, options: dict[str, Any]) -> None:
        self.name = f"kolm {name}"
        self._engine, self._options, self._gains = engine, options, Gains()

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Run:
        engine = self._engine
        sampling = SamplingParams(temperature=temperature, seed=7, max_tokens=max_tokens)
        outcomes: dict[str, Outcome] = {}

        def sink(event: Event) -> None:
            if isinstance(event, Finished):
                outcomes[event.request_id] = event.outcome

        start = time.perf_counter()
        core = EngineCore(
            engine.target, engine.drafters, engine.tokenizer.stream, engine.cost, engine.settings, time.perf_counter,
            self._gains,
        )  # fmt: skip
        for number, prompt in enumerate(prompts):
            asked = EngineRequest(str(number), tuple(prompt), sampling, **self._options)
            core.add(asked, sink)
        while not core.idle:
            core.step()
        seconds = time.perf_counter() - start
        ended = [outcomes[str(number)] for number in range(len(prompts))]
        passes = sum(outcome.metrics.target_passes for outcome in ended)
        return Run(
            seconds=seconds,
            tokens=[outcome.token_ids for outcome in ended],
            digests=tuple(outcome.stream_digest for outcome in ended),
            mean_acceptance_length=sum(len(outcome.token_ids) for outcome in ended) / max(passes, 1),
            passes_by_method=tuple(
                (method, passes) for outcome in ended for method, passes in outcome.metrics.passes_by_method
            ),
            decode_seconds=max(outcome.metrics.decode_seconds for outcome in ended),
        )


def conversations(kind: str, count: int) -> list[list[dict[str, str]]]:
    """The first `count` conversations of a kind, as messages with role and content."""
    entries = map(json.loads, _FILE.read_text(encoding="utf-8").splitlines())
    return [entry["messages"] for entry in entries if entry["kind"] == kind][:count]


def load_prompts(kind: str, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """The prompts of `conversations` as token ids."""
    return [tokenizer.encode_chat(messages) for messages in conversations(kind, count)]
