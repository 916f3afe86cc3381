"""A ledger service whose log lies in a folder or a bucket."""

import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from ledger.errors import StoreError
from ledger.sql.inspection import SqlInspection
from services.ledger.settings import LedgerSettings
from services.runtime.process import CannotStart
from tests.integration.ledger_service.test_continuity import run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    return data


def test_a_service_goes_on_with_the_log_in_its_folder(data: Path, tmp_path: Path) -> None:
    log = (tmp_path / "log").as_uri()
    assert run(data, 0, 1, log=log).size == 2
    assert run(data, 1, 2, log=log, new_index=True).size == 3
    assert (tmp_path / "log/checkpoint").read_text().splitlines()[1] == "3"
    assert not (data / "guard.sqlite3").exists()
    with pytest.raises(CannotStart):
        run(data)


def test_an_old_copy_of_the_folder_does_not_start(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(data, 0, 1, log=log.as_uri())
    shutil.copytree(log, tmp_path / "old")
    run(data, 2, log=log.as_uri())
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "old", log)
    with pytest.raises(CannotStart):
        run(data, log=log.as_uri())


def test_old_copies_of_folder_and_index_are_refused_for_what_witnesses_have_cosigned(
    data: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    run(data, 0, 1, log=log.as_uri())
    shutil.copytree(log, tmp_path / "old")
    shutil.copy(data / "ledger.sqlite3", tmp_path)
    run(data, 2, log=log.as_uri())
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "old", log)
    shutil.copy(tmp_path / "ledger.sqlite3", data)
    with pytest.raises(CannotStart):
        run(data, log=log.as_uri())


def test_an_index_alone_is_not_judged_as_a_log(data: Path, tmp_path: Path) -> None:
    run(data, 0, log=(tmp_path / "log").as_uri())
    with pytest.raises(StoreError):
        SqlInspection.open(data / "ledger.sqlite3")


def test_a_service_goes_on_with_the_log_in_its_bucket(data: Path, s3_url: str) -> None:
    assert run(data, 0, 1, log=s3_url).size == 2
    assert run(data, 1, 2, log=s3_url, new_index=True).size == 3
    assert not (data / "guard.sqlite3").exists()
    with pytest.raises(CannotStart, match="NoSuchBucket"):
        run(data, log=s3_url.replace("s3://test", "s3://no-test"))


BUCKETS = ("s3:///log", "s3://key:secret@bucket/log", "s3://bucket/log#here", "gs://bucket/log")


@pytest.mark.parametrize("log", ["/srv/log", "file://host/log", "file:///log?here", *BUCKETS])
def test_a_place_that_is_no_folder_or_bucket_is_refused(data: Path, log: str) -> None:
    with pytest.raises(ValidationError):
        LedgerSettings.model_validate({"data_dir": data, "log": log})
