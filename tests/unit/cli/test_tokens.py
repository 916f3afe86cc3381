"""Credentials in a file of principals."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.up.local_services import (
    LOCAL,
    OWNER,
    SERVICE_ROLES,
    make_local_principals,
    principals_file,
    token_file,
)
from services.runtime.credentials import read_principals, token_digest

Kolm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "principals.json"


@pytest.fixture
def kolm(file: Path) -> Kolm:
    def run(*arguments: str) -> tuple[int, str, str]:
        environment = {"KOLM_PRINCIPALS": str(file), "COLUMNS": "200", "TERM": "dumb"}
        result = CliRunner(env=environment).invoke(app, ["tokens", *arguments])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_a_token_is_shown_once_and_never_listed(kolm: Kolm, file: Path) -> None:
    code, token, _ = kolm("create", "acme-app", "--role=generate", "--role=generate", "--tenant=acme", "--expires=90d")
    assert (code, token.startswith("kolm_")) == (0, True)
    (made,) = read_principals(file)
    assert (made.token_sha256, made.tenant, made.roles) == (token_digest(token.strip()), "acme", ("generate",))
    assert made.expires_at is not None
    assert (made.expires_at - made.created_at).days == 90
    for shown in (kolm("list")[1], kolm("list", "--json")[1]):
        assert "acme-app" in shown
        assert token.strip() not in shown
        assert token_digest(token.strip()) not in shown


def test_a_token_for_a_file_is_not_shown_and_nobody_else_reads_it(kolm: Kolm, tmp_path: Path) -> None:
    code, shown, _ = kolm("create", "service", "--role=append", "--tenant=*", f"--out={tmp_path / 'token'}", "--json")
    assert (code, json.loads(shown)["token"], json.loads(shown)["tenant"]) == (0, None, None)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert kolm("create", "service", "--role=append", f"--out={tmp_path / 'token'}")[0] == 2


def test_who_is_revoked_is_gone_by_id_or_by_name(kolm: Kolm, file: Path) -> None:
    for _ in range(2):
        kolm("create", "app", "--role=generate")
    kolm("create", "mirror", "--role=read", "--tenant=*", "--certificate=mirror.example")
    first = read_principals(file)[0].id
    assert kolm("revoke", first)[1] == f"revoked {first}, of app\n"
    assert [each.name for each in read_principals(file)] == ["app", "mirror"]
    assert kolm("revoke", "app")[0] == 0
    assert [each.certificate for each in read_principals(file)] == ["mirror.example"]
    assert kolm("revoke", "app")[0] == 4


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("create", "a", "--role=root"), "--role: 'root': expected one of generate, append"),
        (("create", "a", "--role=read", "--tenant="), "tenant: expected 1 to 128 characters"),
        (("create", "\x1b[31m", "--role=read"), "name: expected 1 to 128 printable ASCII"),
        (("create", "a", "--role=read", "--expires=soon"), "--expires: expected a number"),
        (("create", "a", "--role=read", "--certificate=b", "--out=c"), "--out: no token is made"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    kolm: Kolm, file: Path, arguments: tuple[str, ...], why: str
) -> None:
    code, _, said = kolm(*arguments)
    assert code == 2
    assert why in said
    assert not file.exists() or read_principals(file) == ()


def test_a_certificate_is_there_once(kolm: Kolm, file: Path) -> None:
    wish = ("create", "mirror", "--role=read", "--certificate=mirror.example")
    assert kolm(*wish)[0] == 0
    assert "revoke" in kolm(*wish)[2]
    assert len(read_principals(file)) == 1


def test_kolm_up_makes_what_is_missing_and_leaves_the_rest(tmp_path: Path) -> None:
    make_local_principals(tmp_path)
    made = read_principals(principals_file(tmp_path))
    assert {each.name for each in made} == {f"kolm up: {name}" for name in (*SERVICE_ROLES, OWNER, LOCAL)}
    tokens = {name: token_file(tmp_path, name).read_text() for name in (*SERVICE_ROLES, OWNER, LOCAL)}
    assert {stat.S_IMODE(token_file(tmp_path, name).stat().st_mode) for name in tokens} == {0o600}
    make_local_principals(tmp_path)
    assert read_principals(principals_file(tmp_path))[:-1] == made[:-1]
    assert token_file(tmp_path, LOCAL).read_text() != tokens[LOCAL]  # of one start
    CliRunner().invoke(app, ["tokens", "revoke", "kolm up: explorer", f"--data-dir={tmp_path}"])
    make_local_principals(tmp_path)
    assert token_file(tmp_path, "explorer").read_text() != tokens["explorer"]
    assert token_file(tmp_path, OWNER).read_text() == tokens[OWNER]
