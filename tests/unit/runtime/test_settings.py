"""Settings from flags, variables and files; the list of metrics."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field, SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from services.auditor.settings import AuditorSettings
from services.client.identity import ClientTls
from services.explorer.settings import ExplorerSettings
from services.generation.settings import GenerationSettings
from services.ledger.settings import LedgerSettings
from services.runtime.http.serving import MeasuredApp
from services.runtime.listening import ServerTls
from services.runtime.metrics import BY_NAME, Metrics
from services.runtime.settings import ServerSettings, SettingsError, settings_config


@pytest.mark.parametrize("name", ["red\x1b[31m", "a\nb", "a\tb", "\u202eevil", "\x9b2J", "x" * 129])
@pytest.mark.parametrize(
    ("settings", "flag", "value"),
    [
        (GenerationSettings, "--model-name", "{}"),
        (GenerationSettings, "--datastore", "{}=folder"),
        (GenerationSettings, "--quota", "{}=requests:1"),
        (GenerationSettings, "--adapter", "{}=folder"),
        (AuditorSettings, "--adapter", "{}=folder"),
        (LedgerSettings, "--origin", "{}"),
        (ExplorerSettings, "--origin", "{}"),
    ],
)
def test_a_name_that_would_control_a_terminal_is_refused(
    settings: type[ServerSettings], flag: str, value: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("manifest.json", "adapter_config.json"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / file).touch()
    needed = ["--data-dir=data"] if "data_dir" in settings.model_fields else []
    needed += ["--engine=vllm"] if settings is AuditorSettings else []
    settings.load([*needed, flag, value.format("plain")], environment={})
    with pytest.raises(SettingsError, match=flag):
        settings.load([*needed, flag, value.format(name)], environment={})


class ExampleSettings(ServerSettings):
    model_config = settings_config("example")

    color: str = Field("default", description="A setting with a default.")
    bright: bool = Field(True, description="A switch.")
    names: tuple[str, ...] = Field((), description="A list.")
    secret: SecretStr | None = Field(None, description="A secret.")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for config.toml and secrets/, and an environment without kolm's own variables."""
    for name in ("KOLM_CONFIG", "KOLM_SECRETS_DIR", "KOLM_EXAMPLE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "secrets").mkdir()
    return tmp_path


def _load(sources: Path, *arguments: str) -> ExampleSettings:
    config, secrets = sources / "config.toml", sources / "secrets"
    config.touch()
    return ExampleSettings.load([f"--config={config}", f"--secrets-dir={secrets}", *arguments])


def test_flags_win_over_environment_over_secrets_over_toml_over_defaults(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _load(sources).color == "default"
    (sources / "config.toml").write_text('[example]\ncolor = "toml"\n[ledger]\nlisten = 1\n')
    assert _load(sources).color == "toml"
    (sources / "secrets" / "KOLM_EXAMPLE_COLOR").write_text("secret")
    assert _load(sources).color == "secret"
    monkeypatch.setenv("KOLM_EXAMPLE_COLOR", "environment")
    assert _load(sources).color == "environment"
    assert _load(sources, "--color", "flag").color == "flag"


@pytest.mark.parametrize(("prefix", "in_table"), [("KOLM_", False), ("KOLM_EXAMPLE_", False), ("KOLM_EXAMPLE_", True)])
def test_variables_and_the_table_name_the_folder_of_secrets(
    sources: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, in_table: bool
) -> None:
    (sources / "secrets" / "KOLM_EXAMPLE_COLOR").write_text("secret")
    more = f'secrets_dir = "{sources}/secrets"\n' if in_table else ""
    (sources / "config.toml").write_text(f"[example]\nbright = false\n{more}")
    monkeypatch.setenv(f"{prefix}CONFIG", str(sources / "config.toml"))
    if not in_table:
        monkeypatch.setenv(f"{prefix}SECRETS_DIR", str(sources / "secrets"))
    settings = ExampleSettings.load()
    assert (settings.color, settings.bright, settings.secrets_dir) == ("secret", False, sources / "secrets")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--listen", "127.0.0.1:70000"], "--listen"),
        (["--listen", "::1:50051"], "--listen"),
        (["--grace-seconds", "-1"], "--grace-seconds"),
        (["--metrics-port", "x"], "--metrics-port"),
        (["--config", "/does/not/exist.toml"], "--config"),
        (["--secrets-dir", "/does/not/exist"], "--secrets-dir"),
        (["--listen", f"127.0.0.1:{'1' * 5000}"], "--listen: expected"),
        (["--ready-file", "/tmp/\udcff"], "--ready-file: expected UTF-8"),
        (["--names", "a", "--names", "\udcff"], "--names: expected UTF-8"),
    ],
)
def test_a_wrong_value_is_a_message_that_names_the_flag(arguments: list[str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        ExampleSettings.load(arguments, environment={})


def test_a_server_listens_beyond_this_machine_with_tls_or_when_told_to(sources: Path) -> None:
    with pytest.raises(SettingsError, match="--listen: "):
        _load(sources, "--listen", "0.0.0.0:1")
    assert _load(sources, "--listen", "0.0.0.0:1", "--insecure").server_tls is None
    tls = _load(sources, "--listen", "[::]:1", "--tls-cert", "cert", "--tls-key", "key").server_tls
    assert tls == ServerTls(Path("cert"), Path("key"))
    assert _load(sources).server_tls is None


@pytest.mark.parametrize(
    "arguments", [["--tls-cert", "cert"], ["--tls-key", "key"], ["--tls-client-ca", "ca"]], ids=lambda flags: flags[0]
)
def test_tls_needs_a_certificate_and_its_key(sources: Path, arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match="--tls-cert"):
        _load(sources, *arguments)


def test_a_service_shows_its_own_certificate_to_those_that_it_calls_by_tls(sources: Path) -> None:
    own = ["--tls-cert", "cert", "--tls-key", "key"]
    assert _load(sources, *own, "--tls-ca", "ca").client_tls == ClientTls(Path("ca"), Path("cert"), Path("key"))
    assert not _load(sources, *own).client_tls.given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[ledger]\ncolour = 1\n[example]\n\ncolour = "typo"\n', r"line 5: \[example\] colour: .*color"),
        ("\n[exmple]\n", r"line 2: .*exmple.*example"),
        ("[example]\ngrace_seconds = -1\n", r"line 2: \[example\] grace_seconds: .*3,600"),
        ("[example]\ngrace_seconds = [1]\n", r"line 2: \[example\] grace_seconds: .*3,600"),
        ('[example]\nconfig = "other.toml"\n', r"line 2: \[example\] config: "),
        ("[example]\nsecrets_dir = 1\n", r"line 2: \[example\] secrets_dir: "),
        ("example = 3\n", r"line 1: .*\[example\]"),
        ("[example\n", r"config.toml .*line 1"),
    ],
)
def test_what_is_wrong_in_a_toml_file_is_named_with_its_line(sources: Path, text: str, message: str) -> None:
    (sources / "config.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        ExampleSettings.load([f"--config={sources / 'config.toml'}"])


def test_a_wrong_value_is_named_by_the_variable_or_the_secret_s_file_that_it_came_from(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "secrets" / "KOLM_EXAMPLE_METRICS_PORT").write_text("x")
    with pytest.raises(SettingsError, match="secrets/KOLM_EXAMPLE_METRICS_PORT: "):
        _load(sources)
    monkeypatch.setenv("KOLM_EXAMPLE_METRICS_PORT", "70000")
    with pytest.raises(SettingsError, match=r"^KOLM_EXAMPLE_METRICS_PORT: "):
        _load(sources)
    monkeypatch.setenv("KOLM_EXAMPLE_NAMES", "a,b")
    with pytest.raises(SettingsError, match=r"^KOLM_EXAMPLE_NAMES: "):
        _load(sources, "--metrics-port", "1")
    monkeypatch.setenv("KOLM_EXAMPLE_NAMES", "\udcff")
    with pytest.raises(SettingsError, match=r"^KOLM_EXAMPLE_NAMES: "):
        _load(sources, "--metrics-port", "1")
    monkeypatch.delenv("KOLM_EXAMPLE_NAMES")
    (sources / "secrets" / "KOLM_EXAMPLE_COLOR").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="KOLM_EXAMPLE_COLOR: expected UTF-8"):
        _load(sources, "--metrics-port", "1")


