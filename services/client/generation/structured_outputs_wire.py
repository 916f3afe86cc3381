"""Constraints on the output, to and from messages."""

from __future__ import annotations

from typing import Any

from kolm.generation.v1 import sampling_pb2 as pb
from services.client.generation.structured_outputs import StructuredOutputs


def structured_outputs_message(asked: StructuredOutputs) -> pb.StructuredOutputs:
    """Raises ValueError or TypeError for what has no form on the wire."""
    kind, message = asked.kind, pb.StructuredOutputs(engine=asked.engine)
    if kind == "choice":
        message.choice.SetInParent()
        message.choice.texts.extend(asked.choice or ())
    else:
        setattr(message, kind, asked.text if kind == "json" else getattr(asked, kind))
    return message


def structured_outputs_value(message: pb.StructuredOutputs) -> StructuredOutputs | None:
    """None for a constraint that this client does not know."""
    kind = message.WhichOneof("constraint")
    if kind is None:
        return None
    value: Any = list(message.choice.texts) if kind == "choice" else getattr(message, kind)
    return StructuredOutputs(**{kind: value}, engine=message.engine)
