"""`kolm ledger verify --obligations` and `kolm halts resume` against a real ledger."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from services.auditor.appender import Terms
from services.client.errors import InvalidArgument
from tests import cli
from tests.cli import Ended
from tests.integration.auditor.deployment import Deployment, opened_deployment
from tests.unit.ledger.builders import KEYS, receipt_id, resume

Kolm = Callable[..., Ended]


def against(deployment: Deployment, data_dir: Path | None = None) -> Kolm:
    """The command with the addresses of a deployment."""
    folder = data_dir or deployment.trusted.parent
    own = {"KOLM_LEDGER": deployment.address, "KOLM_TRUSTED": folder / "trusted", "KOLM_DATA_DIR": folder}
    return partial(cli.kolm, environment=own)


def obligations(kolm: Kolm) -> tuple[int, Any]:
    done = kolm("ledger", "verify", "--obligations", "--json")
    return done.code, done.document["obligations"]


@pytest.fixture
def kolm(deployment: Deployment) -> Kolm:
    return against(deployment)


def test_what_is_owed_is_listed_with_its_state_and_unreplayable_is_no_pass(deployment: Deployment, kolm: Kolm) -> None:
    code, nothing = obligations(kolm)
    assert (code, nothing["policies"], nothing["kept"]) == (0, [], True)
    assert "nothing is promised" in kolm("ledger", "verify", "--obligations").shown
    auditor = deployment.auditor(Terms(1.0, 3600), spot_checks=0.0)
    list(auditor.run_pass())
    deployment.receive(0)
    deployment.receive(1, with_content=False)
    code, owed = obligations(kolm)
    assert [one["state"] for one in owed["obligations"]] == ["OWED", "OWED"]
    list(auditor.run_pass())
    code, done = obligations(kolm)
    assert [one["outcome"] for one in done["obligations"]] == ["EXACT", "UNREPLAYABLE"]
    assert {name: count for name, count in done["outcomes"].items() if count} == {"EXACT": 1, "UNREPLAYABLE": 1}
    assert (code, done["kept"], done["owed"]) == (0, True, 0)
    shown = kolm("ledger", "verify", "--obligations").shown
    assert "1 could not be replayed" in shown
    assert receipt_id(0) in shown


def test_a_verdict_that_never_came_is_overdue_and_exits_with_3(deployment: Deployment, kolm: Kolm) -> None:
    list(deployment.auditor(Terms(1.0, 1), spot_checks=0.0).run_pass())
    deployment.receive(0)
    while (answer := obligations(kolm))[0] == 0:
        assert answer[1]["obligations"][0]["state"] == "OWED"
    code, done = answer
    assert (code, done["overdue"], done["obligations"][0]["state"]) == (3, [1], "OVERDUE")
    assert "has no verdict" in kolm("ledger", "verify", "--obligations").shown


def test_a_pass_with_nothing_to_replay_loads_no_base(deployment: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    done = kolm("audit", "run", f"--model={broken}", "--json")
    assert (done.code, done.document["verdicts"]) == (0, [])
    deployment.receive(0)
    assert kolm("audit", "run", f"--model={broken}")[0] == 2


def halted(deployment: Deployment) -> int:
    deployment.receive(0)
    deployment.replays.lies = {receipt_id(0)}
    list(deployment.auditor().run_pass())
    (halt,) = deployment.ledger.halt_state().halts
    return halt.halt_index


def test_the_first_operator_resumes_at_once(tmp_path: Path) -> None:
    with opened_deployment(tmp_path / "fresh", others=()) as deployment:
        index = halted(deployment)
        done = against(deployment)("halts", "resume", index, "--json")
        assert (done.code, done.document[0]["halt_index"]) == (0, index)
        assert deployment.ledger.halt_state().halts == ()


def test_a_mistyped_data_directory_gets_no_operator(tmp_path: Path) -> None:
    with opened_deployment(tmp_path / "fresh", others=()) as deployment:
        index = halted(deployment)
        stranger, waiting = tmp_path / "stranger", tmp_path / "resume.json"
        SigningKey.load_or_create(stranger / "keys" / "log.pem", "log").publish(stranger / "trusted")
        (tmp_path / "empty").mkdir()
        waiting.write_bytes(sign_document(resume(index), KEYS["operator"]).to_bytes())
        before = _files(tmp_path)
        for folder in ("typo", "empty", "stranger"):
            kolm = against(deployment, tmp_path / folder)
            for words in (
                ("halts", "resume", str(index)),
                ("halts", "resume", "--all"),
                ("halts", "resume", str(index), "--sign-into", str(tmp_path / "new.json")),
                ("halts", "resume", "--sign-into", str(waiting)),
                ("ledger", "erase", receipt_id(0), "--reason=asked"),
                ("retention", "--forever"),
                ("halts", "resume", str(index), "--key", str(tmp_path / "typo.pem")),
            ):
                assert kolm(*words)[0] == 2, (folder, words)
        assert _files(tmp_path) == before
        assert len(deployment.ledger.halt_state().halts) == 1


def _files(folder: Path) -> set[Path]:
    """All files except the ledger's databases, which change meanwhile."""
    return {path for path in folder.rglob("*") if "sqlite3" not in path.name}


