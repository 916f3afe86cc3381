"""The erasable side of a receipt: the token ids and salts that its commitments commit to."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.documents.receipt import OutputPart, PromptPart, Receipt
from ledger.encoding.commitment import OUTPUT_DOMAIN, PROMPT_DOMAIN, commit
from ledger.errors import FormatError


@dataclass(frozen=True, slots=True)
class Content:
    """The token ids and salts that a replay needs. They have a table of their own; erasing it leaves every proof over
    the receipt intact.
    """

    prompt_salt: bytes = field(repr=False)
    prompt_token_ids: tuple[int, ...] = field(repr=False)
    output_salt: bytes = field(repr=False)
    output_token_ids: tuple[int, ...] = field(repr=False)

    def check(self, receipt: Receipt) -> None:
        """Raises FormatError unless this is exactly what the receipt commits to."""
        _check("prompt", PROMPT_DOMAIN, self.prompt_salt, self.prompt_token_ids, receipt.prompt)
        _check("output", OUTPUT_DOMAIN, self.output_salt, self.output_token_ids, receipt.output)


def _check(name: str, domain: str, salt: bytes, token_ids: tuple[int, ...], part: PromptPart | OutputPart) -> None:
    if len(token_ids) != part.tokens:
        raise FormatError(
            f"content.{name}_token_ids", f"expected the receipt's {part.tokens} ids, got {len(token_ids)}"
        )
    if commit(domain, salt, token_ids) != part.commitment:
        raise FormatError(f"content.{name}_token_ids", "with this salt, is not what the receipt commits to")
