"""Compiler of grammars within bounds of size, CPU time and memory."""

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from services.generation.engine.request import EngineBusy, EngineError, Grammar, InvalidRequest, StructuredOutputs
from services.generation.engine.text.grammar import check_size, compile_error, field_of, grammar_text, plain
from services.generation.engine.text.grammar_tokens import grammar_tokenizer
from services.generation.engine.text.grammar_turns import GrammarTurns

SERVED_SECONDS = 3  # CPU seconds of a trial
REPLAY_SECONDS = 60  # CPU seconds of a trial in a replay: a grammar served on a faster machine compiles here too
KEPT = 64  # grammars that need no second trial
_PATIENCE = 10 / 3  # seconds by the clock for each CPU second, on a machine with other work
_MOST_FORCED = 4096  # forced tokens that a trial writes at the beginning
_REMEMBERED_SECONDS = 300.0  # of a refusal
_BUSY_SECONDS = 30.0  # of a refusal for its time
_MOST_REMEMBERED = 1024
_MOST_WAITING = 4096  # requests of one tenant with tried grammars: they wait for milliseconds
_MEMORY = 1 << 30  # bytes that a trial may take besides the tokenizer
_STACK = 1 << 20  # bytes: a grammar of about 300 rules in a chain

_Made = TypeVar("_Made")

