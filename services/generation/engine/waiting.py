"""The queue of waiting sequences: fair among tenants, by priority within a tenant."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from services.generation.engine.request import EngineFull
from services.generation.engine.sequence import Sequence

_EMITTED_WEIGHT = 2  # weight of an emitted token; a prompt token counts 1, as in the paper
_MOST_COUNTERS = 4096

_QueueEntry = tuple[int, int, Sequence]  # priority, arrival


class WaitingQueue:
    """Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, algorithm 2).

    Each tenant has a counter of its tokens: of prompts when they are computed, of outputs when they are emitted. The
    tenant with the lowest counter is next, with its sequence of the lowest priority number, the first to arrive among
    equals; for this order, the prompts of running sequences count whole. A tenant that had nothing waiting begins at
    the lowest counter of the waiting tenants, so that it cannot save up. Preempted sequences come before all others.
    """

    def __init__(self, most_of_tenant: int) -> None:
        """`most_of_tenant`: limit of waiting sequences of one tenant."""
        self._most = most_of_tenant
        self._preempted: deque[Sequence] = deque()
        self._queues: dict[str | None, list[_QueueEntry]] = {}  # by tenant, in order; none is empty
        self._counters: dict[str | None, float] = {}
        self._floor = 0.0  # counter of the tenant that was admitted last
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        for line in self._queues.values():
            yield from (sequence for _, _, sequence in line)

    def check(self, tenant: str | None, count: int = 1, free: int = 0) -> None:
        """Raises EngineFull if `count` more sequences, of which `free` need not wait, are too many for the tenant."""
        waiting = len(self._queues.get(tenant, ()))
        if waiting + count > self._most + free:
            raise EngineFull("request_id", f"{waiting} requests of yours are waiting already; try again later")

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that passed `check`."""
        tenant = sequence.request.tenant
        if tenant not in self._queues:
            self._lift(tenant)
        self._arrivals += 1
        insort(self._queues.setdefault(tenant, []), (sequence.request.priority, self._arrivals, sequence))

    def put_back(self, sequence: Sequence) -> None:
        """Put a preempted sequence back; the last one put back is the first to be admitted."""
        self._preempted.appendleft(sequence)

    def next(self, running: Iterable[Sequence]) -> Sequence:
        """The next sequence while these are `running`; among equal tenants the first to arrive."""
        if self._preempted:
            return self._preempted[0]
        due = Counter[str | None]()
        for sequence in running:
            due[sequence.request.tenant] += sequence.prompt_length - sequence.counted
        tenant = min(self._queues, key=lambda each: (self._counters[each] + due[each], self._queues[each][0][1]))
        return self._queues[tenant][0][-1]

    def take(self, sequence: Sequence) -> None:
        """Remove the sequence that `next` returned."""
        if self._preempted:
            self._preempted.popleft()
            return
        tenant = sequence.request.tenant
        self._floor = self._counters[tenant]
        self._leave(tenant, self._queues[tenant][0])

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that ended while it waited."""
        if sequence in self._preempted:
            self._preempted.remove(sequence)
            return
        tenant = sequence.request.tenant
        self._leave(tenant, next(place for place in self._queues[tenant] if place[-1] is sequence))

    def counter_of(self, tenant: str | None) -> float:
        """The tenant's counter."""
        return self._counters.get(tenant, self._floor)

    def prefilled(self, sequence: Sequence, rows: int) -> None:
        """Count `rows` of a running sequence that were computed. Reused tokens do not count, and tokens computed again
        after a preemption do not count twice.
        """
        new = min(sequence.cached, sequence.prompt_length) - sequence.counted
        if new > 0:
            sequence.counted += new
            self._count(sequence.request.tenant, min(new, rows))

    def emitted(self, sequence: Sequence, tokens: int) -> None:
        """Count `tokens` emitted tokens of a running sequence."""
        self._count(sequence.request.tenant, _EMITTED_WEIGHT * tokens)

    def _count(self, tenant: str | None, tokens: int) -> None:
        self._counters[tenant] = self.counter_of(tenant) + tokens

    def _lift(self, tenant: str | None) -> None:
        lowest = min((self._counters[each] for each in self._queues), default=self._floor)
        self._counters[tenant] = max(self._counters.get(tenant, lowest), lowest)
        if len(self._counters) > _MOST_COUNTERS:  # tenants with nothing waiting are forgotten
            self._counters = {each: self._counters[each] for each in (*self._queues, tenant)}

    def _leave(self, tenant: str | None, place: _QueueEntry) -> None:
        self._queues[tenant].remove(place)
        if not self._queues[tenant]:
            del self._queues[tenant]
