"""The queries of docs/auditing.md on both databases, beside a ledger that runs, and the tables of ledger/README.md."""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from ledger.documents.audit import Verdict
from ledger.sql.schema import metadata
from tests.documented import ROOT
from tests.integration.ledger_store.writing import database, writing
from tests.unit.ledger.builders import content, erasure, foreign_receipt, receipt, signed, verdict

PAGE = (ROOT / "docs/auditing.md").read_text("utf-8")
ACCEPTANCE, UNJUDGED, ERASED = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
(DOCUMENTS,) = re.findall(r"```postgresql\n(.*?)```", PAGE, re.DOTALL)
(IN_PYTHON,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "sqlite3" in code]
LOG = (
    receipt(0),
    receipt(1, tenant="übung"),
    foreign_receipt(2),
    verdict(0, 0, "DEVIATION"),
    verdict(0, 0, "UNREPLAYABLE"),
    verdict(1, 1),
    erasure(1, 1),
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database whose ledger is running."""
    target = f"sqlite:///{tmp_path}/.kolm/ledger.sqlite3"
    if request.param == "postgres":
        target = str(request.getfixturevalue("postgres_url"))
    with writing(target, tmp_path / "keys.db") as (_, running):
        for index, document in enumerate(LOG):
            running.append(signed(document), content(index) if index < 2 else None).result()
        yield target


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The database, opened as the page for auditors describes."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        made = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        )
    else:
        made = create_engine(url).execution_options(postgresql_readonly=True)
    yield made
    made.dispose()


def rows(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_acceptance_by_method_and_day(engine: Engine) -> None:
    found = [(method, count, tokens, rate) for _, method, count, tokens, rate in rows(engine, ACCEPTANCE)]
    assert [(*row[:3], None if row[3] is None else float(row[3])) for row in found] == [
        ("engine", 1, 2, None),  # another engine, which counts nothing
        ("lookahead", 2, 4, 0.25),
    ]


def test_receipts_without_a_verdict_that_passes(engine: Engine) -> None:
    found = [(row[0], row[4], row[5]) for row in rows(engine, UNJUDGED)]
    assert found == [(0, "UNREPLAYABLE", 4), (2, None, None)]


def test_what_was_erased_by_which_entry(engine: Engine) -> None:
    assert [(row[0], row[2], row[3]) for row in rows(engine, ERASED)] == [("übung", 6, "erasure")]


def test_the_view_says_what_the_receipts_say(engine: Engine) -> None:
    columns = "entry, tenant, prompt_tokens, output_tokens, acceptance_rate, mean_acceptance_length, outcome, erased_by"
    found = rows(engine, f"SELECT {columns} FROM audited_receipts ORDER BY entry")
    ours = receipt(0).spec_decode
    assert found[0] == (0, "acme", 3, 2, ours.acceptance_rate, ours.mean_acceptance_length, "UNREPLAYABLE", None)
    assert found[1][1:] == ("übung", 3, 2, 0.25, 2.0, "EXACT", 6)
    assert found[2][4:] == (None, None, None, None)


def test_documents_are_read_as_json(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    verdicts = [(index, document) for index, document in enumerate(LOG) if isinstance(document, Verdict)]
    expected = [(index, "verdict", document.to_document()) for index, document in verdicts]
    if url.startswith("sqlite"):
        monkeypatch.chdir(tmp_path)
        scope: dict[str, Any] = {}
        exec(IN_PYTHON, scope)
        scope["log"].close()
        lines = [line.split(" ", 2) for line in capsys.readouterr().out.splitlines()]
        assert [(int(index), kind, json.loads(document)) for index, kind, document in lines] == expected
        return
    with database(url) as engine:
        assert rows(engine, DOCUMENTS.replace(":", r"\:")) == expected


def test_the_readme_describes_every_table_and_the_view(url: str) -> None:
    page = (ROOT / "ledger/README.md").read_text("utf-8")
    chapter = page[page.index("## The tables") : page.index("## What a crash means")]
    described = set(re.findall(r"^\| `(\w+)` \|", chapter, re.MULTILINE))
    with database(url) as engine:
        there = inspect(engine)
        found = {*there.get_table_names(), *there.get_view_names()}
    assert described == found == {*metadata.tables, "audited_receipts"}
