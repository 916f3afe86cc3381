"""Grammars, compiled within bounds of size, time and memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from services.generation.engine.request import EngineBusy, EngineError, Grammar, InvalidRequest, StructuredOutputs
from services.generation.engine.text.grammar import check_size, field_of, grammar_text, plain
from services.generation.engine.text.grammar_tokens import grammar_tokenizer
from services.generation.engine.text.grammar_turns import GrammarTurns

SERVED_SECONDS = 3  # that a trial may compute
REPLAY_SECONDS = 60  # the same where nobody else waits: what was served on a faster machine compiles here too
_PATIENCE = 10 / 3  # seconds by the clock for each of them, where the machine has other things to do
_MOST_FORCED = 4096  # tokens at the beginning that a trial writes
_REMEMBERED_SECONDS = 300.0  # that a refusal is
_BUSY_SECONDS = 30.0  # that a constraint is which took too long
_MOST_REMEMBERED = 1024
_MEMORY = 1 << 30  # bytes that a trial may take beside the tokenizer
_STACK = 1 << 20  # bytes: a grammar of about 300 rules in a chain

_LIMITS = LLParserLimits(
    initial_lexer_fuel=100_000,
    step_lexer_fuel=200_000,
    step_max_items=4_000,
    max_items_in_row=1_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""A lexer state takes 1 to 2 kB, fuel for a mask about 14 ms at most. What reads an output in many ways at once
(`e: e e | "x"`) has more items with each token: 1,000 in a row take the engine's thread 35 ms, 2,000 ten times that. An
object takes 4 for a member of three types that may be left out.
"""


def matcher_of(tokenizer: LLTokenizer, source: StructuredOutputs) -> LLMatcher:
    """A matcher at the beginning of the grammar. Raises InvalidRequest where it does not compile."""
    matcher = LLMatcher(tokenizer, grammar_text(source), log_level=0, limits=_LIMITS)
    if error := matcher.get_error():
        raise InvalidRequest(field_of(source), f"does not compile: {plain(error)}")
    return matcher


def try_out(tokenizer: LLTokenizer, source: StructuredOutputs) -> None:
    """Compile, write what is forced at the beginning, and compute the mask behind it.

    Raises InvalidRequest where the grammar does not compile, or allows nothing.

    The library's own fuel bounds the time (`_LIMITS`), so that the answer is the same on every machine.
    """
    field, matcher = field_of(source), matcher_of(tokenizer, source)
    left = _MOST_FORCED
    matcher.compute_bitmask()
    while not matcher.is_error() and left > 0 and (forced := matcher.compute_ff_tokens()[:left]):
        matcher.consume_tokens(forced)
        left -= len(forced)
    if not matcher.is_error() and not matcher.is_stopped():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(field, f"allows no output: {plain(matcher.get_error())}")


class Trial:
    """The process that tries grammars out, one at a time. It starts with the first, and again after one that ends it.

    Used by one thread at a time.
    """

    def __init__(self, tokenizer: str, vocab_size: int, eos: int, seconds: int) -> None:
        """`seconds`: that a grammar may compute."""
        self._first, self._seconds = _line([tokenizer, vocab_size, eos]), seconds
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, source: StructuredOutputs) -> None:
        """Raises InvalidRequest as `try_out`, and where the grammar ends the process, EngineBusy where time does."""
        process = self._started()
        answer = _asked(process, _line([source.kind, source.text, self._seconds]), _PATIENCE * self._seconds)
        if answer is None:
            self._process = None
            if -_end(process) in (signal.SIGXCPU, signal.SIGKILL):
                why = f"took longer than {self._seconds} s to compile; send it again later, or make it simpler"
                raise EngineBusy(field_of(source), why)
            why = f"is too complex: it nests too deeply to be compiled, or takes more than {_MEMORY >> 20} MiB"
            raise InvalidRequest(field_of(source), why)
        field, message = json.loads(answer)
        if message is not None:
            raise InvalidRequest(field, message)

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, which has its tokenizer; a new one where it has ended since the last grammar."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(
            command, cwd=Path(__file__).parents[4], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        weakref.finalize(self, _end, process)
        if _asked(process, self._first, 120.0) is None:
            raise EngineBusy("structured_outputs", f"cannot be compiled now: the process ended with {_end(process)}")
        self._process = process
        return process


