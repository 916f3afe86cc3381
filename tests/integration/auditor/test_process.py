"""The auditor's processes: start, end, and kills."""

import shutil
import signal
import threading
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from prometheus_client import CollectorRegistry

from ledger.keys.key_file import create_private_file
from services.auditor import serving
from services.auditor.appender import Terms
from services.auditor.auditor import Examined
from services.auditor.examination import EnginePlan
from services.auditor.held_folder import HeldFolder
from services.auditor.serving import LoadedWhenAsked
from services.cli.audit import examine
from services.client.channel import Connection
from services.generation.state_folder import LOADING, one_at_a_time
from services.generation.target.kernels.compilation import loading_folder
from tests.e2e.command import until
from tests.fakes.collector import collecting
from tests.forked import Forked
from tests.fuzzing import flood
from tests.integration.auditor.deployment import Deployment, stopped_after
from tests.serving import PATIENCE
from tests.unit.ledger.builders import KEYS, receipt_id


def auditor_process(directory: Path, *flags: str) -> Forked:
    """`python -m services.auditor`; killed at the end if it still runs."""
    return Forked("services.auditor", f"--data-dir={directory}", "--listen=127.0.0.1:0", *flags)


def address_of(process: Forked) -> str:
    for line in process.stderr:
        if "listening on" in line:
            return line.split()[-1]
    raise AssertionError("it ended before it listened")


def test_it_serves_health_and_stops_cleanly_also_while_the_ledger_is_away(tmp_path: Path, model: Path) -> None:
    with auditor_process(tmp_path, "--ledger=127.0.0.1:1", f"--model={model}") as process:
        with closing(Connection(address_of(process))) as connection:
            assert connection.serving()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert "auditor stopped" in process.stderr.read()


def test_at_rate_0_no_weights_are_loaded_before_there_is_something_to_replay(tmp_path: Path, model: Path) -> None:
    broken = shutil.copytree(model, tmp_path / "model")
    (broken / "model.safetensors").write_bytes(b"no weights")
    flags = "--ledger=127.0.0.1:1", f"--model={broken}"
    with auditor_process(tmp_path / "with", *flags) as process:
        assert process.wait(PATIENCE) == 1
    with auditor_process(tmp_path / "without", *flags, "--rate=0") as process:
        assert address_of(process)


def test_it_announces_its_policy_and_then_lets_servers_load_first(
    deployment: Deployment, tmp_path: Path, model: Path
) -> None:
    private = KEYS["auditor"]._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    create_private_file(tmp_path / "keys" / "auditor.pem", private)
    flags = f"--ledger={deployment.address}", f"--model={model}", f"--trusted-keys={deployment.trusted}"
    with ExitStack() as loading:
        loading.enter_context(one_at_a_time(loading_folder(), shared=True))  # as a server does
        with auditor_process(tmp_path, *flags) as process:
            assert next(line for line in process.stderr if "services.auditor.serving" in line)
            assert deployment.ledger.checkpoint().tree_size == 1
            loading.close()
            with closing(Connection(address_of(process))) as connection:
                assert connection.serving()


