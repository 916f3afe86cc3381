"""A sequence being generated: its tokens, its text, its place in the cache, its conditions to end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ledger.encoding.stream_digest import StreamDigest
from services.generation.engine.events import (
    Chunk,
    Counts,
    Finished,
    FinishReason,
    Outcome,
    Sink,
    TokenLogprobs,
    Tracker,
)
from services.generation.engine.request import EngineRequest, GrammarLimit, ThoughtSyntax, UnusableLogits
from services.generation.engine.sampling.processors import GrammarMask, end_ids
from services.generation.engine.sampling.race import examined
from services.generation.engine.sampling.sampler import Sampler, logprobs_of
from services.generation.target.arrays import Float32
from services.generation.target.unread import UnreadRow


class TokenDecoder(Protocol):
    """Incremental decoding of one sequence."""

    def feed(self, token: int) -> str:
        """The text that `token` completes; empty within a character."""
        ...

    def flush(self) -> str:
        """The rest of the text; an incomplete character is U+FFFD."""
        ...


class NoText:
    """A decoder for sequences whose text is not needed."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        pass

    def feed(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Released:
    token_ids: tuple[int, ...]
    text: str


class TextStream:
    """Holds back text that may become a stop string, across chunk borders; a token is released with its text. No stop
    string counts within `thoughts`, in the head of an answer without them, or in the white space around either.
    """

    def __init__(self, decoder: TokenDecoder, stops: tuple[str, ...], thoughts: ThoughtSyntax | None = None) -> None:
        self._decoder = decoder
        self._stops = stops
        self._thoughts = thoughts  # None after them, and once it is known that there are none
        self._begun = thoughts is not None and thoughts.begun
        self._closes = () if thoughts is None else thoughts.closes
        self._undecided = 0  # characters at the end that may become the beginning of thoughts
        self._answer = 0  # where the answer begins, or its beginning is searched for
        self._searched = 0  # characters of _text
        self._beginnings = [_Beginning(stop) for stop in stops]
        self._text = ""
        self._released = 0  # characters of _text
        self._tokens: deque[tuple[int, int]] = deque()  # tokens not yet released, each with the text length after it

    @property
    def text(self) -> str:
        return self._text

    def feed(self, token: int, *, visible: bool = True, search: bool = True) -> str | None:
        """Take the next token; returns the stop string that it completes, if any, having cut the text before it.

        A token that is not `visible` has no text (end of sequence, a stop id); without `search` stop strings do not
        count.
        """
        start, added = len(self._text), self._decoder.feed(token) if visible else ""
        self._text += added
        for each in self._beginnings:
            each.read(added)
        self._tokens.append((token, len(self._text)))
        if start == len(self._text) or self._is_thought():
            return None
        since, self._searched = self._searched, len(self._text)
        found = [(at, stop) for stop in self._stops if (at := self._find(stop, since)) >= 0] if search else []
        if not found:
            return None
        at, stop = min(found)
        self._text = self._text[:at]
        return stop

    def _is_thought(self) -> bool:
        """Whether the answer has not begun, or the text may still become a thought."""
        if self._thoughts is None:
            return False
        if not self._begun:
            bare = self._text.lstrip()
            begins = [self._thoughts.open, *self._thoughts.heads]
            found = next((each for each in begins if bare.startswith(each)), None)
            is_undecided = found is None and any(each.startswith(bare) for each in begins)
            self._undecided = len(self._text) if is_undecided else 0
            if found is None:
                self._thoughts = self._thoughts if is_undecided else None
                return is_undecided
            self._begun, self._answer = True, len(self._text) - len(bare)
            if found == self._thoughts.open:
                self._answer += len(found)
            else:
                self._closes = (found,)
        return self._is_open(self._closes)

    def _is_open(self, closes: tuple[str, ...]) -> bool:
        """Whether a thought is not closed, or only white space follows it."""
        ends = [(at, at + len(close)) for close in closes if (at := self._text.find(close, self._answer)) >= 0]
        if not ends:
            self._answer = max(self._answer, len(self._text) - max(map(len, closes)) + 1)
            return True
        answer = self._text[min(ends)[1] :].lstrip()
        if answer:
            self._answer, self._thoughts = len(self._text) - len(answer), None
        return not answer

    def _find(self, stop: str, since: int) -> int:
        return self._text.find(stop, max(self._released, self._answer, since - len(stop) + 1))

    def release(self) -> Released:
        """Release everything that cannot become part of a stop string."""
        held = max((each.size for each in self._beginnings), default=0)
        return self._release(len(self._text) - max(held, self._undecided))

    def finish(self, *, matched: bool) -> Released:
        """Release the rest, with the decoder's rest unless a stop string was `matched`."""
        if not matched:
            self._text += self._decoder.flush()
        self._tokens = deque((token, min(end, len(self._text))) for token, end in self._tokens)
        return self._release(len(self._text))

    def _release(self, end: int) -> Released:
        end = max(end, self._released)
        tokens = []
        while self._tokens and self._tokens[0][1] <= end:
            tokens.append(self._tokens.popleft()[0])
        text, self._released = self._text[self._released : end], end
        return Released(tuple(tokens), text)


class _Beginning:
    """The longest beginning of a stop string, but not all of it, that a text ends with (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self._stop, self._borders = stop, _borders(stop)
        self.size = 0

    def read(self, text: str) -> None:
        """Read the next characters of the text."""
        stop, size = self._stop, self.size
        if not size and stop[0] not in text:
            return
        for character in text:
            while size and stop[size] != character:
                size = self._borders[size - 1]
            size += stop[size] == character
            if size == len(stop):
                size = self._borders[-1]
        self.size = size


@lru_cache(256)
def _borders(stop: str) -> tuple[int, ...]:
    """For each beginning of `stop`, the length of its longest end that is a beginning too, and not all of it."""
    borders, size = [0], 0
    for character in stop[1:]:
        while size and stop[size] != character:
            size = borders[size - 1]
        size += stop[size] == character
        borders.append(size)
    return tuple(borders)


class Sequence:
    """Tokens [0, cached) have keys and values in the cache blocks `table`; the rest are pending.

    One pending token is the normal state between passes: the root of the next tree. More pending tokens are a prompt,
    or all tokens after a preemption.
    """

    def __init__(
        self,
        request: EngineRequest,
        sink: Sink,
        decoder: TokenDecoder,
        eos_token_ids: tuple[int, ...],
        now: float,
        totals: Counts,
    ) -> None:
        """`totals`: the counters of all sequences."""
        params = request.sampling
        self.request = request
        self.tokens = list(request.prompt)
        self.cached = 0
        self.counted = 0  # prompt tokens that were counted for its tenant, see `WaitingQueue`
        self.table: list[int] = []
        self.draft_begun = False
        self.finish_reason: FinishReason | None = None
        self.tracker = Tracker(len(request.prompt), now, totals)
        self._sink = sink
        self._stop_ids = frozenset(params.stop_token_ids)
        self.ends = end_ids(params, eos_token_ids)
        mask = None if request.grammar is None else GrammarMask(request.grammar, self.ends)
        self._sampler = Sampler(params, request.choice, request.prompt, self.ends, mask)
        self._text = TextStream(decoder, params.stop, request.thoughts)
        self._digest = StreamDigest()
        self._margins: list[float] = []
        self._logprobs: list[TokenLogprobs] = []
        self._stop_reason: str | int | None = None
        self._error: str | None = None
        self._reached_limit = False

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.cached

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.sampling.max_tokens - self.output_length

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def emit(self, logits: Float32 | UnreadRow) -> int | None:
        """Sample the next token from its row and commit it; None if the sequence has ended.

        The token that ends it counts. A row that allows no token ends it with an error.
        """
        try:
            row = examined(logits)
            token = self._sampler.choose(row, len(self.tokens))
        except UnusableLogits as error:
            self._reached_limit = isinstance(error, GrammarLimit)
            self.fail(str(error))
            return None
        self._commit(token)
        self._digest.update(token, row.best, row.second)
        self._margins.append(row.best - row.second)
        if self.request.sampling.logprobs is not None:
            self._logprobs.append(logprobs_of(row, token, self.request.sampling.logprobs))
        return None if self.finished else token

    def _commit(self, token: int) -> None:
        self.tokens.append(token)
        self._sampler.accept(token)
        ends = token in self.ends
        enough = self.output_length >= self.request.sampling.min_tokens
        matched = self._text.feed(token, visible=not ends, search=enough)
        if ends:
            self._end("stop", token if token in self._stop_ids else None)
        elif matched is not None:
            self._end("stop", matched)
        elif self.remaining == 0:
            self._end("length", None)

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason, self._stop_reason = reason, stop_reason

    def cancel(self) -> None:
        if not self.finished:
            self._end("cancelled", None)

    def fail(self, error: str) -> None:
        """End with an error; tokens emitted so far stay."""
        self._end("error", None)
        self._error = error

    def preempt(self) -> None:
        """Forget the cache: all tokens are pending again and are computed to the same bits."""
        self.cached = 0

    def stream(self) -> None:
        """Send releasable tokens and text to the sink."""
        if not self.finished:
            self._send(self._text.release())

    def finish(self, now: float) -> None:
        """Send the rest and the outcome to the sink. The last call on a sequence."""
        assert self.finish_reason is not None
        self._send(self._text.finish(matched=isinstance(self._stop_reason, str)))
        outcome = Outcome(
            token_ids=tuple(self.tokens[self.prompt_length :]),
            text=self._text.text,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            stream_digest=self._digest.hexdigest(),
            margins=tuple(self._margins),
            metrics=self.tracker.metrics(self.output_length, now),
            error=self._error,
            reached_limit=self._reached_limit,
        )
        self._sink(Finished(self.request.request_id, self.request.choice, outcome))

    def _send(self, released: Released) -> None:
        if released.token_ids or released.text:
            count = len(released.token_ids)
            logprobs, self._logprobs = tuple(self._logprobs[:count]), self._logprobs[count:]
            self._sink(Chunk(self.request.request_id, self.request.choice, released.token_ids, released.text, logprobs))
