"""The tokenizer as files in one archive, for who tokenizes elsewhere."""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from services.generation.engine.text.tokenizer import Tokenizer

_PIECE = 1 << 20  # bytes; messages may have 4 MiB
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows: the same tokenizer has the same archive


@dataclass
class TokenizerArchive:
    """A zip of tokenizer.json, tokenizer_config.json and the chat template, made when it is first asked for."""

    tokenizer: Tokenizer

    @cached_property
    def data(self) -> bytes:
        buffer = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            self.tokenizer.save(Path(folder))
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _DATE)
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def pieces(self) -> Iterator[tuple[bytes, str]]:
        """In order; with the last one comes the SHA-256 of the whole in hex, with the others nothing."""
        for begin in range(0, len(self.data), _PIECE):
            last = begin + _PIECE >= len(self.data)
            yield self.data[begin : begin + _PIECE], hashlib.sha256(self.data).hexdigest() if last else ""
