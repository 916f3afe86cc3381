"""Families of commands that need no server: models, tokens, training, status, sampling flags."""

import json
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from services.cli.frame.exits import UsageError
from services.cli.frame.output import plain
from services.cli.generation.request_options import RequestOptions
from services.cli.heads import train as training
from services.cli.main import app
from services.cli.status import Server, Stack, _facts
from services.cli.up.local_services import (
    LOCAL,
    OWNER,
    SERVICE_ROLES,
    make_local_principals,
    principals_file,
    token_file,
)
from services.client.health import Sample, Samples
from services.generation.target.model_path import model_path
from services.runtime.credentials import read_principals, token_digest
from services.training import trainer
from services.training.plan import Job
from tests import cli
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


models = partial(cli.kolm, "models")


def test_a_model_in_the_folder_is_found_by_its_name(folder: Path) -> None:
    make_tiny_model(folder / "mine", layers=1)
    assert model_path("mine") == folder / "mine"
    listed = models("list", "--json").document
    (mine,) = (each for each in listed if each["name"] == "mine")
    assert (mine["from"], mine["path"], mine["family"]) == ("imported", str(folder / "mine"), "llama")
    assert mine["size"] == (folder / "mine" / "model.safetensors").stat().st_size
    assert [each["from"] for each in listed if each["name"] == "smollm2"] == ["package"]


def test_a_model_that_cannot_be_read_is_listed_with_its_fault(folder: Path) -> None:
    make_tiny_model(folder / "mine", layers=1)
    for broken, text in (("cut", "{"), ("listed", "[]"), ("deep", "[" * 100_000)):
        (folder / broken).mkdir()
        (folder / broken / "config.json").write_text(text)
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html>")
    (folder / "gone.gguf").symlink_to(folder / "nowhere")
    field = struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"a", 9)
    (folder / "nested.gguf").write_bytes(field + struct.pack("<IQ", 9, 1) * 3000)
    (folder / "long.gguf").write_bytes(field + struct.pack("<IQQ", 8, 1, 2**63 - 1))
    listed = {"general.file_type": [15, 15]}
    make_tiny_gguf(folder / "types.gguf", change_metadata=lambda fields: fields.update(listed))
    done = models("list", "--json")
    faults = {each["name"]: each.get("fault") for each in done.document if each["from"] == "imported"}
    assert (done.code, faults.keys(), faults.pop("mine")) == (
        0,
        {*faults, "cut", "deep", "listed", "page", "gone", "nested", "long", "types"},
        None,
    )
    assert all(name in fault for name, fault in faults.items())
    shown = models("list")
    words = "".join(shown.out.split())  # lines break at the terminal's width
    assert (shown.code, [name for name, fault in faults.items() if "".join(fault.split()) not in words]) == (0, [])


def test_fields_of_a_gguf_file_count_wherever_they_are(folder: Path) -> None:
    """llama.cpp's quantisation appends general.file_type, behind the vocabulary."""
    folder.mkdir()
    make_tiny_gguf(folder / "mine.gguf", change_metadata=lambda fields: fields.update({"general.file_type": 15}))
    done = models("list", "--json")
    assert done.code == 0, done.err
    found = {each["name"]: each["arithmetic"] for each in done.document if each["from"] == "imported"}
    assert found == {"mine": ["float32", "int8"]}


def test_one_model_that_cannot_be_served_is_a_usage_error(folder: Path) -> None:
    make_tiny_model(folder / "mine", layers=1)
    rope = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    config = folder / "mine" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | {"rope_parameters": rope}))
    done = models("list", "mine")
    assert (done.code, "rope_parameters" in done.err, done.out) == (2, True, "")


Kolm = Callable[..., cli.Ended]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "principals.json"


@pytest.fixture
def kolm(file: Path) -> Kolm:
    return partial(cli.kolm, "tokens", environment={"KOLM_PRINCIPALS": file})


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


def test_a_token_for_a_file_is_not_shown_and_only_its_owner_reads_it(kolm: Kolm, tmp_path: Path) -> None:
    code, shown, _ = kolm("create", "service", "--role=append", "--tenant=*", f"--out={tmp_path / 'token'}", "--json")
    assert (code, json.loads(shown)["token"], json.loads(shown)["tenant"]) == (0, None, None)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert kolm("create", "service", "--role=append", f"--out={tmp_path / 'token'}")[0] == 2


def test_a_token_s_file_is_kept_while_its_token_is_valid_and_else_replaced(
    kolm: Kolm, file: Path, tmp_path: Path
) -> None:
    token, tokens = tmp_path / "token", list[str]()
    missing = ("create", "service", "--role=append", f"--out={token}", "--if-missing")
    for harm in (lambda: None, lambda: None, file.unlink, lambda: token.write_text("cut"), token.unlink):
        harm()
        assert kolm(*missing)[0] == 0
        tokens.append(token.read_text().strip())
        assert token_digest(tokens[-1]) == read_principals(file)[-1].token_sha256
    assert (tokens[0] == tokens[1], len(set(tokens))) == (True, 4)
    assert kolm("create", "service", "--role=append", "--if-missing")[0] == 2


