"""Text from tokens: released when that is safe, and tool calls read from it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.engine.request import ThoughtSyntax
from services.generation.engine.sequence import Released, TextStream
from services.generation.engine.text.thoughts import HARMONY
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.text.tool_calls import PLAIN, ToolCallSyntax
from tests.fakes.drafters import LetterDecoder
from tests.fakes.grammars import HERMES, LLAMA, MISTRAL, XML
from tests.fakes.tiny_model import TEMPLATE, tiny_tokenizer


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


def test_a_token_that_only_opens_a_character_leaves_at_once_and_its_text_later() -> None:
    text = stream(split=True)
    text.feed(1)
    assert text.release() == Released((1,), "")
    text.feed(2)
    assert text.release() == Released((2,), "bc")


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
            begun = (stop[:size] for stop in stops for size in range(len(stop)))
            held = max((len(each) for each in begun if letters[:fed].endswith(each)), default=0)
            assert sum(map(len, parts)) == fed - held
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


ALTERNATING = (
    "{% if messages[0].role == 'system' %}<|pad|>{{ messages[0].content }}<|end|>{% set messages = messages[1:] %}"
    "{% endif %}{% for message in messages %}{% if message.role != ['user', 'assistant'][loop.index0 % 2] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + TEMPLATE
)
"""Refuses other turns than alternate ones of user and assistant after one of the system, as Mistral's templates do."""
THINKING = (
    "{% for message in messages %}{% if message.thinking %}{% if message.content and message.tool_calls %}"
    "{{ raise_exception('thoughts beside both') }}{% endif %}[{{ message.thinking }}]{% endif %}{% endfor %}" + HERMES
)
"""Refuses thoughts beside a text and calls, as gpt-oss's template does."""
THOUGHTS = ThoughtSyntax("<t>", ("</t>", "</x>"))


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("<t>\nQ: why?\n</t>\n\nYes. Q: no", "<t>\nQ: why?\n</t>\n\nYes. "),
        ("<t>Q:</x>Q:", "<t>Q:</x>"),
        ("<t>Q:\n\n</t>\n\nA\n\nB", "<t>Q:\n\n</t>\n\nA"),
        ("<t>Q: </t", "<t>Q: </t"),
        ("<t>a</t>\n\n", "<t>a</t>\n\n"),
        ("<t>a Q</t>: b", "<t>a Q</t>: b"),
        ("<Q: ", "<"),
        ("<\n\nb", "<"),
        ("\n\n<t>a</t>b\n\n", "\n\n<t>a</t>b"),
        ("\n\nb", ""),
        ("No thought </t> Q: b", "No thought </t> "),
    ],
)
def test_no_stop_string_counts_within_a_thought(output: str, text: str, size: int, begun: bool) -> None:
    if begun:
        if not output.startswith("<t>"):
            return
        output, text = output.removeprefix("<t>"), text.removeprefix("<t>")
    assert stopped(output, size, ("Q:", "\n\n"), replace(THOUGHTS, begun=begun)) == text


def stopped(output: str, size: int, stops: tuple[str, ...], thoughts: ThoughtSyntax) -> str:
    """The text of an output in pieces of `size` characters, up to its first stop string."""
    pieces = [output[at : at + size] for at in range(0, len(output), size)]
    read, matched, released = TextStream(PieceDecoder(pieces), stops, thoughts), None, ""
    for place in range(len(pieces)):
        if matched := read.feed(place):
            break
        released += read.release().text
    released += read.finish(matched=matched is not None).text
    assert (released, matched is None) == (read.text, read.text == output)
    return released


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("finalYes, finally.", "finalYes, "),
        ("final\n a final", "final\n a "),
        ("commentaryI look, finally.", "commentaryI look, "),
        ("analysisfinal?assistantfinalIt is final.", "analysisfinal?assistantfinalIt is "),
        ("fin", "fin"),
        ("finfinal", "fin"),
        ("commentaries final", ""),
    ],
)
def test_no_stop_string_counts_in_the_name_of_a_channel(output: str, text: str, size: int) -> None:
    assert stopped(output, size, ("final", "comm"), HARMONY) == text


