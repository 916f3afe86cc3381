"""Members that the bodies of all endpoints have in common. Every member has an effect, or is refused.

`user` and its newer names are exceptions: clients send them with every request. kolm keeps nothing about the caller but
the tenant.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig, StructuredOutputs

NAMES = {
    "eagle_head": "kolm.eagle_head",
    **{name: f"kolm.{name}" for name in ("tenant", "adapter", "workload", "nonce", "request_id")},
    "messages.allowed_tools": "tool_choice",
}
"""The caller's names of the generation server's fields and resources."""

_MOST_BIASES = 300  # as the generation server takes
_LEAST_TEMPERATURE = 1e-6  # above 0, as the generation server takes
_MOST_MEMBERS = 64  # of an object: more than any of them has

_Key = Annotated[int, Field(strict=False)]
"""A whole number as the name of a member, which JSON has as text."""


class WrongMember(ValueError):
    """A validator's error about a part of the value that it checks; `path` is that part's, relative to the value."""

    def __init__(self, path: str, problem: str, value: object) -> None:
        super().__init__(problem)
        self.path, self.value = path, value


@dataclass(frozen=True, slots=True)
class Placed:
    """A turn of a chat with its `path` in the caller's body. `paths` has the paths of those parts of the turn that have
    another name or place there.
    """

    message: Message
    path: str
    paths: Mapping[str, str] = field(default_factory=dict)


def one_system_turn(turns: Sequence[Placed]) -> list[Placed]:
    """The turns with system turns at the beginning as one, which has the path of the first."""
    first = list(takewhile(lambda turn: turn.message.role == "system", turns))
    text = "\n\n".join(turn.message.content for turn in first)
    return [*(replace(turn, message=Message("system", text)) for turn in first[:1]), *turns[len(first) :]]


def turn_names(turns: Iterable[Placed]) -> dict[str, str]:
    """The caller's names of the turns, and of their parts, by the generation server's."""
    names = {}
    for place, turn in enumerate(turns):
        own = f"messages[{place}]"
        names[own] = turn.path
        names |= {f"{own}.{part}": path for part, path in turn.paths.items()}
    return names


def only(*neutral: object) -> AfterValidator:
    """A check of a member that kolm does not have: values that ask for nothing pass, others are refused."""

    def check(value: object) -> object:
        if value is None or value in neutral:
            return value
        raise unsupported(*neutral)

    return AfterValidator(check)


def unsupported(*neutral: object) -> PydanticCustomError:
    """The error for a value that is not neutral."""
    instead = "".join(f", or send {json.dumps(each)}" for each in neutral)
    return PydanticCustomError(
        "unsupported_value", "is not supported by kolm; leave it out{instead}", {"instead": instead}
    )


def _bounded(value: Any, most: int) -> Any:
    """Refuses more than `most` members before they are checked: each wrong one would be an error of a kilobyte."""
    if isinstance(value, dict) and len(value) > most:
        raise PydanticCustomError("too_many", f"expected an object of at most {most} members")
    return value


def _each_once(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Refuses an object with two spellings of one number, such as "5" and "05"."""
    if len(found := check(value)) < len(value):
        raise ValueError("has two members for one token; expected each token once")
    return found


def _without_nulls(value: Any) -> Any:
    """An object without its null members."""
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _unsigned(seed: int | None) -> int | None:
    """An unsigned seed. OpenAI's seeds are signed: a negative seed is the 64-bit seed with the same bits."""
    return seed + 2**64 if seed is not None and -(2**63) <= seed < 0 else seed


def joined(*types: str, also: Collection[str] = ()) -> BeforeValidator:
    """A validator that joins parts of text, which chat templates do not know, into one text. Parts have one of `types`,
    and may have the members `also`.
    """

    def join(content: Any) -> Any:
        if not isinstance(content, list):
            return content
        for place, part in enumerate(map(_without_nulls, content)):
            if not isinstance(part, dict) or part.get("type") not in types or part.keys() - {"type", "text", *also}:
                expected = f'{{"type": "{types[0]}", "text": …}}'
                raise WrongMember(f"[{place}]", f"expected {expected}, other parts are not supported", part)
            if not isinstance(part.get("text"), str):
                raise WrongMember(f"[{place}].text", "expected a string", part.get("text"))
        return "".join(part["text"] for part in content)

    return BeforeValidator(join)


