"""How fast an answer came, in one line whose times add up."""

from __future__ import annotations

from services.client.generation.completion import Metrics


def speed(tokens: int, metrics: Metrics, seconds: float | None) -> str:
    """The whole time, the time to the first token, the speed of decoding, and what came after the last token.

    The caller waited `seconds`. After the last token they went to the receipt, with an inline replay before it, and to
    the way here. None, for one choice of several, leaves that out.
    """
    first, decode = round(metrics.first_token_seconds, 2), round(metrics.decode_seconds, 2)
    said = f"{tokens} token{'' if tokens == 1 else 's'}"
    if not first and not decode:
        return said if seconds is None else f"{said} in {seconds:.2f} s"
    after = 0.0 if seconds is None else max(round(seconds - first - decode, 2), 0.0)
    parts = [f"first after {first:.2f} s"] if first else []
    if tokens > 1 and metrics.decode_seconds > 0:
        parts.append(f"{(tokens - 1) / metrics.decode_seconds:.0f} tokens/s for {decode:.2f} s")
    if after:
        parts.append(f"receipt {after:.2f} s later")
    return f"{said} in {first + decode + after:.2f} s ({', '.join(parts)})"