class PieceDecoder:
    """Token i is the i-th piece."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def feed(self, token: int) -> str:
        return self._pieces[token]

    def flush(self) -> str:
        return ""


TOOL = {"type": "function", "function": {"name": "get_time", "description": "", "parameters": {"type": "object"}}}
TURNS = [
    {"role": "user", "content": "When?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "get_time", "arguments": {"zone": "UTC"}}}
        ],
    },
    {"role": "tool", "content": "noon", "tool_call_id": "call00001"},
    {"role": "tool", "content": "or later", "tool_call_id": "call00001"},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(384).save_pretrained(folder)
    return folder


def tokenizer(saved: Path, template: str) -> Tokenizer:
    (saved / "chat_template.jinja").write_text(template)
    return Tokenizer(saved)


@pytest.mark.parametrize(
    ("template", "syntax"),
    [
        (HERMES, PLAIN),
        (LLAMA, ToolCallSyntax('{"name": "', '", "parameters": ', None, "}")),
        (MISTRAL, ToolCallSyntax('<|pad|>[{"name": "', '", "arguments": ', '}, {"name": "', "}]")),
        (XML, PLAIN),
        (TEMPLATE, PLAIN),
    ],
    ids=["hermes", "llama", "mistral", "xml", "none"],
)
def test_the_syntax_is_the_template_s_where_it_writes_json(saved: Path, template: str, syntax: ToolCallSyntax) -> None:
    learned = tokenizer(saved, template)
    assert learned.tool_calls == syntax
    assert learned.tool_calls.without(learned.hidden).open == syntax.open.removeprefix("<|pad|>")


def test_a_template_that_knows_tools_lays_them_out_itself(saved: Path) -> None:
    read = tokenizer(saved, HERMES)
    text = read.decode_all(read.encode_chat(TURNS, [TOOL]))
    called = '<|assistant|><tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call><|end|>'
    assert text.startswith(f"<|user|>get_time\n<|end|><|user|>When?<|end|>{called}<|user|><tool_response>\nnoon\n")


@pytest.mark.parametrize("template", [TEMPLATE, XML], ids=["none", "xml"])
def test_for_other_templates_tools_calls_and_results_are_text_of_system_user_and_assistant(
    saved: Path, template: str
) -> None:
    read = tokenizer(saved, template)
    text = read.decode_all(read.encode_chat(TURNS, [TOOL]))
    assert '<tools>\n{"type": "function", "function": {"name": "get_time"' in text
    assert text.index("</tools>") < text.index("When?<|end|>")
    assert '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call><|end|>' in text
    results = "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nor later\n</tool_response><|end|><|assistant|>"
    assert text.endswith("<|user|>" + results)


@pytest.mark.parametrize("template", [TEMPLATE, ALTERNATING], ids=["any", "alternating"])
def test_results_and_the_text_after_them_are_one_turn(saved: Path, template: str) -> None:
    read = tokenizer(saved, template)
    text = read.decode_all(read.encode_chat([*TURNS[:3], {"role": "user", "content": "And in Rome?"}]))
    assert text.endswith("<|user|><tool_response>\nnoon\n</tool_response>\nAnd in Rome?<|end|><|assistant|>")


@pytest.mark.parametrize(("content", "thoughts"), [("", "[Noon?]"), ("Wait.", "")])
def test_thoughts_are_left_out_where_a_template_refuses_them(saved: Path, content: str, thoughts: str) -> None:
    read = tokenizer(saved, THINKING)
    turns = [TURNS[0], TURNS[1] | {"content": content, "reasoning_content": "Noon?"}, *TURNS[2:]]
    written = read.decode_all(read.encode_chat(turns, [TOOL]))
    assert written.startswith(f"{thoughts}<|user|>get_time")
    assert f"<|assistant|>{content}" in written


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        ("s:A s:B u:hi", "<|pad|>A\n\nB<|end|><|user|>hi"),
        ("s:A u:hi s:B", "<|pad|>A<|end|><|user|>hi\n\nB"),
        ("u:hi s:B s:C u:you", "<|user|>hi\n\nB\n\nC\n\nyou"),
        ("u:hi a:x s:B u:you", "<|user|>hi<|end|><|assistant|>x<|end|><|user|>B\n\nyou"),
        ("u:hi a:x t:y s:B", "<|user|>hi<|end|><|assistant|>x<|end|><|user|><tool_response>\ny\n</tool_response>\nB"),
        ("u:hi u:you s:B", None),
    ],
)
def test_system_turns_that_a_template_refuses_are_moved(saved: Path, turns: str, text: str | None) -> None:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    sent = [{"role": roles[each[0]], "content": each[2:]} for each in turns.split()]
    read = tokenizer(saved, ALTERNATING)
    if text is None:
        with pytest.raises(ValueError, match="must alternate"):
            read.encode_chat(sent)
    else:
        assert read.decode_all(read.encode_chat(sent)) == text + "<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("prompt", "begun", "is_syntax"),
    [
        ("Hi", False, True),
        ("Hi", True, False),
        ("Hi<think>\n", True, True),
        ("Hi<think>\n", False, False),
        ("<think>\nThe user", True, True),
        ("<think>\nThe user</think>", True, False),
    ],
)
def test_thoughts_are_a_model_s_if_its_template_has_their_tags_and_the_prompt_may_begin_them(
    saved: Path, prompt: str, begun: bool, is_syntax: bool
) -> None:
    read = tokenizer(saved, TEMPLATE + "{#<think></think>#}")
    stated, ids = ThoughtSyntax("<think>", ("</think>",), begun=begun), read.encode(prompt)
    assert read.is_syntax(stated, ids) is is_syntax
    assert not read.is_syntax(replace(stated, closes=("</think>", "z")), ids)
    assert not tokenizer(saved, TEMPLATE).is_syntax(stated, ids)


def test_without_tools_and_calls_a_conversation_is_as_ever(saved: Path) -> None:
    read = tokenizer(saved, TEMPLATE)
    assert read.decode_all(read.encode_chat(TURNS[:1])) == "<|user|>When?<|end|><|assistant|>"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("strftime_now('%d %b %Y, %A %H:%M:%S %s %%s')", "26 Jul 2024, Friday 00:00:00 1721952000 %s"),
        ("strftime_now('%5s %+3Es %-4%s')", "1721952000 1721952000    %s"),
        ("strftime_now('%c %Z')", "Fri Jul 26 00:00:00 2024 UTC"),
        ("['one', 'two'] | random", None),
        ("lipsum()", None),
    ],
)
def test_no_template_reads_clock_zone_or_random_numbers(
    saved: Path, monkeypatch: pytest.MonkeyPatch, zone: str, written: str, text: str | None
) -> None:
    monkeypatch.setenv("TZ", zone)
    read = tokenizer(saved, f"{{{{ {written} }}}}{TEMPLATE}")
    if text is not None:
        assert read.decode_all(read.encode_chat(TURNS[:1])).startswith(text + "<|user|>")
    else:
        with pytest.raises(ValueError, match="the chat template refuses them"):
            read.encode_chat(TURNS[:1])
