"""The bytes of a single token, which may be part of a character."""

from __future__ import annotations

import re

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_SPACE = "\u2581"  # SentencePiece's
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _byte_level() -> dict[str, int]:
    """Bytes by their characters in byte-level vocabularies: GPT-2's table, in which printable bytes are Latin-1 and the
    others are counted from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


BYTE_LEVEL = _byte_level()


def token_bytes(name: str, text: str) -> bytes | None:
    """The bytes that a token adds to a text.

    `name`: its text in the vocabulary; `text`: its decoded text alone, in which bytes that are not UTF-8 are U+FFFD,
    and a SentencePiece decoder strips a space. None if the vocabulary writes bytes in another way.
    """
    if text != name and (byte := _BYTE.fullmatch(name)) is not None:
        return bytes([int(byte[1], 16)])
    if _UNKNOWN not in text:
        spaces = len(name) - len(name.lstrip(_SPACE))
        return (" " * spaces + text.lstrip(" ") if spaces and _SPACE not in text else text).encode()
    is_byte_level = BYTE_LEVEL.keys() >= set(name)
    spelled = bytes(BYTE_LEVEL[each] for each in name) if is_byte_level else name.encode("utf-8", "replace")
    return spelled if spelled.decode("utf-8", "replace") == text else None
