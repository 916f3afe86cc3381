"""The options of TLS, which every command has that names a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from services.cli.options import SERVER

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
}


def with_tls(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with three options more; itself where none of its parameters is the address of a server."""
    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    if not any(getattr(said, "metavar", None) == SERVER for each in own for said in get_args(each.annotation)):
        return command

    @wraps(command)
    def connecting(*, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **given: Any) -> Any:
        if tls_ca or tls_cert or tls_key:
            from services.client.tls import ClientTls

            ClientTls(tls_ca, tls_cert, tls_key).for_process()
        return command(**given)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    vars(connecting)["__signature__"] = signature.replace(parameters=[*own, *more])
    connecting.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    return connecting
