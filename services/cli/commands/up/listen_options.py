"""Options of the addresses that the services of `kolm up` listen on."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from services.cli.failures.exits import Failed, UsageError

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", show_default=True)]

_PAGE_PORT, _HTTP_PORT = 50056, 50057


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """One host for all, and a port for each."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    insecure: Annotated[
        bool, typer.Option("--insecure", help="With a --host that others reach: everybody there can read all of it.")
    ] = False
    generation_port: Port = 50051
    ledger_port: Port = 50052
    auditor_port: Port = 50053
    registry_port: Port = 50054
    explorer_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes a free one. Default: 50056, or a free one.")
    ] = None
    explorer: Annotated[bool, typer.Option(help="Serve the auditor's page as well.")] = True
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes a free one. Default: 50057, or a free one.")
    ] = None
    http: Annotated[bool, typer.Option(help="Serve OpenAI's API as well.")] = True

    def check_host(self) -> None:
        """Raises UsageError for one that other machines reach, where nobody has said that they may."""
        from services.runtime.listening import is_loopback

        if not self.insecure and not is_loopback(self.host):
            hint = "kolm init writes settings with TLS for `kolm serve`; --insecure lets everybody there read all of it"
            raise UsageError(f"--host: {self.host} is reached from other machines, and `kolm up` speaks no TLS", hint)

    def page(self) -> int | None:
        """The explorer's port; None without it."""
        return usual_port(self.host, self.explorer_port, _PAGE_PORT) if self.explorer else None

    def front(self) -> int | None:
        """The HTTP front's port; None without it."""
        return usual_port(self.host, self.http_port, _HTTP_PORT) if self.http else None

    def check_ports(self, metrics: Mapping[str, int]) -> None:
        """Raises UsageError for a port that is given twice, Failed for one that somebody has."""
        from services.runtime.listening import CannotListen, check_free

        asked = {
            "--generation-port": self.generation_port,
            "--ledger-port": self.ledger_port,
            "--auditor-port": self.auditor_port,
            "--registry-port": self.registry_port,
            "--explorer-port": self.explorer_port if self.explorer else None,
            "--http-port": self.http_port if self.http else None,
            **{f"--metrics-port, {service}": port for service, port in metrics.items()},
        }
        ports = {flag: port for flag, port in asked.items() if port is not None}
        for flag, port in ports.items():
            if port and list(ports.values()).count(port) > 1:
                raise UsageError(f"{flag}: {port} is given to two services")
            try:
                check_free(f"{self.host}:{port}")
            except CannotListen as error:
                hint = "is another `kolm up` running? `kolm status` shows it; port 0 takes a free one"
                raise Failed(f"{flag}: {error}", hint) from None


LISTEN = ListenOptions()


def usual_port(host: str, asked: int | None, usual: int) -> int:
    """The port that was asked for, or the usual one: a free one if another program has it."""
    if asked is not None:
        return asked
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), usual))
        except OSError:
            return 0
    return usual
