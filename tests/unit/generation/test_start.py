"""The start of a server before it serves: settings, imports, its folder, code compiled beside it."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba import config

from services.auditor.settings import AuditorSettings
from services.generation import warm_up
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.numba_cache import compiled, inlined, leave_mark, relaxed
from services.generation.settings import GenerationSettings
from services.generation.state_folder import StateTaken, state_folder
from services.generation.target.config.config import read_config
from services.generation.warm_up import after_compiling, compile_beside
from services.runtime.settings import SettingsError
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model


def test_context_and_cache_come_from_flag_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kolm.toml"
    file.write_text('[generation]\ncontext_length = 1024\ncache_bytes = "1.5GiB"\n')
    arguments = [f"--config={file}"]
    settings = GenerationSettings.load(arguments)
    assert (settings.context_length, settings.cache_bytes) == (1024, 3 << 29)
    monkeypatch.setenv("KOLM_GENERATION_CACHE_BYTES", "500MB")
    assert GenerationSettings.load(arguments).cache_bytes == 500_000_000
    given = GenerationSettings.load([*arguments, "--context-length", "2048", "--cache-bytes", "1048576"])
    assert (given.context_length, given.cache_bytes) == (2048, 1 << 20)


@pytest.mark.parametrize("seconds", ["0", "3e11", "1e15", "inf", "nan"])
def test_a_promise_is_for_at_most_a_year(seconds: str) -> None:
    with pytest.raises(SettingsError, match="--promise-seconds"):
        GenerationSettings.load([f"--promise-seconds={seconds}"], environment={})


@pytest.mark.parametrize("wrong", ["", "0", "-1GiB", "2 XB", "much"])
def test_a_size_that_is_none_is_refused_by_its_flag(wrong: str) -> None:
    with pytest.raises(SettingsError, match="--cache-bytes"):
        GenerationSettings.load([f"--cache-bytes={wrong}"], environment={})


def test_a_gguf_file_is_served_under_its_name_without_the_ending(tmp_path: Path) -> None:
    file, folder = tmp_path / "SmolLM2-135M.Q4_1.gguf", tmp_path / "mine"
    folder.mkdir()
    for model in (file, folder / "config.json"):
        model.touch()
    assert GenerationSettings.load(["--model", str(file)], environment={}).served_name == "SmolLM2-135M.Q4_1"
    assert GenerationSettings.load(["--model", str(folder)], environment={}).served_name == "mine"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "--model=none",
            "there is no model none; expected a transformers directory, a GGUF file, hf:OWNER/REPOSITORY or smollm2",
        ),
        ("--draft-model=none", "there is no model none; expected a transformers directory"),
        ("--adapter=a=none", "none: no adapter_config.json; expected an adapter in peft's layout, as NAME=DIRECTORY"),
        ("--head=./none", "none: no config.json; expected a head's folder"),
        ("--datastore=acme=none", "none: no manifest.json; expected a datastore"),
        ("--shared-datastore=none", "none: no manifest.json; expected a datastore"),
        *((f"--device={device}", "") for device in ("gpu", "opencl:", "cuda:-1", "opencl:0x1")),
    ],
)
def test_what_is_not_there_is_named_with_its_flag_before_anything_is_loaded(
    setting: str, message: str, model: Path
) -> None:
    with pytest.raises(SettingsError, match=f"^{setting.partition('=')[0]}: {re.escape(message)}"):
        GenerationSettings.load(["--model", str(model), setting], environment={})


@pytest.mark.parametrize("settings", [GenerationSettings, AuditorSettings])
@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://x", "http://", "http://:8000", "http://x:99999", "http://x:0", "http://[::1",
     "http://x/v1?key=1", "http://x/#a"],
)  # fmt: skip
def test_a_url_of_another_engine_that_nothing_can_be_asked_at_is_refused_by_its_flag(
    url: str, settings: type[GenerationSettings | AuditorSettings]
) -> None:
    with pytest.raises(SettingsError, match=r"--plain-url: expected http://HOST\[:PORT\]\[/PATH\]"):
        settings.load(["--engine=vllm", f"--plain-url={url}"], environment={})


def test_a_url_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="--plain-url: expected") as refused:
        GenerationSettings.load(["--engine=vllm", "--plain-url=http://user:secret@x:8000"], environment={})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("settings", [GenerationSettings, AuditorSettings])
@pytest.mark.parametrize("written", [None, b"", b"two words", b"k\xc3\xa9y", b"one\ntwo"])
def test_a_file_without_a_key_for_the_engine_is_refused_by_its_flag(
    written: bytes | None, settings: type[GenerationSettings | AuditorSettings], tmp_path: Path
) -> None:
    file = tmp_path / "key"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(SettingsError, match=f"--engine-key-file: .*{file}"):
        settings.load(["--engine=vllm", "--plain-url=http://x", f"--engine-key-file={file}"], environment={})


_SERVER = """
import sys
from pathlib import Path
from services.generation.target.without_torch import hide_torch
hide_torch()
import services.generation.serving
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.cpu import load_target
from services.generation.engine.text.tokenizer import Tokenizer
base, adapter, head = map(Path, sys.argv[1:])
target = load_target(base, adapters={"tiny": adapter}, cache_tokens=512)
load_head(head, target.config)
Tokenizer(base).encode_chat([{"role": "user", "content": "Hello."}])
"""
_AUDITOR = """
import sys
from services.generation.target.without_torch import hide_torch
hide_torch()
import services.auditor.serving, services.auditor.own_engine, services.generation.serving
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", [_SERVER, _AUDITOR], ids=["server", "auditor"])
def test_torch_is_not_imported_and_is_still_there_and_no_import_compiles(process: str, tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    parts = [base, make_tiny_adapter(tmp_path / "adapter", base), tmp_path / "head"]
    write_kolm(parts[2], head_config(read_config(base)))
    asked = "assert 'torch' not in sys.modules\n" + ("import torch\ntorch.zeros(1)" if process is _SERVER else "")
    kept = {"KOLM_KERNEL_CACHE": str(tmp_path / "compiled")} if process is _AUDITOR else {}
    command = [sys.executable, "-c", process + asked, *map(str, parts)]
    done = subprocess.run(command, env={**os.environ, **kept}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not any(path.is_file() for path in (tmp_path / "compiled").rglob("*")), "no kernel compiles at import"


def test_settings_are_read_before_transformers_is_there() -> None:
    """It imports torch, which servers and auditors spare: settings come first, and name wrong folders immediately."""
    code = "import sys, services.generation.settings, services.auditor.settings; "
    code += "assert not {'torch', 'transformers', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_second_server_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with state_folder(tmp_path, 1) as folder, pytest.raises(StateTaken), state_folder(tmp_path, 1):
        pass
    assert folder == tmp_path
    with state_folder(tmp_path, 1):
        pass


def test_replicas_take_the_first_free_folder(tmp_path: Path) -> None:
    with state_folder(tmp_path, 2) as second, state_folder(tmp_path, 2) as other:
        (second / "outbox").write_text("a receipt")
        assert {second.name, other.name} == {"0", "1"}
        with pytest.raises(StateTaken), state_folder(tmp_path, 2):
            pass
    with state_folder(tmp_path, 2) as again:
        assert (again / "outbox").read_text() == "a receipt"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_the_process_ends_with_the_one_that_started_it(kernels: Path) -> None:
    process = compile_beside("sampling", "text")
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 1
    assert not list(kernels.glob("sampling-*"))


def test_copies_draft_when_a_process_has_compiled_them(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with monkeypatch.context() as patch:
        patch.setattr(warm_up, "compile_beside", lambda part, log_format: process)
        defer = after_compiling("copies", "text")
    assert defer is not None
    calls, called = list[Callable[[], None]](), threading.Event()
    drafter = LookaheadDrafter(defer=calls.append)
    defer(called.set)
    assert (drafter.ready, called.wait(0.1)) == (False, False)
    process.communicate()
    assert called.wait(60)
    calls[0]()
    assert drafter.ready
    leave_mark("copies")
    assert after_compiling("copies", "text") is None


@pytest.mark.parametrize(("how", "name"), [(compiled, "sampling"), (inlined, "sampling"), (relaxed, "drafting")])
def test_they_lie_in_a_folder_of_their_version_and_numba_is_left_as_it_was(
    how: Callable[[Any], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    before = config.CACHE_DIR

    @how
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert before == config.CACHE_DIR
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"{name}-")
    assert any(folder.rglob("*.nbi"))