def test_flags_are_switches_lists_and_values(sources: Path) -> None:
    settings = _load(sources, "--no-bright", "--names", "a", "--names=b", "--grace-seconds=3")
    assert (settings.bright, settings.names, settings.grace_seconds) == (False, ("a", "b"), 3.0)
    assert _load(sources).bright


def test_variables_that_nothing_reads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KOLM_EXAMPLE_COLR", "KOLM_EXAMPLE_COLOR", "KOLM_LEDGER_LISTN", "KOLM_MODLE", "KOLM_REGISTRY_SECRET"):
        monkeypatch.setenv(name, "1")
    lines = ExampleSettings.unread_variables()
    named = [re.findall("KOLM_[A-Z_]+", each) for each in lines]
    assert named == [["KOLM_EXAMPLE_COLR", "KOLM_EXAMPLE_COLOR"], ["KOLM_MODLE", "KOLM_MODEL"]]


def test_a_secret_is_neither_printed_nor_part_of_a_message(sources: Path) -> None:
    (sources / "secrets" / "KOLM_EXAMPLE_SECRET").write_text("hush")
    settings = _load(sources)
    assert settings.secret is not None
    assert settings.secret.get_secret_value() == "hush"
    assert "hush" not in repr(settings)
    with pytest.raises(SettingsError) as caught:
        _load(sources, "--listen", "hush")
    assert "hush" not in str(caught.value)


