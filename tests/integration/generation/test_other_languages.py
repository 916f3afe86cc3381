"""The programs of docs/clients.md in other languages, against services that ask their callers for a token."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import resources
from pathlib import Path

import pytest

from tests.e2e.command import PATIENCE, Kolm, local_services, running

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
REQUIRED = "KOLM_TESTS_NEED_LANGUAGES"
"""Set where missing tools are a failure and not a reason to skip (continuous integration)."""

NODE_MODULES = ROOT / ".cache" / "node" / "node_modules"
DEBIAN = Path("/usr/share/gocode")  # the folder of its packages' sources
NEWER = ROOT / ".cache" / "go"  # golang/protobuf 1.5, which Debian has and does not install together with its grpc
JARS = [
    *(jar for name in ("grpc", "netty") for jar in sorted(Path("/usr/share/java").glob(f"{name}-*.jar"))),
    *(
        Path(f"/usr/share/java/{name}.jar")
        for name in ("protobuf", "guava", "perfmark-api", "opencensus-api", "geronimo-annotation-1.3-spec")
    ),
]


def program(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def need(*found: object) -> None:
    if not all(found):
        if os.environ.get(REQUIRED):
            raise AssertionError(f"{REQUIRED} is set, and tools are missing; .ci/run installs them")
        pytest.skip("the language's tools are not installed")


@pytest.fixture(scope="module")
def kolm(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Kolm]:
    """Services with principals, as `kolm up` starts them."""
    with running(local_services(tmp_path_factory.mktemp("services") / "data", model)) as kolm:
        yield kolm


def answers(kolm: Kolm, command: list[str], cwd: Path | None = None) -> None:
    """The program is refused without a token, and answered with one from each of the two variables."""
    for shown in ({}, {"KOLM_TOKEN": kolm.token}, {"KOLM_TOKEN_FILE": str(kolm.token_file)}):
        done = subprocess.run(
            [*command, kolm.addresses.generation],
            cwd=cwd,
            env={**os.environ, "KOLM_TOKEN": "", **shown},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert (done.returncode == 0) == bool(shown), done.stderr
        found = re.search(r"\S.*\nreceipt [0-9a-f-]{36}\n$", done.stdout, re.DOTALL)
        assert bool(found) == bool(shown), done.stdout


def test_node(kolm: Kolm, tmp_path: Path) -> None:
    need(shutil.which("node"), NODE_MODULES.is_dir())
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    (tmp_path / "ask.mjs").write_text(program("js"))
    answers(kolm, ["node", "ask.mjs"], tmp_path)


run = partial(subprocess.run, check=True, timeout=PATIENCE)


def built(folder: Path) -> Path:
    """The program in Go."""
    generated, built = folder / "src", folder / "program"
    (generated / "ask").mkdir(parents=True)
    (generated / "ask" / "main.go").write_text(program("go"))
    protos = sorted((ROOT / "protos" / "kolm" / "generation" / "v1").glob("*.proto"))
    roots = (ROOT / "protos", ROOT / "protos" / "third_party", resources.files("grpc_tools") / "_proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{root}" for root in roots)]
    run([*command, f"--go_out={generated}", f"--go-grpc_out={generated}", *map(str, protos)])
    places = {"GOPATH": f"{folder}:{NEWER}:{DEBIAN}", "GOCACHE": str(ROOT / ".cache" / "go-build")}
    environment = {**os.environ, "GO111MODULE": "off", **places}
    run(["go", "build", "-o", str(built), "ask"], env=environment)
    return built


@pytest.mark.long
def test_go(kolm: Kolm, tmp_path: Path) -> None:
    sources = (DEBIAN / "src" / "google.golang.org" / "grpc", NEWER / "src")
    need(*map(shutil.which, ("go", "protoc-gen-go", "protoc-gen-go-grpc")), all(each.is_dir() for each in sources))
    answers(kolm, [str(built(tmp_path))])


def compiled(folder: Path, classes: str) -> None:
    """The program in Java, with the code that its plugin makes of the protos."""
    (folder / "Ask.java").write_text(program("java"))
    protos = sorted((ROOT / "protos" / "kolm" / "generation" / "v1").glob("*.proto"))
    roots = (ROOT / "protos", ROOT / "protos" / "third_party")
    plugin = f"--plugin=protoc-gen-grpc-java={shutil.which('grpc_java_plugin')}"
    command = ["protoc", *(f"-I{root}" for root in roots), plugin, f"--java_out={folder}", f"--grpc-java_out={folder}"]
    run([*command, *map(str, protos)])
    sources = [*map(str, folder.rglob("*.java"))]
    run(["javac", "-nowarn", "-cp", classes, "-d", str(folder), *sources])


@pytest.mark.long
def test_java(kolm: Kolm, tmp_path: Path) -> None:
    need(*map(shutil.which, ("java", "javac", "protoc", "grpc_java_plugin")), all(each.is_file() for each in JARS))
    classes = ":".join(map(str, (tmp_path, *JARS)))
    compiled(tmp_path, classes)
    answers(kolm, ["java", "-cp", classes, "Ask"])
