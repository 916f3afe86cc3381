"""docker-compose.yml names modules, settings and volumes that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.configuration import service_settings
from services.cli import options
from services.ledger.settings import LedgerSettings

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "docker-compose.yml").read_text("utf-8"))
OURS = [name for name, service in COMPOSE["services"].items() if "command" in service and "entrypoint" not in service]


@pytest.mark.parametrize("name", OURS)
def test_each_variable_is_a_setting_of_its_service(name: str) -> None:
    (module,) = COMPOSE["services"][name]["command"]
    fields = {f"KOLM_{name.upper()}_{field.upper()}" for field in service_settings(module).model_fields}
    assert set(COMPOSE["services"][name]["environment"]) <= fields


def test_witness_front_and_auditor_s_page_are_among_them_and_every_volume_is_declared() -> None:
    assert set(OURS) == {"ledger", "registry", "generation", "auditor", "explorer", "http", "witness"}
    mounted = {volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service["volumes"]}
    assert {name for name in mounted if not name.startswith(("$", ".", "/"))} == set(COMPOSE["volumes"])


def test_every_service_only_reads_the_trusted_keys() -> None:
    mounts = {
        name: [volume for volume in service["volumes"] if volume.startswith("trusted:")]
        for name, service in COMPOSE["services"].items()
    }
    assert [name for name, volumes in mounts.items() if volumes and not volumes[0].endswith(":ro")] == ["trust"]
    assert COMPOSE["services"]["trust"]["entrypoint"] == ["kolm", "trust"]


def test_kolm_health_on_the_host_reaches_every_service_that_it_asks_by_default() -> None:
    published = [port for service in OURS for port in COMPOSE["services"][service]["ports"]]
    for address in (options.GENERATION, options.LEDGER, options.AUDITOR, options.REGISTRY):
        assert f"{address}:{address.rpartition(':')[2]}" in published


def test_the_witness_sees_no_private_key_of_the_log() -> None:
    volumes = COMPOSE["services"]["witness"]["volumes"]
    assert not any(volume.startswith("ledger:") for volume in volumes)


def test_an_empty_variable_is_no_policy(tmp_path: Path) -> None:
    assert LedgerSettings.model_validate({"data_dir": tmp_path, "witness_policy": ""}).witness_policy is None
