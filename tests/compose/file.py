"""docker-compose.yml, as other tests read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ["ledger", "registry", "generation", "auditor", "explorer", "http", "witness"]

_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def defaulted(value: object) -> str:
    """The value where no variable is set."""
    return _VARIABLE.sub(r"\1", str(value)).replace("$$", "$")
