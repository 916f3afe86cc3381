"""Hosts that cannot hear each other: nothing acknowledged is lost or there twice, no server drafts past a halt."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from services.client.errors import KolmError
from tests.cluster.deployment import LEASE_SECONDS, PROMPT, SERVERS, Deployment, deployed
from tests.cluster.hosts import Cut, Weather, network
from tests.e2e.command import until
from tests.fakes.tiny_model import make_tiny_model
from tests.postgres import PostgresMissing

BAD = Weather(delay=(0.0, 0.02), loss=0.01)


def cut(*cuts: Cut) -> Weather:
    """Without the frames that they stop; the rest is as bad as ever."""
    return Weather(cuts, BAD.delay, BAD.loss)


def between(one: str, other: str) -> Weather:
    return cut(Cut(one, other), Cut(other, one))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("cluster")
    model = make_tiny_model(folder / "model")
    with network(folder, "database", "ledger", "north", "south", "auditor") as hosts:
        try:
            with deployed(hosts, folder, model) as deployment:
                yield deployment
        except PostgresMissing as error:
            pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _bad_weather(deployment: Deployment) -> Iterator[None]:
    """Frames come late, out of order and some not at all, in every test; cuts are healed after it."""
    deployment.network.weather(BAD)
    yield
    deployment.network.weather(Weather())


def test_two_servers_answer_alike_and_every_receipt_is_in_the_log_once(deployment: Deployment) -> None:
    answers = [deployment.ask(host, method) for host in SERVERS for method in ("lookahead", "off")]
    assert len({tuple(choice.token_ids for choice in answer.choices) for answer in answers}) == 1
    deployment.is_whole()


def test_a_receipt_whose_acknowledgement_is_lost_is_sent_again_and_logged_once(deployment: Deployment) -> None:
    before = len(deployment.logged())
    deployment.network.weather(cut(Cut("ledger", "north", least=250)))
    answer = deployment.ask("north")
    assert all(choice.receipt is not None and choice.receipt.pending for choice in answer.choices)
    until(lambda: len(deployment.logged()) == before + len(answer.choices))
    assert deployment.waiting("north") > 0
    deployment.network.weather(BAD)
    deployment.is_whole()


def test_a_ledger_killed_behind_a_partition_comes_back_with_all_that_it_acknowledged(deployment: Deployment) -> None:
    deployment.ask("south")
    deployment.network.weather(between("ledger", "south"))
    deployment.network.kill("ledger")
    kept = deployment.ask("south")
    assert all(choice.receipt is not None and choice.receipt.pending for choice in kept.choices)
    deployment.start_ledger()
    deployment.ask("north")
    deployment.network.weather(BAD)
    deployment.is_whole()


def test_a_ledger_cut_off_from_its_database_acknowledges_nothing_until_it_is_back(deployment: Deployment) -> None:
    deployment.network.weather(between("ledger", "database"))
    kept = deployment.ask("north")
    assert all(choice.receipt is not None and choice.receipt.pending for choice in kept.choices)
    deployment.network.weather(BAD)
    deployment.is_whole()


def test_a_server_that_hears_no_halts_stops_speculating_within_its_lease_and_obeys_them_afterwards(
    deployment: Deployment,
) -> None:
    good = deployment.ask("north", "lookahead")
    deployment.network.weather(between("ledger", "north"))
    deployment.fault("south").touch()
    # Once: it serves with speculation off while it does not know, as a busy one may.
    until(lambda: deployment.ask("south", "lookahead").token_ids != good.token_ids)
    until(lambda: halted(deployment, "south"))
    outdated = datetime.now(UTC) + timedelta(seconds=LEASE_SECONDS)  # all that a server heard before the halt
    deployment.fault("south").unlink()

    until(lambda: datetime.now(UTC) > outdated)
    answer = deployment.ask("north", "lookahead")
    assert (answer.resolved.method, answer.resolved.fallback_reason) == ("off", "halt_state_unknown")
    assert [choice.token_ids for choice in answer.choices] == [choice.token_ids for choice in good.choices]

    deployment.network.weather(BAD)
    until(lambda: halted(deployment, "north"))
    assert len(deployment.issued("halt")) == 1
    deployment.is_whole()
    late = [each for each in deployment.issued("receipt") if datetime.fromisoformat(each["issued_at"]) > outdated]
    assert {each["spec_decode"]["method"] for each in late} == {"off"}


def halted(deployment: Deployment, host: str) -> bool:
    """Whether a server refuses what is halted."""
    try:
        deployment.ask(host, "lookahead", choices=1, prompt=PROMPT)
    except KolmError as error:
        return error.reason == "SPEC_DECODE_HALTED"
    return False
