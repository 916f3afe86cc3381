"""`kolm tokens`: credentials of callers, with their roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ledger.durable_file import write_durably
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.output import answer, members
from services.cli.frame.values import age, expect_name
from services.cli.frame.views import DASH, Column, Line, View, table

if TYPE_CHECKING:
    from services.runtime.credentials import Credential


Principals = Annotated[
    Path | None,
    Option(
        "--principals",
        envvar="KOLM_PRINCIPALS",
        metavar="FILE",
        help="The file to change. Default: <data-dir>/principals.json.",
    ),
]


EVERY_TENANT = "*"
_PROOFS = {"anybody": "nothing", "token": "token"}


def create(
    name: Annotated[str, Argument(help="Name of the holder; servers show it in refusals.")],
    role: Annotated[
        list[str],
        Option(metavar="ROLE", help="generate, append, read, audit, publish, operate or observe; may be repeated."),
    ],
    tenant: Annotated[str, Option(help="The tenant that they call for; '*' is every tenant.")] = "default",
    expires: Annotated[
        str | None, Option(metavar="DURATION", help="Time until it expires: 12h, 90d. Default: it does not expire.")
    ] = None,
    certificate: Annotated[
        str | None,
        Option(metavar="NAME", help="Make no token; a subject name of their client certificate identifies them."),
    ] = None,
    anybody: Annotated[
        bool,
        Option(
            "--anybody",
            help="Make no token; every caller who reaches a server's port has the roles, also through a proxy.",
        ),
    ] = False,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write the token to this file (mode 0600) instead of printing it.")
    ] = None,
    if_missing: Annotated[
        bool, Option("--if-missing", help="Keep the --out FILE if its token is valid; replace an unknown one.")
    ] = False,
    data_dir: options.DataDir = options.DATA_DIR,
    principals: Principals = None,
    json: options.Json = False,
) -> None:
    """Create a credential. The token is printed only now; servers keep its digest, and need no restart."""
    from services.runtime.credentials import ROLES, digest_in, new_token, token_digest

    file, now = principals or data_dir / "principals.json", datetime.now(UTC).replace(microsecond=0)
    if unknown := [each for each in role if each not in ROLES]:
        raise UsageError(f"--role: {unknown[0]!r}: expected one of {', '.join(ROLES)}")
    if anybody and certificate is not None:
        raise UsageError("--anybody: takes no --certificate: it is for callers without credentials")
    token = None if anybody or certificate is not None else new_token()
    if out is not None:
        if token is None:
            raise UsageError("--out: no token is made; there is nothing to write")
        if out.exists() and not if_missing:
            raise UsageError(f"--out: {out} exists already", "--if-missing keeps a valid token and replaces others")
    elif if_missing:
        raise UsageError("--if-missing: needs --out, the file of the token")
    credential = _credential(
        name=name,
        tenant=None if tenant == EVERY_TENANT else expect_name("--tenant", tenant),
        roles=tuple(dict.fromkeys(role)),
        token_sha256=None if token is None else token_digest(token),
        certificate=certificate,
        anybody=anybody,
        created_at=now,
        expires_at=None if expires is None else now + age("--expires", expires),
    )
    with _edited(file) as credentials:
        if any(each.id == credential.id for each in credentials):
            raise UsageError(f"{file} has {certificate or 'anybody'} already: revoke {credential.id} first")
        there = "" if out is None else digest_in(out) or ""
        valid = {each.token_sha256: each for each in credentials if each.token_sha256 and each.valid_at(now)}
        kept = valid.get(there)
        if kept is None:
            if token is not None and out is not None:  # first, so that no credential stays whose token is lost
                write_durably(out, f"{token}\n".encode())
            credentials.append(credential)
    secret = {"token": token if out is None else None, "token_file": out}
    answer(json, _document(kept or credential) | secret | {"kept": kept is not None}, _created_view)


def _credential(**members: Any) -> Credential:
    """Raises UsageError for a name that is not plain text."""
    from pydantic import ValidationError

    from services.runtime.credentials import Credential

    try:
        return Credential(**members)
    except ValidationError as error:
        raise UsageError(f"{error.errors()[0]['loc'][0]}: expected 1 to 128 printable ASCII characters") from None


def list_(
    data_dir: options.DataDir = options.DATA_DIR, principals: Principals = None, json: options.Json = False
) -> None:
    """List credentials: names, tenants, roles, expiry. Shows no secret."""
    from services.runtime.credentials import PrincipalsError, read_principals

    try:
        listed = read_principals(principals or data_dir / "principals.json")
    except PrincipalsError as error:
        raise Failed(str(error)) from None
    answer(json, [_document(each) for each in listed], _credentials_view)


def revoke(
    credential: Annotated[
        str, Argument(metavar="ID|NAME", help="Id of a credential, or a name, for all credentials of that name.")
    ],
    data_dir: options.DataDir = options.DATA_DIR,
    principals: Principals = None,
    json: options.Json = False,
) -> None:
    """Revoke credentials from the next call on; 'anybody' names the credential of callers without a token."""
    file = principals or data_dir / "principals.json"
    if not file.exists():
        raise exits.NotFound(f"there is no {file}, and so no credential")
    with _edited(file) as credentials:
        gone = [each for each in credentials if credential in (each.id, each.name)]
        if not gone:
            raise exits.NotFound(f"no credential {credential!r} in {file}", "`kolm tokens list` shows them")
        credentials[:] = [each for each in credentials if each not in gone]
    answer(
        json,
        [_document(each) for each in gone],
        lambda revoked: [f"revoked {each['id']}, of {each['name']}" for each in revoked],
    )


@contextmanager
def _edited(file: Path) -> Iterator[list[Credential]]:
    from services.runtime.credentials import PrincipalsError, edited_principals

    try:
        with edited_principals(file) as credentials:
            yield credentials
    except PrincipalsError as error:
        raise Failed(str(error)) from None


def _document(credential: Credential) -> dict[str, Any]:
    """A credential without its secret."""
    return members(credential, "id", "name", "tenant", "roles", "certificate", "created_at", "expires_at") | {
        "kind": "anybody" if credential.anybody else "certificate" if credential.certificate else "token",
        "valid": credential.valid_at(datetime.now(UTC)),
    }


def _created_view(made: dict[str, Any]) -> View:
    """Only the token, so that it can be piped; without one, a line about the credential."""
    if made["token"] is not None:
        return str(made["token"])
    if made["token_file"] is not None:
        return f"{'kept' if made['kept'] else 'wrote'} {made['token_file']}, the token of {made['name']} ({made['id']})"
    if made["kind"] == "anybody":
        return f"every caller who reaches the servers' ports, also through a proxy, has: {', '.join(made['roles'])}"
    return f"a caller with a certificate for {made['certificate']} is {made['name']}"


def _credentials_view(credentials: list[dict[str, Any]]) -> View:
    return table(
        credentials,
        Column("id", "id", whole=True),
        Column("name", "name"),
        Column("tenant", lambda each: each["tenant"] or EVERY_TENANT),
        Column("roles", lambda each: ", ".join(each["roles"])),
        Column("identified by", lambda each: _PROOFS.get(each["kind"]) or f"certificate {each['certificate']}"),
        Column("ends", _end),
    )


def _end(credential: dict[str, Any]) -> Line:
    if credential["expires_at"] is None:
        return DASH
    day = credential["expires_at"][: len("2026-01-02")]
    return str(day) if credential["valid"] else f"ended {day}"
