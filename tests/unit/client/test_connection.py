"""Addresses and tokens of clients, and the names of the package `kolm`."""

import logging
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.status_pb2 import Status

import kolm
from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from kolm.ledger.v1 import documents_pb2, ledger_pb2
from services.client.channel import LARGEST_BYTES, Endpoint, call_metadata, check_size, endpoint, plain_value
from services.client.errors import (
    Internal,
    InvalidArgument,
    KolmError,
    ReceiptMismatch,
    Unauthenticated,
    Unavailable,
    decode_error,
)
from services.client.generation.completion import Metrics
from services.client.generation.completion_wire import completion, model_info
from services.client.generation.request import Message, Request
from services.client.generation.request_wire import generate_request
from services.client.generation.runtime import AsyncRuntime, Runtime
from services.client.identity import ClientTls, credentials, is_local, set_process_token
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import Appended, InclusionProof, LogEntry, VerdictEntry, VerdictPage
from services.runtime.credentials import token_left
from tests.access import Certificates
from tests.cli import CLOSED
from tests.examples import VECTORS

SECRET = "kolm_swordfish"


@pytest.mark.parametrize("seconds", [1e10, 1e300, float("inf")])
async def test_a_deadline_beyond_grpcs_clock_has_not_passed(seconds: float) -> None:
    with Runtime.connect(CLOSED) as runtime, pytest.raises(Unavailable):
        runtime.model_info(timeout=seconds)
    with Runtime.connect(CLOSED) as runtime, pytest.raises(Unavailable):
        list(runtime.stream("a", timeout=seconds))
    async with AsyncRuntime.connect(CLOSED) as asynchronous:
        with pytest.raises(Unavailable):
            await asynchronous.serve("a", timeout=seconds)
    with LedgerClient.connect(CLOSED, timeout=seconds) as ledger, pytest.raises(Unavailable):
        ledger.checkpoint()


@pytest.mark.parametrize("profile", [b"{", b"\xff", b"[" * 100_000, b"1" * 5000, b"[]"])
def test_a_profile_that_is_none_is_an_error_of_the_server(profile: bytes) -> None:
    with pytest.raises(Internal):
        model_info(pb.GetModelInfoResponse(profile_json=profile))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ClientTls:
    return Certificates(tmp_path_factory.mktemp("tls")).client()


@pytest.mark.parametrize(
    ("target", "place", "encrypted"),
    [
        ("ledger.example:50052", "ledger.example:50052", True),
        ("dns:///ledger:50052", "dns:///ledger:50052", True),
        ("https://ledger.example:50052", "ledger.example:50052", True),
        ("https://ledger.example/", "ledger.example:443", True),
        ("https://[::1]:7", "[::1]:7", True),
        ("http://ledger.example:50052", "ledger.example:50052", False),
    ],
)
def test_a_plain_address_is_tls_where_an_authority_is_named_and_a_url_has_its_scheme(
    tls: ClientTls, target: str, place: str, encrypted: bool
) -> None:
    found = endpoint(target, tls)
    assert (found.target, found.credentials is not None) == (place, encrypted)


def test_a_plain_address_is_plain_where_nothing_is_named() -> None:
    assert endpoint("127.0.0.1:1", ClientTls()) == Endpoint("127.0.0.1:1", None)
    assert endpoint("https://127.0.0.1:1", ClientTls()).credentials is not None


