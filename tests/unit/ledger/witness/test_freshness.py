"""How old a log is: by a quorum's word, never by a minority's."""

from datetime import UTC, datetime, timedelta

import pytest

from ledger.errors import ProofError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import COSIGNATURE, VerifierKey
from ledger.witness.freshness import Freshness, quorum_time
from ledger.witness.tlog_policy import Policy, PolicyGroup, PolicyWitness

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def witness(number: int) -> PolicyWitness:
    key = SigningKey.from_seed(bytes([number]) * 32, "witness").public
    return PolicyWitness(f"w{number}", VerifierKey(f"w{number}.example/w", key, COSIGNATURE))


def policy(threshold: int) -> Policy:
    witnesses = tuple(witness(number) for number in range(1, 4))
    group = PolicyGroup("enough", threshold, tuple(each.name for each in witnesses))
    return Policy((), witnesses, (group,), "enough")


@pytest.mark.parametrize(("threshold", "expected"), [(1, 300), (2, 200), (3, 100)])
def test_a_log_is_as_young_as_a_quorum_says(threshold: int, expected: int) -> None:
    cosigned = {"w1": 200, "w2": 300, "w3": 100}
    assert quorum_time(policy(threshold), cosigned) == datetime.fromtimestamp(expected, UTC)


def test_a_single_witness_cannot_make_a_log_look_younger_than_the_quorum_says() -> None:
    assert quorum_time(policy(2), {"w1": 2**62, "w2": 50}) == datetime.fromtimestamp(50, UTC)
    assert quorum_time(policy(2), {"w1": 2**62}) is None
    assert quorum_time(Policy(()), {}) is None


def test_an_age_is_held_against_the_clock_of_the_verifier() -> None:
    old = Freshness(NOW, NOW - timedelta(hours=25))
    assert "1 day old (2026-06-29 23:00:00 UTC)" in str(old)
    old.check(timedelta(hours=25))
    with pytest.raises(ProofError):
        old.check(timedelta(hours=1))
    assert Freshness(NOW, NOW + timedelta(seconds=3)).age == timedelta()
    ahead = Freshness(NOW, NOW + timedelta(days=30))
    with pytest.raises(ProofError):
        ahead.check(timedelta(days=400))


def test_what_the_log_says_of_itself_is_told_and_not_believed() -> None:
    said = Freshness(NOW, None, NOW - timedelta(minutes=3))
    assert str(said) == "nobody outside the log vouches for its age; its newest document is dated 3 minutes ago"
    with pytest.raises(ProofError):
        said.check(timedelta(days=400))
