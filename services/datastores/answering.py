"""A model's own answers to prompts, as the documents of a datastore: drafts are best copied from the model's output.

Answers are kept on disk as they end, so that a run that was stopped or killed continues with the remaining prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from services.datastores.documents import Document
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.events import Event, Finished
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.target import Target
from services.training.prompts import Answer, AnswerFile, Prompt

AT_ONCE = 16
_UNTIMED = PassCost.line(fixed=1.0, row=1.0)  # nothing is drafted here, so nothing asks what a row costs


def answers_file(out: Path, base_cid: str, max_tokens: int) -> Path:
    """The file of a base's answers of at most `max_tokens` for the datastore `out`, beside it."""
    return out.with_name(f"{out.name}.answers-{base_cid.rpartition(':')[2][:12]}-{max_tokens}.jsonl")


def answer_prompts(
    target: Target, prompts: Sequence[Prompt], file: AnswerFile, max_tokens: int,
    progress: Callable[[int], None], stop: Callable[[], bool],
) -> bool:  # fmt: skip
    """Append the greedy answers to prompts that have none in the file. Returns whether all have one: False after
    `stop`, which is asked between passes. `progress` takes the number of answers so far.

    Raises InvalidRequest for a prompt that does not fit the target's context, OSError if the file cannot be written.
    """
    known = {(answer.id, answer.prompt) for answer in file}
    missing = [prompt for prompt in prompts if (prompt.id, prompt.tokens) not in known]
    waiting, asked, done = iter(missing), dict[str, Prompt](), len(prompts) - len(missing)
    core = EngineCore(target, {}, NoText, _UNTIMED, EngineSettings(max_sequences=AT_ONCE), lambda: 0.0)

    def sink(event: Event) -> None:
        if isinstance(event, Finished):
            prompt = asked.pop(event.request_id)
            file.append([Answer(prompt.id, prompt.domain, 0.0, prompt.tokens, event.outcome.token_ids)])

    progress(done)
    while not stop():
        for prompt in islice(waiting, AT_ONCE - len(asked)):
            asked[prompt.id] = prompt
            core.add(EngineRequest(prompt.id, prompt.tokens, SamplingParams(max_tokens=max_tokens)), sink)
        if core.idle:
            return True
        before = len(asked)
        core.step()
        done += before - len(asked)
        progress(done)
    return False


def answer_documents(file: AnswerFile, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> Iterator[Document]:
    """The answers to these prompts as texts, with the special token that ends them, which is drafted as well."""
    wanted = {(prompt.id, prompt.tokens) for prompt in prompts}
    for answer in file:
        if (answer.id, answer.prompt) in wanted:
            yield Document(answer.id, tokenizer.fast.decode(answer.output, skip_special_tokens=False))
