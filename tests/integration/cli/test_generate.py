"""`kolm generate` and `kolm chat` against a scripted server; what no command finds."""

import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceServicer, add_LedgerServiceServicer_to_server
from ledger.documents.signed_document import open_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from services.cli.frame.exits import Failed
from services.cli.ledger.receipt_files import write_new
from services.client.ledger.ledger import LedgerClient
from services.runtime.server import Mount
from tests.cli import CLOSED, Ended, kolm
from tests.integration.cli.scripted import ScriptedGeneration
from tests.serving import PATIENCE, serving
from tests.unit.ledger.builders import TRUSTED, receipt, signed


class OneReceipt(LedgerServiceServicer):
    """A ledger that lists one receipt, whatever it is asked for."""

    asked: str | None = None

    async def ListReceipts(self, request: ledger_pb2.ListReceiptsRequest, context: Any) -> Any:
        self.asked = request.request_id
        found = documents_pb2.Receipt(envelope=signed(receipt(0)), index=7)
        return ledger_pb2.ListReceiptsResponse(receipts=[found])


Generate = Callable[..., Ended]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session in which no hint was given."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def generate(address: str) -> Generate:
    """`kolm generate …`."""
    return partial(kolm, "generate", environment={"KOLM_GENERATION": address})


def test_text_is_data_and_everything_about_it_is_talk(generate: Generate) -> None:
    done = generate("hello")
    assert done[:2] == (0, "one \x1b[31mtwo\n")  # a program gets the text as it is; a terminal does not
    for shown in (receipt(0).receipt_id, "4 of 9", "no_head", "0.25 s", "0.50 s", "--max-tokens"):
        assert shown in done.err


def test_json_is_one_object_with_the_receipt_as_it_was_signed(generate: Generate) -> None:
    value = generate("hello", "--json").document
    assert (value["text"], value["token_ids"]) == ("one \x1b[31mtwo", [1, 2, 3])
    assert (value["finish_reason"], value["ledger_index"]) == ("length", 7)
    counts = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "cached_prompt_tokens": 0}
    predicted = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    assert value["usage"] == counts | predicted
    assert value["metrics"]["num_accepted_tokens"] == 4
    assert value["receipt"]["document"]["receipt_id"] == receipt(0).receipt_id
    document = open_document(Envelope.from_bytes(value["receipt"]["envelope"].encode()), TRUSTED)
    assert document.to_document() == value["receipt"]["document"]


def test_several_choices_are_all_there(generate: Generate) -> None:
    value = generate("hello", "--json", "-n", "3").document
    assert [choice["index"] for choice in value["choices"]] == [0, 1, 2]
    assert sorted(value) == ["choices", "metrics", "resolved", "usage"]  # members of a choice are there once


@pytest.mark.parametrize("how", ["--stream", "--no-stream"])
def test_logprobs_are_talk_and_members_of_a_choice(generate: Generate, how: str) -> None:
    done = generate("hello", "--logprobs=1", how)
    assert (done.code, "logprob" in done.out) == (0, False)
    assert all(shown in done.err for shown in ("'one '", "-0.250", "'uno'", "-1.500", "'<end>'"))
    top = [
        {"token_id": 9, "text": "uno", "logprob": -1.5},
        {"token_id": 10, "text": "\ufffd", "logprob": -2.0, "bytes": [240, 159]},
        {"token_id": 2, "text": "<end>", "logprob": -3.0, "special": True},
    ]
    chosen = {"token_id": 1, "text": "one ", "logprob": -0.25}
    assert generate("hello", "--logprobs=1", "--json").document["logprobs"] == [{"chosen": chosen, "top": top}]
    assert "logprobs" not in generate("hello", "--json").document


