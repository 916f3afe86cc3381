"""`kolm up`, before another engine too, and the supervisor of its services."""

import errno
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography import x509
from cryptography.x509 import verification

from services.cli.up.local_services import SERVICE_ROLES, LocalServices
from services.cli.up.supervisor import NotReady, Plan, ServiceDied, StopRequested, Supervisor
from services.runtime.access import Access
from tests import documented
from tests.cli import FREE, kolm
from tests.e2e.command import PATIENCE, children, is_running, until
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model

KOLM = (sys.executable, "-m", "services.cli", "up")


def test_a_taken_port_is_one_line_before_anything_is_started(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*KOLM, f"--model={model}", f"--data-dir={tmp_path / 'data'}", *FREE, f"--auditor-port={port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    line, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout, "--auditor-port" in line, f":{port}" in line) == (1, "", True, True)
    assert "--data-dir" in hint
    assert not (tmp_path / "data").exists()


@pytest.fixture(scope="module")
def bad_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bad")
    whole = make_tiny_gguf(folder / "cut.gguf")
    whole.write_bytes(whole.read_bytes()[:-5000])
    (text := folder / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text('{"architectures": ["OtherForCausalLM"], "model_type": "other"}')
    shutil.copytree(
        make_tiny_model(folder / "whole"), folder / "no_weights", ignore=shutil.ignore_patterns("*.safetens*")
    )
    q2_k = {"blk.0.attn_q.weight": (10, np.zeros((256, 84), np.uint8))}
    unknown = make_tiny_gguf(folder / "q2_k.gguf", change_tensors=lambda tensors: tensors.update(q2_k))
    family = make_tiny_gguf(
        folder / "family.gguf", change_metadata=lambda m: m.update({"general.architecture": "rwkv"})
    )
    return {
        "cut": whole, "text": text, "config": folder / "other", "no weights": folder / "no_weights",
        "storage": unknown, "family": family,
    }  # fmt: skip


FAULTS = ("cut", "text", "config", "no weights", "storage", "family")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_cannot_be_served_is_refused_once_before_anything_is_made(
    bad_models: dict[str, Path], fault: str, tmp_path: Path
) -> None:
    path, data = bad_models[fault], tmp_path / "data"
    done = kolm("up", f"--data-dir={data}", *FREE, f"--model={path}")
    assert (done.code, (done.out + done.err).count(str(path))) == (2, 1), done
    assert not data.exists()


def test_control_c_stops_it_where_a_shell_has_it_ignored(model: Path, tmp_path: Path) -> None:
    command = [*KOLM, f"--model={model}", f"--data-dir={tmp_path / 'data'}", *FREE]
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    process = subprocess.Popen(background, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0


class Lines:
    """The lines of the services."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def supervisor(lines: Lines) -> Iterator[Supervisor]:
    made = Supervisor(lines, shared=())
    yield made
    made.stop(0.0)


def plan(directory: Path, name: str, *flags: str) -> Plan:
    ready, module = directory / f"{name}.address", "tests.integration.cli.stub_service"
    return Plan(name, module, {}, "127.0.0.1:0", ready, more=(f"--ready-file={ready}", *flags))


def test_a_service_is_started_when_it_has_an_address(tmp_path: Path, supervisor: Supervisor, lines: Lines) -> None:
    assert supervisor.start(plan(tmp_path, "one"), PATIENCE) == "127.0.0.1:1"
    supervisor.check()
    supervisor.stop(PATIENCE)
    assert lines.lines == [("one", "starting up")]


def test_a_service_that_dies_ends_the_waiting_with_its_last_words(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(ServiceDied) as died:
        supervisor.start(plan(tmp_path, "one", "--exit=3"), PATIENCE)
    assert died.value.last_lines[-1] == "cannot go on: the disk is full"


def test_a_service_that_dies_before_its_child_is_noticed(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(ServiceDied) as died:
        supervisor.start(plan(tmp_path, "one", "--child=60"), 10.0)
    os.kill(int(died.value.last_lines[-1]), signal.SIGKILL)


@pytest.mark.parametrize("forks", [True, False])
def test_services_write_any_text_in_any_locale(
    tmp_path: Path, supervisor: Supervisor, lines: Lines, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    if not forks:
        monkeypatch.setattr(os, "pidfd_open", missing, raising=False)
    supervisor.start(plan(tmp_path, "one", "--say=café Ā"), PATIENCE)
    supervisor.stop(PATIENCE)
    assert lines.lines == [("one", "starting up"), ("one", "café Ā")]


def test_a_service_that_never_gets_ready_is_given_up_whatever_address_is_left_from_before(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    (tmp_path / "one.address").write_text("127.0.0.1:9\n")
    with pytest.raises(NotReady):
        supervisor.start(plan(tmp_path, "one", "--never-ready=1"), 0.2)


def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path, supervisor: Supervisor, lines: Lines) -> None:
    supervisor.start(plan(tmp_path, "one", "--stubborn=1"), PATIENCE)
    supervisor.stop(0.1)
    assert len(lines.lines) == 2  # its own, and that it was killed


def test_callers_stop_before_the_services_that_they_call(tmp_path: Path) -> None:
    called_at_its_end: list[bool] = []
    supervisor = Supervisor(
        lambda name, line: "killed" in line and called_at_its_end.append(is_running(called)), shared=()
    )
    supervisor.start(replace(plan(tmp_path, "caller", "--stubborn=1"), rank=2), PATIENCE)
    before = set(own_children())
    supervisor.start(replace(plan(tmp_path, "called"), rank=1), PATIENCE)
    (called,) = set(own_children()) - before
    supervisor.stop(0.1)
    assert called_at_its_end == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each service has a new interpreter")
def test_a_service_is_a_child_that_shows_its_command(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(one := plan(tmp_path, "one", f"--long={'x' * 9000}"), PATIENCE)
    commands = [Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in own_children()]
    (shown,) = (words for words in commands if words[2:3] == [one.module.encode()])
    assert (shown[:2], shown[3]) == ([sys.executable.encode(), b"-m"], one.flags[0].encode())
    names = {Path(f"/proc/{child}/comm").read_text().strip() for child in own_children()}
    assert "one" in names


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each service has a new interpreter")
def test_without_its_fork_server_a_supervisor_starts_nothing(tmp_path: Path, supervisor: Supervisor) -> None:
    before = set(own_children())
    supervisor.start(one := plan(tmp_path, "one"), PATIENCE)
    service = {child for child in own_children() if one.module in Path(f"/proc/{child}/cmdline").read_text()}
    (server,) = set(own_children()) - before - service
    os.kill(server, signal.SIGKILL)
    with pytest.raises(ServiceDied) as died:
        supervisor.launch(plan(tmp_path, "two"))
    assert died.value.name == "two"


def test_a_service_gets_more_flags_than_a_socket_holds(tmp_path: Path, supervisor: Supervisor) -> None:
    many = [f"--flag{number}={'x' * 1000}" for number in range(1000)]
    assert supervisor.start(plan(tmp_path, "one", *many), PATIENCE) == "127.0.0.1:1"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each service has a new interpreter")
def test_lines_of_the_imports_are_shown_as_those_of_kolm_up(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy.py").write_text("import sys\nprint('a warning', file=sys.stderr)\nraise ValueError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    supervisor = Supervisor(lines, shared=("noisy",))
    with pytest.raises(ServiceDied) as died:
        supervisor.launch(plan(tmp_path, "one"))
    assert (lines.lines[0], died.value.last_line) == (("kolm", "a warning"), "ValueError: broken")
    supervisor.stop(PATIENCE)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each service has a new interpreter")
def test_control_c_ends_the_imports_of_the_services(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = own_children()
    told: list[tuple[str, str | None]] = []

    def on_quiet(name: str, seconds: float, last_line: str | None) -> None:
        told.append((name, last_line))
        os.kill(os.getpid(), signal.SIGINT)

    supervisor = Supervisor(lines, on_quiet, quiet_seconds=0.0, shared=("endless",))
    with supervisor.listening(), pytest.raises(StopRequested):
        supervisor.launch(plan(tmp_path, "one"))
    supervisor.stop(PATIENCE)
    assert (told[0], lines.lines, own_children()) == (("one", None), [], before)


def test_without_pidfds_each_service_has_a_new_interpreter(
    tmp_path: Path, supervisor: Supervisor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pidfd_open", missing, raising=False)
    assert supervisor.start(plan(tmp_path, "one"), PATIENCE) == "127.0.0.1:1"
    supervisor.stop(PATIENCE)
    assert lines.lines == [("one", "starting up")]


def missing(process_id: int) -> int:
    raise OSError(errno.ENOSYS, "this kernel has none")


def test_the_callers_folder_and_tls_files_reach_no_service(
    tmp_path: Path, supervisor: Supervisor, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KOLM_TLS_CA", "ca.pem")
    supervisor.start(plan(tmp_path, "one"), PATIENCE)
    assert lines.lines == [("one", "starting up")]


def own_children() -> list[int]:
    return [int(child) for child in Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split()]


def test_services_start_beside_each_other(tmp_path: Path, supervisor: Supervisor) -> None:
    one, two = plan(tmp_path, "one"), plan(tmp_path, "two")
    supervisor.launch(one)
    supervisor.launch(two)
    assert [supervisor.address(each, PATIENCE) for each in (two, one)] == ["127.0.0.1:1"] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_waiting(tmp_path: Path, supervisor: Supervisor, number: signal.Signals) -> None:
    with supervisor.listening():
        supervisor.start(plan(tmp_path, "one"), PATIENCE)
        os.kill(os.getpid(), number)
        with pytest.raises(StopRequested, match=number.name):
            supervisor.wait()
    supervisor.stop(PATIENCE)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends a process with its parent")
@pytest.mark.parametrize("forks", [True, False])
def test_services_do_not_outlive_a_supervisor_that_is_killed(forks: bool, tmp_path: Path) -> None:
    supervising = f"""
import signal
from pathlib import Path
from services.cli.up import supervisor as module
from tests.integration.cli.test_up import PATIENCE, Lines, Supervisor, plan
module.is_supported = lambda: {forks}
supervisor = Supervisor(Lines(), shared=())
supervisor.start(plan(Path({str(tmp_path)!r}), "one"), PATIENCE)
print(flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", supervising], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        services = children(process)
        process.kill()
    assert services
    until(lambda: not any(map(is_running, services)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "deployment"
    assert kolm("init", folder, "--host", "ledger.example", "--days", "2").code == 0
    return folder


def test_private_files_are_for_their_owner_alone(folder: Path) -> None:
    modes = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    public = {path for path, mode in modes.items() if mode not in (0o600, 0o700)}
    assert public
    assert all(path.suffix == ".pem" for path in public)


def test_a_folder_with_files_is_left_as_it_is(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert kolm("init", str(folder))[0] == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def names(folder: Path) -> dict[str, list[x509.GeneralName]]:
    """The names in each service's certificate."""
    read = {path.stem: x509.load_pem_x509_certificate(path.read_bytes()) for path in (folder / "tls").glob("[!c]*.pem")}
    kind = x509.SubjectAlternativeName
    return {service: list(each.extensions.get_extension_for_class(kind).value) for service, each in read.items()}


def test_a_renewal_keeps_the_names_unless_it_is_given_others(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "renewed")
    for hosts, named in ((), "ledger.example"), (("--host=10.0.0.1",), "10.0.0.1"):
        assert kolm("init", tmp_path / "renewed", "--renew", *hosts).code == 0
        assert {str(each[-1].value) for each in names(tmp_path / "renewed").values()} == {named}
        assert (names(tmp_path / "renewed") == names(folder)) == (not hosts)
    (tmp_path / "renewed/tls/http.pem").write_text("damaged")
    damaged = kolm("init", tmp_path / "renewed", "--renew")
    assert (damaged.code, "http.pem" in damaged.err) == (2, True)


def test_names_of_other_services_and_of_the_caller_give_no_rights(folder: Path, tmp_path: Path) -> None:
    named = [
        f"--host={each}" for each in ("ledger", "generation", "auditor", "registry", "explorer", "http", "witness")
    ]
    assert kolm("init", tmp_path / "named", *named).code == 0
    access = Access(tmp_path / "named/principals.json")
    for service, shown in names(tmp_path / "named").items():
        certificate = {"x509_subject_alternative_name": [str(each.value).encode() for each in shown]}
        call = SimpleNamespace(
            invocation_metadata=tuple, auth_context=partial(dict, certificate), peer=lambda: "elsewhere:1"
        )
        assert access.caller_of(call) == (service if service in SERVICE_ROLES and service != "http" else "elsewhere")
    for flags in ((), ("--renew",)):
        refused = kolm("init", folder if flags else tmp_path / "client", "--host=client", *flags)
        assert (refused.code, "--host" in refused.err) == (2, True)


@pytest.mark.parametrize("host", ["münchen.example", "", "ledger.example:50052", "https://ledger.example", "a b"])
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path, host: str) -> None:
    refused = kolm("init", tmp_path / "refused", f"--host={host}")
    assert (refused.code, "--host" in refused.err, (tmp_path / "refused").exists()) == (2, True, False)


@pytest.mark.parametrize("name", ["José", "a$HOME `id` $(id) b", "it's", "x😀", 'a"\\b', "del\x7f"])
def test_settings_and_environment_name_the_files_of_any_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    assert kolm("init", folder).code == 0
    settings = tomllib.loads((folder / "kolm.toml").read_text())
    assert settings["ledger"]["tls_cert"] == str(folder / "tls/ledger.pem")
    script = f'. {shlex.quote(str(folder / "client.env"))}; printf %s "$KOLM_TLS_CA"'
    assert subprocess.check_output(["sh", "-c", script]).decode() == str(folder / "tls/ca.pem")


@pytest.mark.parametrize("name", ["ledger.example", "localhost", "generation"])
def test_a_certificate_is_valid_for_the_names_that_were_asked_for(folder: Path, name: str) -> None:
    authority = x509.load_pem_x509_certificate((folder / "tls" / "ca.pem").read_bytes())
    shown = x509.load_pem_x509_certificate((folder / "tls" / "generation.pem").read_bytes())
    now = datetime.now(UTC)
    policy = verification.PolicyBuilder().store(verification.Store([authority]))
    chain = policy.time(now).build_server_verifier(x509.DNSName(name)).verify(shown, [])
    assert chain == [shown, authority]
    with pytest.raises(verification.VerificationError):
        policy.time(now + timedelta(days=3)).build_server_verifier(x509.DNSName(name)).verify(shown, [])


def test_the_line_of_the_page_puts_the_generation_service_before_the_engine(
    ran: list[LocalServices], tmp_path: Path
) -> None:
    weights = make_tiny_model(tmp_path / "model", layers=1)
    assert kolm(*documented.BEFORE_VLLM.replace("path/to/model", str(weights)).split()[1:]).code == 0
    (services,) = ran
    flags = " ".join(services.generation("ledger:1", "registry:1").flags)
    given = f"--engine vllm --plain-url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --weights {weights}"
    assert (given in flags, "--model" in flags.split()) == (True, False)
    audited = "--engine vllm --plain-url http://127.0.0.1:8000"
    assert audited in " ".join(services.auditor("ledger:1").flags)


@pytest.mark.parametrize("command", ["up --engine vllm", "audit run --engine vllm"])
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--plain-url http://127.0.0.1:99999", "--plain-url: expected http://HOST"),
        ("--plain-url http://127.0.0.1:8000 --engine-key-file no-such-file", "--engine-key-file: cannot read"),
    ],
)
def test_an_engine_that_cannot_be_asked_so_is_refused_before_anything_starts(
    command: str, flags: str, problem: str
) -> None:
    refused = kolm(*command.split(), *flags.split())
    assert (refused.code, problem in refused.err) == (2, True)
