from __future__ import annotations

import json
import logging
import sys

from services.runtime.calls import current_request_id, request_id_from
from services.runtime.process import JsonFormatter, TextFormatter


def _record(message: str = "appended", **event: object) -> logging.LogRecord:
    record = logging.LogRecord("services.ledger", logging.INFO, __file__, 1, message, (), None)
    record.event = event
    return record


def test_json_lines_hold_message_fields_and_the_request_being_served() -> None:
    token = current_request_id.set("r7")
    try:
        line = json.loads(JsonFormatter("ledger").format(_record(index=3)))
    finally:
        current_request_id.reset(token)
    assert (line["message"], line["index"], line["request_id"], line["level"]) == ("appended", 3, "r7", "INFO")


def test_a_field_cannot_shadow_what_every_line_has() -> None:
    assert json.loads(JsonFormatter("ledger").format(_record(level="forged")))["level"] == "INFO"


def test_text_lines_end_with_the_fields_and_the_traceback_follows() -> None:
    record = _record(index=3)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        record.exc_info = sys.exc_info()
    first, *rest = TextFormatter().format(record).splitlines()
    assert first.endswith("appended index=3")
    assert rest[-1] == "RuntimeError: boom"


def test_a_callers_request_id_is_used_only_where_it_cannot_break_a_log_line() -> None:
    assert request_id_from([("kolm-request-id", "job-1/7")]) == "job-1/7"
    for bad in ("", "two\nlines", "x" * 129, "späte"):
        assert request_id_from([("kolm-request-id", bad)]) != bad
    assert request_id_from([]) != request_id_from([])


def test_a_callers_words_cannot_begin_a_field_of_a_text_line() -> None:
    line = TextFormatter().format(_record(tenant="a b\nc=1", index=3))
    assert line.endswith('tenant="a b\\nc=1" index=3')
