"""The generation service in front of another engine, and the HTTP front, in one process:
`python -m services.cli.up.with_front FLAGS -- FLAGS OF THE FRONT`.

Between two processes, gRPC and its threads cost more for each token than all other work of kolm. With kolm's own engine
the front has a process of its own, because it would take the interpreter from the passes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from services.client.generation.runtime import AsyncRuntime
from services.generation.__main__ import main as generation
from services.generation.settings import GenerationSettings
from services.http.__main__ import serving
from services.http.settings import HttpSettings
from services.runtime.process import EXIT_USAGE, run_service
from services.runtime.server import RunningServer
from services.runtime.settings import SettingsError


def main(words: Sequence[str]) -> int:
    ends = list(words).index("--")
    try:
        front = HttpSettings.load(words[ends + 1 :])
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE

    def beside(server: RunningServer) -> AbstractAsyncContextManager[object]:
        token = "" if front.token_file is None else front.token_file.read_text(encoding="ascii").strip()
        return serving(front, AsyncRuntime(server.address, token, channel=server.channel))

    return run_service(GenerationSettings, partial(generation, beside=beside), words[:ends])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
