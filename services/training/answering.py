"""The target's own answers to prompts, and its streams while it answered: a head learns the answers.

A head has to predict the target's output: other text would teach it another distribution. The streams are outputs of
the engine's passes, so that recording them costs no further pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice

import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Draft, Drafter
from services.generation.engine.events import Event, Finished
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.target import Target
from services.generation.target.unread import LogitRows
from services.training.prompts import Answer, Prompt

_AT_ONCE = 64
_MOST_ROWS = 256
_UNTIMED = PassCost.line(fixed=1.0, row=1.0)  # nothing is drafted here, so nothing asks what a row costs

_SETTINGS = EngineSettings(
    max_sequences=_AT_ONCE, max_waiting=2 * _AT_ONCE, max_rows=_MOST_ROWS, prefill_rows=_MOST_ROWS
)


def split(prompts: Iterable[Prompt], share: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """(to train on, held out). A prompt's side depends on its tokens and the seed: its twins go the same way."""
    sides: tuple[list[Prompt], list[Prompt]] = [], []
    for prompt in prompts:
        sides[_draw(prompt.tokens, seed) < share].append(prompt)
    return sides


def _draw(tokens: tuple[int, ...], seed: int) -> float:
    """A number in [0, 1), the same for the same tokens and seed."""
    digest = hashlib.sha256(f"{seed}:{','.join(map(str, tokens))}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True, slots=True)
class Recording:
    """Streams of every token of an answer but its last, whose successor is unknown.

    `features` [tokens - 1, layers * hidden] are the head's inputs; `finals` [output tokens, hidden] the stream after
    the last layer, from the prompt's last token on. Both in bfloat16, as uint16 bits.
    """

    features: NDArray[np.uint16]
    finals: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that a recording needs, and how it is made of them."""

    feature_layers: tuple[int, ...]
    hidden_size: int
    last_layer: int

    @property
    def layers(self) -> tuple[int, ...]:
        return (*self.feature_layers, self.last_layer)

    @property
    def width(self) -> int:
        """Values of a row of features."""
        return len(self.feature_layers) * self.hidden_size

    def recording(self, pieces: Sequence[Float32], prompt: int, output: int) -> Recording:
        """A recording from rows [n, layers * hidden] in the order of positions, prompt + output - 1 at least."""
        rows = np.concatenate(pieces)[: prompt + output - 1]
        return Recording(_half(rows[:, : self.width]), _half(rows[prompt - 1 :, self.width :]))


def _half(streams: Float32) -> NDArray[np.uint16]:
    """bfloat16, rounded to nearest, as its bits."""
    return torch.from_numpy(np.ascontiguousarray(streams)).to(torch.bfloat16).view(torch.uint16).numpy()


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to be answered at a temperature."""

    prompt: Prompt
    temperature: float
    seed: int

    @property
    def id(self) -> str:
        return f"{self.prompt.id}@{self.temperature:g}"


def questions(prompts: Sequence[Prompt], temperatures: Sequence[float], seed: int) -> list[Question]:
    """Prompts take the temperatures in turns."""
    in_turns = zip(prompts, cycle(temperatures), count(seed), strict=False)
    return [Question(prompt, temperature, each) for prompt, temperature, each in in_turns]


def regenerate(
    target: Target, asked: Iterable[Question], max_tokens: int, streams: Streams
) -> Iterator[tuple[Answer, Recording]]:
    """The target's answers with speculation off, in the order in which they end.

    An answer depends on its question alone, and not on the other rows of a batch: an interrupted run continues with the
    remaining questions. Raises InvalidRequest for a question that does not fit the target's context.
    """
    waiting, notebook = iter(asked), Notebook(streams, frozenset(target.config.eos_token_ids), max_tokens)
    core = EngineCore(target, {"record": notebook}, NoText, _UNTIMED, _SETTINGS, lambda: 0.0)
    open_questions: dict[str, Question] = {}
    ended: list[Finished] = []

    def sink(event: Event) -> None:
        if isinstance(event, Finished):
            ended.append(event)

    while True:
        for question in islice(waiting, 2 * _AT_ONCE - len(open_questions)):
            open_questions[question.id] = question
            core.add(_request(question, max_tokens), sink)
        if core.idle:
            return
        core.step()
        for name in notebook.taken_over():
            core.cancel(name)
        for event in ended:
            yield _answered(open_questions.pop(event.request_id), event, notebook)
        ended.clear()


def _request(question: Question, max_tokens: int) -> EngineRequest:
    """One token more than wanted and no end: the notebook ends it, once it has the row of the last token but one."""
    sampling = SamplingParams(
        temperature=question.temperature, seed=question.seed, max_tokens=max_tokens + 1, ignore_eos=True
    )
    return EngineRequest(question.id, question.prompt.tokens, sampling, method="record", k=0)


def _answered(question: Question, event: Finished, notebook: Notebook) -> tuple[Answer, Recording]:
    prompt, output = question.prompt, event.outcome.token_ids
    answer = Answer(question.id, prompt.domain, question.temperature, prompt.tokens, output)
    return answer, notebook.recording(answer)


class Notebook(Drafter):
    """A `Drafter` that drafts nothing and writes down what it reads. Knows when an answer is over."""

    def __init__(self, streams: Streams, ends: frozenset[int], max_tokens: int) -> None:
        self.feature_layers = streams.layers
        self._streams, self._ends, self._max_tokens = streams, ends, max_tokens
        self._notes: dict[str, Notes] = {}
        self._over: list[str] = []

    def begin(self, request: EngineRequest) -> Notes:
        self._notes[request.request_id] = Notes(self, request.request_id, len(request.prompt))
        return self._notes[request.request_id]

    def emitted(self, name: str, token: int, count: int) -> None:
        if token in self._ends or count >= self._max_tokens:
            self._over.append(name)

    def taken_over(self) -> list[str]:
        """Requests whose answers are complete since the last call."""
        over, self._over = self._over, []
        return over

    def recording(self, answer: Answer) -> Recording:
        """The recording of a request that has ended; its notes are gone afterwards."""
        return self._streams.recording(self._notes.pop(answer.id).pieces, len(answer.prompt), len(answer.output))


@dataclass(slots=True)
class Notes(Draft):
    """`Draft` of one sequence."""

    notebook: Notebook
    name: str
    prompt: int
    pieces: list[Float32] = field(default_factory=list)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        if start == 0:  # a preempted sequence is read once more
            self.pieces.clear()
        self.pieces.append(features.copy())

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        self.notebook.emitted(self.name, tokens[-1], len(tokens) - self.prompt)
