"""Grammars, compiled within bounds of size, time and memory."""

from __future__ import annotations

import asyncio
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

from services.generation.engine.request import Grammar, InvalidRequest, StructuredOutputs
from services.generation.engine.text.grammar import check_size, field_of, grammar_text, plain
from services.generation.engine.text.grammar_tokens import grammar_tokenizer

_SLOWEST = 1.0  # seconds that a grammar may take for its first mask; others follow in microseconds
_CPU = 3  # seconds that a trial may compute
_PATIENCE = 10.0  # seconds by the clock, where the machine has other things to do
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
    """Compile and compute the first mask. Raises InvalidRequest where it does not compile, allows nothing, or takes too
    long.
    """
    field, matcher = field_of(source), matcher_of(tokenizer, source)
    started = time.thread_time()
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(field, f"allows no output: {plain(matcher.get_error())}")
    if time.thread_time() - started > _SLOWEST:
        raise InvalidRequest(field, "is too complex: its first token takes longer than a second")


class Trial:
    """The process that tries grammars out, one at a time. It starts with the first, and again after one that ends it.

    Used by one thread at a time.
    """

    def __init__(self, tokenizer: str, vocab_size: int, eos: int) -> None:
        self._first = _line([tokenizer, vocab_size, eos])
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, source: StructuredOutputs) -> None:
        """Raises InvalidRequest as `try_out` does, and where the grammar ends the process."""
        process = self._started()
        answer = _asked(process, _line([source.kind, source.text]), _PATIENCE)
        if answer is None:
            self._process = None
            ended = _end(process)
            why = f"nests too deeply to be compiled, or takes more than {_MEMORY >> 20} MiB"
            if -ended in (signal.SIGXCPU, signal.SIGKILL):
                why = f"takes longer than {_CPU} s to compile"
            raise InvalidRequest(field_of(source), f"is too complex: it {why}")
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
            raise InvalidRequest("structured_outputs", f"cannot be compiled here: a process ended with {_end(process)}")
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
    """Answer [field, message] to each line [kind, text]; a message is null where the grammar may be compiled."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK)
    tokenizer = grammar_tokenizer(*json.loads(sys.stdin.buffer.readline()))
    answer: list[str | None] = [None, None]
    while True:
        sys.stdout.buffer.write(_line(answer))
        sys.stdout.buffer.flush()
        if not (line := sys.stdin.buffer.readline()):
            return
        source = StructuredOutputs(*json.loads(line))
        _limit()
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


def _limit() -> None:
    """Limits count from now on, without what earlier grammars took."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + _CPU, hard))
    with suppress(OSError, ValueError):  # where the system does not say, or has no such limit
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()


KEPT = 64  # grammars


class Grammars(Protocol):
    """Makes constraints ready for sequences that follow them."""

    async def compiled(self, source: StructuredOutputs) -> Grammar:
        """Raises InvalidRequest naming the field and what is wrong."""
        ...


class GrammarCompiler:
    """The compiler for one tokenizer. Any thread may call it and waits for its grammar; the engine's never waits."""

    def __init__(self, tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`tokenizer` gives tokenizer.json; it is asked for with the first grammar, which takes about a second."""
        self._source, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._trial: Trial
        self._kept: OrderedDict[StructuredOutputs, Grammar] = OrderedDict()
        self._compiling, self._keeping = threading.Lock(), threading.Lock()
        self._thread = ThreadPoolExecutor(1, "grammars")  # of its own: who waits for it takes no thread from others

    async def compiled(self, source: StructuredOutputs) -> Grammar:
        """`compile` on a thread, unless it is kept from before. Raises InvalidRequest."""
        if (kept := self._find(source)) is not None:
            return kept
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.compile, source)

    def compile(self, source: StructuredOutputs) -> Grammar:
        """The compiled grammar, perhaps kept from before. Raises InvalidRequest naming the field and what is wrong."""
        if (kept := self._find(source)) is not None:
            return kept
        check_size(source)
        with self._compiling:  # one at a time: a bad grammar costs its time once
            if (kept := self._find(source)) is None:
                kept = self._compile(source)
                self._keep(kept)
            return kept

    def _find(self, source: StructuredOutputs) -> Grammar | None:
        """One that has failed is compiled anew: the states of its lexer may have reached a limit."""
        with self._keeping:
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
            self._trial = Trial(document, self._vocab_size, self._eos_token_ids[0])
        return self._tokenizer
