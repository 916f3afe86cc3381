"""Trusted keys, policy and checkpoints of a verifier, from the command line. A bundle's own keys never count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.bundle.proven import is_statement
from ledger.bundle.report import Trust
from ledger.documents.content import Turn
from ledger.documents.promise import read_promise
from ledger.errors import FormatError, ProofError
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.tlog_policy import Policy
from services.cli.frame.exits import UsageError
from services.cli.frame.values import read_bytes
from services.generation.target.errors import TargetError

if TYPE_CHECKING:
    from kolm.generation.v1 import generation_pb2 as pb
    from ledger.documents.receipt import ThoughtsPart
    from services.generation.engine.text.tokenizer import Tokenizer


_LONGEST_STATEMENT = 1 << 20  # bytes
_PROOF_BEGINS = b"c2sp.org/tlog-proof@"


@dataclass(frozen=True, slots=True)
class TrustSources:
    """Options of `kolm verify` about trust. `as_of` None is now, unless replays are counted `by_log_clock`."""

    trusted: Path
    policy: Path | None = None
    checkpoints: tuple[Path, ...] = ()
    as_of: datetime | None = None
    by_log_clock: bool = False
    max_unreplayable: int = 0
    max_age: timedelta | None = None
    model: Path | None = None
    promises: tuple[Path, ...] = ()


def is_proof(path: Path) -> bool:
    """Whether a file is a tlog-proof, by its first line."""
    return beginning(path, len(_PROOF_BEGINS)) == _PROOF_BEGINS


def is_json(path: Path) -> bool:
    """Whether a file may be JSON, as no bundle is."""
    return beginning(path, 1) in (b"{", b"[")


def read_statement(path: Path) -> bytes | None:
    """The bytes of a SCITT statement; None for anything else."""
    data = beginning(path, _LONGEST_STATEMENT)
    return data if is_statement(data) else None


def beginning(path: Path, size: int) -> bytes:
    """At most `size` bytes of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def own_trust(sources: TrustSources) -> Trust:
    """Raises UsageError for files that are missing or wrong, KeyFileError."""
    if not sources.trusted.is_dir():
        raise UsageError(
            f"no trusted keys: {sources.trusted} is not a directory",
            "kolm trust add FILE, or name a folder of public keys with --trusted",
        )
    keys, policy = TrustedKeys.load(sources.trusted, retired=True), _own_policy(sources)
    if policy is None and not keys.keys("log"):
        raise UsageError(
            f"no trusted keys: {sources.trusted} has no public key of a log (log-….pub)",
            "kolm trust add FILE, or name the folder with --trusted",
        )
    return _trust(sources, keys, policy)


def _own_policy(sources: TrustSources) -> Policy | None:
    path = sources.policy or sources.trusted / "policy"
    if sources.policy is None and not path.is_file():
        return None
    try:
        return Policy.from_bytes(read_bytes("--policy", path))
    except FormatError as error:
        raise UsageError(f"--policy: {path} is not a policy: {error}") from None


def _trust(sources: TrustSources, keys: TrustedKeys, policy: Policy | None) -> Trust:
    now = datetime.now(UTC)
    return Trust(
        keys=keys,
        policy=policy,
        earlier=tuple(_checkpoint(path) for path in sources.checkpoints),
        as_of=None if sources.by_log_clock else sources.as_of or now,
        now=now,
        max_unreplayable=sources.max_unreplayable,
        max_age=sources.max_age,
        reader=None if sources.model is None else ModelTextReader(sources.model),
        promises=tuple(map(read_promise_file, sources.promises)),
    )


def _checkpoint(path: Path) -> bytes:
    data = read_bytes("--checkpoint", path)
    try:
        Checkpoint.from_text(Note.from_bytes(data).text)
    except FormatError as error:
        hint = "a bundle's file `checkpoint` is one; `kolm ledger head --note` prints another"
        raise UsageError(f"--checkpoint: {path} is not a checkpoint: {error}", hint) from None
    return data


