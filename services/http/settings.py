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
        "127.0.0.1:50051", description="Address of the generation server, host:port or a gRPC name."
    )
    max_requests: int = Field(
        64,
        ge=1,
        le=100_000,
        description="Most concurrent requests; a further one gets 429. Four times as many may connect.",
    )
    max_body: Size = Field(8 << 20, validate_default=True, description="Largest body of a request, such as 8MiB.")
    body_seconds: float = Field(30.0, gt=0, le=3600, description="Time limit for receiving a request's body.")
    request_seconds: float = Field(
        600.0, gt=0, le=86_400, description="Time limit for one request, including the queue and the sending."
    )
    allowed_origin: tuple[str, ...] = Field(
        (),
        description="Sites whose pages may call this server from a browser; may be repeated. With *, any website may "
        "use the model, with a token that it was given, or without a token if a credential was made with --anybody.",
        examples=["https://chat.example"],
    )
    trusted_keys: Path | None = Field(
        None,
        description="Folder of public keys, <role>-<name>.pub, by which the chat page checks receipts' signatures.",
    )
    explorer_url: str | None = Field(
        None,
        description="Address of the explorer, to which the chat page links for a receipt's verdict.",
        examples=["http://127.0.0.1:50056"],
    )
