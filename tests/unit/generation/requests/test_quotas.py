"""Quotas as settings write them, and how they hold."""

from pathlib import Path

import pytest
from google.rpc import error_details_pb2

from services.generation.requests.quotas import Quota, TenantQuotas, read_quotas
from services.generation.settings import GenerationSettings
from services.runtime.errors import ResourceExhausted, to_status


class Quotas:
    """Quotas of some tenants, with a clock of the test."""

    def __init__(self, *written: str) -> None:
        self.now = 0.0
        self.of = TenantQuotas(read_quotas(written), lambda: self.now)

    def refused(self, tenant: str, choices: int = 1, tokens: int = 1) -> ResourceExhausted:
        with pytest.raises(ResourceExhausted) as caught:
            self.of.let_in(tenant, choices, tokens)
        return caught.value


def test_a_tenant_has_its_own_limits_and_the_common_ones_for_the_rest() -> None:
    quotas = read_quotas(["*=requests:16,tokens:600", "acme=requests:8", "globex=tokens:unlimited"])
    assert quotas["*"] == Quota(16, 600)
    assert quotas["acme"] == Quota(8, 600)
    assert quotas["globex"] == Quota(16, None)
    assert read_quotas([]) == {"*": Quota()}
    assert read_quotas(["acme=grammar_seconds:20"])["acme"] == Quota(None, None, 20)
    assert read_quotas(["a=b=requests:1"])["a=b"] == Quota(1)


@pytest.mark.parametrize(
    "written",
    ["acme", "acme=", "=requests:1", "acme=requests", "acme=requests:0", "acme=requests:-1", "acme=requests:many",
     "acme=calls:3", "acme=bytes:1GiB", "acme=tokens:1.5"],
)  # fmt: skip
def test_what_is_no_quota_is_refused_with_what_was_expected(written: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_quotas([written])


def test_a_tenant_has_one_quota() -> None:
    with pytest.raises(ValueError, match="one quota of the tenant 'acme'"):
        read_quotas(["acme=requests:1", "acme=tokens:1"])


def test_requests_in_flight_are_counted_by_choices_for_each_tenant() -> None:
    quotas = Quotas("*=requests:4")
    three = quotas.of.let_in("a", 3, 1)
    quotas.of.let_in("b", 4, 1)
    refused = quotas.refused("a", choices=2)
    assert (refused.reason, refused.metadata["quota"]) == ("QUOTA_EXCEEDED", "requests")
    quotas.of.let_in("a", 1, 1)
    three.end(used=1)
    quotas.of.let_in("a", 3, 1)


def test_tokens_flow_back_over_a_minute_and_the_error_says_when() -> None:
    quotas = Quotas("a=tokens:600")
    quotas.of.let_in("a", 1, 600).end(used=600)
    assert quotas.refused("a", tokens=50).retry_after == pytest.approx(5.0)
    quotas.now = 5.0
    quotas.of.let_in("a", 1, 50)
    assert quotas.refused("a", tokens=1).metadata["quota"] == "tokens"


def test_tokens_that_a_request_did_not_use_come_back_when_it_ends() -> None:
    quotas = Quotas("a=tokens:600")
    grant = quotas.of.let_in("a", 1, 600)
    quotas.refused("a")
    grant.end(used=100)
    quotas.of.let_in("a", 1, 500)
    quotas.refused("a")


def test_more_tokens_than_a_minute_holds_pass_when_the_bucket_is_full_and_are_paid_for() -> None:
    quotas = Quotas("a=tokens:600")
    quotas.of.let_in("a", 1, 1200).end(used=1200)
    assert quotas.refused("a", tokens=600).retry_after == pytest.approx(120.0)
    quotas.now = 1000.0
    quotas.of.let_in("a", 1, 600)
    quotas.refused("a", tokens=600)


def test_grammars_are_charged_afterwards_and_their_seconds_flow_back_over_a_minute() -> None:
    quotas = Quotas("a=grammar_seconds:6,tokens:10")
    quotas.now = 1000.0
    quotas.of.check_grammars("a")
    quotas.of.charge_grammar("a", 6.0)
    quotas.of.check_grammars("a")
    quotas.of.charge_grammar("a", 3.0)
    with pytest.raises(ResourceExhausted) as caught:
        quotas.of.check_grammars("a")
    assert (caught.value.reason, caught.value.metadata["quota"]) == ("QUOTA_EXCEEDED", "grammar_seconds")
    assert caught.value.retry_after == pytest.approx(30.0)
    quotas.of.let_in("a", 1, 10)
    quotas.of.check_grammars("b")
    quotas.now += 30.0
    quotas.of.check_grammars("a")


def test_a_tenant_that_owes_seconds_is_not_forgotten() -> None:
    quotas = Quotas("*=grammar_seconds:1")
    quotas.of.charge_grammar("debtor", 1000.0)
    for number in range(10_000):
        quotas.now += 0.1
        quotas.of.charge_grammar(f"t{number}", 0.01)
    assert len(quotas.of._tenants) <= 4096
    with pytest.raises(ResourceExhausted):
        quotas.of.check_grammars("debtor")
    assert quotas.of._tenants["debtor"].grammars is not None


def test_a_refused_request_takes_nothing() -> None:
    quotas = Quotas("a=requests:1,tokens:10")
    quotas.refused("a", choices=2)
    quotas.of.let_in("a", 1, 10)


def test_tenants_that_left_are_dropped() -> None:
    quotas = Quotas("*=requests:1")
    busy = quotas.of.let_in("busy", 1, 1)
    for number in range(10_000):
        quotas.now += 0.1
        quotas.of.let_in(f"t{number}", 1, 1).end(1)
    assert len(quotas.of._tenants) <= 4096
    quotas.refused("busy")
    busy.end(1)
    quotas.of.let_in("busy", 1, 1)


def test_callers_get_the_quota_and_the_time_as_details() -> None:
    quotas = Quotas("acme=tokens:60")
    quotas.of.let_in("acme", 1, 60)
    failure, retry = error_details_pb2.QuotaFailure(), error_details_pb2.RetryInfo()
    for detail in to_status(quotas.refused("acme", tokens=2), "r").details:
        detail.Unpack(failure) or detail.Unpack(retry)
    (violation,) = failure.violations
    assert (violation.subject, violation.quota_metric) == ("tenant:acme", "tokens")
    assert "60 tokens a minute" in violation.description
    assert retry.retry_delay.ToNanoseconds() == pytest.approx(2e9)


def test_servers_that_share_a_quota_give_out_a_part_each(model: Path) -> None:
    assert Quota(8, 60_000).part(1) == Quota(8, 60_000)
    assert Quota(8, 100, 20).part(3) == Quota(3, 34, 7)
    assert Quota().part(3) == Quota()
    flags = ["--quota", "*=requests:4,tokens:600", "--quota", "acme=requests:1", "--quota-servers", "2"]
    shared = GenerationSettings.load(["--model", str(model), *flags]).quotas
    assert shared == {"*": Quota(2, 300), "acme": Quota(1, 300)}
    servers = [TenantQuotas(shared, clock=lambda: 0.0) for _ in range(2)]
    for server in servers:
        for _ in range(2):
            server.let_in("globex", 1, 1)
        with pytest.raises(ResourceExhausted):
            server.let_in("globex", 1, 1)
