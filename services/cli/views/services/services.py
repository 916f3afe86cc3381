"""Services: what they write, where they listen, how they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from services.cli.failures.exits import FAILED, Failed
from services.cli.terminal.output import print_json, talk

if TYPE_CHECKING:
    from services.cli.jobs.running.local_services import Addresses, LocalServices
    from services.cli.jobs.trust import TrustedKey
    from services.runtime.settings import LogFormat

_COLOURS = {
    "ledger": "cyan",
    "generation": "green",
    "auditor": "magenta",
    "registry": "yellow",
    "explorer": "blue",
    "http": "white",
}


class UpTalk:
    """Output of `kolm up` and its services on stderr: text behind the service's name, or one JSON object a line."""

    def __init__(self, form: LogFormat) -> None:
        self._json = form == "json"
        self._console = talk()

    def line(self, service: str, line: str) -> None:
        """A line of a service; from any thread. JSON goes through as it is. Services go on where nobody reads them any
        more, or the terminal is gone.
        """
        with suppress(OSError):
            if not self._json:
                prefix = Text(f"{service:>10} │ ", style=_COLOURS.get(service, "bold"))
                self._console.print(prefix + Text.from_ansi(line), soft_wrap=True)
            elif line.startswith("{") and line.endswith("}"):
                print(line, file=sys.stderr, flush=True)
            else:
                said = {"time": datetime.now(UTC).isoformat(), "level": "INFO", "service": service, "message": line}
                print(json.dumps(said, ensure_ascii=False), file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """A line of `kolm up` itself, among those of the services."""
        self.line("kolm", line)

    def failure(self, message: str, hint: str | None = None) -> Failed | SystemExit:
        """The exception for a failure; with JSON lines it is one of them, already printed."""
        if not self._json:
            return Failed(message, hint)
        self.say(f"{message}; {hint}" if hint else message)
        return SystemExit(FAILED)

    def starting(self, services: LocalServices, adapters: Mapping[str, Path]) -> None:
        """Prints the first lines; `adapters` lie beside the model."""
        self.say(f"starting with {services.model}; keys, ledger and state are in {services.data_dir}")
        if adapters:
            self.say(f"adapters beside the model, for kolm generate --adapter: {', '.join(adapters)}")

    def trusts(self, key: TrustedKey) -> None:
        """A key that `kolm up` trusts from now on."""
        self.say(f"trusts its own {key.role} key: {key.path}")

    def still_starting(self, service: str, seconds: float, last_line: str | None) -> None:
        """Prints a line for a service that prints none itself."""
        doing = "importing" if last_line is None else last_line.partition("] ")[2] or last_line
        self.say(f"{service}, {seconds:.0f} s: {doing} …")

    def announce(self, addresses: Addresses, services: LocalServices, seconds: float, *, as_json: bool) -> None:
        """Say that every service serves, where, and how long after the start of the command."""
        if as_json:
            print_json(asdict(addresses))
            return
        self.say(f"ready after {seconds:.1f} s: generation {addresses.generation}, ledger {addresses.ledger}")
        self.say(f"       auditor {addresses.auditor}, registry {addresses.registry}")
        if addresses.explorer is not None:
            self.say(f"       the auditor's page: http://{addresses.explorer}/")
        if addresses.http is not None:
            if self._json:  # lines of a log, which gets no secret
                self.say(f"       OpenAI's API: http://{addresses.http}/v1, api_key in {services.local_token}")
            else:
                key = services.local_token.read_text(encoding="ascii").strip()
                self.say(f"       OpenAI's API: http://{addresses.http}/v1 api_key {key}")
                self.say(f"       a page to chat on: http://{addresses.http}/#key={key}")
        self.say(_audited(services.audit_rate))
        self.say('try: kolm generate --chat "What is gravity?"      Ctrl-C stops everything')


def _audited(rate: float) -> str:
    """How many receipts are computed again."""
    if rate >= 1.0:
        return "the auditor replays every receipt, on an engine of its own"
    return f"the auditor replays {rate:.0%} of the receipts, on its own engine; `kolm audit run --sample 1` the others"