def test_a_second_operator_is_none_before_the_ledger_s_next_start(deployment: Deployment, kolm: Kolm) -> None:
    index = halted(deployment)
    refused = kolm("halts", "resume", index).shown.replace("\n", " ")
    assert "not trusted to sign a resume" in refused
    assert "at its next start" in refused
    assert len(deployment.ledger.halt_state().halts) == 1


def test_two_of_two_operators_sign_in_turn_and_neither_resumes_alone(tmp_path: Path) -> None:
    keys = [tmp_path / "anna.pem", tmp_path / "bert.pem"]
    operators = [SigningKey.load_or_create(key, "operator") for key in keys]
    with opened_deployment(tmp_path / "two", operators) as deployment:
        _both_sign(deployment, against(deployment), keys, tmp_path / "resume.json")


def _both_sign(deployment: Deployment, kolm: Kolm, keys: Sequence[Path], file: Path) -> None:
    index = halted(deployment)
    (deployment.trusted / "operator.threshold").write_text("2")
    own = deployment.trusted.parent / "own.pem"
    assert kolm("halts", "resume", str(index), "--sign-into", str(file), "--key", str(own))[0] == 0
    assert len(list(deployment.trusted.glob("operator-*.pub"))) == 2  # signing makes no key an operator's
    file.unlink()
    sign = partial(kolm, "halts", "resume", "--sign-into", file, "--json")
    assert "does not exist" in kolm("halts", "resume", "--sign-into", file, "--key", keys[0]).shown
    signed = sign(index, "--reason=replaced", "--key", keys[0])
    assert (signed.code, signed.document) == (0, {"halt_index": index, "signatures": 1, "needed": 2})
    assert sign("--key", keys[0]).document["signatures"] == 1
    alone = kolm("halts", "resume", "--file", file).shown.replace("\n", " ")
    assert "1 of the 2 operators" in alone
    assert "--sign-into" in alone
    assert sign(99, "--key", keys[1]).code == 2
    assert sign("--key", keys[1]).document["signatures"] == 2
    assert kolm("halts", "resume", "--file", file).code == 0
    assert deployment.ledger.halt_state().halts == ()
    assert kolm("ledger", "verify", "--json").document["ok"]


def test_a_file_that_is_no_resume_is_refused(deployment: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    file = tmp_path / "resume.json"
    file.write_bytes(b"{}")
    assert kolm("halts", "resume", "--sign-into", str(file))[0] == kolm("halts", "resume", "--file", str(file))[0] == 2
    assert kolm("halts", "resume", "--file", str(file), "--all")[0] == 2


def test_the_ledger_refuses_a_resume_with_too_few_signatures(deployment: Deployment) -> None:
    index = halted(deployment)
    (deployment.trusted / "operator.threshold").write_text("2")
    with pytest.raises(InvalidArgument):
        deployment.ledger.append(sign_document(resume(index), KEYS["operator"]).to_bytes())
