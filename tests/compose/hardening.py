"""The rights of containers by docker-compose.yml, compared with those that the engine reports."""

from __future__ import annotations

from typing import Any

from tests.compose.file import COMPOSE, ROOT, SERVICES, defaulted

_UNITS = {"m": 2**20, "g": 2**30}


def service_of(container: dict[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def expect_hardened(container: dict[str, Any]) -> None:
    """No rights but those that the file gives, bounded, reachable from this machine alone, its secrets in files."""
    service, host, config = SERVICES[service_of(container)], container["HostConfig"], container["Config"]
    added = set(service.get("cap_add", ()))
    assert (host["ReadonlyRootfs"], host["Privileged"], host["CapDrop"]) == (True, False, ["ALL"])
    assert {capability.removeprefix("CAP_") for capability in host["CapAdd"] or ()} == added
    assert host["SecurityOpt"] == service["security_opt"] == ["no-new-privileges:true"]
    assert config["User"] == service.get("user", "" if added else "kolm")
    assert host["Memory"] == _bytes(service["mem_limit"])
    assert host["PidsLimit"] == service["pids_limit"]
    assert all(place["HostIp"] == "127.0.0.1" for places in host["PortBindings"].values() for place in places)
    _expect_mounts(container)
    _expect_secrets(container)


def _bytes(limit: str) -> int:
    limit = defaulted(limit)
    return int(limit[:-1]) * _UNITS[limit[-1]]


def _expect_mounts(container: dict[str, Any]) -> None:
    writable = {mount["Destination"] for mount in container["Mounts"] if mount["RW"]}
    service = SERVICES[service_of(container)]
    volumes = [defaulted(volume).split(":") for volume in service.get("volumes", ())]
    assert writable == {parts[1] for parts in volumes if parts[-1] != "ro"}
    assert not any(mount["RW"] for mount in container["Mounts"] if mount["Type"] == "bind")


def _expect_secrets(container: dict[str, Any]) -> None:
    wanted = set(SERVICES[service_of(container)].get("secrets", ()))
    mounted = {
        mount["Destination"] for mount in container["Mounts"] if mount["Destination"].startswith("/run/secrets/")
    }
    assert mounted == {f"/run/secrets/{name}" for name in wanted}
    values = [(ROOT / secret["file"]).read_text("utf-8") for secret in COMPOSE["secrets"].values()]
    seen = (*container["Config"]["Env"], *container["Args"])
    assert not any(value in each for value in values for each in seen)


def expect_service(container: dict[str, Any]) -> None:
    """Checked, started again, given time to stop."""
    service, config = SERVICES[service_of(container)], container["Config"]
    assert container["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert config["StopTimeout"] == int(service["stop_grace_period"].removesuffix("s"))
    if "healthcheck" in service:
        assert config["Healthcheck"]["Test"] == service["healthcheck"]["test"]
        assert container["State"]["Health"]["Status"] == "healthy"


def expect_order(containers: list[dict[str, Any]]) -> None:
    """Nothing was started before what it depends on: before the end of a job, or the start of a service."""
    states = {service_of(each): each["State"] for each in containers}
    for name, state in states.items():
        for needed, how in SERVICES[name].get("depends_on", {}).items():
            ends = how["condition"] == "service_completed_successfully"
            assert states[needed]["FinishedAt" if ends else "StartedAt"] <= state["StartedAt"], (name, needed)
            assert not ends or states[needed]["ExitCode"] == 0
