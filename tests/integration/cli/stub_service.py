"""A service that only gets ready: `python -m tests.integration.cli.stub_service --ready-file FILE [how to behave]`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
    print("starting up", *(name for name in os.environ if name.startswith("KOLM_TLS")), flush=True)
    if "say" in flags:
        print(flags["say"], flush=True)
    if "child" in flags:  # which holds this process's output
        print(subprocess.Popen(["sleep", flags["child"]]).pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if "exit" in flags:
        print("cannot go on: the disk is full", flush=True)
        sys.exit(int(flags["exit"]))
    if "stubborn" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "never-ready" not in flags:
        written = Path(flags["ready-file"]).with_suffix(".draft")
        written.write_text("127.0.0.1:1\n")
        written.rename(flags["ready-file"])
    while True:
        signal.pause()
