"""How much of one stream may be in work at once."""

from __future__ import annotations

import asyncio

from services.ledger.entry_stream import Window


async def entered(window: Window, entries: int, size: int) -> bool:
    """Whether there is room at once; where there is not, the wait is given up."""
    waiting = asyncio.ensure_future(window.enter(entries, size))
    await asyncio.sleep(0)
    return waiting.done() or waiting.cancel() is False


def test_room_is_bounded_in_entries_and_in_bytes_and_comes_back() -> None:
    async def story() -> list[bool]:
        window = Window(10, 1000)
        took = [await entered(window, 6, 100), await entered(window, 5, 1), await entered(window, 4, 901)]
        took += [await entered(window, 4, 900), await entered(window, 1, 0)]
        window.leave(6, 100)
        return [*took, await entered(window, 6, 100)]

    assert asyncio.run(story()) == [True, False, False, True, False, True]


def test_a_request_larger_than_all_the_room_gets_in_alone() -> None:
    async def story() -> list[bool]:
        window = Window(10, 1000)
        return [await entered(window, 50, 9000), await entered(window, 1, 1)]

    assert asyncio.run(story()) == [True, False]


def test_who_waits_gets_in_when_somebody_leaves() -> None:
    async def story() -> None:
        window = Window(1, 1000)
        await window.enter(1, 1)
        waiting = [asyncio.ensure_future(window.enter(1, 1)) for _ in range(2)]
        for each in waiting:
            await asyncio.sleep(0)
            assert not each.done()
            window.leave(1, 1)
            await asyncio.wait_for(each, 60)

    asyncio.run(story())
