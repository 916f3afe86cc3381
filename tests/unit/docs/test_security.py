"""The table of docs/security.md is the one that servers enforce."""

from __future__ import annotations

import re
from pathlib import Path

from services.runtime.access import PERMISSIONS
from services.runtime.credentials import ROLES

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")


def test_the_page_says_what_each_rpc_takes() -> None:
    written = {
        (service, rpc): frozenset(ROLES) if roles == "every role" else frozenset(roles.split(", "))
        for service, rpcs, roles in re.findall(r"^\| (\w+): ([\w, ]+) \| ([\w, ]+) \|$", PAGE, re.MULTILINE)
        for rpc in rpcs.split(", ")
    }
    ours = {path: permission for path, permission in PERMISSIONS.items() if path.startswith("/kolm.")}
    assert written == {
        (path.split(".")[1], path.rpartition("/")[2]): frozenset({"anybody"}) if permission is None else permission
        for path, permission in ours.items()
    }


def test_the_page_names_every_role() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) >= set(ROLES)
