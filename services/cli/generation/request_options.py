"""Options of a request for text, shared by `kolm generate` and `kolm chat`, and its prompt."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from services.cli.frame.exits import UsageError
from services.cli.frame.values import read_bytes, read_text
from services.client.generation.request import Request, SamplingParams, SpecDecodeConfig, StructuredOutputs

SAMPLING, SPECULATION = "Sampling (defaults are the server's)", "Speculation (never changes the text)"
STRUCTURE = "Structured output (one of them)"


MAX_PROMPT_BYTES = 4 * 1024 * 1024
"""Limit of the generation service (`GenerateRequest.prompt`, `.prediction`)."""

_MOST_DIGITS = 20  # of 64 bits
_NO_PROMPT = UsageError(
    "expected a prompt: PROMPT, -f FILE or standard input", 'try: kolm generate --chat "What is gravity?"'
)


def _option(panel: str, name: str, help: str, metavar: str | None = None, *more: str) -> Any:
    return Option(name, *more, help=help, metavar=metavar, rich_help_panel=panel)


_sampling, _structure, _speculation = (partial(_option, panel) for panel in (SAMPLING, STRUCTURE, SPECULATION))


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Values of the options, each with its flag. None is the server's default; the server checks all ranges."""

    max_tokens: Annotated[int | None, _sampling("--max-tokens", "Limit of an output, in tokens.")] = None
    min_tokens: Annotated[int | None, _sampling("--min-tokens", "Tokens before an output may end.")] = None
    temperature: Annotated[
        float | None, _sampling("--temperature", "Sampling temperature; 0 takes the likeliest token.", None, "-t")
    ] = None
    top_p: Annotated[float | None, _sampling("--top-p", "Nucleus sampling, above 0 and up to 1.")] = None
    top_k: Annotated[int | None, _sampling("--top-k", "Number of likeliest tokens to sample from; 0 is no limit.")] = (
        None
    )
    min_p: Annotated[
        float | None, _sampling("--min-p", "Least probability relative to the likeliest token, 0 to 1.")
    ] = None
    seed: Annotated[int | None, _sampling("--seed", "Seed of the sampling; the same seed gives the same text.")] = None
    stop: Annotated[
        list[str] | None, _sampling("--stop", "A text that ends the output, except within thoughts. May be repeated.")
    ] = None
    presence_penalty: Annotated[
        float | None, _sampling("--presence-penalty", "Penalty of tokens that occurred, -2 to 2.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _sampling("--frequency-penalty", "Penalty by a token's count, -2 to 2.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _sampling("--repetition-penalty", "Penalty of repeated tokens, 0.01 to 10; 1 is none.")
    ] = None
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", "Continue after the end-of-sequence token.")] = False
    json_schema: Annotated[
        Path | None, _structure("--json-schema", "Output is JSON by this schema, members in its order.", "FILE")
    ] = None
    json_object: Annotated[bool, _structure("--json-object", "Output is a JSON object.")] = False
    regex: Annotated[
        str | None, _structure("--regex", "Output matches this regular expression as a whole.", "REGEX")
    ] = None
    choice: Annotated[
        list[str] | None, _structure("--choice", "Output is one of these texts. May be repeated.", "TEXT")
    ] = None
    grammar: Annotated[Path | None, _structure("--grammar", "Output follows this Lark or GBNF grammar.", "FILE")] = None
    method: Annotated[
        str | None, _speculation("--method", "Speculation method: auto, off or a method of the server.", "METHOD")
    ] = None
    k: Annotated[int | None, _speculation("--k", "Draft depth in tokens.")] = None
    eagle_head: Annotated[
        str | None, _speculation("--eagle-head", "Head to draft with; the method follows from its kind.", "HEAD")
    ] = None
    parameter: Annotated[
        list[str] | None,
        _speculation("--parameter", "A parameter of the method, such as tree_width=1. May be repeated.", "NAME=VALUE"),
    ] = None
    verify: Annotated[
        str | None, _speculation("--verify", "When to replay; inline: before the receipt is signed.", "sampled|inline")
    ] = None
    workload: Annotated[
        str | None,
        _speculation(
            "--workload",
            "For auto: code and many_adapters prefer lookahead, rag (answers that quote passages) rest, structured and "
            "single_tenant eagle3.",
            "WORKLOAD",
        ),
    ] = None
    model: Annotated[str | None, Option("--model", help="Name or base_cid. Default: the served model.")] = None
    adapter: Annotated[str | None, Option("--adapter", help="Name or adapter_cid. Default: the bare base.")] = None
    tenant: Annotated[str, Option("--tenant", help="The tenant of the request; goes into the receipt.")] = ""
    timeout: Annotated[float, Option("--timeout", help="Time limit of the request in seconds.")] = 600.0

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if not self.timeout > 0:
            raise UsageError(f"--timeout: is {self.timeout:g}; expected a number of seconds above 0")

    def request(self, n: int | None = None, logprobs: int | None = None) -> Request:
        """A request without its prompt. Raises UsageError as `sampling` does."""
        return Request(
            sampling=self.sampling(n, logprobs),
            model=self.model,
            adapter=self.adapter,
            tenant=self.tenant,
            workload=self.workload,
        )

    def sampling(self, n: int | None = None, logprobs: int | None = None) -> SamplingParams:
        """How tokens are chosen. Raises UsageError for constraints that cannot be read or contradict each other."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        shared = {each.name: own[each.name] for each in fields(SamplingParams) if each.name in own}
        shared |= {"stop": tuple(self.stop or ()), "ignore_eos": self.ignore_eos or None}
        return SamplingParams(**shared, n=n, logprobs=logprobs, structured_outputs=self._structured_outputs())

    def _structured_outputs(self) -> StructuredOutputs | None:
        given = {
            "json": ("--json-schema", self.json_schema),
            "json_object": ("--json-object", self.json_object or None),
            "regex": ("--regex", self.regex),
            "choice": ("--choice", self.choice or None),
            "grammar": ("--grammar", self.grammar),
        }
        asked = {kind: (flag, value) for kind, (flag, value) in given.items() if value is not None}
        if len(asked) > 1:
            flags = " and ".join(flag for flag, _ in asked.values())
            raise UsageError(f"{flags}: expected one constraint on the output")
        for kind, (flag, value) in asked.items():
            read: Any = read_text(flag, value) if isinstance(value, Path) else value
            return StructuredOutputs(**{kind: read})
        return None

    def spec_decode(self) -> SpecDecodeConfig:
        """How to speculate. Raises UsageError for a `--parameter` that is not NAME=VALUE."""
        pairs = [each.partition("=") for each in self.parameter or ()]
        for name, equals, value in pairs:
            if not name or not value.isdecimal() or len(value) > _MOST_DIGITS:
                expected = "expected NAME=VALUE with a whole number, as window=4"
                raise UsageError(f"--parameter: {expected}, got {name}{equals}{value}")
        parameters = {name: int(value) for name, _, value in pairs}
        return SpecDecodeConfig(self.method, self.eagle_head, self.k, verify=self.verify, parameters=parameters)


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from exactly one of the two; "-", or neither of them in a pipe, is standard input.

    Raises UsageError, which names the source.
    """
    if argument is not None and file is not None:
        raise UsageError("expected one prompt: either PROMPT or -f FILE")
    if argument is not None and argument != "-":
        return argument
    piped = argument is None and file is None
    if piped and (sys.stdin is None or sys.stdin.isatty()):
        raise _NO_PROMPT
    name, raw = _read("-f", file)
    if piped and not raw:
        raise _NO_PROMPT
    if not raw:
        raise UsageError(f"prompt: {name} is empty")
    return _decoded("-f" if file else "prompt", name, raw)


def read_prediction(file: Path | None) -> str:
    """The expected output, empty if no file is named. Raises UsageError."""
    return "" if file is None else _decoded("--prediction", *_read("--prediction", file))


def _decoded(flag: str, name: str, raw: bytes) -> str:
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"{flag}: {name} has more than the {MAX_PROMPT_BYTES:,} bytes that can be sent")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise UsageError(f"{flag}: {name} is not UTF-8: {at}") from None


def _read(flag: str, file: Path | None) -> tuple[str, bytes]:
    """A name for messages, and the bytes, up to one more than the limit, so that too many are recognised."""
    if file is None or str(file) == "-":
        return "standard input", sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    return str(file), read_bytes(flag, file, MAX_PROMPT_BYTES + 1)
