"""`kolm tokens`: who may call services, and what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options

Principals = Annotated[
    Path | None,
    typer.Option(
        "--principals",
        envvar="KOLM_PRINCIPALS",
        metavar="FILE",
        help="The file to change. Default: <data-dir>/principals.json.",
    ),
]


def create(
    name: Annotated[str, typer.Argument(help="Whose it is; servers name them by it in refusals.")],
    role: Annotated[
        list[str],
        typer.Option(metavar="ROLE", help="generate, append, read, audit, publish or operate; may be repeated."),
    ],
    tenant: Annotated[
        str, typer.Option(help="On whose behalf they call; '*' is for whoever acts for every tenant.")
    ] = "default",
    expires: Annotated[
        str | None, typer.Option(metavar="AGE", help="After how long it ends: 12h, 90d. Default: when it is revoked.")
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="No token: a subject name of their client certificate proves who they are."),
    ] = None,
    anybody: Annotated[
        bool,
        typer.Option("--anybody", help="No token: for anybody who reaches a server's port, also through a proxy."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the token there (mode 0600) instead of showing it.")
    ] = None,
    data_dir: options.DataDir = options.DATA_DIR,
    principals: Principals = None,
    json: options.Json = False,
) -> None:
    """Let somebody in. The token is shown this once; servers keep its digest, and need no restart."""
    from services.cli.jobs.tokens import Wish, create_credential
    from services.cli.terminal.output import answer
    from services.cli.values.parsing import age
    from services.cli.views.tokens import created_json, created_view

    wish = Wish(name, tuple(role), tenant, age("--expires", expires) if expires else None, certificate, anybody, out)
    made = create_credential(principals or data_dir / "principals.json", wish)
    answer(json, lambda: created_json(made), lambda: created_view(made))


def list_(
    data_dir: options.DataDir = options.DATA_DIR,
    principals: Principals = None,
    json: options.Json = False,
) -> None:
    """List who may call: names, tenants, roles, when they end. Shows no secret."""
    from services.cli.jobs.tokens import list_credentials
    from services.cli.terminal.output import answer
    from services.cli.views.tokens import credentials_json, credentials_view

    listed = list_credentials(principals or data_dir / "principals.json")
    answer(json, lambda: credentials_json(listed), lambda: credentials_view(listed))


def revoke(
    credential: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="Its id, or a name: then everything of that name.")
    ],
    data_dir: options.DataDir = options.DATA_DIR,
    principals: Principals = None,
    json: options.Json = False,
) -> None:
    """Let somebody in no longer, from the next call on; 'anybody': callers without a token."""
    from services.cli.jobs.tokens import revoke_credentials
    from services.cli.terminal.output import answer
    from services.cli.views.tokens import credentials_json, revoked_view

    gone = revoke_credentials(principals or data_dir / "principals.json", credential)
    answer(json, lambda: credentials_json(gone), lambda: revoked_view(gone))
