"""`import kolm`: every name is there, nothing is imported before it is used, and what is in the way is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kolm
from kolm.generation.v1 import generation_pb2, speculation_pb2
from kolm.ledger.v1 import documents_pb2
from services.client.channel import plain_value
from services.client.generation.completion import Metrics
from services.client.ledger.log import Halt, Scope
from tests.unit.ledger.vectors import VECTORS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", kolm.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(kolm, name) is not None
    assert name in dir(kolm)


def test_importing_kolm_imports_nothing_heavy_and_a_request_needs_no_grpc() -> None:
    probe = (
        "import sys, kolm; kolm.Request(messages=[{'role': 'user', 'content': 'x'}]); kolm.verify; "
        "heavy = {'grpc', 'google.protobuf', 'torch', 'numpy', 'sqlalchemy', 'pydantic'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_package_called_services_is_named(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "import kolm; kolm.Runtime"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: kolm.Runtime: needs the package services of kolm-serve")
    assert str(tmp_path / "services") in last


def test_a_bundle_is_verified_and_a_damaged_one_says_why() -> None:
    trusted = VECTORS / "log" / "keys"
    report = kolm.verify(VECTORS / "bundles" / "good.tar.gz", trusted, max_unreplayable=1)
    assert (report.ok, report.problem) == (True, None)
    assert str(report).startswith("verified (")
    assert len(str(report)) < 200
    keys = kolm.TrustedKeys.load(trusted)
    assert kolm.verify(VECTORS / "bundles" / "good.tar.gz", keys, max_unreplayable=1).ok
    damaged = kolm.verify(str(VECTORS / "bundles" / "payload_edited.tar.gz"), str(trusted))
    assert str(damaged).startswith(f"not verified: {damaged.problem} (")
    with pytest.raises(kolm.LedgerError):
        kolm.verify(VECTORS / "none.tar.gz", trusted)
    with pytest.raises(kolm.LedgerError, match="is not a folder"):
        kolm.verify(VECTORS / "bundles" / "good.tar.gz", VECTORS / "no-keys")


def test_absent_fields_are_none_repeated_ones_tuples_and_maps_dicts() -> None:
    message = speculation_pb2.SpeculationMetrics(num_accepted_tokens_per_pos=[3, 1], passes_by_method={"rest": 2})
    metrics = plain_value(Metrics, message)
    assert (metrics.wall_clock_speedup, metrics.num_accepted_tokens_per_pos) == (None, (3, 1))
    assert (metrics.passes_by_method, metrics.num_drafts) == ({"rest": 2}, 0)
    assert plain_value(Metrics, speculation_pb2.SpeculationMetrics(wall_clock_speedup=0.0)).wall_clock_speedup == 0.0


def test_a_given_member_comes_before_the_message_s() -> None:
    scope = Scope("base", "rest", None)
    halt = plain_value(Halt, documents_pb2.Halt(halt_index=7, reason="why"), scope=scope, reason="because")
    assert halt == Halt(scope, 7, 0, "because")


def test_a_member_that_nobody_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="num_drafts"):
        plain_value(Metrics, generation_pb2.Usage())
