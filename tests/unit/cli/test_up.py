"""Flags of `kolm up`, and the services that it plans."""

import gc
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from services.auditor.settings import AuditorSettings
from services.cli.up import fork_server
from services.cli.up.local_services import Addresses, LocalServices, bring_up
from services.cli.up.supervisor import Plan, Supervisor
from services.cli.up.up import UpReporter
from services.cli.up.up_options import ListenOptions, OtherEngineOptions, ServedOptions
from services.explorer.settings import ExplorerSettings
from services.generation.settings import GenerationSettings
from services.generation.state_folder import LOADING
from services.http.settings import HttpSettings
from services.runtime import listening
from services.runtime.settings import ServerSettings
from tests.cli import FREE, kolm


def imported(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").touch()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LocalServices]:
    """The services that would have been run, on a machine without the packaged model."""
    found: list[LocalServices] = []
    monkeypatch.setattr("services.cli.up.up._run", lambda services, *others, as_json: found.append(services))
    monkeypatch.setattr("services.generation.target.model_path.find_spec", lambda name: None)
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.parametrize(
    ("toml", "variables", "seconds"),
    [
        ("", {}, 30),
        ("60", {}, 130),
        ('"soon"', {"KOLM_LEDGER_GRACE_SECONDS": "20"}, 50),
        ("", {"KOLM_LEDGER_GRACE_SECONDS": "inf", "KOLM_AUDITOR_GRACE_SECONDS": "nan"}, 7210),
        ("", {"POD_GRACE_SECONDS": "1e7"}, 30),
    ],
)
def test_services_are_not_killed_within_their_grace_periods(
    toml: str, variables: dict[str, str], seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[float] = []
    monkeypatch.setattr("services.cli.up.up._run", lambda *given, as_json: found.append(given[-1]))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "kolm.toml").write_text(f"[generation]\ngrace_seconds = {toml}\n" if toml else "")
    imported(tmp_path, "base")
    assert kolm("up", *FREE, "--model", tmp_path / "base", "--config", tmp_path / "kolm.toml").code == 0
    assert found == [seconds]


def test_sizes_of_context_and_cache_reach_the_generation_service(ran: list[LocalServices], tmp_path: Path) -> None:
    imported(tmp_path, "base")
    sizes = ("--context-length", "1024", "--cache-bytes", "2GiB")
    assert kolm("up", *FREE, "--model", tmp_path / "base", *sizes).code == 0
    assert set(sizes) < set(ran[0].generation("127.0.0.1:1").flags)
    settings = GenerationSettings.load(ran[0].generation("127.0.0.1:1").flags, environment={})
    assert (settings.context_length, settings.cache_bytes) == (1024, 2 << 30)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_host_is_in_brackets_before_its_port(ran: list[LocalServices], tmp_path: Path, host: str) -> None:
    imported(tmp_path, "base")
    assert kolm("up", *FREE, "--model", tmp_path / "base", f"--host={host}").code == 0
    assert {plan.listens_at for plan in ran[0].plans()} == {"[::1]:0"}


def test_the_one_imported_model_is_served_where_the_packaged_one_is_missing(
    ran: list[LocalServices], tmp_path: Path
) -> None:
    imported(tmp_path / "models", "mine")
    assert kolm("up", *FREE).code == 0
    assert ran[0].model == tmp_path / "models" / "mine"


def test_adapters_next_to_the_model_are_given_to_server_and_auditor(ran: list[LocalServices], tmp_path: Path) -> None:
    imported(tmp_path, "base")
    adapter = tmp_path / "adapters" / "kind"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "example/base"}')
    for flags in ((), ("--no-auto-discover",)):
        assert kolm("up", *FREE, "--model", tmp_path / "base", *flags).code == 0
    with_it, without = ran
    given = [each.auditor_settings["adapter"] for each in (with_it, without)]
    assert given == [each.generation_settings["adapter"] for each in (with_it, without)]
    assert given == [[f"kind={adapter}"], []]
    settings = GenerationSettings.load(without.generation("127.0.0.1:1").flags, environment={})
    assert settings.auto_discover is False


