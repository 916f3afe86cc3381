"""The content behind commitments: token ids, salts and texts, and conversations as lists of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from ledger.documents.promise import Promise
from ledger.documents.receipt import OutputPart, PromptPart, Receipt
from ledger.encoding.canonical import canonical
from ledger.encoding.commitment import (
    MESSAGES_DOMAIN,
    OUTPUT_DOMAIN,
    OUTPUT_TEXT_DOMAIN,
    PROMPT_DOMAIN,
    PROMPT_TEXT_DOMAIN,
    commit,
    commit_text,
)
from ledger.encoding.document import Part, TokenId
from ledger.errors import FormatError

Turn = dict[str, str]
"""`role` and `content`. An assistant's turn may have `tool_calls` and its thoughts, `reasoning_content`, a tool's
`tool_call_id`, and the first `tools`. The last may have `continued`, which is "true": the output continues that turn. A
prompt with a gap that the output fills is one turn of the role "prompt": its content is the text before the gap,
`suffix` the text after it.
"""

TURN_MEMBERS = ("role", "content", "tool_call_id", "tool_calls", "reasoning_content", "tools", "continued", "suffix")

_Constraint = Annotated[str, Meta(max_length=1 << 20)]  # characters; servers take fewer
_NAMES = {Receipt: "receipt", Promise: "promise"}


class SentCall(NamedTuple):
    """A call of a tool in an assistant's turn, in the order of its JSON array; `arguments` is the sent text."""

    id: str
    name: str
    arguments: str


class SentTool(NamedTuple):
    """A tool of a conversation, in the order of its JSON array; `parameters` is the schema's text."""

    name: str
    description: str
    parameters: str
    strict: bool


class Content(Part, frozen=True):
    """Input of a replay: token ids, salts, and the text of the constraint that the output followed, if any. It is
    stored in a separate table; erasing it leaves every proof over the receipt intact.
    """

    prompt_salt: bytes
    prompt_token_ids: tuple[TokenId, ...]
    output_salt: bytes
    output_token_ids: tuple[TokenId, ...]
    structured_outputs: _Constraint | None = None

    def __repr__(self) -> str:
        return "Content(…)"  # logs and tracebacks show no prompt

    def check_against(self, receipt: Receipt) -> None:
        """Raises FormatError unless the receipt commits to exactly this content."""
        check_prompt(receipt, self.prompt_salt, self.prompt_token_ids)
        _check("output", OUTPUT_DOMAIN, self.output_salt, self.output_token_ids, receipt.output, receipt)
        constraint = receipt.sampling.structured_outputs
        if (constraint is None) != (self.structured_outputs is None):
            there = (
                "is missing, the receipt names one" if constraint is not None else "is there, the receipt names none"
            )
            raise FormatError("content.structured_outputs", there)
        if constraint is not None and self.structured_outputs is not None:
            constraint.check_text(self.structured_outputs, self.prompt_salt)


def check_opened(receipt: Receipt, content: Content, text: str) -> None:
    """Raises FormatError unless a receipt commits to this content and to the output's `text`."""
    content.check_against(receipt)
    committed = receipt.output.text_commitment
    if committed is None or commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, text) != committed:
        raise FormatError("text", "is not the output that the receipt commits to")


def check_prompt(document: Receipt | Promise, salt: bytes, token_ids: tuple[int, ...]) -> None:
    """Raises FormatError unless the prompt of a receipt or of a promise is these token ids."""
    _check("prompt", PROMPT_DOMAIN, salt, token_ids, document.prompt, document)


def check_sent(document: Receipt | Promise, prompt_salt: bytes, sent: str | Sequence[Mapping[str, str]]) -> None:
    """Raises FormatError unless the prompt of a receipt or of a promise is this text, or this conversation.

    A conversation is a list of `Turn`.
    """
    if isinstance(sent, str):
        domain, text = PROMPT_TEXT_DOMAIN, sent
    else:
        domain, text = MESSAGES_DOMAIN, canonical([dict(turn) for turn in sent]).decode()
    committed = document.prompt.text_commitment
    if committed is None or commit_text(domain, prompt_salt, text) != committed:
        raise FormatError("prompt", f"is not what the {_NAMES[type(document)]} commits to")


def _check(
    name: str,
    domain: str,
    salt: bytes,
    token_ids: tuple[int, ...],
    part: PromptPart | OutputPart,
    document: Receipt | Promise,
) -> None:
    path, committing = f"content.{name}_token_ids", _NAMES[type(document)]
    if len(token_ids) != part.tokens:
        raise FormatError(path, f"expected the {committing}'s {part.tokens} ids, got {len(token_ids)}")
    if commit(domain, salt, token_ids) != part.commitment:
        raise FormatError(path, f"with this salt, is not what the {committing} commits to")


def sent_turn(
    role: str, content: str, calls: Sequence[SentCall] = (), call_id: str = "", reasoning_content: str = ""
) -> Turn:
    """A turn, with `calls` as a JSON array of arrays. Empty values are left out."""
    written = canonical([list(call) for call in calls]).decode() if calls else ""
    more = {"tool_calls": written, "tool_call_id": call_id, "reasoning_content": reasoning_content}
    return {"role": role, "content": content} | {name: value for name, value in more.items() if value}


def continued_turns(turns: Sequence[Turn]) -> list[Turn]:
    """The turns of a prompt whose last turn the output continues."""
    return [*turns[:-1], turns[-1] | {"continued": "true"}]


def sent_infill(prefix: str, suffix: str) -> list[Turn]:
    return [{"role": "prompt", "content": prefix, "suffix": suffix}]


def sent_tools(tools: Sequence[SentTool]) -> list[Turn]:
    """The first turn, with the tools as a JSON array of arrays; none without tools."""
    written = canonical([list(tool) for tool in tools]).decode()
    return [{"role": "tools", "content": "", "tools": written}] if tools else []
