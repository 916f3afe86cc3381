"""A server is stopped and started again, in one folder of prefixes: neither its answers nor its files change."""

from pathlib import Path

import pytest

from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from ledger.audit.log_verification import verify_receipt
from services.generation.engine import prefix_disk
from services.generation.engine.prefix_disk import folder_of
from services.generation.settings import GenerationSettings
from services.generation.state_folder import state_folder
from services.generation.target.blocks import BLOCK
from services.runtime.process import CannotStart
from services.runtime.settings import SettingsError
from tests.integration.generation.deployment import Deployment, asking, until

PROMPT = "A question asked before, asked again, and at some length: " + "yes, " * BLOCK


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow disk."""
    monkeypatch.setattr(prefix_disk, "_PATIENCE", 60.0)


async def ask(stub: GenerationServiceStub, deployment: Deployment, tenant: str = "acme") -> tuple[object, int]:
    """Tokens and stream digest, and how many tokens of the prompt were not computed."""
    request = asking(PROMPT, max_tokens=20, temperature=0.8, seed=5, tenant=tenant, verify="VERIFY_MODE_INLINE")
    response = await stub.Generate(request)
    receipt = verify_receipt(response.choices[0].receipt.envelope, deployment.trust())
    assert receipt.spec_decode.verified_identical_to_off is True
    return (list(response.choices[0].token_ids), receipt.output.stream_digest), response.usage.cached_prompt_tokens


def counted(deployment: Deployment, outcome: str) -> float:
    name, labels = "kolm_prefix_disk_files_total", {"outcome": outcome}
    return deployment.metrics["generation"].get_sample_value(name, labels) or 0.0


async def test_after_a_restart_a_prompt_is_not_computed_again_and_a_damaged_folder_costs_time_alone(
    deployment: Deployment, tmp_path: Path
) -> None:
    expected, _ = await ask(await deployment.start_generation(prefix_caching=False), deployment)
    await deployment.stop_generation()
    folder = tmp_path / "prefixes"

    async def started() -> GenerationServiceStub:
        return await deployment.start_generation(prefix_cache_dir=folder)

    stub = await started()
    assert await ask(stub, deployment) == (expected, 0)
    await deployment.stop_generation()
    stub = await started()
    answer, cached = await ask(stub, deployment)
    assert answer == expected
    assert cached >= 2 * BLOCK
    assert counted(deployment, "read") == cached / BLOCK
    assert await ask(stub, deployment, "other") == (expected, 0)
    await deployment.stop_generation()
    for file in (folder / folder_of("acme")).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    stub = await started()
    assert await ask(stub, deployment) == (expected, 0)
    assert counted(deployment, "damaged") > 0
    await deployment.stop_generation()
    assert (await ask(await started(), deployment))[1] >= BLOCK


async def test_erased_content_leaves_the_folder_now_or_at_the_next_start(
    deployment: Deployment, tmp_path: Path
) -> None:
    folder = tmp_path / "prefixes"
    stub = await deployment.start_generation(prefix_cache_dir=folder)
    asked = [await stub.Generate(asking(PROMPT, tenant=tenant)) for tenant in ("a", "b")]

    async def left(*expected: bool) -> None:
        async def so() -> bool:
            return [any((folder / folder_of(tenant)).glob("*")) for tenant in ("a", "b")] == list(expected)

        await until(so)

    await left(True, True)
    await deployment.erase(asked[1])
    await left(True, False)
    await deployment.stop_generation()
    await deployment.erase(asked[0])
    await left(True, False)
    await deployment.start_generation(prefix_cache_dir=folder)
    await left(False, False)


async def test_a_folder_that_will_not_do_ends_the_start_by_its_flag(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CannotStart, match=f"^--prefix-cache-dir: cannot write in {folder}"):
            await deployment.start_generation(prefix_cache_dir=folder)
    with pytest.raises(CannotStart, match=r"^--prefix-cache-bytes: 100 bytes; this model needs \d+ for two blocks"):
        await deployment.start_generation(prefix_cache_dir=tmp_path / "folder", prefix_cache_bytes=100)
    with (
        state_folder(tmp_path / "folder", 1),
        pytest.raises(CannotStart, match=f"^--prefix-cache-dir: {tmp_path / 'folder'}: "),
    ):
        await deployment.start_generation(prefix_cache_dir=tmp_path / "folder")


@pytest.mark.parametrize("flags", [
    ["--prefix-cache-bytes=0"], ["--prefix-cache-bytes=-1GiB"], ["--prefix-cache-dir=x", "--no-prefix-caching"],
    ["--prefix-cache-dir=x", "--engine=vllm", "--plain-url=http://127.0.0.1:1"],
])  # fmt: skip
def test_a_setting_that_cannot_be_meant_is_refused_by_its_flag(flags: list[str]) -> None:
    with pytest.raises(SettingsError, match=flags[0].partition("=")[0]):
        GenerationSettings.load(flags, environment={})
