"""Thoughts in an output's text, however it is cut into pieces."""

import pytest

from services.client.generation.output_reader import OutputReader, Thought, ThoughtReader
from services.client.generation.request import ThoughtSyntax, ToolCallSyntax
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text, ToolCallReader
from services.generation.engine.text.thoughts import known_thoughts

TAGS = ThoughtSyntax("<think>", ("</think>",))
BEGUN = ThoughtSyntax("<think>", ("</think>",), begun=True)
HARMONY = ThoughtSyntax("analysis", ("assistantfinal", "assistantcommentary", "assistant to="), "final")
CALLS = ToolCallSyntax(" to=functions.", "commentary json", None, "")


def read(syntax: ThoughtSyntax, text: str, size: int) -> tuple[str, str, str, str]:
    """Thought, text, name and arguments."""
    reader = OutputReader(ThoughtReader(syntax), ToolCallReader(CALLS, ["look"]))
    parts = [part for at in range(0, len(text), size) for part in reader.feed(text[at : at + size])] + reader.end()
    kinds = (Thought, Text, Arguments)
    thought, said, arguments = ("".join(p.text for p in parts if isinstance(p, kind)) for kind in kinds)
    return thought, said, "".join(p.name for p in parts if isinstance(p, CallBegins)), arguments


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("syntax", "text", "found"),
    [
        (TAGS, "<think>\nLet me see, 1 < 2.\n</think>\n\nYes.", ("Let me see, 1 < 2.", "Yes.", "", "")),
        (TAGS, "<think>\n\n</think>\n\nYes.", ("", "Yes.", "", "")),
        (TAGS, "Yes, <think> is a tag.", ("", "Yes, <think> is a tag.", "", "")),
        (TAGS, "<thin", ("", "<thin", "", "")),
        (TAGS, "<think>cut </thi", ("cut </thi", "", "", "")),
        (BEGUN, "I see.\n</think>\nYes.", ("I see.", "Yes.", "", "")),
        (BEGUN, "I see", ("I see", "", "", "")),
        (HARMONY, "analysisAs an assistant I say.assistantfinalYes.", ("As an assistant I say.", "Yes.", "", "")),
        (HARMONY, "finalYes.", ("", "Yes.", "", "")),
        (HARMONY, 'analysisLook.assistant to=functions.lookcommentary json{"a": 1}', ("Look.", "", "look", '{"a": 1}')),
    ],
)
def test_thoughts_are_told_from_the_answer(
    syntax: ThoughtSyntax, text: str, found: tuple[str, str, str, str], size: int
) -> None:
    assert read(syntax, text, size) == found


def test_templates_say_how_their_models_think() -> None:
    assert known_thoughts("{{ '<think>' }} … </think>") is not None
    harmony = known_thoughts("<|channel|>analysis<|message|>")
    assert harmony is not None
    assert (harmony.open, harmony.bare) == ("analysis", "final")
    assert known_thoughts("{{ messages }}") is None
