"""The `spec_decode` block of a receipt: how speculation ran for this output, and what is known about its exactness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.encoding.fields import Fields
from ledger.errors import FormatError

OFF = "off"
REPLAYED = "replayed"
SPEEDUP_BASES = (REPLAYED, "calibrated")
"""`calibrated`, an estimate from steps that were timed at start, is in older documents and is no longer written."""


@dataclass(frozen=True, slots=True)
class SpecDecode:
    """Field names are the published ones.

    `verified_identical_to_off` is true or false only where a replay with speculation off was compared before signing;
    otherwise null, and the verdict entry answers. `wall_clock_speedup` is null exactly where `speedup_basis` is, and
    measured only where that is `replayed`. `acceptance_rate` is accepted / proposed tokens; null where nothing was
    proposed. `mean_acceptance_length` is emitted tokens per target pass of the decode phase; null where there was none.
    `k` is null for methods without a draft depth.

    Where `auto` was free to change methods inside the request, `method` is the one it began with, and
    `passes_by_method` counts target passes by whose draft they verified, sorted by name; those without any draft are
    `off`. Elsewhere it is empty, and not a member of the document.
    """

    method: str
    requested_method: str
    tokens_proposed: int
    tokens_accepted: int
    target_passes: int
    head_cid: str | None = None
    k: int | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    wall_clock_speedup: float | None = None
    speedup_basis: str | None = None
    verified_identical_to_off: bool | None = None
    fallback_reason: str | None = None
    passes_by_method: tuple[tuple[str, int], ...] = ()

    def to_document(self) -> dict[str, Any]:
        moved = {"passes_by_method": dict(self.passes_by_method)} if self.passes_by_method else {}
        return moved | {
            "method": self.method,
            "head_cid": self.head_cid,
            "k": self.k,
            "acceptance_rate": self.acceptance_rate,
            "tokens_proposed": self.tokens_proposed,
            "tokens_accepted": self.tokens_accepted,
            "wall_clock_speedup": self.wall_clock_speedup,
            "verified_identical_to_off": self.verified_identical_to_off,
            "requested_method": self.requested_method,
            "fallback_reason": self.fallback_reason,
            "mean_acceptance_length": self.mean_acceptance_length,
            "target_passes": self.target_passes,
            "speedup_basis": self.speedup_basis,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> SpecDecode:
        block = cls(
            method=fields.name("method"),
            requested_method=fields.name("requested_method"),
            tokens_proposed=fields.integer("tokens_proposed"),
            tokens_accepted=fields.integer("tokens_accepted"),
            target_passes=fields.integer("target_passes"),
            head_cid=fields.optional("head_cid", fields.cid),
            k=fields.optional("k", lambda name: fields.integer(name, 1)),
            acceptance_rate=fields.optional("acceptance_rate", lambda name: fields.number(name, 0.0, 1.0)),
            mean_acceptance_length=fields.optional("mean_acceptance_length", lambda name: fields.number(name, 0.0)),
            wall_clock_speedup=fields.optional("wall_clock_speedup", lambda name: fields.number(name, 0.0)),
            speedup_basis=fields.optional("speedup_basis", lambda name: fields.choice(name, SPEEDUP_BASES)),
            verified_identical_to_off=fields.optional("verified_identical_to_off", fields.boolean),
            fallback_reason=fields.optional("fallback_reason", fields.text),
            passes_by_method=_passes(fields.part("passes_by_method")) if fields.has("passes_by_method") else (),
        )
        fields.close()
        _check(block, fields)
        return block


def _passes(fields: Fields) -> tuple[tuple[str, int], ...]:
    if fields.has("auto"):
        raise FormatError(fields.path("auto"), "expected methods that ran; auto chooses one")
    passes = tuple((method, fields.integer(method, 1)) for method in fields.names())
    fields.close()
    return passes


def _check(block: SpecDecode, fields: Fields) -> None:
    if block.method == "auto":
        raise FormatError(fields.path("method"), "expected the method that ran; auto chooses one")
    if fields.has("passes_by_method") and sum(count for _, count in block.passes_by_method) != block.target_passes:
        expected = f"expected counts that add up to target_passes = {block.target_passes}"
        raise FormatError(fields.path("passes_by_method"), expected)
    if block.tokens_accepted > block.tokens_proposed:
        raise FormatError(fields.path("tokens_accepted"), f"expected at most tokens_proposed = {block.tokens_proposed}")
    rate = block.tokens_accepted / block.tokens_proposed if block.tokens_proposed else None
    if block.acceptance_rate != rate:
        expected = "null, as nothing was proposed" if rate is None else f"tokens_accepted / tokens_proposed = {rate}"
        raise FormatError(fields.path("acceptance_rate"), f"expected {expected}")
    _check_methods(block, fields)
    if (block.wall_clock_speedup is None) != (block.speedup_basis is None):
        raise FormatError(fields.path("speedup_basis"), "expected null exactly where wall_clock_speedup is null")


def _check_methods(block: SpecDecode, fields: Fields) -> None:
    """A method that has drafted cannot go by the name `off`, nor one that was not asked for by that of another."""
    if block.requested_method != "auto" and block.method not in (block.requested_method, OFF):
        raise FormatError(fields.path("method"), f"expected {block.requested_method}, which was asked for, or {OFF}")
    drafted = sum(count for method, count in block.passes_by_method if method != OFF)
    if block.method == OFF and (drafted or block.head_cid is not None or block.k is not None):
        raise FormatError(fields.path("method"), f"is {OFF}, beside a draft head, a draft depth or passes of a method")
    # Each pass that verified a draft has verified a token of it, and no other pass has.
    nothing = block.method == OFF or not block.target_passes or (bool(block.passes_by_method) and not drafted)
    if nothing and block.tokens_proposed:
        raise FormatError(fields.path("tokens_proposed"), "expected 0, as no pass verified a draft")
    if block.tokens_proposed < drafted:
        raise FormatError(fields.path("tokens_proposed"), f"expected one at least for each of {drafted} passes")
