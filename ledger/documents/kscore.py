"""The k-score: how well a draft head drafts for an adapter (or for the bare base), measured and signed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.fields import Fields, checked_number
from ledger.errors import FormatError

GOOD, NEEDS_RETRAINING = "GOOD", "NEEDS_RETRAINING"
THRESHOLD = 0.5  # mean acceptance below which a head needs retraining for an adapter
_MOST_DEPTHS = 64


@dataclass(frozen=True, slots=True)
class KScore:
    """A `kolm.kscore.v1` document. Signed by a key of role `publisher`.

    `mean_acceptance` is the mean over `prompts` prompts of accepted / proposed tokens, chain drafts of depth `k` at
    temperature 0. `acceptance_by_depth[i]` is the share of drafts whose token i was accepted. `adapter_cid` is null for
    the bare base. `prompts_digest` names the prompts that were used.
    """

    TYPE: ClassVar[str] = "kolm.kscore.v1"

    manifest_cid: str
    base_cid: str
    adapter_cid: str | None
    profile_cid: str
    k: int
    prompts: int
    prompts_digest: str
    tokens: int
    mean_acceptance: float
    mean_acceptance_length: float
    acceptance_by_depth: tuple[float, ...]
    threshold: float
    measured_at: str

    @property
    def status(self) -> str:
        """GOOD or NEEDS_RETRAINING; a policy picks no head for an adapter for which it needs retraining."""
        return NEEDS_RETRAINING if self.mean_acceptance < self.threshold else GOOD

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "manifest_cid": self.manifest_cid,
            "base_cid": self.base_cid,
            "adapter_cid": self.adapter_cid,
            "profile_cid": self.profile_cid,
            "k": self.k,
            "prompts": self.prompts,
            "prompts_digest": self.prompts_digest,
            "tokens": self.tokens,
            "mean_acceptance": self.mean_acceptance,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_by_depth": list(self.acceptance_by_depth),
            "threshold": self.threshold,
            "status": self.status,
            "measured_at": self.measured_at,
        }

    @classmethod
    def from_document(cls, document: object) -> KScore:
        """The k-score that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        score = cls(
            manifest_cid=fields.cid("manifest_cid"),
            base_cid=fields.cid("base_cid"),
            adapter_cid=fields.optional("adapter_cid", fields.cid),
            profile_cid=fields.cid("profile_cid"),
            k=fields.integer("k", 1),
            prompts=fields.integer("prompts", 1),
            prompts_digest=fields.digest("prompts_digest"),
            tokens=fields.integer("tokens"),
            mean_acceptance=fields.number("mean_acceptance", 0.0, 1.0),
            mean_acceptance_length=fields.number("mean_acceptance_length", 0.0),
            acceptance_by_depth=_by_depth(fields),
            threshold=fields.number("threshold", 0.0, 1.0),
            measured_at=fields.time("measured_at"),
        )
        status = fields.choice("status", (GOOD, NEEDS_RETRAINING))
        fields.close()
        if status != score.status:
            raise FormatError("status", f"expected {score.status} for {score.mean_acceptance:g} of {score.threshold:g}")
        return score


def _by_depth(fields: Fields) -> tuple[float, ...]:
    path, values = fields.path("acceptance_by_depth"), fields.array("acceptance_by_depth")
    if len(values) > _MOST_DEPTHS:
        raise FormatError(path, f"has {len(values)} depths, at most {_MOST_DEPTHS} are taken")
    return tuple(checked_number(value, f"{path}[{place}]", 0.0, 1.0) for place, value in enumerate(values))
