"""`kolm ledger export --format`: what stands in a table, read by the standard library and by Arrow."""

from __future__ import annotations

import csv
import re
import sys
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from ledger.documents.receipt import Receipt
from ledger.documents.sampling import Sampling
from services.cli.failures.failure import as_command_error
from services.cli.jobs.ledger.receipt_table import export as table_export
from services.cli.jobs.ledger.receipt_table.columns import COLUMNS
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm
from tests.unit.ledger.builders import content, receipt, receipt_id, signed, verdict

PAGE = (Path(__file__).parents[3] / "docs" / "tables.md").read_text("utf-8")


@pytest.fixture
def judged(deployment: Deployment) -> Deployment:
    """Five receipts; the auditor found 0 to 2 exact but for a deviation in 1, 3 was judged twice, 4 not at all."""
    for number in range(3):
        deployment.receive(number)
    deployment.replays.lies = {receipt_id(1)}
    list(deployment.auditor().run_pass())
    index = deployment.receive(3, with_content=False)
    deployment.receive(4, nonce='=1+1, "quoted"\n')
    for outcome in ("EXACT", "UNREPLAYABLE"):
        deployment.ledger.append(signed(verdict(index, 3, outcome)))
    return deployment


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_receipt_is_a_row_with_its_newest_verdict(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    path = tmp_path / "receipts.csv"
    code, _, err = kolm("ledger", "export", str(path), "--format", "csv")
    assert (code, "5 receipts" in err) == (0, True)
    rows = read_csv(path)
    assert [row["receipt_id"] for row in rows] == [receipt_id(number) for number in range(5)]
    assert [row["outcome"] for row in rows] == ["EXACT", "DEVIATION", "EXACT", "UNREPLAYABLE", ""]
    assert [row["verdicts"] for row in rows] == ["1", "1", "1", "2", "0"]
    assert (rows[1]["deviation_position"], rows[1]["deviation_expected_token"]) == ("1", "77")
    assert (rows[3]["unreplayable_reason"], rows[3]["issued_at"]) == (
        "its content has been erased",
        receipt(3).issued_at,
    )
    assert rows[4]["nonce"] == '=1+1, "quoted"\n'


def test_both_formats_say_what_the_documents_say(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    for name in ("csv", "parquet"):
        assert kolm("ledger", "export", str(tmp_path / name), "--format", name)[0] == 0
    table = pyarrow.parquet.read_table(tmp_path / "parquet")
    assert table.schema.metadata[b"kolm.tree_size"] == str(judged.ledger.checkpoint().tree_size).encode()
    assert table.schema.field("off_seconds").metadata == {b"unit": b"seconds"}
    rows: list[dict[str, Any]] = table.to_pylist()
    listed = list(judged.ledger.receipts())
    assert [row["entry"] for row in rows] == [each.index for each in listed]
    first: Receipt = receipt(0)
    assert rows[0]["issued_at"].astimezone(UTC) == listed[0].issued_at
    assert (rows[0]["seed"], rows[0]["output_tokens"]) == (str(first.sampling.seed), first.output.tokens)
    for arrow, text in zip(rows, read_csv(tmp_path / "csv"), strict=True):
        assert {name for name, value in arrow.items() if value is None} == {name for name in text if text[name] == ""}
        assert all(text[name] == value for name, value in arrow.items() if isinstance(value, str))
        assert all(
            float(text[name]) == value
            for name, value in arrow.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        )


def test_a_table_holds_no_content(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    judged.receive(6, sampling=Sampling(stop=("a caller's secret",)))
    assert kolm("ledger", "export", str(tmp_path / "t.csv"), "--format", "csv")[0] == 0
    text = (tmp_path / "t.csv").read_text()
    assert content(0).prompt_salt.hex() not in text
    assert "a caller's secret" not in text
    assert kolm("ledger", "export", str(tmp_path / "u.csv"), "--format", "csv", "--content")[0] == 2


def test_a_range_in_batches_is_the_same_table_each_time(
    judged: Deployment, kolm: Kolm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("--start", str(list(judged.ledger.receipts())[1].index), "--end", "1000")
    for name in ("csv", "parquet"):
        assert kolm("ledger", "export", str(tmp_path / name), "--format", name, *chosen)[0] == 0
    assert [row["receipt_id"] for row in read_csv(tmp_path / "csv")] == [receipt_id(number) for number in range(1, 5)]
    monkeypatch.setattr(table_export, "_BATCH", 2)
    for name in ("csv", "parquet"):
        assert kolm("ledger", "export", str(tmp_path / f"{name}2"), "--format", name, *chosen)[0] == 0
    assert (tmp_path / "csv").read_bytes() == (tmp_path / "csv2").read_bytes()
    tables = [pyarrow.parquet.ParquetFile(tmp_path / name) for name in ("parquet", "parquet2")]
    assert tables[0].read().equals(tables[1].read())
    assert [table.num_row_groups for table in tables] == [1, 2]


def test_what_the_log_takes_meanwhile_is_left_out(
    judged: Deployment, kolm: Kolm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = table_export._newest_verdicts

    def late(*arguments: Any) -> Any:
        judged.receive(7)
        judged.ledger.append(signed(verdict(list(judged.ledger.receipts())[4].index, 4)))
        return asked(*arguments)

    monkeypatch.setattr(table_export, "_newest_verdicts", late)
    assert kolm("ledger", "export", str(tmp_path / "t.csv"), "--format", "csv")[0] == 0
    rows = read_csv(tmp_path / "t.csv")
    assert [row["outcome"] for row in rows] == ["EXACT", "DEVIATION", "EXACT", "UNREPLAYABLE", ""]


def test_parquet_without_arrow_says_what_to_install(
    judged: Deployment, kolm: Kolm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        table_export.ParquetFile(tmp_path / "t", {})
    said = as_command_error(missing.value)
    assert said is not None
    assert "pip install 'kolm-serve[parquet]'" in said.hint


def test_an_empty_log_and_an_existing_file(deployment: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    for name in ("csv", "parquet"):
        assert kolm("ledger", "export", str(tmp_path / name), "--format", name)[0] == 0
        assert kolm("ledger", "export", str(tmp_path / name), "--format", name)[0] == 2
    assert read_csv(tmp_path / "csv") == []
    assert pyarrow.parquet.read_table(tmp_path / "parquet").num_rows == 0


def test_every_column_is_documented_with_type_and_unit() -> None:
    documented = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert documented == [(column.name, column.kind, column.unit) for column in COLUMNS]
