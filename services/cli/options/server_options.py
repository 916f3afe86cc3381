"""The options that every command has that names a server: TLS, and the token that the server is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from services.cli.options.options import SERVER
from services.cli.values.named_files import expect_files
from services.cli.values.parsing import expect_address


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How this process speaks with servers, and as whom."""

    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", envvar="KOLM_TLS_CA", metavar="FILE", help="The authority (PEM) of the servers: speak TLS."
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", envvar="KOLM_TLS_CERT", metavar="FILE", help="Your certificate (PEM), where they ask for one."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", envvar="KOLM_TLS_KEY", metavar="FILE", help="The private key of --tls-cert (PEM)."),
    ] = None
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Who you are. Other users here can see flags.")
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="A file with the token. Default: what `kolm up` left you."),
    ] = None

    def for_process(self) -> None:
        """From here on, clients of this process use them. Raises UsageError for files that are not there."""
        pem = "a file in PEM; `kolm init` makes them for development"
        for name, path in (("--tls-ca", self.tls_ca), ("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            expect_files(name, [path] if path else [], pem)
        expect_files("--token-file", [self.token_file] if self.token_file else [], "a file with a token")
        if self.tls_ca or self.tls_cert or self.tls_key:
            from services.client.identity import ClientTls

            ClientTls(self.tls_ca, self.tls_cert, self.tls_key).for_process()
        if self.token is not None or self.token_file is not None:
            from services.client.identity import show

            show(self.token, self.token_file)


def with_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options more; itself where none of its parameters is the address of a server."""
    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    addresses = [each.name for each in own if _takes_address(each)]
    if not addresses:
        return command

    @wraps(command)
    def connecting(*, servers: ServerOptions, **given: Any) -> Any:
        for name in addresses:
            expect_address(f"--{name}", given[name])
        servers.for_process()
        return command(**given)

    more = inspect.Parameter("servers", inspect.Parameter.KEYWORD_ONLY, annotation=ServerOptions)
    vars(connecting)["__signature__"] = signature.replace(parameters=[*own, more])
    return connecting


def _takes_address(parameter: inspect.Parameter) -> bool:
    return any(getattr(said, "metavar", None) == SERVER for said in get_args(parameter.annotation))
