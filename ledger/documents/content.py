"""The erasable side of a receipt: the token ids, salts and texts that its commitments commit to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from ledger.errors import FormatError

_NAMES = {Receipt: "receipt", Promise: "promise"}


@dataclass(frozen=True, slots=True)
class Content:
    """Input of a replay: token ids, salts, and the text of the constraint that the output followed, if any. It has a
    table of its own; erasing it leaves every proof over the receipt intact.
    """

    prompt_salt: bytes = field(repr=False)
    prompt_token_ids: tuple[int, ...] = field(repr=False)
    output_salt: bytes = field(repr=False)
    output_token_ids: tuple[int, ...] = field(repr=False)
    structured_outputs: str | None = field(default=None, repr=False)

    def check(self, receipt: Receipt) -> None:
        """Raises FormatError unless this is exactly what the receipt commits to."""
        check_prompt(receipt, self.prompt_salt, self.prompt_token_ids)
        _check("output", OUTPUT_DOMAIN, self.output_salt, self.output_token_ids, receipt.output, receipt)
        constraint = receipt.sampling.structured_outputs
        if (constraint is None) != (self.structured_outputs is None):
            there = (
                "is missing, the receipt names one" if constraint is not None else "is there, the receipt names none"
            )
            raise FormatError("content.structured_outputs", there)
        if constraint is not None and self.structured_outputs is not None:
            constraint.check(self.structured_outputs, self.prompt_salt)


def check_opened(receipt: Receipt, content: Content, text: str) -> None:
    """Raises FormatError unless a receipt commits to this content and to the output's `text`."""
    content.check(receipt)
    committed = receipt.output.text_commitment
    if committed is None or commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, text) != committed:
        raise FormatError("text", "is not the output that the receipt commits to")


def check_prompt(document: Receipt | Promise, salt: bytes, token_ids: tuple[int, ...]) -> None:
    """Raises FormatError unless the prompt of a receipt or of a promise is these token ids."""
    _check("prompt", PROMPT_DOMAIN, salt, token_ids, document.prompt, document)


def check_sent(document: Receipt | Promise, prompt_salt: bytes, sent: str | Sequence[Mapping[str, str]]) -> None:
    """Raises FormatError unless the prompt of a receipt or of a promise is this text, or this conversation.

    A conversation is as `ledger.documents.sent` has it.
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
