"""The options that every command has that names a server: TLS, and the token that the server is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from services.cli.named_files import expect_files
from services.cli.options import SERVER
from services.cli.parsing import expect_address

_OPTIONS = {
    "tls_ca": Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", envvar="KOLM_TLS_CA", metavar="FILE", help="The authority (PEM) of the servers: speak TLS."
        ),
    ],
    "tls_cert": Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", envvar="KOLM_TLS_CERT", metavar="FILE", help="Your certificate (PEM), where they ask for one."
        ),
    ],
    "tls_key": Annotated[
        Path | None,
        typer.Option("--tls-key", envvar="KOLM_TLS_KEY", metavar="FILE", help="The private key of --tls-cert (PEM)."),
    ],
    "token": Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Who you are. Other users here can see flags.")
    ],
    "token_file": Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="A file with the token. Default: what `kolm up` left you."),
    ],
}


def with_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options more; itself where none of its parameters is the address of a server."""
    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    addresses = [each.name for each in own if _takes_address(each)]
    if not addresses:
        return command

    @wraps(command)
    def connecting(
        *,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        token: str | None,
        token_file: Path | None,
        **given: Any,
    ) -> Any:
        for name in addresses:
            expect_address(f"--{name}", given[name])
        for name, path in (("--tls-ca", tls_ca), ("--tls-cert", tls_cert), ("--tls-key", tls_key)):
            expect_files(name, [path] if path else [], "a file in PEM; `kolm init` makes them for development")
        expect_files("--token-file", [token_file] if token_file else [], "a file with a token")
        if tls_ca or tls_cert or tls_key:
            from services.client.tls import ClientTls

            ClientTls(tls_ca, tls_cert, tls_key).for_process()
        if token is not None or token_file is not None:
            from services.client.token import show

            show(token, token_file)
        return command(**given)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    vars(connecting)["__signature__"] = signature.replace(parameters=[*own, *more])
    connecting.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    return connecting


def _takes_address(parameter: inspect.Parameter) -> bool:
    return any(getattr(said, "metavar", None) == SERVER for said in get_args(parameter.annotation))