@pytest.mark.parametrize("servers", [0, 1])
def test_it_loads_beside_servers_that_do_not_end_loading_and_tells_both(
    servers: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_OTHERS_SECONDS", 0.0)
    monkeypatch.setenv(LOADING, str(tmp_path / "loading"))
    told: list[str] = []
    with ExitStack() as loading:
        for _ in range(servers):
            loading.enter_context(one_at_a_time(loading_folder(), shared=True))
        LoadedWhenAsked(EnginePlan(model), threading.Event(), lambda: None, told.append).load()
    assert len(told) == 1 + servers


def test_without_weights_a_receipt_of_kolms_own_engine_ends_no_auditor(deployment: Deployment) -> None:
    promised(deployment, 1)
    stop = threading.Event()
    engine = LoadedWhenAsked(None, stop, lambda: None)

    def on_wait() -> None:
        engine.release_memory()
        stop.set()

    serving.follow(deployment.auditor(replayer=engine), stop, 0.0, lambda _: None, on_wait=on_wait)
    assert stop.is_set()


def test_a_verdict_s_span_names_the_receipt_and_its_request(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    promised(deployment, 1)
    stop, examined = stopped_after(1)
    with collecting(monkeypatch) as collector, serving.sent_spans("auditor") as send:
        report = serving.reported(serving.AuditorMetrics(CollectorRegistry()), send)

        def on_examined(one: Examined) -> None:
            report(one)
            examined(one)

        serving.follow(deployment.auditor(), stop, 0.0, on_examined)
    (span,) = collector.spans
    assert (span.service, span.name) == ("kolm-auditor", "audit")
    assert span.attributes == {
        "gen_ai.evaluation.name": "audit",
        "gen_ai.evaluation.score.label": "EXACT",
        "gen_ai.response.id": "request-0",
        "kolm.receipt.ids": [receipt_id(0)],
        "kolm.receipt.verdicts": ["EXACT"],
        "kolm.method": "lookahead",
    }


def test_random_messages_are_answered_or_refused(tmp_path: Path, model: Path) -> None:
    with auditor_process(tmp_path, "--ledger=127.0.0.1:1", f"--model={model}") as process:
        flood(address_of(process))
        assert process.poll() is None


def test_a_key_that_others_can_read_is_refused_with_a_sentence(tmp_path: Path, model: Path) -> None:
    key = tmp_path / "keys" / "auditor.pem"
    key.parent.mkdir()
    key.write_text("not a key")
    with auditor_process(tmp_path, "--ledger=127.0.0.1:1", f"--model={model}") as process:
        assert process.wait(PATIENCE) == 1
        output = process.stderr.read()
    assert "others can read the auditor key" in output
    assert "Traceback" not in output


def worker(deployment: Deployment, folder: Path, *flags: str) -> Forked:
    """An auditor process on the deployment's ledger, killed at the end."""
    where = (deployment.address, str(deployment.trusted), str(folder))
    return Forked("tests.integration.auditor.worker", *where, *flags)


def promised(deployment: Deployment, count: int) -> list[int]:
    """Receipts that all have to be replayed."""
    list(deployment.auditor(Terms(1.0, 86_400)).run_pass())
    return [deployment.receive(number) for number in range(count)]


def judged(deployment: Deployment) -> Counter[int]:
    return Counter(verdict.document.receipt_index for verdict in deployment.ledger.verdicts())


def test_a_killed_auditor_goes_on_at_its_next_start_and_gives_up_what_killed_it_twice(
    deployment: Deployment, tmp_path: Path
) -> None:
    first, *others = promised(deployment, 4)
    for _ in range(2):
        with worker(deployment, tmp_path / "own", "hang") as doomed:
            assert doomed.stdout.readline() == f"examining {first}\n"
    with worker(deployment, tmp_path / "own") as survivor:
        until(lambda: survivor.poll() is not None or len(judged(deployment)) == len(others))
        assert judged(deployment) == Counter(others)
    with HeldFolder(tmp_path / "own", max_attempts=2) as folder:
        assert folder.given_up == {first}
    (tmp_path / "own" / "attempts.json").unlink()  # as in docs/auditing.md
    with HeldFolder(tmp_path / "own", max_attempts=2) as folder:
        assert [each.receipt_index for each in deployment.auditor(folder=folder).run_pass()] == [first]
        assert folder.given_up == frozenset()
    assert {verdict.document.outcome for verdict in deployment.ledger.verdicts()} == {"EXACT"}


def test_a_pass_by_hand_waits_for_the_process_that_holds_the_folder_until_that_is_gone(
    deployment: Deployment, tmp_path: Path
) -> None:
    indexes, steps = promised(deployment, 2), list[str]()
    with worker(deployment, tmp_path / "own", "hang") as doomed:
        assert doomed.stdout.readline() == f"examining {indexes[0]}\n"
        with HeldFolder(tmp_path / "own") as folder:
            assert (folder.held, folder.holder) == (False, f"process {doomed.pid}")
            looks: list[float] = []

            def look(seconds: float) -> None:
                looks.append(seconds)
                if len(looks) == 3:
                    doomed.kill()
                    doomed.wait()

            ours: list[int] = []
            auditor = deployment.auditor(folder=folder)
            other, waited = examine(auditor, lambda each: ours.append(each.receipt_index), steps.append, look)
    assert (other, waited, ours) == (f"process {doomed.pid}", tuple(indexes), indexes)
    assert len(looks) >= 3
    assert judged(deployment) == Counter(indexes)


def test_a_pass_by_hand_leaves_what_is_owed_to_the_process_that_holds_the_folder(
    deployment: Deployment, tmp_path: Path
) -> None:
    indexes = promised(deployment, 2)
    with worker(deployment, tmp_path / "own") as other:
        assert other.stdout.readline() == f"examining {indexes[0]}\n"
        with HeldFolder(tmp_path / "own") as folder:
            found, _ = examine(deployment.auditor(folder=folder), pytest.fail, str)
    assert found == f"process {other.pid}"
    assert (judged(deployment), deployment.replays.asked) == (Counter(indexes), [])
