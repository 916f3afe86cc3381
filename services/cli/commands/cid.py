"""`kolm cid`: an identifier in its other spelling."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options


def cid(
    identifier: Annotated[str, typer.Argument(help="cidv1:sha256:<64 hex digits> or bafkrei…")],
    json: options.Json = False,
) -> None:
    """Convert an identifier to or from the multiformats form that IPFS and OCI tools know."""
    from ledger.encoding.cid import from_multiformats, to_multiformats
    from ledger.errors import FormatError
    from services.cli.terminal.output import answer

    if not identifier.startswith(("cidv1:", "b")):
        raise UsageError(f"{identifier!r}: expected cidv1:sha256:<64 hex digits> or bafkrei…")
    converts = to_multiformats if identifier.startswith("cidv1:") else from_multiformats
    try:
        other = converts(identifier)
    except FormatError as error:
        raise UsageError(f"{identifier!r}: {error.problem}") from error
    cid, multiformats = (identifier, other) if converts is to_multiformats else (other, identifier)
    answer(json, lambda: {"cid": cid, "multiformats": multiformats}, lambda: other)
