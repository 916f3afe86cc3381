"""A head and a datastore beside the model are used without being named; what is for another model is left out."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from services.generation.drafting.block.block_checkpoint import write_block_head
from services.generation.drafting.eagle3.checkpoint import write_head
from services.generation.target.config.config import read_config
from tests.fakes.heads import block_config, block_tensors, head_config, head_tensors
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.api.test_datastores import build
from tests.integration.generation.deployment import Deployment, asking, failure


@pytest.fixture
def base(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "models" / "base"))


def put_head(model: Path, folder: Path) -> None:
    config = head_config(read_config(model))
    write_head(folder, config, head_tensors(config, 0))


async def test_they_draft_and_the_log_says_so(
    deployment: Deployment, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_head(base, base.parent / "head")
    build(base, "The ledger keeps one receipt for every request.", base / "store")
    with caplog.at_level(logging.INFO):
        stub = await deployment.start_generation(model=base)
    said = [record.getMessage() for record in caplog.records]
    assert any(str(base.parent / "head") in line and "beside the model" in line for line in said)
    assert any(str(base / "store") in line and "beside the model" in line for line in said)
    response = await stub.Generate(asking(max_tokens=4))
    assert (response.metrics.method, response.metrics.HasField("fallback_reason")) == ("eagle3", False)
    assert (await stub.Generate(asking(max_tokens=4, method="rest"))).metrics.method == "rest"


async def test_a_block_head_drafts_by_the_method_of_its_kind(deployment: Deployment, base: Path) -> None:
    config = block_config(read_config(base))
    write_block_head(base.parent / "head", config, block_tensors(config))
    stub = await deployment.start_generation(model=base)
    plain = await stub.Generate(asking(max_tokens=24, method="off"))
    for members in ({}, {"method": "block"}):
        response = await stub.Generate(asking(max_tokens=24, **members))
        assert (response.metrics.method, response.metrics.HasField("fallback_reason")) == ("block", False)
        assert [each.text for each in response.choices] == [each.text for each in plain.choices]
    assert (await failure(stub.Generate(asking(max_tokens=4, method="eagle3")))).reason == "METHOD_NOT_LOADED"


async def test_nothing_is_taken_where_the_operator_says_so(deployment: Deployment, base: Path) -> None:
    put_head(base, base / "head")
    stub = await deployment.start_generation(model=base, beside=False)
    assert (await failure(stub.Generate(asking(max_tokens=4, method="eagle3")))).reason == "METHOD_NOT_LOADED"


async def test_what_is_for_another_model_is_left_out(deployment: Deployment, base: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", hidden=128)
    put_head(other, base / "head")
    build(base, "The ledger keeps", base / "store")
    manifest = base / "store" / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"tokenizer_cid":"cidv1:sha256:', '"tokenizer_cid":"cidv1:sha256:0')
    )
    stub = await deployment.start_generation(model=base)
    for method in ("eagle3", "rest"):
        assert (await failure(stub.Generate(asking(max_tokens=4, method=method)))).reason == "METHOD_NOT_LOADED"