def read_promise_file(path: Path) -> bytes:
    """The signed bytes of a well-formed promise; its signature is not checked. Raises UsageError."""
    data = read_bytes("promise", path)
    try:
        read_promise(data)
    except FormatError as error:
        raise UsageError(f"{path} is not a promise: {error}", "`kolm generate --promise FILE` writes one") from None
    return data


class ModelTextReader:
    """Implements `ledger.bundle.report.TextReader`. The tokenizer is loaded at its first use.

    Its methods raise UsageError if the model has no tokenizer that loads, ProofError for unreadable texts.
    """

    def __init__(self, model: Path) -> None:
        self._model = model

    @cached_property
    def tokenizer_cid(self) -> str:
        from services.generation.target.identity import tokenizer_cid

        with _model_errors():
            return tokenizer_cid(self._model)

    def prompt(self, sent: str | Sequence[Turn]) -> list[int]:
        if isinstance(sent, str):
            return self._tokenizer.encode(sent)
        with _proof_errors():
            if len(sent) == 1 and "suffix" in sent[0]:
                return self._tokenizer.encode_infill(sent[0]["content"], sent[0]["suffix"])
            chat = _chat(sent)
            return self._tokenizer.encode_chat(chat.turns, chat.tools, continued=chat.continued)

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        stream = self._tokenizer.stream(prompt_token_ids)
        return "".join(map(stream.feed, output_token_ids)) + stream.flush()

    def has_thoughts(self, stated: ThoughtsPart, prompt_token_ids: Sequence[int]) -> bool:
        """Whether an answer to this prompt may have thoughts of the `stated` syntax."""
        tokenizer = self._tokenizer
        from services.generation.engine.request import ThoughtSyntax

        return tokenizer.is_syntax(ThoughtSyntax(stated.open, stated.closes, begun=stated.begun), prompt_token_ids)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from services.generation.target.without_torch import hide_torch

        hide_torch()
        from services.generation.engine.text.tokenizer import Tokenizer

        with _model_errors():
            return Tokenizer(self._model)


@contextmanager
def _model_errors() -> Iterator[None]:
    try:
        yield
    except TargetError as error:
        raise UsageError(f"--model: {error}") from error


@contextmanager
def _proof_errors() -> Iterator[None]:
    from services.runtime.errors import InvalidArgument

    try:
        yield
    except (ValueError, TypeError, RecursionError, InvalidArgument) as error:
        raise ProofError(f"the conversation cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Chat:
    """Turns and tools as chat templates take them; `continued`: the output continues the last turn."""

    turns: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    continued: bool


def _chat(sent: Sequence[Turn]) -> _Chat:
    """Raises ValueError, TypeError, RecursionError and InvalidArgument for a malformed conversation."""
    from services.generation.requests.prompt import chat_turns, read_tools

    messages = _messages(sent)
    tools = read_tools(messages)
    return _Chat(chat_turns(messages.messages), tools.described() if tools else [], messages.continue_final_message)


def _messages(sent: Sequence[Turn]) -> pb.ChatMessages:
    """The messages that were sent. Raises ValueError, TypeError and RecursionError for malformed calls and tools."""
    from kolm.generation.v1 import generation_pb2 as pb

    messages = pb.ChatMessages()
    for turn in sent:
        if "tools" in turn:
            for name, description, parameters, strict in json.loads(turn["tools"]):
                messages.tools.add(name=name, description=description, parameters=parameters, strict=strict)
            continue
        message = messages.messages.add(role=turn["role"], content=turn["content"])
        message.tool_call_id = turn.get("tool_call_id", "")
        message.reasoning_content = turn.get("reasoning_content", "")
        for call_id, name, arguments in json.loads(turn.get("tool_calls", "[]")):
            message.tool_calls.add(id=call_id, name=name, arguments=arguments)
        if messages.continue_final_message:
            raise ValueError("a turn comes after the continued one")
        messages.continue_final_message = turn.get("continued") == "true"
    return messages
