"""The error family of the engine."""


class EngineError(Exception):
    """A request that the engine cannot take; nothing was started. `field` names the request's field at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class InvalidRequest(EngineError):
    """The request itself is wrong; sending it again will not help."""


class ContextExceeded(InvalidRequest):
    """Prompt and output together do not fit the context."""


class EngineFull(EngineError):
    """The queue of waiting requests is full; the same request may pass later."""


class EngineStopped(EngineError):
    """The engine no longer takes requests."""


class UnusableLogits(Exception):
    """No token can be chosen by a row of logits. It ends the sequence that the row belongs to, and no other."""
