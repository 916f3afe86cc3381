"""Settings of the HTTP front."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.runtime.setting_kind import Target
from services.runtime.settings import Address, ServerSettings, Size, settings_config


class HttpSettings(ServerSettings):
    """Flags of `python -m services.http`, environment `KOLM_HTTP_…`, TOML table `[http]`."""

    model_config = settings_config("http")

    listen: Address = Field("127.0.0.1:50057", description="host:port to serve HTTP on; port 0 takes a free one.")
    generation: Target = Field(
        "127.0.0.1:50051", description="The generation server behind it, host:port or a gRPC name."
    )
    max_requests: int = Field(
        64, ge=1, le=100_000, description="Requests at once; one more gets 429. Four times as many may connect."
    )
    max_body: Size = Field(8 << 20, validate_default=True, description="Largest body of a request, such as 8MiB.")
    body_seconds: float = Field(30.0, gt=0, le=3600, description="How long a request's body may take to come.")
    request_seconds: float = Field(
        600.0, gt=0, le=86_400, description="How long one request may take, with its queueing and its sending."
    )
    allowed_origin: tuple[str, ...] = Field(
        (),
        description="Sites whose pages may call this from a browser, may be repeated. * is every site: any website may "
        "then use the model, with a token that it was given, or without one where --anybody was given a credential.",
        examples=["https://chat.example"],
    )
    trusted_keys: Path | None = Field(
        None, description="Public keys, <role>-<name>.pub, against which the chat page holds signatures of receipts."
    )
    explorer_url: str | None = Field(
        None,
        description="The auditor's page, where the chat page sends who wants to see a receipt's verdict.",
        examples=["http://127.0.0.1:50056"],
    )
