"""Stop strings are found and held back over any chunk border, and a token leaves with its text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.generation.engine.sequence import Released, TextStream
from tests.fakes.decoder import LetterDecoder


def stream(*stops: str, split: bool = False) -> TextStream:
    return TextStream(LetterDecoder(split=split), stops)


def feed(text: TextStream, word: str) -> list[str | None]:
    return [text.feed(ord(letter) - ord("a")) for letter in word]


def test_what_could_become_a_stop_string_is_held_back() -> None:
    text = stream("cdx")
    feed(text, "abcd")
    assert text.release() == Released((0, 1), "ab")
    feed(text, "e")
    assert text.release() == Released((2, 3, 4), "cde")


def test_a_stop_string_cuts_the_text_and_keeps_the_tokens() -> None:
    text = stream("cd")
    assert feed(text, "abcd") == [None, None, None, "cd"]
    assert text.release() == Released((0, 1), "ab")
    assert text.finish(matched=True) == Released((2, 3), "")
    assert text.text == "ab"


def test_the_earliest_of_several_stop_strings_wins() -> None:
    text = stream("de", "bcde")
    assert feed(text, "abcde")[-1] == "bcde"
    assert text.text == "a"


def test_without_search_a_stop_string_is_text() -> None:
    text = stream("ab")
    assert [text.feed(0, search=False), text.feed(1, search=False)] == [None, None]
    assert text.text == "ab"


def test_a_token_that_only_opens_a_character_leaves_at_once_and_its_text_later() -> None:
    text = stream(split=True)
    text.feed(1)
    assert text.release() == Released((1,), "")
    text.feed(2)
    assert text.release() == Released((2,), "bc")


def test_an_open_character_ends_as_a_replacement() -> None:
    text = stream(split=True)
    text.feed(1)
    assert text.finish(matched=False).text == "\N{REPLACEMENT CHARACTER}"


def test_an_invisible_token_has_no_text() -> None:
    text = stream()
    text.feed(3, visible=False)
    assert text.finish(matched=False) == Released((3,), "")


@given(
    letters=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    releases=st.sets(st.integers(0, 30)),
)
def test_releases_add_up_to_the_text_before_the_first_stop(letters: str, stops: list[str], releases: set[int]) -> None:
    text, parts, tokens, matched = stream(*stops), [], [], False
    fed = 0
    for place, letter in enumerate(letters):
        fed += 1
        matched = text.feed(ord(letter) - ord("a")) is not None
        if matched:
            break
        if place in releases:
            released = text.release()
            parts.append(released.text)
            tokens += released.token_ids
    released = text.finish(matched=matched)
    whole = "".join([*parts, released.text])
    ends = [letters[:end] for end in range(len(letters) + 1) if any(letters[:end].endswith(stop) for stop in stops)]
    if ends:
        assert matched
        assert len(ends[0]) == fed
        assert whole == ends[0][: min(ends[0].find(stop) for stop in stops if stop in ends[0])]
    else:
        assert not matched
        assert whole == letters
    assert [*tokens, *released.token_ids] == [ord(letter) - ord("a") for letter in letters[:fed]]