def test_every_flag_reaches_the_server(generate: Generate, scripted: ScriptedGeneration) -> None:
    flags = (
        *("--max-tokens=9", "--temperature=0.5", "--top-p=0.9", "--top-k=3", "--min-p=0.1", f"--seed={2**64 - 1}"),
        *("--stop=a", "--stop=b", "--n=2", "--method=lookahead", "--k=4", "--verify=inline", "--workload=code"),
        *("--min-tokens=2", "--presence-penalty=-0.5", "--frequency-penalty=0.5", "--repetition-penalty=1.25"),
        *("--ignore-eos", "--logprobs=2"),
        *("--tenant=acme", "--request-id=mine", "--adapter=tone"),
    )
    assert generate("hello", *flags).code == 0
    (request,) = scripted.requests
    sampling, spec = request.sampling, request.spec_decode
    assert (request.prompt, request.tenant, request.request_id) == ("hello", "acme", "mine")
    assert request.adapter == "tone"
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.9)
    assert (sampling.top_k, sampling.min_p, sampling.seed, sampling.n) == (3, 0.1, 2**64 - 1, 2)
    assert list(sampling.stop) == ["a", "b"]
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
    assert (sampling.min_tokens, *penalties, sampling.ignore_eos, sampling.logprobs) == (2, -0.5, 0.5, 1.25, True, 2)
    assert (spec.method, spec.k) == ("lookahead", 4)


def test_a_file_is_what_is_expected(generate: Generate, scripted: ScriptedGeneration, tmp_path: Path) -> None:
    expected, binary = tmp_path / "before.py", tmp_path / "binary"
    expected.write_text("def add(a, b):\n    return a + b\n")
    binary.write_bytes(b"\xff")
    assert generate("hello", "--prediction", expected).code == 0
    assert scripted.requests[-1].prediction == expected.read_text()
    for wrong in (tmp_path / "gone", binary):
        assert generate("hello", "--prediction", wrong).code == 2


def test_parameters_of_a_method_reach_the_server(generate: Generate, scripted: ScriptedGeneration) -> None:
    assert generate("hello", "--method=eagle3", "--parameter=tree_width=2", "--parameter=tree_tokens=9").code == 0
    assert dict(scripted.requests[-1].spec_decode.parameters) == {"tree_width": 2, "tree_tokens": 9}


def test_nothing_that_was_not_asked_for_is_sent(generate: Generate, scripted: ScriptedGeneration) -> None:
    generate("hello")
    (request,) = scripted.requests
    assert not request.sampling.ListFields()
    assert not request.spec_decode.ListFields()


@pytest.mark.parametrize("flags", [("-f", "-"), ("-",), ()], ids=" ".join)
def test_standard_input_is_a_prompt(generate: Generate, scripted: ScriptedGeneration, flags: tuple[str, ...]) -> None:
    assert generate(*flags, given="two\nlines").code == 0
    assert scripted.requests[0].prompt == "two\nlines"


def test_a_file_is_a_prompt_and_chat_makes_it_a_message(
    generate: Generate, scripted: ScriptedGeneration, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("héllo")
    assert generate("-f", tmp_path / "prompt.txt", "--system=be brief").code == 0
    turns = scripted.requests[0].messages.messages
    assert [(turn.role, turn.content) for turn in turns] == [("system", "be brief"), ("user", "héllo")]


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_refusal_is_one_line_with_the_field_and_one_with_what_to_do(generate: Generate, stream: str) -> None:
    wrong, halted = generate("wrong", stream), generate("halted", stream)
    assert (wrong.code, wrong.out, wrong.err.startswith("kolm: --k: is 0")) == (2, "", True)
    assert len(wrong.err.splitlines()) == 1
    assert (halted.code, "kolm halts resume" in halted.err.splitlines()[1]) == (1, True)


@pytest.mark.parametrize("how", ["--stream", "--no-stream", "--json"])
def test_an_output_that_the_server_cut_short_is_shown_and_is_a_failure(generate: Generate, how: str) -> None:
    done = generate("broken", how)
    assert (done.code, "one " in done.out, done.err.splitlines()[-1].startswith("kolm: ")) == (1, True, True)


@contextmanager
def program(*words: str) -> Iterator[Any]:
    """`kolm WORDS` in a process of its own, with pipes; killed at the end."""
    command = [sys.executable, "-m", "services.cli", *words]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_control_c_cancels_the_call_and_exits_130(scripted: ScriptedGeneration, address: str, stream: str) -> None:
    with program("generate", "forever", f"--generation={address}", stream) as process:
        assert scripted.running.wait(PATIENCE)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert f"kolm receipts list --request-id {scripted.requests[0].request_id}" in err
    assert scripted.cancelled.wait(PATIENCE)


def test_control_c_ends_the_line_and_names_the_receipt(scripted: ScriptedGeneration, address: str) -> None:
    ledger = OneReceipt()
    mount = Mount(LedgerClient.service, lambda server: add_LedgerServiceServicer_to_server(ledger, server))
    with serving(mount) as served:
        addresses = (f"--generation={address}", f"--ledger={served.address}")
        with program("generate", "go on", *addresses, "--stream") as process:
            assert process.stdout.read(4) == "one "
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "\n")
    assert receipt(0).receipt_id in err
    assert ledger.asked == scripted.requests[0].request_id


