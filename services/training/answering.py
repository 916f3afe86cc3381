"""Prompts, the target's own answers to them, and its streams while it answered: a head learns the answers.

A head has to predict the target's output: other text would teach it another distribution. The streams are outputs of
the engine's passes, so that recording them costs no further pass.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Draft, Drafter
from services.generation.engine.events import Event, Finished
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.target import Target
from services.training.plan import PromptsInvalid

_AT_ONCE = 64
_MOST_ROWS = 256
_UNTIMED = PassCost.line(fixed=1.0, row=1.0)  # nothing is drafted here, so nothing asks what a row costs

_SETTINGS = EngineSettings(
    max_sequences=_AT_ONCE, max_waiting=2 * _AT_ONCE, max_rows=_MOST_ROWS, prefill_rows=_MOST_ROWS
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as token ids. `id` is unique in a run; `domain` groups the figures of an evaluation."""

    id: str
    domain: str
    tokens: tuple[int, ...]


def read_prompts(paths: Sequence[Path], tokenizer: Tokenizer, longest: int) -> list[Prompt]:
    """All prompts of the files with at most `longest` tokens, in order.

    A line is an object with `prompt` (text) or `messages` (role and content), and may have `id` and `domain`; the
    default domain is the file's name.

    Raises:
        PromptsInvalid: a file is missing, a line is not a prompt, an id is not unique, or nothing is left.
    """
    prompts = [prompt for path in paths for prompt in _of_file(path, tokenizer)]
    _check_ids(prompts)
    kept = [prompt for prompt in prompts if len(prompt.tokens) <= longest]
    if not kept:
        found = f"{len(prompts)} prompts, all longer than {longest} tokens" if prompts else "no prompts"
        raise PromptsInvalid(f"{', '.join(map(str, paths))}: {found}; expected JSON lines with prompt or messages")
    return kept


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


def _of_file(path: Path, tokenizer: Tokenizer) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise PromptsInvalid(f"{path}: no such file; expected JSON lines with prompt or messages") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsInvalid(f"{path}: not readable as UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _of_line(path, number, line, tokenizer)


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    id: str | None = None
    domain: str | None = None


def _of_line(path: Path, number: int, line: str, tokenizer: Tokenizer) -> Prompt:
    where = f"{path}, line {number}"
    try:
        entry = msgspec.json.decode(line, type=_Line)
        if (entry.prompt is None) == (entry.messages is None):
            raise ValueError("expected either prompt, a string, or messages, a list")
        tokens = tokenizer.encode_chat(entry.messages) if entry.messages else tokenizer.encode(entry.prompt or "")
    except (ValueError, RecursionError) as error:
        raise PromptsInvalid(f"{where}: {error}") from error
    if not tokens:
        raise PromptsInvalid(f"{where}: the prompt is empty; expected at least one token")
    return Prompt(entry.id or f"{path.stem}-{number:06}", entry.domain or path.stem, tuple(tokens))


def _check_ids(prompts: list[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise PromptsInvalid(f"id: {prompt.id!r} comes twice; ids have to be unique over all files")
        seen.add(prompt.id)


@dataclass(frozen=True, slots=True)
class Answer:
    """The target's answer to a prompt at a temperature. `id` is unique in a run."""

    id: str
    domain: str
    temperature: float
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.output


class AnswerFile:
    """Answers on disk, appended as they come. A line that a crash cut short is dropped when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            self._drop_partial_line()

    def __iter__(self) -> Iterator[Answer]:
        if self.path.exists():
            with self.path.open(encoding="utf-8") as lines:
                yield from (msgspec.json.decode(line, type=Answer) for line in lines)

    def append(self, answers: Iterable[Answer]) -> None:
        with self.path.open("ab") as file:
            file.writelines(msgspec.json.encode(answer) + b"\n" for answer in answers)

    def _drop_partial_line(self) -> None:
        with self.path.open("rb+") as file:
            content = file.read()
            os.ftruncate(file.fileno(), content.rfind(b"\n") + 1)


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

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        self.notebook.emitted(self.name, tokens[-1], len(tokens) - self.prompt)
