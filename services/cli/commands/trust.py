"""`kolm trust`: a person says whose keys count on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options


def add(
    keys: Annotated[
        list[Path],
        typer.Argument(metavar="KEYFILE…", help="Public keys, or folders with some."),
    ],
    role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="What they may sign for. Default: as each file's name says, ROLE-….pub."),
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keys of role receipts: for these tenants alone.")
    ] = None,
    base: Annotated[
        list[str] | None, typer.Option(metavar="CID", help="Keys of role receipts: for these bases alone.")
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option(metavar="CID", help="Keys of role receipts: for these profiles alone.")
    ] = None,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Trust public keys, each for one role. Running services that know a key of the role take it when they restart."""
    from ledger.errors import FormatError
    from ledger.keys.ed25519 import ROLES
    from ledger.keys.key_scope import KeyScope
    from services.cli.failures.exits import UsageError
    from services.cli.jobs.trust import add_files
    from services.cli.terminal.output import answer
    from services.cli.views.log.trust import added_view, keys_json

    if role is not None and role not in ROLES:
        raise UsageError(f"--role: {role!r}: expected one of {', '.join(ROLES)}")
    try:
        scope = KeyScope.of(base_cid=base, profile_cid=profile, tenant=tenant)
    except FormatError as error:
        raise UsageError(str(error)) from None
    added = add_files(keys, role, home.trusted, scope)
    answer(json, lambda: keys_json(added), lambda: added_view(added))


def list_(
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """List the trusted keys: role, id, file, and what they are trusted for where that is not everything."""
    from services.cli.jobs.trust import list_trusted
    from services.cli.terminal.output import answer
    from services.cli.views.log.trust import keys_json, keys_view

    keys = list_trusted(home.trusted)
    answer(json, lambda: keys_json(keys), lambda: keys_view(keys))


def remove(
    key: Annotated[str, typer.Argument(help="Its id, the first digits of it, or its file's name.")],
    retire: Annotated[
        bool, typer.Option("--retire", help="Keep it for what it has signed so far: move it to the folder retired/.")
    ] = False,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Trust a key no longer, in running services too. Without --retire, what it has signed does not verify any more."""
    from services.cli.jobs.trust import remove_trusted
    from services.cli.terminal.output import answer
    from services.cli.views.log.trust import keys_json

    removed = remove_trusted(key, home.trusted, retire=retire)
    said = f"{removed.key_id} of role {removed.role} is {'retired' if retire else 'trusted no longer'}"
    answer(json, lambda: keys_json((removed,)), lambda: said)
