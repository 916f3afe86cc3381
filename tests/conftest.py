"""Settings of every test: examples get time, for a machine may be busy, and kernels compile on first use."""

import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

from tests import object_storage
from tests.examples import LONG
from tests.postgres import REQUIRED, PostgresMissing, running_cluster, url_of
from tests.softhsm import Token, new_token
from tests.workers import OWN_FOLDER

# One thread for torch here and in the services that tests start: tiny products gain nothing from a second one, and on
# a busy machine it is waited for.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No token of a developer's own: a test that needs one passes it.
os.environ["KOLM_TOKEN"] = ""
os.environ.pop("KOLM_TOKEN_FILE", None)

# A shell starts background jobs with SIGINT ignored, and processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each run draws new examples; a failure prints the code that draws its example again. The Makefile names profiles.
for profile, count in (("kolm", 25), ("fast", 8), ("long", LONG)):
    settings.register_profile(profile, deadline=None, max_examples=count, derandomize=False, print_blob=True)
settings.load_profile("kolm")


gc.disable()  # what is imported and collected stays: looking through it for garbage takes seconds


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


LONGEST = (
    "tests/unit/generation/target/kernels/test_instruction_sets.py", "tests/e2e", "tests/cluster",
    "tests/integration/generation", "tests/unit/generation", "tests/integration",
)  # fmt: skip
"""The module that compiles for a minute, and folders whose modules are first, so that workers end together."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if settings().max_examples < LONG:
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]

    def place(item: pytest.Item) -> int:
        return next((number for number, folder in enumerate(LONGEST) if item.nodeid.startswith(folder)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder of this worker alone, which the services that its tests start inherit. pytest deletes it in a later run,
    also if the worker is killed.
    """
    folder = tmp_path_factory.mktemp("worker")
    os.environ[OWN_FOLDER] = str(folder)
    # Servers without principals leave a token for the user's clients at their start: here for this worker's clients.
    os.environ["XDG_STATE_HOME"] = str(folder)
    # Commands without --data-dir: not the folder of a `kolm up` that runs in this checkout.
    os.environ["KOLM_DATA_DIR"] = str(folder / "data")
    # Auditors wait for servers that load: here for this worker's servers, whatever else runs from this checkout.
    os.environ["KOLM_LOADING"] = str(folder / "loading")


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A command makes its token its process's: under test it is the token of that test alone."""
    with patch.dict(os.environ):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_a_pass() -> Iterator[None]:
    """Targets whose test names no number of threads: a second is waited for while other workers have the CPUs."""
    cpu = sys.modules.get("services.generation.target.cpu")
    with patch.object(cpu, "cpus", return_value=1) if cpu else nullcontext():
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of a random Llama with a vocabulary of 384 and a context of 512."""
    from tests.fakes.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def own_model(model: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The published model; skips if its package is not installed."""
    from services.generation.target.errors import ModelNotFound
    from services.generation.target.model_path import model_path

    try:
        return model_path("smollm2")
    except ModelNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Path]:
    """A PostgreSQL for this session; skips if the machine has none, unless `tests.postgres.REQUIRED` is set."""
    try:
        with running_cluster() as folder:
            yield folder
    except PostgresMissing as error:
        if os.environ.get(REQUIRED):
            raise
        pytest.skip(str(error))


@pytest.fixture
def postgres_url(postgres_cluster: Path) -> Iterator[str]:
    """The URL of an empty database, dropped afterwards."""
    from sqlalchemy import create_engine, text

    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(url_of(postgres_cluster, "postgres"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
            yield url_of(postgres_cluster, name)
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        engine.dispose()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server for this session; skips if the machine has none, unless `tests.object_storage.REQUIRED` is set."""
    try:
        with object_storage.running_s3() as endpoint:
            yield endpoint
    except object_storage.S3Missing as error:
        if os.environ.get(object_storage.REQUIRED):
            raise
        pytest.skip(str(error))


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a prefix in an empty bucket; credentials are in the environment."""
    for name, value in object_storage.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    name = f"test-{uuid.uuid4().hex}"
    object_storage.make_bucket(s3_endpoint, name)
    return f"s3://{name}/some/prefix?endpoint={s3_endpoint}"


@pytest.fixture(scope="session")
def softhsm(tmp_path_factory: pytest.TempPathFactory) -> Token:
    """A device in software that holds keys, with three in it: its library reads its place once a process."""
    made = new_token(tmp_path_factory.mktemp("softhsm"))
    for label in ("log", "log-2", "operator"):
        made.generate(label)
    return made


@pytest.fixture(scope="session")
def pocl_device() -> Iterator[None]:
    """Skips if PyOpenCL is not installed, or finds no device. PoCL starts threads: not before workers are forked. It
    would run a kernel without work-groups, unlike CUDA and OpenCL 1.2.
    """
    pytest.importorskip("pyopencl", reason="pyopencl, of the extra dev, is not installed")
    from services.generation.target.gpu.opencl import OpenClDevice, devices

    if not devices():
        pytest.skip("no OpenCL device: PoCL, of the extra dev, is not installed")
    honest = OpenClDevice.run

    def run(self: OpenClDevice, kernel: str, groups: tuple[int, int], lanes: int, *arguments: object) -> None:
        assert all(groups), kernel
        honest(self, kernel, groups, lanes, *arguments)

    with patch.object(OpenClDevice, "run", run):
        yield
