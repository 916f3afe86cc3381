from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from services.runtime.settings import ServerSettings, SettingsError, settings_config


class ExampleSettings(ServerSettings):
    model_config = settings_config("example")

    color: str = Field("default", description="A setting with a default.")
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
    (sources / "config.toml").write_text('[example]\ncolor = "toml"\n[other]\nthing = 1\n')
    assert _load(sources).color == "toml"
    (sources / "secrets" / "KOLM_EXAMPLE_COLOR").write_text("secret")
    assert _load(sources).color == "secret"
    monkeypatch.setenv("KOLM_EXAMPLE_COLOR", "environment")
    assert _load(sources).color == "environment"
    assert _load(sources, "--color", "flag").color == "flag"


def test_the_environment_names_the_toml_file_too(sources: Path) -> None:
    (sources / "config.toml").write_text('[example]\ncolor = "toml"\n')
    settings = ExampleSettings.load([], environment={"KOLM_CONFIG": str(sources / "config.toml")})
    assert settings.color == "toml"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--listen", "127.0.0.1:70000"], "--listen"),
        (["--grace-seconds", "-1"], "--grace-seconds"),
        (["--metrics-port", "x"], "--metrics-port"),
        (["--config", "/does/not/exist.toml"], "--config"),
        (["--secrets-dir", "/does/not/exist"], "--secrets-dir"),
    ],
)
def test_a_wrong_value_is_a_message_that_names_the_flag(arguments: list[str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        ExampleSettings.load(arguments, environment={})


def test_an_unknown_name_in_the_toml_table_is_refused(sources: Path) -> None:
    (sources / "config.toml").write_text('[example]\ncolour = "typo"\n')
    with pytest.raises(SettingsError, match="--colour"):
        _load(sources)


def test_a_secret_is_neither_printed_nor_part_of_a_message(sources: Path) -> None:
    (sources / "secrets" / "KOLM_EXAMPLE_SECRET").write_text("hush")
    settings = _load(sources)
    assert settings.secret is not None
    assert settings.secret.get_secret_value() == "hush"
    assert "hush" not in repr(settings)
    with pytest.raises(SettingsError) as caught:
        _load(sources, "--listen", "hush")
    assert "hush" not in str(caught.value)
