"""Imports of a command before it asks anybody: a call may cost a quarter of a second of CPU, torch costs two."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from ledger.keys.ed25519 import SigningKey

_HEAVY = {"torch", "numpy", "numba", "sqlalchemy", "matplotlib", "pydantic", "transformers"}
_PROBE = """
import json, os, sys
from services.cli.main import app
for line in sys.argv[2:]:
    if os.fork() == 0:
        try:
            app(line.split(), prog_name="kolm")
        except SystemExit as end:
            with open(sys.argv[1], "a") as found:
                print(json.dumps([line, end.code, [name for name in sys.modules if "." not in name]]), file=found)
        os._exit(0)
    os.wait()
"""
"""Each call is a fork of one process, which has imported the command line and nothing else."""

ASKING = {
    "generate x --max-tokens 8 -t 0.5 --stop y --generation 127.0.0.1:1": 5,
    "generate x --stream --generation 127.0.0.1:1": 5,
    "receipts list -n 3 --ledger 127.0.0.1:1": 5,
    "up --model no/such/model": 2,
    "models list": 0,
}
VERIFYING = "verify bundle --trusted trusted"
CHECKED = (
    "heads train",
    "heads train model --prompts prompts --out out",
    "heads train model --prompts prompts --out out --steps 0",
    "heads train model --prompts none --out out --steps 1",
    "heads train model --prompts prompts --out model --steps 1",
    "heads train none --prompts prompts --out out --steps 1",
    "heads train model --prompts prompts --out out --steps 1 --held-out 7",
    "heads train model --prompts prompts --out out --steps 1 --max-tokens 0",
    "heads train model --prompts prompts --out out --steps 1 --start-from none",
    "heads kscore ./none --model model --prompts prompts",
    "heads kscore x --model none",
    "datastore build none --out out --base model",
    "datastore build prompts --out out --base none",
    "doctor --model none",
    "replay none",
    "up --model model --head none/",
)


@dataclass(frozen=True)
class Ended:
    """The exit code of a call, and the packages that were there at its end."""

    code: int
    packages: set[str]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Every call, made in a folder with a model that is none, a text, a key and an empty bundle."""
    folder = tmp_path_factory.mktemp("calls")
    for name in ("model", "bundle"):
        (folder / name).mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "prompts").write_text("{}")
    SigningKey.generate("log").publish(folder / "trusted")
    command = [sys.executable, "-c", _PROBE, "found", *ASKING, VERIFYING, *CHECKED]
    subprocess.run(command, cwd=folder, capture_output=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert not (folder / "out").exists()
    found = map(json.loads, (folder / "found").read_text().splitlines())
    return {line: Ended(code, set(packages)) for line, code, packages in found}


@pytest.mark.parametrize("line", ASKING)
def test_a_call_imports_nothing_heavy_before_it_asks(line: str, calls: dict[str, Ended]) -> None:
    assert calls[line].code == ASKING[line]
    assert calls[line].packages & _HEAVY == set()


def test_verifying_needs_no_server_and_no_engine(calls: dict[str, Ended]) -> None:
    found = calls[VERIFYING]
    assert found.code == 3
    assert "ledger" in found.packages
    assert found.packages & {*_HEAVY, "grpc", "google"} == set()


@pytest.mark.parametrize("line", CHECKED)
def test_flags_and_files_are_checked_before_torch_is_imported(line: str, calls: dict[str, Ended]) -> None:
    assert calls[line].code in (2, 4)
    assert calls[line].packages & {"torch", "numpy", "numba", "transformers"} == set()