def _asked(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """The line that it answers with; None where it ended, or was ended for its silence."""
    assert process.stdin is not None
    assert process.stdout is not None
    patience = threading.Timer(seconds, process.kill)
    patience.daemon = True
    patience.start()
    try:
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        return None
    finally:
        patience.cancel()
    return answer if answer.endswith(b"\n") else None


def _end(process: subprocess.Popen[bytes]) -> int:
    """Its exit status: it is killed unless it has ended by itself."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(1.0)
    process.kill()
    return process.wait()


def _line(content: Sequence[object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def main() -> None:
    """Answer [field, message] to each line [kind, text, seconds]; a message is null where it may be compiled."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK)
    tokenizer = grammar_tokenizer(*json.loads(sys.stdin.buffer.readline()))
    answer: list[str | None] = [None, None]
    while True:
        sys.stdout.buffer.write(_line(answer))
        sys.stdout.buffer.flush()
        if not (line := sys.stdin.buffer.readline()):
            return
        kind, text, seconds = json.loads(line)
        source = StructuredOutputs(kind, text)
        _limit(seconds)
        answer = [field_of(source), "does not compile"]
        trying = threading.Thread(target=_judge, args=(tokenizer, source, answer))
        trying.start()
        trying.join()


def _judge(tokenizer: LLTokenizer, source: StructuredOutputs, answer: list[str | None]) -> None:
    try:
        try_out(tokenizer, source)
        answer[1] = None
    except InvalidRequest as refused:
        answer[:] = refused.field, refused.message
    except BaseException as error:  # a panic in the library is not an Exception
        answer[1] = f"does not compile: {plain(repr(error))}"


def _limit(seconds: int) -> None:
    """Limits count from now on, without what earlier grammars took."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))
    with suppress(OSError, ValueError):  # where the system does not say, or has no such limit
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()


KEPT = 64  # grammars


class Grammars(Protocol):
    """Makes constraints ready for sequences that follow them."""

    async def compiled(self, source: StructuredOutputs, tenant: str | None = None) -> Grammar:
        """Raises InvalidRequest naming the field and what is wrong, EngineFull where too many of the tenant's wait,
        EngineBusy where the time did not suffice.
        """
        ...


class GrammarCompiler:
    """The compiler for one tokenizer. Any thread may call it and waits for its grammar; the engine's never waits."""

    def __init__(
        self,
        tokenizer: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        seconds: int = SERVED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokenizer` gives tokenizer.json; it is asked for with the first grammar, which takes some seconds.

        `seconds`: of the processor, that a grammar may take.
        """
        self._source, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, tuple(eos_token_ids)
        self._seconds, self._clock = seconds, clock
        self._tokenizer: LLTokenizer | None = None
        self._trial: Trial
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, EngineError]] = OrderedDict()  # until when, by digest
        self._compiling, self._keeping = threading.Lock(), threading.Lock()
        self._turns = GrammarTurns(clock)
        self._thread = ThreadPoolExecutor(1, "grammars")  # of its own: who waits for it takes no thread from others

    async def compiled(self, source: StructuredOutputs, tenant: str | None = None) -> Grammar:
        """`compile` on a thread when it is the tenant's turn, unless it is kept from before. Raises as `Grammars` has
        it.
        """
        if (kept := self._find(source)) is not None:
            return kept
        async with self._turns.turn(tenant):
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.compile, source)

    def compile(self, source: StructuredOutputs) -> Grammar:
        """The compiled grammar, perhaps kept from before. Raises InvalidRequest naming the field and what is wrong,
        EngineBusy where the time did not suffice.
        """
        if (kept := self._find(source)) is not None:
            return kept
        with self._compiling:  # one at a time: a bad grammar costs its time once
            if (kept := self._find(source)) is None:
                try:
                    kept = self._compile(source)
                except (InvalidRequest, EngineBusy) as error:
                    self._remember(source, error)
                    raise
                self._keep(kept)
            return kept

    def _remember(self, source: StructuredOutputs, error: InvalidRequest | EngineBusy) -> None:
        seconds = _BUSY_SECONDS if isinstance(error, EngineBusy) else _REMEMBERED_SECONDS
        with self._keeping:
            self._refused[_digest(source)] = self._clock() + seconds, type(error)(error.field, error.message)
            while len(self._refused) > _MOST_REMEMBERED:
                self._refused.popitem(last=False)

    def _find(self, source: StructuredOutputs) -> Grammar | None:
        """One that has failed is compiled again: the states of its lexer may have reached a limit. Raises what one was
        refused with a short time ago.
        """
        check_size(source)
        with self._keeping:
            until, refused = self._refused.get(digest := _digest(source), (0.0, None))
            if refused is not None and self._clock() < until:
                raise type(refused)(refused.field, refused.message)
            self._refused.pop(digest, None)
            kept = self._kept.get(source)
            if kept is not None:
                self._kept.move_to_end(source)
            return None if kept is None or kept.failed else kept

    def _keep(self, grammar: Grammar) -> None:
        with self._keeping:
            self._kept[grammar.source] = grammar
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _compile(self, source: StructuredOutputs) -> Grammar:
        tokenizer = self._loaded()
        self._trial.run(source)
        return Grammar(source, tokenizer.eos_token, self._vocab_size, matcher_of(tokenizer, source))

    def _loaded(self) -> LLTokenizer:
        if not self._eos_token_ids:
            raise InvalidRequest("structured_outputs", "this model has no end-of-sequence token to end an output with")
        if self._tokenizer is None:
            document = self._source()
            try:
                self._tokenizer = grammar_tokenizer(document, self._vocab_size, self._eos_token_ids[0])
            except Exception as error:  # the library raises several kinds
                message = f"this model's tokenizer cannot be used with grammars: {plain(str(error))}"
                raise InvalidRequest("structured_outputs", message) from error
            self._trial = Trial(document, self._vocab_size, self._eos_token_ids[0], self._seconds)
        return self._tokenizer


def _digest(source: StructuredOutputs) -> bytes:
    return hashlib.sha256(f"{source.kind}\n{source.text}".encode()).digest()
