"""A generation server with the tiny model, the HTTP front before it, and OpenAI's and Anthropic's own clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest
import pytest_asyncio

from tests.fakes.tampered_targets import GatedTarget, Loader
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment, drafting_pays
from tests.integration.http.front import Front, fronting

if TYPE_CHECKING:
    import anthropic  # takes two seconds to import, and other workers collect these modules too


@pytest.fixture(scope="module")
def loader(request: pytest.FixtureRequest) -> Loader:
    """Its target is the module's TARGET, or has a gate that is open until a test closes it."""
    return Loader(getattr(request.module, "TARGET", GatedTarget))


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the module's CHAT_TEMPLATE, if it has one."""
    model: Path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    if template := getattr(request.module, "CHAT_TEMPLATE", None):
        (model / "chat_template.jinja").write_text(template)
    return model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(base: Path, tmp_path_factory: pytest.TempPathFactory, loader: Loader) -> AsyncIterator[Deployment]:
    """A deployment of it. Drafts pay."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), base)
    await deployment.start_ledger()
    with drafting_pays(always=True):
        await deployment.start_generation(loader, model_name="tiny")
        yield deployment
        await deployment.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(deployment: Deployment) -> AsyncIterator[Front]:
    async with fronting(deployment.generation_address, deployment.trust()) as front:
        yield front


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(front: Front) -> openai.AsyncOpenAI:
    return front.client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def claude(front: Front) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """It tries nothing twice."""
    import anthropic

    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{front.port}",
        api_key="any",
        max_retries=0,
        http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:
        yield client
