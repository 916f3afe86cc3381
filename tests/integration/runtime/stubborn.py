"""A server process with a call that never ends: `python -m tests.integration.runtime.stubborn [flags]`."""

from __future__ import annotations

import sys

from services.runtime.process import run_service
from services.runtime.server import serve
from services.runtime.settings import RpcServerSettings, settings_config
from tests.integration.runtime.scripted import ScriptedServicer, mount


class StubbornSettings(RpcServerSettings):
    model_config = settings_config("stubborn")


async def main(settings: StubbornSettings) -> None:
    await serve("stubborn", [mount(ScriptedServicer())], settings)


if __name__ == "__main__":
    sys.exit(run_service(StubbornSettings, main))