class Strict(BaseModel):
    """An object of JSON's own types without unknown members. A null counts as an absent member, whatever its name:
    clients send back all members of an answer, among them members of later versions of their API.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        return _without_nulls(_bounded(value, _MOST_MEMBERS))


def by_type(*types: str, default: str = "", other: str = "other") -> Discriminator:
    """A discriminator of unions by the member `type`, or by `default` if it is absent. The members of the union are
    tagged `~type`, and every value but an object is tagged as `other`.
    """

    def tag(value: Any) -> str:
        if not isinstance(value, dict):
            return "~" + other
        named = value.get("type") or default
        return "~" + named if named in types else "~"  # no member has this tag

    return Discriminator(tag)


class StreamOptions(Strict):
    """`include_usage` adds a last chunk with the usage of the whole request; with vLLM's `continuous_usage_stats`,
    every chunk has the usage so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None

    @field_validator("continuous_usage_stats")
    @classmethod
    def _with_usage(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and not info.data.get("include_usage"):
            raise ValueError("needs include_usage to be true")
        return value


class Prediction(Strict):
    """The output that the caller expects."""

    type: Literal["content"]
    content: Annotated[str, joined("text")]


class StructuredFields(Strict):
    """vLLM's structured_outputs: exactly one constraint on the form of the output."""

    json_: Annotated[dict[str, Any] | str | bool | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def constraint(self) -> StructuredOutputs:
        return StructuredOutputs(self.json_, self.regex, self.choice, self.grammar, self.json_object)


class KolmFields(Strict):
    """The member `kolm` of a body, with parameters of kolm alone: the method of speculation, members of the receipt,
    and whether the answer contains the receipt as a file.
    """

    method: str | None = None
    eagle_head: str | None = None
    k: int | None = None
    parameters: Annotated[dict[str, int], BeforeValidator(lambda value: _bounded(value, _MOST_MEMBERS))] | None = None
    verify: str | None = None
    tenant: str | None = None
    adapter: str | None = None
    workload: str | None = None
    nonce: str | None = None
    request_id: str | None = None
    receipt_files: bool | None = None


class CommonFields(Strict):
    """OpenAI's members with OpenAI's defaults, and vLLM's members for further parameters."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(le=2)] | None = None
    top_p: float | None = None
    seed: Annotated[int | None, AfterValidator(_unsigned)] = None
    stop: Annotated[list[str], Field(fail_fast=True), BeforeValidator(_as_list)] | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: (
        Annotated[
            dict[_Key, float], WrapValidator(_each_once), BeforeValidator(lambda value: _bounded(value, _MOST_BIASES))
        ]
        | None
    ) = None
    max_tokens: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    top_k: Annotated[int | None, AfterValidator(lambda value: 0 if value == -1 else value)] = None  # vLLM's "all"
    min_p: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    skip_special_tokens: Annotated[Any, only(True)] = None
    include_stop_str_in_output: Annotated[Any, only(False)] = None
    prediction: Prediction | None = None
    structured_outputs: StructuredFields | None = None
    kolm: KolmFields | None = None

    @property
    def usage_in_stream(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    @property
    def wants_files(self) -> bool:
        return bool(self.kolm and self.kolm.receipt_files)

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Sampling for the generation server, which checks the ranges. Absent temperatures are 1, as OpenAI's are.

        OpenAI takes a `top_p` of 0 and any temperature above 0, and clients send 1e-8 for greedy decoding. Both come
        so close to greedy decoding that they are it; the server itself has one form of it, temperature 0.
        """
        given: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(SamplingParams)}
        given["temperature"] = 1.0 if self.temperature is None else self.temperature
        if self.top_p == 0 or 0 < given["temperature"] < _LEAST_TEMPERATURE:
            given |= {"temperature": 0.0, "top_p": self.top_p or None}
        given |= {name: given[name] or () for name in ("stop", "stop_token_ids")}
        given |= {"max_tokens": max_tokens, "logprobs": logprobs, "logit_bias": self.logit_bias or {}}
        return SamplingParams(**given | {"structured_outputs": self.constraint()})

    def constraint(self) -> StructuredOutputs | None:
        """The constraint on the output."""
        return self.structured_outputs.constraint() if self.structured_outputs else None

    def request(self, sampling: SamplingParams, **prompt: Any) -> Request:
        """`prompt` is one of Request's: prompt, messages, token_ids."""
        own = self.kolm or KolmFields()
        words: dict[str, Any] = {name: getattr(own, name) or "" for name in ("request_id", "tenant", "nonce")}
        prediction = self.prediction.content if self.prediction else ""
        return Request(
            **prompt, **words, sampling=sampling, model=self.model, adapter=own.adapter, workload=own.workload,
            prediction=prediction, priority=self.priority or 0,
        )  # fmt: skip

    def spec_decode(self) -> SpecDecodeConfig:
        own = self.kolm or KolmFields()
        return SpecDecodeConfig(own.method, own.eagle_head, own.k, verify=own.verify, parameters=own.parameters or {})
