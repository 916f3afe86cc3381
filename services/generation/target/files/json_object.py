"""The JSON object in a file of a model's, an adapter's or a head's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LARGEST = 2**24  # bytes: far beyond any of these files


def read_json_object(path: Path, folder: str, missing: type[Exception], invalid: type[Exception]) -> dict[str, Any]:
    """Raises `missing` where there is no such file, and `invalid` where it holds no object. Messages say that a
    `folder` was expected.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise invalid(f"{path}: larger than {_LARGEST} bytes")
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        found = f"no {path.name}" if path.parent.is_dir() else "no such directory"
        raise missing(f"{path.parent}: {found}; expected {folder}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(document, dict):
        raise invalid(f"{path}: expected a JSON object")
    return document
