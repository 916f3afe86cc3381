"""`kolm chat` against a scripted server: what a prompt repeats, commands, Ctrl-C, piped lines."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import NOBODY, Ended, kolm
from tests.integration.cli.scripted import ScriptedGeneration

STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def chat(address: str, lines: str, *flags: str) -> Ended:
    """`kolm chat` with these lines piped in."""
    return kolm("chat", *flags, environment={"KOLM_GENERATION": address, "KOLM_LEDGER": NOBODY}, given=lines)


class Terminal:
    """A person at `kolm chat`, who reads until something is on the screen."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self._seen = ""

    def read_until(self, text: str) -> str:
        """The output since the last call, with `text` in it; control sequences are left out."""
        while text not in (plain := STYLE.sub("", self._seen)):
            assert select.select([self._screen], [], [], 60)[0], plain
            more = os.read(self._screen, 4096)
            assert more, plain
            self._seen += more.decode()
        before, _, self._seen = plain.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())


@contextmanager
def terminal(address: str, *flags: str) -> Iterator[Terminal]:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "services.cli", "chat", f"--generation={address}", f"--ledger={NOBODY}", *flags]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(
        command, stdin=side, stdout=side, stderr=side, env=environment, start_new_session=True, close_fds=True
    )
    os.close(side)
    try:
        yield Terminal(process, main)
    finally:
        process.kill()
        process.wait()
        os.close(main)


def turns(scripted: ScriptedGeneration) -> list[list[tuple[str, str]]]:
    return [[(turn.role, turn.content) for turn in request.messages.messages] for request in scripted.requests]


def test_each_piped_line_gets_an_answer_and_prompts_repeat_what_was_said(
    address: str, scripted: ScriptedGeneration
) -> None:
    done = chat(address, "hello\n\nand now?\n", "--system=be brief")
    assert done[:2] == (0, "one two\none two\n")
    first = [("system", "be brief"), ("user", "hello")]
    assert turns(scripted) == [first, [*first, ("assistant", "one two"), ("user", "and now?")]]
    for line in done.err.splitlines():
        assert all(shown in line for shown in ("0.25 s", "0.50 s", "2.00", "lookahead", "no_head", "receipt 7"))
    assert len(done.err.splitlines()) == 2


def test_every_request_has_a_name_of_its_own(address: str, scripted: ScriptedGeneration) -> None:
    chat(address, "a\nb\n")
    assert len({request.request_id for request in scripted.requests}) == 2


def test_flags_and_commands_reach_the_server(address: str, scripted: ScriptedGeneration) -> None:
    flags = ("--temperature=0.5", "--seed=3", "--stop=x", "--max-tokens=9", "--method=lookahead", "--k=4", "--top-k=2")
    assert chat(address, "a\n/method off\nb\n", *flags).code == 0
    first, second = scripted.requests
    assert (first.sampling.temperature, first.sampling.seed, first.sampling.top_k) == (0.5, 3, 2)
    assert (list(first.sampling.stop), first.sampling.max_tokens) == (["x"], 9)
    assert (first.spec_decode.method, first.spec_decode.k) == ("lookahead", 4)
    assert (second.spec_decode.method, second.spec_decode.HasField("k"), second.sampling.seed) == ("off", False, 3)


@pytest.mark.parametrize(
    ("line", "code"),
    [("/method eagle", 2), ("/save", 2), ("/method", 2), ("/save x.tar.gz", 2), ("wrong", 2), ("broken", 1)],
)
def test_a_piped_line_that_is_wrong_ends_it(address: str, scripted: ScriptedGeneration, line: str, code: int) -> None:
    assert chat(address, f"{line}\nnever\n").code == code
    assert [("user", "never")] not in turns(scripted)


def test_json_is_one_object_for_each_answer(address: str) -> None:
    done = chat(address, "a\nb\n", "--json")
    first, second = map(json.loads, done.out.splitlines())
    assert (done.code, done.err, first["text"], second["ledger_index"]) == (0, "", "one two", 7)
    assert first["receipt"]["receipt_id"] == second["receipt"]["receipt_id"]
    assert first["metrics"]["mean_acceptance_length"] == 2.0


def test_a_path_that_is_taken_is_refused_before_anything_is_said(
    address: str, scripted: ScriptedGeneration, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("mine")
    assert (chat(address, "a\n", f"--save={tmp_path / 'kept'}").code, scripted.requests) == (2, [])


def test_no_server_is_exit_code_five() -> None:
    assert chat(NOBODY, "a\n").code == 5


def test_control_c_stops_the_answer_and_not_the_program(address: str, scripted: ScriptedGeneration) -> None:
    with terminal(address) as person:
        person.read_until("> ")
        person.type("go on\n")
        person.read_until("one")
        person.process.send_signal(signal.SIGINT)
        assert scripted.cancelled.wait(60)
        assert "interrupted after 1 tokens" in person.read_until("on its way")
        person.read_until("> ")
        person.type("and now?\n")
        person.read_until("receipt 7")
        person.read_until("> ")
        person.type("wrong\n")
        person.read_until("--k: is 0")
        person.read_until("> ")
        person.type("\x04")
        assert person.process.wait(60) == 0
    assert turns(scripted)[1] == [("user", "go on"), ("assistant", "one "), ("user", "and now?")]


def test_control_c_ends_a_program_that_pipes(address: str, scripted: ScriptedGeneration) -> None:
    command = [sys.executable, "-m", "services.cli", "chat", f"--generation={address}", f"--ledger={NOBODY}"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "one "
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, len(err.splitlines())) == (130, "\n", 1)
