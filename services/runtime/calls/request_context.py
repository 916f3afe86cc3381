"""The id of the request that a task serves, for logs and errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar

REQUEST_ID_KEY = "kolm-request-id"
"""The metadata key of the request's id. A caller may send one; the server returns one in the trailing metadata."""

current_request_id: ContextVar[str] = ContextVar("current_request_id", default="-")
"""The id of the call that this task serves; "-" outside of calls."""

_ACCEPTABLE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_from(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The caller's id if it sent a valid one, else a new one."""
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _ACCEPTABLE.fullmatch(value):
            return value
    return str(uuid.uuid4())
