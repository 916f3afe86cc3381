"""Tells findings to a URL: one POST of JSON each, tried a few times."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from ledger.encoding.timestamp import timestamp
from ledger.monitor.finding import Finding
from services.cli.failures.exits import UsageError
from services.runtime.http.http_call import post

_SECONDS = 10.0
_PAUSES = (0.0, 1.0, 4.0)
"""Before each try, in seconds."""


class Webhook:
    """A place that takes findings."""

    def __init__(self, url: str, log: str) -> None:
        """`log` names what is followed. Raises UsageError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--webhook: expected http://… or https://…, got {url!r}")
        self._url = url
        self._log = log

    def tell(self, finding: Finding, size: int, now: datetime) -> str | None:
        """None once the other side has taken it (2xx), else why it has not."""
        body = json.dumps(webhook_body(finding, self._log, size, now), ensure_ascii=False).encode()
        problem = ""
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                status, _ = post(self._url, body, "application/json", _SECONDS)
            except OSError as error:
                problem = str(error)
                continue
            if 200 <= status < 300:
                return None
            problem = f"answers {status}"
        return problem


def webhook_body(finding: Finding, log: str, size: int, now: datetime) -> dict[str, Any]:
    """The body of a POST (docs/monitoring.md)."""
    return {"type": "kolm.finding.v1", "log": log, "size": size, "found_at": timestamp(now), **finding.to_document()}
