"""The documents of publishers about draft heads: publication under a name, withdrawal, and measured acceptance."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from ledger.encoding.document import (
    Cid,
    Count,
    Digest,
    Document,
    FileName,
    NotNegative,
    Positive,
    Reason,
    Share,
    Time,
    one_of,
)
from ledger.errors import FormatError

GOOD, NEEDS_RETRAINING = "GOOD", "NEEDS_RETRAINING"
THRESHOLD = 0.5  # mean acceptance below which a head needs retraining for an adapter
_MOST_DEPTHS = 64


class DraftHeadPublication(Document, tag="kolm.head_publication.v1", frozen=True):
    """A `kolm.head_publication.v1` document. Signed by a key of role `publisher`; gives a head a name.

    `manifest_cid` identifies the head, `base_cid` is its manifest's subject, `publisher` is the name of the signer, as
    text.
    """

    SIGNERS: ClassVar = ("publisher",)

    manifest_cid: Cid
    name: FileName
    base_cid: Cid
    publisher: Annotated[str, Meta(min_length=1, max_length=128)]
    issued_at: Time


class DraftHeadWithdrawal(Document, tag="kolm.head_withdrawal.v1", frozen=True):
    """A `kolm.head_withdrawal.v1` document. Signed by a `publisher` or an `operator`; final, under every name.

    A withdrawn head is never loaded again, not even after another publication: publish a better head.
    """

    SIGNERS: ClassVar = ("publisher", "operator")

    manifest_cid: Cid
    reason: Reason
    issued_at: Time


class KScore(Document, tag="kolm.kscore.v1", frozen=True):
    """A `kolm.kscore.v1` document. Signed by a key of role `publisher`.

    `mean_acceptance` is the mean over `prompts` prompts of accepted / proposed tokens, chain drafts of depth `k` at
    temperature 0. `acceptance_by_depth[i]` is the share of drafts whose token i was accepted. `adapter_cid` is null for
    the bare base. `status` is the result of `kscore_status`. `prompts_digest` identifies the prompts.
    """

    SIGNERS: ClassVar = ("publisher",)

    manifest_cid: Cid
    base_cid: Cid
    adapter_cid: Cid | None
    profile_cid: Cid
    k: Positive
    prompts: Positive
    prompts_digest: Digest
    tokens: Count
    mean_acceptance: Share
    mean_acceptance_length: NotNegative
    acceptance_by_depth: Annotated[tuple[Share, ...], Meta(max_length=_MOST_DEPTHS)]
    threshold: Share
    status: Annotated[str, one_of((GOOD, NEEDS_RETRAINING))]
    measured_at: Time

    def check(self) -> None:
        if self.status != (expected := kscore_status(self.mean_acceptance, self.threshold)):
            raise FormatError("status", f"expected {expected} for {self.mean_acceptance:g} of {self.threshold:g}")


def kscore_status(mean_acceptance: float, threshold: float) -> str:
    """GOOD or NEEDS_RETRAINING; a policy does not select a head for an adapter if it needs retraining."""
    return NEEDS_RETRAINING if mean_acceptance < threshold else GOOD
