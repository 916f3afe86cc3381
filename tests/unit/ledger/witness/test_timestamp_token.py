"""RFC 3161 timestamps over checkpoints, by an authority made with openssl for the occasion."""

import contextlib
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.bundle.folder import BundleFolder, write_folder
from ledger.bundle.layout import BundleFile
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.timestamp_token import Authority, timestamp_request
from tests.examples import examples
from tests.unit.ledger.builders import TRUSTED
from tests.vectors.make_bundles import POLICY, bundles

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the authority")

TEXT = b"kolm.example/ledger\n5\nAAAA\n"
CONFIGURATION = """
[req]
distinguished_name = name
prompt = no
[name]
CN = a timestamping authority
[ca]
basicConstraints = critical,CA:true
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[tsa]
basicConstraints = critical,CA:false
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[authority]
serial = serial
default_policy = 1.2.3.4
signer_digest = sha256
digests = sha256
"""


class LocalAuthority:
    """Answers timestamp requests as `openssl ts` does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "c.cnf").write_text(CONFIGURATION)
        (folder / "serial").write_text("01")
        new = "req -x509 -newkey rsa:2048 -nodes -days 2 -config c.cnf"
        self._openssl(f"{new} -extensions ca -keyout ca.key -out ca.pem")
        self._openssl(f"{new} -extensions tsa -CA ca.pem -CAkey ca.key -keyout tsa.key -out tsa.pem")
        self.certificates = (folder / "ca.pem").read_bytes()

    def answer(self, request: bytes) -> bytes:
        (self.folder / "q.tsq").write_bytes(request)
        reply = "ts -reply -config c.cnf -section authority -signer tsa.pem -inkey tsa.key"
        self._openssl(f"{reply} -queryfile q.tsq -out r.tsr")
        return (self.folder / "r.tsr").read_bytes()

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    return LocalAuthority(tmp_path_factory.mktemp("tsa") / "a")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    return LocalAuthority(tmp_path_factory.mktemp("tsa") / "b")


@pytest.fixture(scope="module")
def response(authority: LocalAuthority) -> bytes:
    return authority.answer(timestamp_request(TEXT))


def test_a_timestamp_says_when(authority: LocalAuthority, response: bytes) -> None:
    time = Authority.from_pem(authority.certificates).check(response, TEXT)
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=5)


def test_a_timestamp_over_something_else_or_by_somebody_else_is_refused(
    authority: LocalAuthority, stranger: LocalAuthority, response: bytes
) -> None:
    with pytest.raises(SignatureError, match="Mismatch"):
        Authority.from_pem(authority.certificates).check(response, TEXT + b"x")
    with pytest.raises(SignatureError, match="not one by the authority"):
        Authority.from_pem(stranger.certificates).check(response, TEXT)
    for junk in (b"", b"PEM", TEXT):
        with pytest.raises(FormatError):
            Authority.from_pem(junk)
    with pytest.raises(FormatError, match="at most"):
        Authority.from_pem(authority.certificates).check(b"x" * 70_000, TEXT)


def test_a_bundle_is_checked_down_to_its_timestamp(authority: LocalAuthority, tmp_path: Path) -> None:
    files = bundles()["good"].files
    checkpoint = Checkpoint.from_text(Note.from_bytes(files["checkpoint"]).text)
    stamped = authority.answer(timestamp_request(checkpoint.to_text().encode()))
    other = authority.answer(timestamp_request(TEXT))
    check = Authority.from_pem(authority.certificates).check
    for number, (path, data, passed) in enumerate(
        (
            (f"timestamps/{checkpoint.size}.tsr", stamped, True),
            (f"timestamps/{checkpoint.size}.tsr", other, False),
            ("timestamps/4.tsr", stamped, False),
            ("timestamps/5.tsr", stamped, False),
        )
    ):
        folder = tmp_path / str(number)
        write_folder((BundleFile(name, kept) for name, kept in (files | {path: data}).items()), folder)
        report = verify_bundle(BundleFolder(folder), Trust(TRUSTED, POLICY, check_timestamp=check))
        assert (report.checks[3].number, report.checks[3].passed) == (4, passed), report.checks[3].detail
        unchecked = verify_bundle(BundleFolder(folder), Trust(TRUSTED, POLICY))
        assert (unchecked.checks[3].passed, unchecked.ok) == (None, True)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 5000), junk=st.binary(max_size=4), cut=st.integers(0, 4))
def test_junk_raises_the_one_family(authority: LocalAuthority, response: bytes, at: int, junk: bytes, cut: int) -> None:
    place = at % len(response)
    changed = response[:place] + junk + response[place + cut :]
    with contextlib.suppress(LedgerError):
        Authority.from_pem(authority.certificates).check(changed, TEXT)
    with contextlib.suppress(LedgerError):
        Authority.from_pem(authority.certificates).check(junk, TEXT)