@pytest.mark.parametrize(
    "target",
    ["https://host:1/path", "http://host", "https://", "https://host:x", "https://a@host:1", "https://h:1?x=1"],
)
def test_other_urls_are_refused(target: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        endpoint(target, ClientTls())
    assert caught.value.fields == ("target",)


def test_files_of_no_use_are_named(tls: ClientTls, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    unpaired, swapped = ClientTls(tls.ca, tls.cert), ClientTls(tls.ca, tls.key, tls.cert)
    for wrong in (ClientTls(tmp_path / "none"), ClientTls(tmp_path / "junk"), unpaired, swapped):
        with pytest.raises(InvalidArgument, check=lambda error: error.reason == "TLS_SETTINGS") as caught:
            endpoint("127.0.0.1:1", wrong)
        assert wrong is unpaired or str(wrong.files[0]) in caught.value.message


@pytest.mark.parametrize(
    ("target", "warned"),
    [
        ("127.0.0.1:1", False),
        ("localhost:1", False),
        ("[::1]:1", False),
        ("unix:/run/kolm", False),
        ("ipv4:127.0.0.1:1", False),
        ("10.0.0.7:1", True),
        ("dns:///ledger:1", True),
        ("dns://9.9.9.9/ledger:1", True),
        ("ledger", True),
    ],
)
def test_a_token_without_tls_is_a_warning_once_and_not_shown(
    caplog: pytest.LogCaptureFixture, target: str, warned: bool
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        call_metadata(Endpoint(target, None), SECRET)
    assert [record.args for record in caplog.records] == [(target,)] * warned
    assert SECRET not in caplog.text
    call_metadata(Endpoint("other.example:1", None), "")
    assert len(caplog.records) == warned


LONG = "x" * LARGEST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(prompt=LONG), "request.prompt"),
        (Request(messages=(Message("user", "hello"), Message("user", LONG))), "request.messages.messages"),
        (Request(token_ids=(300,) * 4_500_000), "request.token_ids.ids"),
    ],
)
def test_the_largest_field_is_named(request_: Request, field: str) -> None:
    message = pb.GenerateStreamRequest(request=generate_request(request_, None))
    with pytest.raises(InvalidArgument) as refused:
        check_size(message)
    assert refused.value.fields == (field,)
    assert refused.value.reason == "MESSAGE_TOO_LARGE"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ReceiptMismatch(""), "RECEIPT_MISMATCH"),
        (InvalidArgument("", reason=""), "INVALID_ARGUMENT"),
        (KolmError("", reason="TOO_MANY_CALLS"), "TOO_MANY_CALLS"),
    ],
)
def test_a_reason_is_upper_snake(error: KolmError, reason: str) -> None:
    assert error.reason == reason


HERE, ELSEWHERE = "127.0.0.1:50052", "ledger.example:50052"


def shown(target: str, token: str | None = None) -> str:
    return dict(credentials(target, token)).get("authorization", "")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of `kolm up`, with its owner's token."""
    for name in ("KOLM_TOKEN", "KOLM_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KOLM_DATA_DIR", str(tmp_path))
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "owner").write_text("kolm_owner\n")
    return tmp_path


def test_the_owner_s_token_is_found_and_stays_on_this_machine(folder: Path) -> None:
    assert shown(HERE) == "Bearer kolm_owner"
    assert shown(ELSEWHERE) == ""
    (folder / "tokens" / "owner").unlink()
    assert shown(HERE) == ""


def test_servers_on_one_port_of_two_addresses_have_a_token_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))

    def found() -> list[str]:
        return [shown(each).removeprefix("Bearer kolm_") for each in ("127.0.0.1:7", "dns:///localhost:7", "[::1]:7")]

    with token_left("[::1]:7", "kolm_b"):
        assert found() == ["owner", "b", "b"]
        with ExitStack() as first:
            first.enter_context(token_left("127.0.0.1:7", "kolm_a"))
            assert found() == ["a", "a", "b"]
            with token_left("0.0.0.0:7", "kolm_c"):  # of a container, whose port is forwarded
                first.close()
                assert found() == ["c", "c", "b"]


def test_a_given_token_is_used_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(ELSEWHERE, "kolm_mine") == "Bearer kolm_mine"
    assert shown(HERE, "") == ""
    monkeypatch.setenv("KOLM_TOKEN_FILE", str(folder / "mine"))
    (folder / "mine").write_text(" kolm_file \n")
    assert shown(ELSEWHERE) == "Bearer kolm_file"
    (folder / "mine").write_text("kolm_rotated")
    assert shown(ELSEWHERE) == "Bearer kolm_rotated"
    monkeypatch.setenv("KOLM_TOKEN", "kolm_said")
    assert shown(HERE) == "Bearer kolm_said"
    monkeypatch.setenv("KOLM_TOKEN", "")
    assert shown(HERE) == ""
    set_process_token(None, folder / "mine")
    assert shown(HERE) == "Bearer kolm_rotated"


@pytest.mark.parametrize("data", [None, b"\xff\xfe", b"kolm_old\nkolm_new\n"])
def test_an_unreadable_token_file_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None
) -> None:
    monkeypatch.setenv("KOLM_TOKEN_FILE", str(folder / "mine"))
    if data is not None:
        (folder / "mine").write_bytes(data)
    with pytest.raises(Unauthenticated, check=lambda error: error.reason == "BAD_TOKEN_FILE"):
        shown(HERE)


