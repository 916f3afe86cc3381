"""The token that the front shows, and the callers who have to bring one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.requests import Request

from services.http.api_error import ApiError
from services.http.calls import token

TOKEN = "kolm_" + "x" * 43


def asking(headers: Mapping[str, str], host: str | None = "127.0.0.1") -> Request:
    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    client = None if host is None else (host, 4711)
    return Request({"type": "http", "method": "POST", "path": "/", "headers": sent, "client": client})


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "::1", None])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token_is_passed_on_from_everywhere(host: str | None, scheme: str) -> None:
    assert token(asking({"authorization": f"{scheme} {TOKEN}"}, host)) == TOKEN


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer none"}, {"authorization": "Basic kolm_x"}])
def test_what_is_no_token_counts_as_none_wherever_it_comes_from(headers: dict[str, str]) -> None:
    for host in ("127.0.0.1", "::1", "10.0.0.7", None):
        assert token(asking(headers, host)) == ""
    assert token(asking(headers | {"x-forwarded-for": "127.0.0.1"})) == ""


def test_a_page_that_points_its_name_at_this_machine_has_no_say_here() -> None:
    for name in ("evil.example", "evil.example:50057", "127.0.0.1.evil.example", "EVIL.example.", "[evil.example"):
        with pytest.raises(ApiError) as caught:
            token(asking({"host": name}))
        assert (caught.value.status, caught.value.response().headers["www-authenticate"]) == (401, "Bearer")
        assert token(asking({"host": name, "authorization": f"Bearer {TOKEN}"})) == TOKEN
    for own in ("127.0.0.1:50057", "localhost:50057", "[::1]:50057", "kolm.localhost", "10.0.0.7", "box:80", ""):
        assert token(asking({"host": own})) == ""