def test_who_is_revoked_is_gone_by_id_or_by_name(kolm: Kolm, file: Path) -> None:
    for _ in range(2):
        kolm("create", "app", "--role=generate")
    kolm("create", "mirror", "--role=read", "--tenant=*", "--certificate=mirror.example")
    first = read_principals(file)[0].id
    assert kolm("revoke", first).code == 0
    assert [each.name for each in read_principals(file)] == ["app", "mirror"]
    assert kolm("revoke", "app")[0] == 0
    assert [each.certificate for each in read_principals(file)] == ["mirror.example"]
    assert kolm("revoke", "app")[0] == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("create", "a", "--role=root"), "--role"),
        (("create", "a", "--role=read", "--tenant="), "tenant"),
        (("create", "\x1b[31m", "--role=read"), "name"),
        (("create", "a", "--role=read", "--expires=soon"), "--expires"),
        (("create", "a", "--role=read", "--certificate=b", "--out=c"), "--out"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    kolm: Kolm, file: Path, arguments: tuple[str, ...], named: str
) -> None:
    done = kolm(*arguments)
    assert (done.code, f"{named}: " in done.err) == (2, True)
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
    cli.kolm("tokens", "revoke", "kolm up: explorer", f"--data-dir={tmp_path}")
    token_file(tmp_path, "generation").unlink()
    cli.kolm("tokens", "create", "world", "--role=generate", "--anybody", f"--data-dir={tmp_path}")
    make_local_principals(tmp_path)
    for name in ("explorer", "generation"):
        assert token_file(tmp_path, name).read_text() != tokens[name]
    assert token_file(tmp_path, OWNER).read_text() == tokens[OWNER]


USUAL = {"--steps": "4"}
CHANGED = {
    "--work": "elsewhere", "--minutes": "5", "--steps": "5", "--answering-minutes": "1", "--temperatures": "0,1",
    "--max-tokens": "9", "--held-out": "0.4", "--feature-layers": "1,2", "--draft-vocabulary": "9",
    "--intermediate": "9", "--unroll": "3", "--decay": "0.9", "--rate": "0.01", "--starts": "65", "--passes": "2",
    "--start-from": "{head}", "--kind": "block", "--layers": "3",
    "--precision": "float32", "--recompute": "", "--device": "cpu", "--seed": "1",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("flag", CHANGED)
def test_every_flag_changes_the_job(flag: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A forgotten flag would be accepted and have no effect."""
    jobs: list[tuple[Job, str | None]] = []
    monkeypatch.setattr(trainer, "faster_precision", lambda device: "bfloat16")
    monkeypatch.setattr(training, "run", lambda job, device: jobs.append((job, device)))
    (head := tmp_path / "head").mkdir()
    (head / "config.json").touch()
    (prompts := tmp_path / "prompts").touch()
    budget = {} if flag == "--minutes" else USUAL
    for flags in (USUAL, budget | {flag: CHANGED[flag]}):
        words = [word for pair in flags.items() for word in pair if word]
        words = [word.format(head=head) for word in words]
        done = cli.kolm("heads", "train", head, f"--prompts={prompts}", f"--out={tmp_path / 'out'}", *words)
        assert done.code == 130, done.err  # as if stopped on the way
    usual, changed = jobs
    assert usual != changed


def test_every_flag_is_among_those() -> None:
    own = {"--prompts", "--out", "--json", "--help", "-h"}
    command = typer.main.get_command(app).commands["heads"].commands["train"]  # type: ignore[attr-defined]
    flags = {flag for option in command.params for flag in option.opts if flag.startswith("-")}
    assert flags - own == CHANGED.keys()


NAMES = ("generation", "ledger", "auditor", "registry")


def server(name: str, serving: bool = True, **values: float) -> Server:
    """`name__label__value` has a label."""
    samples = []
    for each, value in values.items():
        series, *label = each.split("__")
        samples.append(Sample(series, dict([label]) if label else {}, value))
    return Server(name, "a:1", serving, Samples(samples))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("auditor", {"kolm_auditor_verdicts_total__outcome__DEVIATION": 2}),
        ("auditor", {"kolm_auditor_obligations__state__overdue": 1}),
        ("ledger", {"kolm_ledger_open_halts": 1}),
        ("generation", {"kolm_outbox_refused": 3}),
    ],
)
def test_a_broken_promise_is_named(name: str, values: dict[str, float]) -> None:
    broken = Stack(tuple(server(each, **(values if each == name else {})) for each in NAMES), None)
    assert len(broken.broken) == 1
    assert Stack(tuple(server(each) for each in NAMES), None).broken == ()


def test_outcomes_of_other_engines_are_shown_where_there_are_some() -> None:
    def shown(**counts: float) -> str:
        values = {f"kolm_auditor_verdicts_total__outcome__{name}": count for name, count in counts.items()}
        servers = tuple(server(each, **(values if each == "auditor" else {})) for each in NAMES)
        return repr(dict(_facts(plain(Stack(servers, None).document())))["verdicts"])

    own, others = {"EXACT": 1.0, "DEVIATION": 0.0, "UNREPLAYABLE": 0.0}, {"SAME": 0.0, "UNCHECKED": 0.0}
    assert all(name in shown(**own, **others) for name in own)
    assert not any(name in shown(**own, **others) for name in others)
    assert "SAME" in shown(**own, SAME=2.0)


def kind_and_text(**options: Any) -> tuple[str, str] | None:
    asked = RequestOptions(**options).sampling().constraint
    return None if asked is None else (asked.kind, asked.text)


def test_each_flag_is_a_constraint(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"type": "object"}')
    assert kind_and_text() is None
    assert kind_and_text(json_schema=file) == ("json", '{"type": "object"}')
    assert kind_and_text(grammar=file) == ("grammar", '{"type": "object"}')
    assert kind_and_text(json_object=True) == ("json_object", "")
    assert kind_and_text(regex="[0-9]") == ("regex", "[0-9]")
    assert kind_and_text(choice=["yes", "no"]) == ("choice", '["yes","no"]')


def test_two_constraints_or_a_file_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    for wrong, named in (
        ({"json_object": True, "regex": "a"}, "--json-object and --regex"),
        ({"json_schema": tmp_path / "missing"}, "--json-schema"),
        ({"grammar": tmp_path / "bytes"}, "--grammar"),
    ):
        with pytest.raises(UsageError, match=named):
            kind_and_text(**wrong)