def test_the_block_inside_of_a_model_can_be_left_out(ran: list[LocalServices], tmp_path: Path) -> None:
    imported(tmp_path, "base")
    assert kolm("up", *FREE, "--model", tmp_path / "base", "--no-own-head").code == 0
    settings = GenerationSettings.load(ran[0].generation("127.0.0.1:1").flags, environment={})
    assert settings.own_head is False


def test_a_toml_file_reaches_every_service_and_what_server_and_auditor_share_reaches_both(
    ran: list[LocalServices], tmp_path: Path
) -> None:
    imported(tmp_path, "base")
    config = tmp_path / "kolm.toml"
    config.write_text('[generation]\nmodel = "base"\ncontext_length = 512\nmax_sequences = 3\n[auditor]\nthreads = 2\n')
    asked = ["--config", str(config), "--metrics-port", "19090", "--log-format", "json", "--log-level", "debug"]
    assert kolm("up", *FREE, *asked).code == 0
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
    assert kolm("up", *FREE, *flagged).code == 0
    assert ran[1].auditor_settings["context_length"] == 64


def test_a_toml_file_or_the_environment_names_the_key_of_the_receipts(
    ran: list[LocalServices], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(tmp_path, "base")
    config, device = tmp_path / "kolm.toml", Path("pkcs11:object=receipts")
    config.write_text(f'[generation]\nkey_file = "{device}"\n')
    for more in (("--config", config), ()):
        assert kolm("up", *FREE, "--model", "base", *more).code == 0
    configured, plain = (each.generation("127.0.0.1:1").flags for each in ran)
    assert GenerationSettings.load(configured, environment={}).receipts_key == device
    monkeypatch.setenv("KOLM_GENERATION_KEY_FILE", str(device))
    assert GenerationSettings.load(plain, environment={}).receipts_key == device


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[generation]\nmax_sequnces = 4\n", "line 2: [generation] max_sequnces: "),
        ('[ledger]\n\nlisten = "127.0.0.1:1"\n', "line 3: [ledger] listen: "),
        ('[auditor]\nmodel = "base"\n', "[generation]"),
        ("[auditor]\nrate = 0.5\n", "use --audit-rate"),
    ],
)
def test_what_a_toml_file_may_not_say_is_named_with_its_line(
    ran: list[LocalServices], tmp_path: Path, text: str, place: str
) -> None:
    imported(tmp_path, "base")
    (tmp_path / "kolm.toml").write_text(text)
    done = kolm("up", *FREE, "--model", "base", "--config", "kolm.toml")
    assert (done.code, ran, place in done.err) == (2, [], True)


