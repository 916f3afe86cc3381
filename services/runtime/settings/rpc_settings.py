"""The settings of every gRPC server."""

from __future__ import annotations

from pydantic import Field

from services.runtime.calls.limits import Limits
from services.runtime.settings.settings import ServerSettings, Size

_MIB = 1 << 20


class RpcServerSettings(ServerSettings):
    """Limits of a gRPC server, besides the settings of every server."""

    max_message: Size = Field(
        8 * _MIB, validate_default=True, description="Largest message that is taken, as it comes over the wire."
    )
    request_memory: Size = Field(
        128 * _MIB,
        validate_default=True,
        description="Memory of requests that are being answered, eight times what came; larger ones wait their turn.",
    )
    max_calls: int = Field(1024, ge=1, description="Calls at once; one more is told to come back.")
    max_calls_per_caller: int = Field(
        256, ge=1, description="Calls at once of one principal or, without one, of one address."
    )
    max_streams_per_caller: int = Field(32, ge=1, description="Of these, calls whose requests are a stream.")
    max_connections: int = Field(1024, ge=1, description="Connections at once; one more is closed.")

    @property
    def limits(self) -> Limits:
        return Limits(
            message_bytes=self.max_message,
            request_bytes=self.request_memory,
            calls=self.max_calls,
            calls_of_caller=self.max_calls_per_caller,
            streams_of_caller=self.max_streams_per_caller,
            connections=self.max_connections,
        )