def test_a_metric_that_is_not_listed_or_listed_otherwise_cannot_be_made() -> None:
    metrics = Metrics(CollectorRegistry())
    for name in ("kolm_secrets", "kolm_serving"):  # the second is a gauge
        with pytest.raises(KeyError):
            metrics.counter(name)


def test_a_value_that_is_read_at_the_scrape_has_its_labels_and_the_name_of_its_series() -> None:
    registry = CollectorRegistry()
    Metrics(registry).read("kolm_sequence_passes", lambda: {("off",): 2.0, ("rest",): 3.0})
    Metrics(registry).read("kolm_halt_epoch", lambda: 7)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {(sample.name, *sample.labels.values()): sample.value for one in families for sample in one.samples}
    assert samples == {
        ("kolm_sequence_passes_total", "off"): 2.0,
        ("kolm_sequence_passes_total", "rest"): 3.0,
        ("kolm_halt_epoch",): 7.0,
    }
    assert BY_NAME["kolm_sequence_passes"].series == ("kolm_sequence_passes_total",)


async def one(request: Request) -> Response:
    return PlainTextResponse(request.path_params["name"])


APP = Starlette(routes=[Route("/receipts/{name}", one), Mount("/static", Starlette(routes=[Route("/{name}", one)]))])


async def ask(app: MeasuredApp, path: str, method: str = "GET") -> None:
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None:
        return

    await app(scope, receive, send)


@pytest.mark.parametrize(
    ("path", "method", "labels"),
    [
        ("/receipts/0198", "GET", ("GET", "/receipts/{name}", "200")),
        ("/receipts/receipts", "GET", ("GET", "/receipts/{name}", "200")),
        ("/receipts/s", "HEAD", ("HEAD", "/receipts/{name}", "200")),
        ("/receipts/0198", "POST", ("POST", "/receipts/{name}", "405")),
        ("/receipts/0198", "PROPFIND", ("other", "/receipts/{name}", "405")),
        ("/static/a.css", "GET", ("GET", "/static/", "200")),
        ("/.env", "GET", ("other", "other", "404")),
        ("/.env", "PROPFIND", ("other", "other", "404")),
    ],
)
async def test_series_are_named_by_routes_and_never_by_what_a_stranger_asks_for(
    path: str, method: str, labels: tuple[str, str, str]
) -> None:
    registry = CollectorRegistry()
    await ask(MeasuredApp(APP, registry), path, method)
    (family,) = [family for family in registry.collect() if family.name == "kolm_http_requests"]
    (sample,) = [sample for sample in family.samples if sample.name.endswith("_total")]
    assert (sample.labels["method"], sample.labels["route"], sample.labels["status"]) == labels
    assert registry.get_sample_value("kolm_http_seconds_count", {"route": labels[1]}) == 1
    assert registry.get_sample_value("kolm_http_requests_in_flight") == 0
