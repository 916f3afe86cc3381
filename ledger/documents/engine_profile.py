"""The profile of an engine other than kolm's: how its tokens are computed, with the source of each statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from ledger.encoding.document import Cid, Document, Name, Text, Time, form, written
from ledger.encoding.text_forms import cid

EngineVersion = Annotated[
    str, form("[a-z][a-z0-9_-]{0,31}/[0-9a-zA-Z._+-]{1,63}", "an engine and its version, as vllm/0.32.0")
]


PREFIX_CACHE = "prefix_cache"
"""The flag of profiles that turns the engine's prefix cache on."""

DRAWS, MT19937 = "draws", "mt19937"
"""The flag of profiles that names the generator of the random numbers, and its value for llama.cpp's sampler: each
token is the first at which the sum of probabilities reaches the seed's next number.
"""


class EngineProfile(Document, tag="kolm.engine_profile.v1", frozen=True):
    """A `kolm.engine_profile.v1` document, signed by a key of role `receipts`. Receipts of requests that the engine has
    served name the cid of its canonical bytes as their `profile_cid`.

    All members are statements of the operator or the engine, except `base_cid` if `weights_checked`: then it comes from
    the digests of files, otherwise from the model's name alone. `flags` are the engine's flags that change numbers, by
    name. `batch_invariant`: whether the engine states that an answer does not depend on other requests of the batch;
    None if it states nothing. `speculation` describes its drafts, in the engine's words; None if it states nothing.
    The flag `prefix_cache` is `true` if requests may reuse prefixes that others computed; then no difference proves
    anything about speculation. The flag `draws` names the generator of the random numbers if it is known.
    """

    SIGNERS: ClassVar = ("receipts",)
    UNSCOPED: ClassVar = ("tenant",)
    """An engine serves every tenant."""

    engine: Name
    version: Annotated[str, form("[0-9a-zA-Z._+-]{1,63}", "1 to 63 of letters, digits, '.', '_', '+' and '-'")]
    model: Text
    base_cid: Cid
    weights_checked: bool
    issued_at: Time
    flags: Annotated[Mapping[Name, Text], Meta(max_length=64)] = written({})
    device: Text | None = written(None)
    parallelism: Text | None = written(None)
    batch_invariant: bool | None = written(None)
    speculation: Text | None = written(None)

    @property
    def profile_cid(self) -> str:
        """The profile's identifier in receipts."""
        return cid(self.to_bytes())

    @property
    def name(self) -> str:
        """The name of the engine in receipts, such as `vllm/0.32.0`."""
        return f"{self.engine}/{self.version}"

    @property
    def reuses_prefixes(self) -> bool:
        """Whether requests may reuse prefixes that others computed."""
        return self.flags.get(PREFIX_CACHE) == "true"

    @property
    def draws_are_known(self) -> bool:
        """Whether the random numbers of a seed are known, and the token that each of them gives."""
        return self.flags.get(DRAWS) == MT19937
