"""No document of a time to come is taken, whatever its kind and whichever member names the time."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import field
from msgspec.structs import replace

from ledger.documents.dates import MOST_SKEW_SECONDS, ahead_of, times_of
from ledger.documents.signed_document import KINDS, Document
from ledger.encoding.document import Document as AnyDocument
from ledger.encoding.document import Part, Time
from ledger.encoding.text_forms import new_receipt_id, parse_timestamp, time_of, timestamp
from ledger.errors import ClockAhead
from ledger.log.admission import admit
from tests.unit.ledger.builders import TRUSTED, at, signed
from tests.unit.ledger.documents.test_documents import DOCUMENTS

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
TIMES = [(kind, path) for kind, document in DOCUMENTS.items() for path, _ in times_of(document)]


def dated(document: Document, path: str, time: datetime) -> Document:
    value = new_receipt_id(time, b"0123456789") if path == "receipt_id" else timestamp(time)
    return replace(document, **{path: value})


def test_every_kind_of_document_names_a_time() -> None:
    assert {kind for kind, _ in TIMES} == set(KINDS) == set(DOCUMENTS)
    members = {path for kind, path in TIMES if kind == "expiry"}
    assert members == {"issued_before", "issued_at"}
    assert {("kscore", "measured_at"), ("verdict", "replayed_at"), ("receipt", "receipt_id")} <= {*TIMES}


@pytest.mark.parametrize(("kind", "path"), TIMES)
def test_a_time_ahead_of_the_ledgers_clock_is_refused_and_named(kind: str, path: str) -> None:
    bound = NOW + timedelta(seconds=MOST_SKEW_SECONDS)
    in_time = signed(dated(DOCUMENTS[kind], path, bound))
    assert admit(in_time, None, TRUSTED, lambda: NOW).document == dated(DOCUMENTS[kind], path, bound)
    late = signed(dated(DOCUMENTS[kind], path, bound + timedelta(milliseconds=1)))
    with pytest.raises(ClockAhead) as caught:
        admit(late, None, TRUSTED, lambda: NOW)
    assert caught.value.field == path
    assert admit(late, None, TRUSTED, lambda: NOW + timedelta(milliseconds=1))


class Inner(Part, frozen=True):
    seen_at: Time
    left_at: Time | None = None


class Outer(AnyDocument, tag="kolm.outer.v1", frozen=True):
    name: str
    first: Inner
    others: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)


def test_times_are_found_at_any_depth() -> None:
    document = Outer(at(9), Inner(at(1)), (Inner(at(2), at(3)),), {"x": Inner(at(4))})
    found = [("first.seen_at", at(1)), ("others[0].seen_at", at(2)), ("others[0].left_at", at(3))]
    assert [*times_of(document)] == [*found, ("by_name.x.seen_at", at(4))]  # type: ignore[arg-type]
    assert ahead_of(document, at(3)) == ("by_name.x.seen_at", at(4))  # type: ignore[arg-type]
    assert ahead_of(document, at(4)) is None  # type: ignore[arg-type]


def test_an_id_beyond_the_last_year_names_the_last_moment_that_there_is() -> None:
    assert timestamp(time_of("ffffffff-ffff-7fff-bfff-ffffffffffff")) == "9999-12-31T23:59:59.999Z"
    assert time_of(new_receipt_id(NOW)) == NOW
    assert parse_timestamp(timestamp(NOW)) == NOW