@pytest.mark.parametrize("name", ["KOLM_LEDGER_TLS_CERT", "kolm_http_tls_client_ca", "KOLM_AUDITOR_TLS_CA"])
def test_a_variable_that_gives_one_service_tls_is_refused(
    ran: list[LocalServices], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(tmp_path, "base")
    monkeypatch.setenv(name, "")
    assert kolm("up", *FREE, "--model", "base").code == 0
    monkeypatch.setenv(name, "file.pem")
    done = kolm("up", *FREE, "--model", "base")
    assert (done.code, len(ran), name in done.err) == (2, 1, True)


@pytest.mark.parametrize("model", [("--model", "none"), ("none",)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_model_is_refused_before_another_engine(
    ran: list[LocalServices], model: tuple[str, ...], is_first: bool
) -> None:
    engine = ("--engine", "vllm", "--plain-url", "http://127.0.0.1:8000")
    done = kolm("up", *FREE, *(*model, *engine) if is_first else (*engine, *model))
    assert (done.code, ran, "--weights" in done.err) == (2, [], True)


@pytest.mark.parametrize(
    ("listen", "metrics", "ports"),
    [
        (ListenOptions(), {}, (50056, 50057)),
        (ListenOptions(ledger_port=50056), {}, (0, 50057)),
        (ListenOptions(registry_port=50057), {}, (50056, 0)),
        (ListenOptions(explorer_port=50057), {}, (50057, 0)),
        (ListenOptions(http_port=50056), {}, (0, 50056)),
        (ListenOptions(explorer_port=50057, explorer=False), {}, (None, 50057)),
        (ListenOptions(), {"registry": 50056, "generation": 50057}, (0, 0)),
    ],
)
def test_page_and_api_leave_their_usual_ports_to_services_that_were_given_them(
    listen: ListenOptions, metrics: dict[str, int], ports: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "check_free", lambda _: None)
    assert (listen.page(metrics), listen.front(metrics)) == ports


class Starts:
    """Answers as a supervisor whose services are all well."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.waited: list[str] = []
        self.launched_at_first_wait = 0

    def plan(self, name: str) -> Plan:
        return next(plan for plan in self.plans if plan.name == name)

    def start(self, plan: Plan, seconds: float) -> str:
        self.launch(plan)
        return self.address(plan, seconds)

    def launch(self, plan: Plan) -> None:
        self.plans.append(plan)

    def address(self, plan: Plan, seconds: float) -> str:
        self.launched_at_first_wait = self.launched_at_first_wait or len(self.plans)
        self.waited.append(plan.name)
        return f"127.0.0.1:{7001 + self.plans.index(plan)}"


def started(services: LocalServices) -> tuple[Starts, Any]:
    supervisor = Starts()
    addresses = bring_up(services, cast(Supervisor, supervisor))
    return supervisor, addresses


def test_the_model_loads_while_other_services_start_one_after_another(tmp_path: Path) -> None:
    made, _ = started(LocalServices(tmp_path, Path("model"), explorer_port=50056, http_port=50057))
    assert [plan.name for plan in made.plans] == ["generation", "ledger", "registry", "http", "auditor", "explorer"]
    assert made.waited == ["ledger", "registry", "http", "generation", "explorer", "auditor"]
    assert made.launched_at_first_wait == 2  # the model's server and the ledger
    front = made.plan("http").flags
    given = dict(zip(front[::2], front[1::2], strict=True))
    assert (given["--generation"], given["--explorer-url"]) == ("127.0.0.1:50051", "http://127.0.0.1:50056")


def test_an_auditor_waits_for_the_servers_of_its_own_folder_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    found = [{plan.environment[LOADING] for plan in LocalServices(each, Path("model")).plans()} for each in folders]
    assert [len(each) for each in found] == [1, 1]
    assert found[0] != found[1]


def test_answers_are_announced_before_the_auditor_is_started(tmp_path: Path) -> None:
    supervisor, told = Starts(), list[tuple[int, list[str], str | None]]()
    services = LocalServices(tmp_path, Path("model"), explorer_port=50056, http_port=50057)

    def answering(found: Addresses) -> None:
        told.append((len(supervisor.plans), [*supervisor.waited], found.http))

    bring_up(services, cast(Supervisor, supervisor), answering=answering)
    assert told == [(4, ["ledger", "registry", "http", "generation"], "127.0.0.1:7004")]


def test_a_service_that_needs_a_free_port_is_started_when_that_is_known(tmp_path: Path) -> None:
    free = {f"{name}_port": 0 for name in ("ledger", "registry", "generation", "explorer", "http")}
    made, addresses = started(LocalServices(tmp_path, Path("model"), **free))
    assert made.waited[:2] == ["ledger", "ledger"]
    assert addresses.ledger in made.plans[1].flags
    assert addresses.generation in made.plan("http").flags


@pytest.mark.parametrize(
    ("service", "asked", "address", "settings"),
    [("explorer", "--ledger", "127.0.0.1:50052", ExplorerSettings),
     ("http", "--generation", "127.0.0.1:50051", HttpSettings)],
)  # fmt: skip
def test_page_and_api_are_over_this_ledger_and_this_generation_server(
    service: str, asked: str, address: str, settings: type[ServerSettings], tmp_path: Path
) -> None:
    made, addresses = started(LocalServices(tmp_path, Path("model"), **{f"{service}_port": 0}))  # type: ignore[arg-type]
    assert getattr(addresses, service).startswith("127.0.0.1:700")
    flags = made.plan(service).flags
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert (given["--listen"], given[asked]) == ("127.0.0.1:0", address)
    assert {flag.removeprefix("--").replace("-", "_") for flag in given} <= set(settings.model_fields)


def test_without_a_port_there_is_no_page_and_no_api(tmp_path: Path) -> None:
    made, addresses = started(LocalServices(tmp_path, Path("model")))
    assert (len(made.plans), addresses.explorer, addresses.http) == (4, None, None)


def test_pages_of_a_server_on_every_address_are_printed_where_this_machine_calls_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = Addresses("0.0.0.0:1", "0.0.0.0:2", explorer="[::]:50056", http="0.0.0.0:50057")
    reporter, services = UpReporter("json"), LocalServices(tmp_path, Path("model"), host="0.0.0.0")
    reporter.answering(addresses, services, 1.0)
    reporter.ready(addresses, services, 1.0, as_json=False)
    printed = re.findall(r"http://([^/]*)/", capsys.readouterr().err)
    assert printed == ["127.0.0.1:50057", "[::1]:50056"]


def test_lines_of_services_are_whole_whichever_threads_print_them(capfd: pytest.CaptureFixture[str]) -> None:
    reporter, lines = UpReporter("json"), [f'{{"line": "{number}"}}' for number in range(500)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(reporter.line, "ledger"), lines))
    assert sorted(capfd.readouterr().err.splitlines()) == sorted(lines)


def test_a_line_that_no_terminal_can_show_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    UpReporter("text").line("ledger", f"\x1b[{'9' * 5000}mlistening")
    assert "mlistening" in capsys.readouterr().err


def test_a_process_without_transformers_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(sys.modules, "transformers.utils.import_utils", None)
    monkeypatch.setattr(gc, "freeze", Mock())
    fork_server._import_once(["services.runtime.usage"])


def test_before_another_engine_the_front_is_within_the_generation_service(tmp_path: Path) -> None:
    place = tmp_path / "run" / "http.address"
    place.parent.mkdir()
    place.write_text("127.0.0.1:1\n")  # of a front that was killed

    class Starting(Starts):
        def address(self, plan: Plan, seconds: float) -> str:
            if plan.name == "generation":
                assert not place.exists()
                place.write_text("127.0.0.1:50057\n")
            return super().address(plan, seconds)

    engine = OtherEngineOptions("vllm", "http://127.0.0.1:8000")
    supervisor = Starting()
    services = LocalServices(tmp_path, None, explorer_port=50056, http_port=50057, engine=engine)
    addresses = bring_up(services, cast(Supervisor, supervisor))
    assert [plan.name for plan in supervisor.plans] == ["generation", "ledger", "registry", "auditor", "explorer"]
    generation = supervisor.plans[0]
    assert (generation.module, addresses.http) == ("services.cli.up.with_front", "127.0.0.1:50057")
    front = generation.flags[generation.flags.index("--") + 1 :]
    assert {"--explorer-url", "http://127.0.0.1:50056", "--listen", "127.0.0.1:50057"} <= set(front)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Qwen3-8B", "hf:RedHatAI/Qwen3-8B-speculator.eagle3"),
        ("Qwen2.5-Coder-7B-Instruct", "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"),
        ("Qwen2.5-Coder-1.5B-Instruct", "kolm datastore build"),
    ],
)
def test_a_line_names_what_would_make_a_model_faster_that_has_nothing_to_draft_with(
    name: str, named: str, tmp_path: Path
) -> None:
    imported(tmp_path, name)
    served = ServedOptions(model=tmp_path / name)
    assert named in (served.faster() or "")
    for parts in ({"head": ["some"]}, {"shared_datastore": [tmp_path]}, {"draft_model": tmp_path}):
        assert ("head" in parts or "hf:RedHatAI" not in named) is (replace(served, **parts).faster() is None)
    imported(tmp_path, "head")
    assert served.faster() is None
