"""The comparison of an engine's text with its token ids, where bytes are no characters."""

import re

import pytest

from services.generation.remote.answer import UpstreamError
from services.generation.remote.spelling import Spelling, missing

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
LONG = "It is so, " * 9


class Pieces:
    """A decoder whose token ids are places in a list of texts."""

    def __init__(self, *pieces: str, rest: str = "") -> None:
        self.pieces, self.rest = pieces, rest

    def feed(self, token: int) -> str:
        return self.pieces[token]

    def flush(self) -> str:
        return self.rest


@pytest.mark.parametrize(("spelled", "text", "lacking"), [
    ("a?b", "a?b", ""), ("a?b", "a??b", ""), ("a??b", "a?b", ""), ("a?b", "ab", ""), ("ab?", "ab", "?"),
    ("ab??", "ab?", "?"), ("ab ?", "ab", " ?"), ("ab ? ?", "ab", " ? ?"),
])  # fmt: skip
def test_the_number_of_unknown_characters_in_one_place_is_the_decoders(spelled: str, text: str, lacking: str) -> None:
    found = missing(spelled.replace("?", UNKNOWN), text.replace("?", UNKNOWN), None)
    assert found == lacking.replace("?", UNKNOWN)


@pytest.mark.parametrize(
    ("spelled", "text"),
    [("ab", "a?b"), ("a?b", "a?b?"), ("a?b", "?ab"), ("ab", "ab?"), ("abc", "ab"), ("ab and so on?", "ab")],
)
def test_an_unknown_character_that_the_ids_do_not_give_is_refused(spelled: str, text: str) -> None:
    with pytest.raises(UpstreamError):
        missing(spelled.replace("?", UNKNOWN), text.replace("?", UNKNOWN), None)


@pytest.mark.parametrize(
    ("spelled", "text", "stop"), [(LONG, LONG + " so", None), (LONG + " so", LONG, "END")], ids=["longer", "shorter"]
)
def test_a_text_that_another_begins_with_is_shown_from_where_they_part(
    spelled: str, text: str, stop: str | None
) -> None:
    with pytest.raises(UpstreamError) as caught:
        missing(spelled, text, stop)
    told, expected = re.findall("'([^']*)'", str(caught.value))
    assert told != expected


@pytest.mark.parametrize("by_token", [False, True])
def test_a_token_that_ends_within_a_character_may_be_left_out_and_is_shown(by_token: bool) -> None:
    spelling = Spelling(Pieces("a", "", "", rest=" " + UNKNOWN))
    spelling.feed([0, 1, 2], "a")
    assert spelling.end(None, by_token=by_token) == " " + UNKNOWN


def test_other_words_after_an_unknown_character_are_refused_when_they_arrive() -> None:
    spelling = Spelling(Pieces("a", UNKNOWN, "words", "end"))
    spelling.feed([0, 1], "a" + UNKNOWN * 2)
    with pytest.raises(UpstreamError):
        spelling.feed([2], "other")