_LIMITS = LLParserLimits(
    initial_lexer_fuel=100_000,
    step_lexer_fuel=200_000,
    step_max_items=4_000,
    max_items_in_row=1_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""A lexer state takes 1 to 2 kB, fuel for a mask about 14 ms at most. An ambiguous grammar (`e: e e | "x"`) has more
items with each token: 1,000 in a row take the engine's thread 35 ms, 2,000 ten times that. An optional member of three
types takes 4.
"""


def matcher_of(tokenizer: LLTokenizer, source: StructuredOutputs) -> LLMatcher:
    """A matcher at the beginning of the grammar. Raises InvalidRequest if it does not compile."""
    matcher = LLMatcher(tokenizer, grammar_text(source), log_level=0, limits=_LIMITS)
    if error := matcher.get_error():
        raise InvalidRequest(field_of(source), compile_error(source, error))
    return matcher


def try_out(tokenizer: LLTokenizer, source: StructuredOutputs) -> None:
    """Compile, write the forced tokens at the beginning, and compute the mask after them.

    Raises InvalidRequest if the grammar does not compile or allows no output.

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
    """The process that tries grammars out, one at a time. It starts with the first grammar, and again after a grammar
    that ends it.

    Used by one thread at a time. `spent`: CPU seconds of the last grammar, whatever became of it.
    """

    def __init__(self, tokenizer: str, vocab_size: int, eos: int, seconds: int) -> None:
        """`seconds`: CPU seconds that a grammar may take."""
        self._first, self._seconds = _line([tokenizer, vocab_size, eos]), seconds
        self.spent = self._used = 0.0  # `_used`: of the process, before the next grammar
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, source: StructuredOutputs) -> None:
        """Raises InvalidRequest as `try_out` and if the grammar ends the process, EngineBusy if it takes too long."""
        self.spent = 0.0
        process = self._started()
        answer = _asked(process, _line([source.kind, source.text, self._seconds]), _PATIENCE * self._seconds)
        if answer is None:
            status, used = self._ended(process)
            self.spent = self._seconds if used is None else used - self._used
            if -status in (signal.SIGXCPU, signal.SIGKILL):
                why = f"took longer than {self._seconds} s to compile; send it again later, or make it simpler"
                raise EngineBusy(field_of(source), why)
            why = f"is too complex: it nests too deeply to be compiled, or takes more than {_MEMORY >> 20} MiB"
            raise InvalidRequest(field_of(source), why)
        field, message, used = json.loads(answer)
        self.spent, self._used = used - self._used, used
        if message is not None:
            raise InvalidRequest(field, message)

    def _started(self) -> subprocess.Popen[bytes]:
        """The process with its tokenizer loaded; a new process if the last one has ended."""
        if self._process is not None:
            if self._process.poll() is None:
                return self._process
            self._ended(self._process)
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(
            command, cwd=Path(__file__).parents[4], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._finalizer = weakref.finalize(self, _end, process)
        if (answer := _asked(process, self._first, 120.0)) is None:
            status, _ = self._ended(process)
            raise EngineBusy("structured_outputs", f"cannot be compiled now: the process ended with {status}")
        *_, self._used = json.loads(answer)
        self._process = process
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
        """`_end`, once: later the system may give the process id to another child of the server."""
        self._finalizer.detach()
        self._process = None
        return _end(process)


def _asked(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """The line that the process answers with; None if it ended, or was killed for its silence."""
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


def _end(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """End the process within a second; returns its exit status and the CPU seconds of its whole life, None if they are
    not known.
    """
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    deadline = time.monotonic() + 1.0
    while True:
        try:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # waited for before
            return process.wait(), None
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.005)


def _line(content: Sequence[object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def main() -> None:
    """Answer [field, message, CPU seconds of this process] to each line [kind, text, seconds].

    The message is null if the grammar may be compiled.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK)
    tokenizer = grammar_tokenizer(*json.loads(sys.stdin.buffer.readline()))
    answer: list[str | None] = [None, None]
    while True:
        sys.stdout.buffer.write(_line([*answer, time.process_time()]))
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
    """Limit the CPU seconds and the memory from now on, without those of earlier grammars."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))
    with suppress(OSError, ValueError):  # a system without /proc or without such a limit
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()


@dataclass(slots=True)
class Cost:
    """CPU seconds that one grammar took, whatever became of it."""

    seconds: float = 0.0


class GrammarBudget(Protocol):
    """CPU seconds that tenants may spend on grammars. Used on one event loop."""

    def check_grammars(self, tenant: str) -> None:
        """Raises the error for the caller if the tenant has none left."""
        ...

    def charge_grammar(self, tenant: str, seconds: float) -> None:
        """Count the CPU seconds of a grammar that was compiled, refused or too slow."""
        ...


class Grammars(Protocol):
    """Makes constraints ready for the sequences that follow them."""

    async def compiled(
        self, source: StructuredOutputs, tenant: str = "", budget: GrammarBudget | None = None, sequences: int = 0
    ) -> Grammar:
        """The grammar with matchers for so many `sequences`.

        Raises InvalidRequest naming the field and the problem, EngineFull if too many grammars of the tenant wait,
        EngineBusy if the grammar takes too long, and errors of `budget`.
        """
        ...


class _Lane:
    """A thread of its own that compiles one grammar at a time, in turns of tenants."""

    def __init__(self, name: str, turns: GrammarTurns) -> None:
        self._turns, self._thread = turns, ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[[Cost], _Made], tenant: str, budget: GrammarBudget | None) -> _Made:
        """The result of `work` on the thread, in a turn of the tenant. A caller that leaves pays for what it began."""
        if budget is not None:
            budget.check_grammars(tenant)
        await self._turns.take(tenant)
        cost = Cost()

        def settle(_: object = None) -> None:
            self._turns.end(tenant, cost.seconds)
            if budget is not None:
                budget.charge_grammar(tenant, cost.seconds)

        try:
            if budget is not None:
                budget.check_grammars(tenant)
            working = asyncio.get_running_loop().run_in_executor(self._thread, work, cost)
        except BaseException:
            settle()
            raise
        working.add_done_callback(settle)
        return await asyncio.shield(working)


class GrammarCompiler:
    """The compiler for one tokenizer. Any thread but the engine's may call it, and waits for its grammar."""

    def __init__(
        self,
        tokenizer: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        seconds: int = SERVED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokenizer` gives tokenizer.json; it is called for the first grammar, and takes some seconds.

        `seconds`: CPU seconds that a grammar may take.
        """
        self._source, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, tuple(eos_token_ids)
        self._seconds, self._clock = seconds, clock
        self._tokenizer: LLTokenizer | None = None
        self._trial: Trial
        self._kept: OrderedDict[StructuredOutputs, None] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, EngineError]] = OrderedDict()  # until when, by digest
        self._compiling, self._keeping = threading.Lock(), threading.Lock()
        self._trials = _Lane("grammars", GrammarTurns())
        self._matchers = _Lane("matchers", GrammarTurns(_MOST_WAITING))

    async def compiled(
        self, source: StructuredOutputs, tenant: str = "", budget: GrammarBudget | None = None, sequences: int = 0
    ) -> Grammar:
        """The tried grammar with matchers for `sequences`, each compiled in a turn of the tenant. A second trial, or a
        remembered refusal, costs nothing. Raises as `Grammars.compiled` does.
        """
        grammar = self._find(source)
        if grammar is None:
            grammar = await self._trials.run(partial(self.compile, source), tenant, budget)
        for _ in range(sequences):
            grammar.compiled.append(await self._matchers.run(partial(_timed, grammar.compile), tenant, budget))
        return grammar

    def compile(self, source: StructuredOutputs, cost: Cost | None = None) -> Grammar:
        """The grammar, tried out now or before. Adds what that took to `cost`.

        Raises InvalidRequest naming the field and the problem, EngineBusy if it takes too long.
        """
        if (found := self._find(source)) is not None:
            return found
        with self._compiling:  # one at a time: a bad grammar costs its time once
            if (found := self._find(source)) is None:
                try:
                    found = self._compile(source, cost or Cost())
                except (InvalidRequest, EngineBusy) as error:
                    self._remember(source, error)
                    raise
                self._keep(source)
            return found

    def _remember(self, source: StructuredOutputs, error: InvalidRequest | EngineBusy) -> None:
        seconds = _BUSY_SECONDS if isinstance(error, EngineBusy) else _REMEMBERED_SECONDS
        with self._keeping:
            self._refused[_digest(source)] = self._clock() + seconds, type(error)(error.field, error.message)
            while len(self._refused) > _MOST_REMEMBERED:
                self._refused.popitem(last=False)

    def _find(self, source: StructuredOutputs) -> Grammar | None:
        """The grammar if it was tried out and is still remembered, else None. Raises a remembered refusal."""
        check_size(source)
        with self._keeping:
            until, refused = self._refused.get(digest := _digest(source), (0.0, None))
            if refused is not None and self._clock() < until:
                raise type(refused)(refused.field, refused.message)
            self._refused.pop(digest, None)
            if source not in self._kept:
                return None
            self._kept.move_to_end(source)
        return self._grammar(source)

    def _keep(self, source: StructuredOutputs) -> None:
        with self._keeping:
            self._kept[source] = None
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _compile(self, source: StructuredOutputs, cost: Cost) -> Grammar:
        self._loaded()
        try:
            self._trial.run(source)
            return self._grammar(source)
        finally:
            cost.seconds += self._trial.spent

    def _grammar(self, source: StructuredOutputs) -> Grammar:
        tokenizer = self._loaded()
        return Grammar(source, tokenizer.eos_token, self._vocab_size, partial(matcher_of, tokenizer, source))

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


def _timed(work: Callable[[], _Made], cost: Cost) -> _Made:
    started = time.thread_time()
    try:
        return work()
    finally:
        cost.seconds += time.thread_time() - started


def _digest(source: StructuredOutputs) -> bytes:
    return hashlib.sha256(f"{source.kind}\n{source.text}".encode()).digest()
