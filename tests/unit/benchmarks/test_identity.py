"""`python -m benchmarks.identity`: rows of what speculation changed, and of what the load alone did."""

from typing import Any

from benchmarks.identity import Engine, Outputs, Prompts, rows


def counted(engine: Engine, at_once: tuple[int, ...]) -> list[tuple[Any, ...]]:
    names = (
        "method", "at once", "tokens", "changed", "changed per 1,000 tokens", "plain differs from plain again",
        "plain differs from plain alone",
    )  # fmt: skip
    return [tuple(row[name] for name in names) for row in rows(engine, ((1,), (2,), (3,)), at_once)]


def test_a_row_says_what_speculation_changed_and_what_the_load_alone_did() -> None:
    """Alone, drafts change one of three outputs. With eight in parallel plain has another first output, and never the
    same third output.
    """
    asked: list[int] = []

    def plain(prompts: Prompts, at_once: int) -> Outputs:
        asked.append(at_once)
        loaded: dict[tuple[int, ...], int] = {(1,): 9, (3,): len(asked)} if at_once > 1 else {}
        return [(*prompt, 7, loaded.get(prompt, 0)) for prompt in prompts]

    def drafted(prompts: Prompts, at_once: int) -> Outputs:
        return [(*prompt, 8 if prompt == (2,) else 7, 0) for prompt in prompts]

    engine = Engine("engine 1", plain, {"same": lambda *given: plain(*given), "n-gram": drafted}, (1, 8, 16))
    assert counted(engine, (1, 8)) == [
        ("same", 1, 9, 0, 0.0, 0, 0), ("n-gram", 1, 9, 1, 111.11, 0, 0),
        ("same", 8, 9, 1, 111.11, 1, 2), ("n-gram", 8, 9, 3, 333.33, 1, 2),
    ]  # fmt: skip
    assert asked == [1, 1, 1, 8, 8, 8]  # no batch of sixteen was asked for