@pytest.mark.parametrize("token", ["kolm_\xe9", "kolm_a\tb", "kolm_a b"])
def test_a_token_that_no_call_can_have_is_an_error(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("KOLM_TOKEN", token)
    for given in (token, None):
        with pytest.raises(Unauthenticated, check=lambda error: error.reason == "BAD_TOKEN"):
            shown(HERE, given)


@pytest.mark.parametrize(
    "status",
    [
        b"\xff\xff",
        Status(code=14, details=[AnyMessage(type_url="/google.rpc.ErrorInfo", value=b"\xff")]).SerializeToString(),
    ],
)
def test_details_that_cannot_be_read_leave_the_plain_status(status: bytes) -> None:
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status))
    assert (
        type(decode_error(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, "")))
        is Unavailable
    )


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_UNSPECIFIED, 9])
def test_an_unknown_finish_reason_is_an_error(reason: Any) -> None:
    with pytest.raises(Internal):
        completion(pb.GenerateResponse(choices=[pb.Choice(finish_reason=reason)]))


@pytest.mark.parametrize(
    ("target", "here"),
    [
        ("localhost:1", True),
        ("[::1]:1", True),
        ("dns:///127.0.0.1:1", True),
        ("unix:/run/kolm", True),
        ("localhost.example:1", False),
        ("127.0.0.1.example:1", False),
        ("dns://127.0.0.1/ledger.example:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_another_machine_is_not_this_one(target: str, here: bool) -> None:
    assert is_local(target) is here


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", kolm.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(kolm, name) is not None
    assert name in dir(kolm)


def test_importing_kolm_imports_nothing_heavy_and_a_request_needs_no_grpc() -> None:
    probe = (
        "import sys, kolm; kolm.Request(messages=[{'role': 'user', 'content': 'x'}]); kolm.verify; "
        "heavy = {'grpc', 'google.protobuf', 'torch', 'numpy', 'sqlalchemy', 'pydantic'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_bundle_is_verified_and_a_damaged_one_has_a_problem() -> None:
    trusted = VECTORS / "log" / "keys"
    report = kolm.verify(VECTORS / "bundles" / "good.tar.gz", trusted, max_unreplayable=1)
    assert (report.ok, report.problem) == (True, None)
    assert str(report).startswith("verified (")
    assert len(str(report)) < 200
    keys = kolm.TrustedKeys.load(trusted)
    assert kolm.verify(VECTORS / "bundles" / "good.tar.gz", keys, max_unreplayable=1).ok
    damaged = kolm.verify(str(VECTORS / "bundles" / "payload_edited.tar.gz"), str(trusted))
    assert str(damaged).startswith(f"not verified: {damaged.problem} (")
    with pytest.raises(kolm.LedgerError):
        kolm.verify(VECTORS / "none.tar.gz", trusted)
    with pytest.raises(kolm.LedgerError):
        kolm.verify(VECTORS / "bundles" / "good.tar.gz", VECTORS / "no-keys")


def test_absent_fields_are_none_repeated_ones_tuples_and_maps_dicts() -> None:
    message = speculation_pb2.SpeculationMetrics(num_accepted_tokens_per_pos=[3, 1], passes_by_method={"rest": 2})
    metrics = plain_value(Metrics, message)
    assert (metrics.wall_clock_speedup, metrics.num_accepted_tokens_per_pos) == (None, (3, 1))
    assert (metrics.passes_by_method, metrics.num_drafts) == ({"rest": 2}, 0)
    assert plain_value(Metrics, speculation_pb2.SpeculationMetrics(wall_clock_speedup=0.0)).wall_clock_speedup == 0.0


def test_messages_inside_become_the_dataclasses_that_the_members_name() -> None:
    proof = documents_pb2.InclusionProof(index=3, tree_size=8, hashes=[b"h"])
    appended = plain_value(Appended, ledger_pb2.AppendEntryResponse(index=3, inclusion_proof=proof))
    assert appended == Appended(3, b"", InclusionProof(3, 8, (b"h",)), 0)
    assert plain_value(Appended, ledger_pb2.AppendEntryResponse()).inclusion_proof == InclusionProof(0, 0, ())
    assert plain_value(LogEntry, ledger_pb2.GetEntryResponse(), entry=b"").inclusion_proof is None
    verdicts = [documents_pb2.Verdict(index=1, envelope=b"e")]
    assert plain_value(VerdictPage, ledger_pb2.ListVerdictsResponse(verdicts=verdicts)) == VerdictPage(
        (VerdictEntry(1, b"e"),), ""
    )