def test_a_reader_that_has_seen_enough_is_no_error(scripted: ScriptedGeneration, address: str) -> None:
    command = f"{sys.executable} -m services.cli generate hello --generation={address} --stream | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, len(scripted.requests)) == (0, 1)
    assert "Traceback" not in done.stderr


def test_a_timeout_is_exit_code_five(generate: Generate) -> None:
    assert generate("forever", "--timeout=0.2").code == 5


@pytest.mark.parametrize("flags", [(), ("--stream",), ("--json",)])
def test_without_a_promise_there_is_no_answer_where_one_was_asked_for(
    generate: Generate, scripted: ScriptedGeneration, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    assert generate("hello", f"--promise={tmp_path / 'promise'}", *flags)[:2] == (1, "")
    assert not (tmp_path / "promise").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "{}", "--trusted", "{keys}"),
        ("ledger", "verify", "--database", "{}", "--trusted", "{keys}"),
        ("ledger", "verify", "--depth", "quick", "--database", "{}", "--trusted", "{keys}"),
        ("datastore", "show", "{}"),
        ("datastore", "show", "{}", "--verify"),
    ],
    ids=" ".join,
)
def test_what_a_command_is_asked_about_is_4(tmp_path: Path, words: tuple[str, ...]) -> None:
    SigningKey.generate("log").publish(tmp_path / "keys")
    missing = tmp_path / "nothing"
    done = kolm(*(word.format(missing, keys=tmp_path / "keys") for word in words))
    assert (done.code, str(missing) in done.err) == (4, True), done.err


class _Full(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_error_and_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, mode: str) -> _Full:
        os.close(handle)
        return _Full()

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(Failed, match=r"receipt\.json"):
        write_new(tmp_path / "receipt.json", b"{}")
    assert list(tmp_path.iterdir()) == []


STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def chat(address: str, lines: str | bytes, *flags: str) -> Ended:
    """`kolm chat` with these lines piped in."""
    return kolm("chat", *flags, environment={"KOLM_GENERATION": address, "KOLM_LEDGER": CLOSED}, given=lines)


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
    command = [sys.executable, "-m", "services.cli", "chat", f"--generation={address}", f"--ledger={CLOSED}", *flags]
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


