"""The turns that a conversation repeats to the model, and their length."""

from __future__ import annotations

from services.cli.jobs.chat.conversation import Conversation, Said


def said(conversation: Conversation, number: int, tokens: int | None = None) -> None:
    conversation.add(Said(f"q{number}", f"a{number}", "request", conversation.remembered, tokens=tokens))


def prompt(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages("next")]


def test_everything_that_was_said_is_repeated() -> None:
    conversation = Conversation("be brief")
    said(conversation, 0)
    said(conversation, 1)
    assert prompt(conversation) == [
        ("system", "be brief"),
        *(("user", "q0"), ("assistant", "a0"), ("user", "q1"), ("assistant", "a1"), ("user", "next")),
    ]


def test_only_what_somebody_drops_is_left_out_and_the_turns_stay() -> None:
    conversation = Conversation()
    for number in range(3):
        said(conversation, number)
    dropped = conversation.forget_oldest()
    assert dropped is not None
    assert dropped.question == "q0"
    assert (conversation.remembered, prompt(conversation)[0]) == (2, ("user", "q1"))
    conversation.forget_all()
    assert prompt(conversation) == [("user", "next")]
    assert conversation.forget_oldest() is None
    said(conversation, 3)
    assert [turn.remembered for turn in conversation.turns] == [0, 1, 2, 0]
    assert prompt(conversation)[0] == ("user", "q3")


def test_the_bound_counts_bytes_where_tokens_are_not_known() -> None:
    conversation = Conversation("é")
    assert conversation.prompt_bound("four") == 2 + 64 + 4 + 64
    said(conversation, 0)
    assert conversation.prompt_bound("four") == 2 + 2 + 2 + 4 + 4 * 64
    said(conversation, 1, tokens=40)
    assert conversation.prompt_bound("four") == 40 + 4 + 64


def test_the_tokens_of_a_turn_that_remembered_less_are_no_bound() -> None:
    conversation = Conversation()
    conversation.add(Said("q", "a", "request", 0, tokens=9))
    conversation.add(Said("q", "a", "request", 0, tokens=9))
    assert conversation.prompt_bound("") > 5 * 64
