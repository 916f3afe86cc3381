from __future__ import annotations

import pytest

from services.runtime.auth import require_auditor, require_operator
from services.runtime.errors import PermissionDenied, Unauthenticated

ROLE = ("kolm-role", "auditor")


def test_without_a_secret_the_role_is_enough() -> None:
    require_auditor([ROLE], None)


@pytest.mark.parametrize("metadata", [None, [], [("kolm-role", "operator")], [("kolm-role", b"auditor")]])
def test_other_roles_are_refused(metadata: list[tuple[str, str | bytes]] | None) -> None:
    with pytest.raises(PermissionDenied):
        require_auditor(metadata, None)


def test_with_a_secret_only_the_right_token_passes() -> None:
    require_auditor([ROLE, ("authorization", "Bearer s3cret")], "s3cret")
    for sent in ([], [("authorization", "Bearer s3cre")], [("authorization", "Bearer ")]):
        with pytest.raises(Unauthenticated):
            require_auditor([ROLE, *sent], "s3cret")


def test_one_role_is_not_the_other() -> None:
    require_operator([("kolm-role", "operator")], None)
    with pytest.raises(PermissionDenied, match="only operators may do this; send metadata kolm-role: operator"):
        require_operator([ROLE], None)