def test_each_piped_line_gets_an_answer_and_prompts_repeat_earlier_turns(
    address: str, scripted: ScriptedGeneration
) -> None:
    done = chat(address, "hello\n\nand now?\n", "--system=be brief")
    assert done[:2] == (0, "one two\none two\n")
    first = [("system", "be brief"), ("user", "hello")]
    assert turns(scripted) == [first, [*first, ("assistant", "one two"), ("user", "and now?")]]
    one, hint, two = done.err.splitlines()
    for line in (one, two):
        assert all(shown in line for shown in ("0.25 s", "0.50 s", "2.00", "lookahead", "no_head", "receipt 7"))
    assert all(way in hint for way in ("kolm heads train", "--draft-model", "kolm datastore build"))


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
    [
        ("/foo", 2),
        ("/etc/passwd is a file", 2),
        ("/ method off", 2),
        ("/method eagle", 2),
        ("/save", 2),
        ("/method", 2),
        ("/save x.tar.gz", 2),
        ("wrong", 2),
        ("/save ~no-such-user/x", 2),
        ("broken", 1),
        (b"caf\xe9", 2),
    ],
)
def test_a_piped_line_that_is_wrong_ends_it(
    address: str, scripted: ScriptedGeneration, line: str | bytes, code: int
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    assert chat(address, raw + b"\nnever\n").code == code
    assert [("user", "never")] not in turns(scripted)


def test_commands_are_listed_without_asking_and_two_slashes_send_one(
    address: str, scripted: ScriptedGeneration
) -> None:
    done = chat(address, "/help\n//etc/passwd is a file\n/quit\nnever\n")
    assert (done.code, turns(scripted)) == (0, [[("user", "/etc/passwd is a file")]])
    assert all(command in done.err for command in ("/method", "/save", "/help", "/quit", "//"))


def test_a_method_that_a_server_lacks_is_explained_once_a_conversation(generate: Generate, address: str) -> None:
    assert "no_head)" in (asked := generate("hello").err)
    talk = chat(address, "hello\nagain\n").err
    assert ("kolm heads train" in asked, talk.count("kolm heads train")) == (False, 1)
    assert all(way in talk for way in ("--draft-model", "kolm datastore build"))


def test_json_is_one_object_for_each_answer(address: str) -> None:
    done = chat(address, "a\nb\n", "--json")
    first, second = map(json.loads, done.out.splitlines())
    assert (done.code, done.err, first["text"], second["ledger_index"]) == (0, "", "one two", 7)
    assert first["receipt"]["receipt_id"] == second["receipt"]["receipt_id"]
    assert first["metrics"]["mean_acceptance_length"] == 2.0


def test_a_path_that_is_taken_is_refused_before_anything_is_sent(
    address: str, scripted: ScriptedGeneration, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("mine")
    assert (chat(address, "a\n", f"--save={tmp_path / 'kept'}").code, scripted.requests) == (2, [])


def test_no_server_is_exit_code_five() -> None:
    assert chat(CLOSED, "a\n").code == 5


def test_control_c_stops_the_answer_and_not_the_program(address: str, scripted: ScriptedGeneration) -> None:
    with terminal(address) as person:
        person.read_until("> ")
        person.type("go on\n")
        person.read_until("one")
        person.process.send_signal(signal.SIGINT)
        assert scripted.cancelled.wait(60)
        assert "interrupted after 1 tokens" in person.read_until("on its way")
        for name in ("~no-such-user/x", "x" * 300):
            person.read_until("> ")
            person.type(f"/save {name}\n")
            person.read_until("kolm: ")
        person.read_until("> ")
        person.type("and now?\n")
        person.read_until("one two")
        person.read_until("receipt 7")
        person.read_until("> ")
        person.type("wrong\n")
        person.read_until("--k: is 0")
        person.read_until("> ")
        person.type("\x04")
        assert person.process.wait(60) == 0
    assert turns(scripted)[1] == [("user", "go on"), ("assistant", "one "), ("user", "and now?")]


def test_control_c_stops_a_save_and_not_the_program(address: str, scripted: ScriptedGeneration, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with terminal(address, f"--ledger=127.0.0.1:{silent.getsockname()[1]}") as person:
            for line in ("hello", f"/save {tmp_path / 'kept'}", "and now?"):
                person.read_until("> ")
                person.type(f"{line}\n")
                if line.startswith("/save"):
                    connection, _ = silent.accept()  # which is never answered
                    person.process.send_signal(signal.SIGINT)
                    person.read_until("interrupted")
            person.read_until("receipt 7")
        connection.close()
    assert [turn[:1] for turn in turns(scripted)] == [[("user", "hello")]] * 2


def test_control_c_ends_a_program_that_pipes(address: str, scripted: ScriptedGeneration) -> None:
    with program("chat", f"--generation={address}", f"--ledger={CLOSED}") as process:
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "one "
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, len(err.splitlines())) == (130, "\n", 1)
