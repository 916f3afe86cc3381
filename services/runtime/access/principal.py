"""A principal of these services: a name, a tenant, roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["generate", "append", "read", "audit", "publish", "operate"]
"""generate: ask the model, and see the own tenant's receipts. append: write entries into the ledger. read: see receipts
of every tenant, and the whole log. audit: read content and replay. publish: draft heads. operate: erase, collect.
"""

ROLES: tuple[Role, ...] = get_args(Role)

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Principal:
    """`tenant` is None for one that acts for every tenant. `authenticated` is False for callers without a credential,
    who have what the server gives to its own machine.
    """

    name: str
    tenant: str | None
    roles: frozenset[Role]
    authenticated: bool = True

    @property
    def sees_all(self) -> bool:
        """Whether it sees receipts of every tenant, and the whole log."""
        return bool(self.roles & {"read", "audit"}) or (self.tenant is None and "generate" in self.roles)

    def sees(self, tenant: str) -> bool:
        """Whether it sees that a tenant's receipts exist."""
        return self.sees_all or (bool(self.roles) and self.tenant == tenant)

    def reads_content(self, tenant: str) -> bool:
        """Whether it may read a tenant's prompts and outputs, as auditors and that tenant's own credentials may."""
        return "audit" in self.roles or (self.authenticated and self.tenant == tenant)


NOBODY = Principal("nobody", "", frozenset(), authenticated=False)
"""A caller without any right."""

LOCAL_CALLER = Principal("anonymous", DEFAULT_TENANT, frozenset({"generate"}), authenticated=False)
"""A caller without a credential from the same machine, where nobody has said who may call."""
