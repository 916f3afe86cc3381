"""`kolm monitor` beside a real ledger and a real explorer: silent about what is honest, loud about each lie."""

import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ledger.bundle.tiles import TileFolder
from ledger.documents.promise import sign_promise
from ledger.encoding.text_forms import timestamp
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import open_checkpoint
from services.client.ledger.ledger import LedgerClient
from tests.append_stream import append_many
from tests.cli import kolm
from tests.fakes.dripping_server import dripping
from tests.integration.monitor.processes import PATIENCE, explorer, following, ledger, looked, monitor, receiver, until
from tests.unit.ledger.builders import KEYS, policy, promise_of, receipt, signed, verdict


def now(seconds: float = 0.0) -> str:
    return timestamp(datetime.now(UTC) + timedelta(seconds=seconds))


def audited(client: LedgerClient, number: int) -> None:
    """A receipt of now, and its verdict."""
    index = client.append(signed(receipt(number, issued_at=now()))).index
    client.append(signed(verdict(index, number, replayed_at=now())))


def grow(client: LedgerClient, first: int, count: int) -> None:
    size = client.checkpoint().tree_size + count
    with append_many(
        client, ((signed(receipt(number, issued_at=now())), None) for number in range(first, first + count))
    ):
        until(lambda: client.checkpoint().tree_size >= size)


def test_an_honest_log_stays_green_over_growth_and_restarts(tmp_path: Path) -> None:
    tiles = tmp_path / "tiles"
    with ledger(tmp_path) as served, explorer(tmp_path, served) as url:
        served.client.append(signed(policy(1.0, 3600, 0)))
        places = {"grpc": ("--ledger", served.address), "http": ("--tiles", url), "folder": ("--tiles", str(tiles))}
        for step in range(3):
            for number in range(100 * step, 100 * step + 3):
                audited(served.client, number)
            size = served.client.checkpoint().tree_size
            assert kolm("ledger", "export", "--format=tiles", str(tiles), f"--ledger={served.address}")[0] == 0
            for name, place in places.items():
                state = ("--state", str(tmp_path / f"{name}.state"))
                answer = looked(tmp_path, *place, *state, "--max-age", "1h")
                assert (answer["ok"], answer["size"], answer["findings"]) == (True, size, []), name
    with ledger(tmp_path) as again:
        audited(again.client, 900)
        state = ("--state", str(tmp_path / "grpc.state"))
        assert looked(tmp_path, "--ledger", again.address, *state)["size"] == size + 2


def test_a_monitor_that_is_killed_goes_on_where_it_was_and_one_that_is_stopped_ends_well(tmp_path: Path) -> None:
    with ledger(tmp_path) as served:
        served.client.append(signed(policy(1.0, 3600, 0)))
        for step in range(3):
            with following(tmp_path, "--ledger", served.address) as process:
                assert process.stdout is not None
                for number in range(10):
                    audited(served.client, 100 * step + number)
                size = served.client.checkpoint().tree_size
                line = ""
                while f"{size} entries checked" not in line:
                    line = process.stdout.readline()
                    assert line, process.stderr and process.stderr.read()
        with following(tmp_path, "--ledger", served.address) as process:
            assert process.stdout is not None
            assert f"{size} entries checked" in process.stdout.readline()
            second = monitor(tmp_path, "--ledger", served.address)
            assert (second[0], "another monitor" in second[1]) == (1, True), second
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    with following(tmp_path, "--tiles", str(tmp_path / "none")) as process:
        assert process.stderr is not None
        assert "none" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert (process.wait(PATIENCE), process.stderr.read()) == (4, "")


@pytest.mark.parametrize(
    ("number", "flags", "code"), [(signal.SIGTERM, (), 0), (signal.SIGTERM, ("--once",), 143), (signal.SIGINT, (), 130)]
)
def test_a_signal_ends_a_monitor_whose_log_never_answers(
    tmp_path: Path, number: int, flags: tuple[str, ...], code: int
) -> None:
    KEYS["log"].publish(tmp_path / "trusted")
    for place, server in (("--tiles=http://127.0.0.1:{}", dripping()), ("--ledger=127.0.0.1:{}", dripping(b"", b""))):
        with server as log, following(tmp_path, place.format(log.port), *flags) as process:
            until(log.reached.is_set, process)
            process.send_signal(number)
            assert process.wait(PATIENCE) == code


def forked(tmp_path: Path) -> tuple[Path, Path]:
    """The data directories of two ledgers with one key, of one log up to entry 4, and of two from there."""
    one, other = tmp_path / "one", tmp_path / "other"
    with ledger(one) as served:
        grow(served.client, 0, 4)
    shutil.copytree(one, other)
    for data, first in ((one, 50), (other, 60)):
        with ledger(data) as served:
            grow(served.client, first, 6 if data == one else 9)
    return one, other


