"""The two files that a table is written to, batch by batch: CSV (RFC 4180) and Apache Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ledger.encoding.timestamp import parse_timestamp
from services.cli.jobs.ledger.receipt_table.columns import BOOLEAN, COLUMNS, INTEGER, NUMBER, TEXT, TIME, Row, Value


class TableFile(Protocol):
    """A table that is being written; whole once its context has ended. Keeps no more than one batch in memory."""

    def write(self, rows: Sequence[Row]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Complete the file."""


class CsvFile:
    """UTF-8 with a line of names. An empty field is a value that is not there; true and false are these words."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(column.name for column in COLUMNS)

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.writerows([_field(column.value(row)) for column in COLUMNS] for row in rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class ParquetFile:
    """One row group a batch. Units stand in the metadata of the fields, `about` in that of the schema."""

    def __init__(self, path: Path, about: Mapping[str, str]) -> None:
        import pyarrow as arrow  # the extra `parquet`
        from pyarrow.parquet import ParquetWriter

        kinds: dict[str, Any] = {
            TEXT: arrow.string(),
            INTEGER: arrow.int64(),
            NUMBER: arrow.float64(),
            BOOLEAN: arrow.bool_(),
            TIME: arrow.timestamp("ms", tz="UTC"),
        }
        self._arrow = arrow
        self._schema = arrow.schema(
            [
                arrow.field(column.name, kinds[column.kind], metadata={"unit": column.unit} if column.unit else None)
                for column in COLUMNS
            ],
            metadata=dict(about),
        )
        self._writer = ParquetWriter(path, self._schema, compression="zstd")

    def write(self, rows: Sequence[Row]) -> None:
        values = [[_moment(column.kind, column.value(row)) for row in rows] for column in COLUMNS]
        self._writer.write_batch(self._arrow.record_batch(values, schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _field(value: Value) -> str | int | float:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value


def _moment(kind: str, value: Value) -> object:
    return parse_timestamp(value) if kind == TIME and value is not None else value