def test_a_fork_is_told_with_both_checkpoints(tmp_path: Path) -> None:
    one, other = forked(tmp_path)
    for data, wrong in ((one, False), (other, True), (one, True)):
        with ledger(data) as served, explorer(data, served) as url:
            for flag, place in (("--ledger", served.address), ("--tiles", url)):
                check_fork(one, wrong, f"{flag}={place}", f"--state={tmp_path / flag}")


def check_fork(data: Path, wrong: bool, *place: str) -> None:
    """One look finds both checkpoints of the fork, or nothing if nothing is `wrong` so far."""
    answer = looked(data, *place)
    assert [each["kind"] for each in answer["findings"]] == (["FORK"] if wrong else [])
    if wrong:
        code, errors = monitor(data, *place)
        assert (code, errors.count("\n"), errors.startswith("kolm: FORK: the log has signed")) == (3, 1, True), errors
        evidence, keys = answer["findings"][0]["evidence"], TrustedKeys.load(data / "trusted").keys("log")
        sizes = [open_checkpoint(evidence[each].encode(), keys).size for each in ("older", "newer")]
        assert sizes == [10, 13]


def test_a_rollback_is_told_with_both_checkpoints(tmp_path: Path) -> None:
    data, old = tmp_path / "data", tmp_path / "old"
    with ledger(data) as served:
        grow(served.client, 0, 4)
    shutil.copytree(data, old)
    state = ("--state", str(tmp_path / "state"))
    with ledger(data) as served:
        grow(served.client, 10, 5)
        assert looked(data, "--ledger", served.address, *state)["ok"]
    with ledger(old) as served:
        answer = looked(old, "--ledger", served.address, *state)
        code, errors = monitor(old, "--ledger", served.address, *state)
    assert [each["kind"] for each in answer["findings"]] == ["ROLLBACK"]
    assert (code, "shows 4 entries and had signed 9" in errors) == (3, True), errors
    assert all(
        answer["findings"][0]["evidence"][each].startswith("kolm.example/ledger\n") for each in ("older", "newer")
    )


def test_a_late_promise_is_told_to_a_webhook_and_the_monitor_goes_on(tmp_path: Path) -> None:
    promises = tmp_path / "promises"
    promises.mkdir()
    (promises / "arriving.json").touch()
    with ledger(tmp_path) as served, receiver() as hook:
        hook.refusals = 1
        grow(served.client, 0, 1)
        with following(
            tmp_path, "--ledger", served.address, "--promise", str(promises), "--webhook", hook.url
        ) as process:
            for number in (0, 7):  # the first is kept already
                promise = promise_of(receipt(number), promised_at=now(-5), due=now(1))
                envelope = sign_promise(promise, KEYS["receipts"]).to_bytes()
                (promises / f"{number}.json").write_bytes(envelope)
            until(lambda: hook.got("PROMISE"), process)
            grow(served.client, 7, 1)
            served.client.append(signed(verdict(0, 0, "DEVIATION")))
            until(lambda: hook.got("DEVIATION"), process)
            assert process.stderr is not None
            assert any("DEVIATION" in line for line in process.stderr)  # logged once the state has it as reported
        assert [body["kind"] for body in hook.bodies] == ["PROMISE", "DEVIATION"]
        told = hook.bodies[0]
        assert (told["type"], told["log"], told["size"]) == ("kolm.finding.v1", served.address, 1)
        assert "1 of 1 receipts of request request-7, promised by" in told["message"]
        answer = looked(tmp_path, "--ledger", served.address, "--promise", str(promises))
        assert [each["kind"] for each in answer["findings"]] == ["DEVIATION"]  # it has come, if late
        assert monitor(tmp_path, "--ledger", served.address, "--webhook", hook.url)[0] == 3
        assert len(hook.bodies) == 2  # no finding is reported twice


def test_what_the_command_line_has_wrong_is_said(tmp_path: Path) -> None:
    KEYS["log"].publish(tmp_path / "trusted")
    for arguments, errors in (
        (("--tiles", "ftp://x/y"), "--tiles: expected http"),
        (("--webhook", "mailto:a@b"), "--webhook: expected http"),
        (("--max-age", "soon"), "--max-age: expected a number"),
        (("--every", "1"), "--every: expected a number"),
        (("--promise", str(tmp_path / "none.json"), "--tiles", str(tmp_path)), "--promise: cannot read"),
        (("--trusted", str(tmp_path / "missing")), "is not a directory"),
    ):
        code, shown = monitor(tmp_path, *arguments)
        assert (code, errors in shown) == (2, True), shown
    code, shown = monitor(tmp_path, "--tiles", str(tmp_path / "empty"))
    assert (code, "checkpoint" in shown) == (4, True), shown
    assert TileFolder(tmp_path / "empty").published().size == 0
