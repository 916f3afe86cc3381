"""JSON schemas for llguidance: supported keywords, and numbers that its float64 arithmetic would change.

A number that the library would change to its neighbour is written into the grammar by its digits if the keywords around
it are simple, and is refused by its path otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn, TypeGuard
from urllib.parse import unquote

Number = int | float | Decimal

MOST_DIGITS = 308  # of whole numbers within float64
_SHOWN = 40  # characters of a number or a keyword in an error
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # in JSON only as \uXXXX
_LAYOUT = "x-guidance"
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The layout of Python's `json.dumps`. A schema's own `x-guidance` may change it."""
JSON_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
"""All but \\uXXXX, in which an output could write the name of a member again, as that of an additional member."""

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "integer": (*_BOUNDS, "multipleOf"),
    "number": (*_BOUNDS, "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "additionalItems", "prefixItems", "minItems", "maxItems"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
    ),
}  # fmt: skip
_APPLIED = frozenset(("const", "enum", "anyOf", "oneOf", "allOf", "$ref"))
_CONSTRAINTS = _APPLIED | {"type"} | {keyword for keywords in _OF_TYPE.values() for keyword in keywords}
ANNOTATIONS = frozenset(
    (
        "$anchor", "$comment", "$defs", "$id", "$schema", "$vocabulary", "contentEncoding", "contentMediaType",
        "contentSchema", "default", "definitions", "deprecated", "description", "discriminator", "example", "examples",
        "externalDocs", "id", "readOnly", "title", "writeOnly", "xml",
    )
)  # fmt: skip
"""Keywords of JSON Schema and OpenAPI that forbid no value. Names that begin with x- are accepted too."""
_DEFINITIONS = ("$defs", "definitions")

_SIMPLE = (
    "const, enum, anyOf, $ref, type with minimum and maximum, properties, required, additionalProperties, items, "
    "minItems and maxItems"
)
_NAME = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/'  # a JSON string


class SchemaRefused(ValueError):
    """A schema that cannot be made into a grammar. `path`: a JSON pointer to the place."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"at {path or '/'}: {message}")


def read_schema(text: str) -> Any:
    """The JSON value; a number is an int, a float if its `repr` is the decimal as written, or else a Decimal.

    Raises ValueError, also for half surrogate pairs; SchemaRefused for NaN and numbers beyond float64, which JSON
    writers turn into Infinity.
    """
    return _read(text, _real)


def read_json(text: str) -> Any:
    """The JSON value; a number is an int or a float. Raises as `read_schema` does."""
    return _read(text, float)


def _read(text: str, parse_float: Callable[[str], Number]) -> Any:
    try:
        value = json.loads(text, parse_int=_whole, parse_float=parse_float)
        for path, number in _numbers(value):
            if not math.isfinite(number):
                why = f"is not a finite number of float64; expected one of at most {MOST_DIGITS} digits, or a string"
                raise SchemaRefused(path, why)
        dumped(value).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def _whole(digits: str) -> Number:
    """Infinity for numbers beyond float64."""
    return int(digits) if len(digits) <= MOST_DIGITS else Decimal("Infinity")


def _real(digits: str) -> float | Decimal:
    """Infinity for an exponent that a Decimal does not have, of 19 digits and more."""
    try:
        value, exact = float(digits), Decimal(digits)
    except InvalidOperation:
        return Decimal("Infinity")
    return value if _is_shortest(value, exact) else exact


def _is_shortest(value: float, exact: Decimal) -> bool:
    """Whether the shortest decimal that rounds to `value` is `exact`."""
    return Decimal(repr(value)) == exact


def dumped(value: Any) -> str:
    """The JSON text. Decimals are rounded to float64: a Decimal that constrains is not sent to the library."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=float)


class SchemaDecoder(json.JSONDecoder):
    """Reads schemas with the number types of `read_schema`."""

    def __init__(self) -> None:
        super().__init__(parse_int=_whole, parse_float=_real)


def check_schema(schema: Any) -> None:
    """Raises SchemaRefused for a keyword that is not known, and for a subschema that is not a schema."""
    for path, each in _reached(schema):
        _check_keywords(path, each)
        for at, below in _applied(schema, path, each):
            if not isinstance(below, dict | bool | None):
                raise SchemaRefused(at, "expected a schema: an object, true or false")


def check_numbers(schema: Any) -> None:
    """Raises SchemaRefused for a number that the library would change."""
    for path, each in _reached(schema):
        for at, number in _changed_numbers(each):
            message = (
                f"{str(number)[:_SHOWN]} is not one of the library's numbers (float64); expected a rule or a string"
            )
            raise SchemaRefused(path + at, message)


def exact_grammar(schema: Any) -> str | None:
    """Lark for a schema with numbers that the library would change; None if it keeps all of them.

    Raises SchemaRefused if there are too many keywords around such a number.
    """
    if any(_is_changed(each) for _, each in _reached(schema)):
        return _ExactGrammar(schema).text()
    return None


def schema_rule(schema: Any) -> str:
    """The body of a Lark rule for the values of the schema. Raises SchemaRefused as `exact_grammar` does."""
    exact = exact_grammar(schema)
    return _library_rule(schema) if exact is None else f"%lark {{\n{exact}\n}}"


def _library_rule(schema: Any) -> str:
    return f"%json {dumped(with_options(schema if isinstance(schema, dict) else {}, JSON_LAYOUT | JSON_ESCAPES))}"


def with_options(schema: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with options of the library that it does not set itself."""
    return schema | {_LAYOUT: {**options, **schema.get(_LAYOUT, {})}}


def _reached(root: Any, path: str = "", schema: Any = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """`schema`, by default `root`, and the schemas that it applies, once each, with their paths from `root`."""
    seen, places = set[int](), [(path, root if schema is None else schema)]
    while places:
        path, each = places.pop()
        if isinstance(each, dict) and id(each) not in seen:
            seen.add(id(each))
            yield path, each
            places += reversed(list(_applied(root, path, each)))


def _applied(root: Any, path: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        at = f"{path}/{keyword}"
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            yield from ((f"{at}/{_escaped(name)}", each) for name, each in value.items())
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(value, list):
            yield from ((f"{at}/{place}", each) for place, each in enumerate(value))
        elif keyword in ("items", "additionalItems", "additionalProperties"):
            yield at, value
        elif keyword == "$ref" and isinstance(value, str):
            yield from _targets(root, value)


def _targets(root: dict[str, Any], reference: str) -> Iterator[tuple[str, Any]]:
    """The schema at a JSON pointer within `root`; all definitions if the reference is of another kind."""
    if reference == "#" or reference.startswith("#/"):
        yield reference[1:], _at(root, unquote(reference))
        return
    for group in _DEFINITIONS:
        if isinstance(given := root.get(group), dict):
            yield from ((f"/{group}/{_escaped(name)}", each) for name, each in given.items())


def _at(root: Any, pointer: str) -> Any:
    """The value at a JSON pointer; None if there is none, which the library refuses."""
    value = root
    for part in pointer.split("/")[1:]:
        name = _unescaped(part)
        if isinstance(value, list):
            number = int(name) if name.isdecimal() and len(name) <= MOST_DIGITS else len(value)
            value = value[number] if number < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _check_keywords(path: str, schema: dict[str, Any]) -> None:
    for keyword, value in schema.items():
        if keyword == _LAYOUT and (path or not isinstance(value, dict)):
            raise SchemaRefused(f"{path}/{keyword}", "lays out the whole output; expected an object, at the top")
        if keyword == "nullable" and value is not False:
            raise SchemaRefused(f"{path}/{keyword}", 'is not of JSON Schema; expected "type": [..., "null"] instead')
        if keyword in ("const", "enum") and any(map(_UNWRITABLE.search, _texts(value))):
            why = "has a control character, which JSON writes as \\uXXXX and outputs cannot; expected other texts"
            raise SchemaRefused(f"{path}/{keyword}", why)
        if keyword not in _CONSTRAINTS | ANNOTATIONS | {"nullable"} and not keyword.startswith("x-"):
            raise SchemaRefused(f"{path}/{_escaped(keyword)[:_SHOWN]}", "is not a keyword that a grammar can keep to")


def _texts(value: Any) -> Iterator[str]:
    """The texts within a constant, without names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _is_changed(schema: dict[str, Any]) -> bool:
    return next(_changed_numbers(schema), None) is not None


def _changed_numbers(schema: dict[str, Any]) -> Iterator[tuple[str, Number]]:
    """The numbers that the library would change, of this schema without the schemas that it applies."""
    for keyword in schema.keys() & {"const", "enum"}:
        yield from ((f"/{keyword}{at}", each) for at, each in _numbers(schema[keyword]) if not _is_kept(each))
    for bound in _BOUNDS:
        value = schema.get(bound)
        if _is_number(value):
            exclusive = bound.startswith("exclusive") or schema.get(f"exclusive{bound.capitalize()}") is True
            if not _is_kept_bound(value, exclusive):
                yield f"/{bound}", value
    if isinstance(step := schema.get("multipleOf"), Decimal):
        yield "/multipleOf", step


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, Number]]:
    if _is_number(value):
        yield path, value
    elif isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(each, f"{path}/{_escaped(str(name))}")


def _is_number(value: Any) -> TypeGuard[Number]:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_kept(number: Number) -> bool:
    """Whether the library keeps this constant: it writes int64 by way of a float64, others as its shortest decimal."""
    if not isinstance(number, int):
        return isinstance(number, float)
    if abs(number) < 2**63:
        return int(float(number)) == number
    return _is_shortest(float(number), Decimal(number))


def _is_kept_bound(number: Number, exclusive: bool) -> bool:
    """Whether the library keeps this bound. It adds 1.0 to an exclusive bound, and has 18 digits."""
    if isinstance(number, Decimal) or abs(number) >= 10**18:
        return False
    if abs(number) < 2**53:
        return True
    return not exclusive and int(float(number)) == number and _is_shortest(float(number), Decimal(number))


class _ExactGrammar:
    """Writes Lark for a schema with numbers that the library changes. Other subschemas are left to the library."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._rules: dict[str, str] = {}
        self._named: dict[str, str] = {}  # rules by reference
        self._touched = self._schemas_above_changes()

    def text(self) -> str:
        """Raises SchemaRefused."""
        if _LAYOUT in self._root:
            self._refuse("", self._root)
        start = self._body("", self._root)
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items())])

    def _schemas_above_changes(self) -> set[int]:
        """Identities of the schemas with a number that the library changes, and of all schemas that apply them."""
        above: dict[int, list[int]] = {}
        changed = list[int]()
        for path, each in _reached(self._root):
            changed += [id(each)] * _is_changed(each)
            for _, below in _applied(self._root, path, each):
                above.setdefault(id(below), []).append(id(each))
        touched = set[int]()
        while changed:
            if (found := changed.pop()) not in touched:
                touched.add(found)
                changed += above.get(found, [])
        return touched

    def _is_touched(self, path: str, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return False
        return _is_changed(schema) or any(id(each) in self._touched for _, each in _applied(self._root, path, schema))

    def _body(self, path: str, schema: Any) -> str:
        """The symbols of a rule that match the values of the schema."""
        if not self._is_touched(path, schema):
            return self._by_library(path, schema)
        keywords = schema.keys() & _CONSTRAINTS
        if len(keywords & {"const", "enum"}) == 1 and keywords <= {"const", "enum", "type"}:
            return self._literals(path, schema)
        match [(keyword, schema[keyword]) for keyword in keywords]:
            case [("anyOf", [_, *_] as some)]:
                return _either(self._body(f"{path}/anyOf/{place}", each) for place, each in enumerate(some))
            case [("allOf", [only])]:
                return self._body(f"{path}/allOf/0", only)
            case [("$ref", str() as reference)]:
                return self._reference(path, schema, reference)
        if keywords & _APPLIED:
            self._refuse(path, schema)
        return _either(self._of_type(path, schema, name) for name in _types(schema))

    def _by_library(self, path: str, schema: Any) -> str:
        """A rule by the library for a boolean schema, or a schema whose numbers are kept, with its definitions."""
        if not isinstance(schema, dict):
            return _library_rule({} if schema is True else {"allOf": [schema]})
        own = {keyword: value for keyword, value in schema.items() if keyword not in _DEFINITIONS}
        for _, each in list(_reached(self._root, path, own)):
            if isinstance(reference := each.get("$ref"), str):
                lead, *parts = unquote(reference).split("/")
                if lead != "#" or len(parts) < 2 or parts[0] not in _DEFINITIONS:
                    self._refuse("", self._root)
                pointer = f"#/{parts[0]}/{parts[1]}"
                own.setdefault(parts[0], {})[_unescaped(parts[1])] = _at(self._root, pointer)
        return _library_rule(own)

    def _reference(self, path: str, schema: dict[str, Any], reference: str) -> str:
        if reference not in self._named:
            target = next(_targets(self._root, reference), ("", None))[1]
            if not reference.startswith("#") or not isinstance(target, dict):
                self._refuse(path, schema)
            name = self._named[reference] = self._rule("")
            self._rules[name] = self._body(reference[1:], target)
        return self._named[reference]

    def _rule(self, body: str, prefix: str = "r") -> str:
        """The name of a new rule; `prefix` "T" makes it a terminal, by Lark's upper case."""
        name = f"{prefix}{len(self._rules)}"
        self._rules[name] = body
        return name

    def _literals(self, path: str, schema: dict[str, Any]) -> str:
        types = _types(schema)
        values = [schema["const"]] if "const" in schema else schema["enum"]
        values = [each for each in values if any(_is_of(each, name) for name in types)]
        if not values:
            raise SchemaRefused(path, "allows no value")
        plain = [_quoted(_json(each)) for each in values if not isinstance(each, dict | list)]
        joined = [_pieces(each) for each in values if isinstance(each, dict | list)]
        return _either([self._rule(" | ".join(plain), "T"), *joined] if plain else joined)

    def _of_type(self, path: str, schema: dict[str, Any], name: str) -> str:
        part = {"type": name} | {keyword: schema[keyword] for keyword in _OF_TYPE.get(name, ()) if keyword in schema}
        if not self._is_touched(path, part):
            return self._by_library(path, part)
        keywords = part.keys()
        if name == "object" and keywords <= {"type", "properties", "required", "additionalProperties"}:
            return self._object(path, part)
        if name == "array" and keywords <= {"type", "items", "minItems", "maxItems"}:
            return self._array(path, part)
        if name in ("integer", "number"):
            return self._number(path, part)
        self._refuse(path, schema)

    def _number(self, path: str, schema: dict[str, Any]) -> str:
        given = {bound: schema[bound] for bound in _BOUNDS if bound in schema}
        taken = _BOUNDS if schema["type"] == "integer" else ("minimum", "maximum")
        if "multipleOf" in schema or not all(each in taken and type(given[each]) is int for each in given):
            self._refuse(path, schema)
        low = max((given[each] + each.startswith("excl") for each in given if "inimum" in each), default=None)
        high = min((given[each] - each.startswith("excl") for each in given if "aximum" in each), default=None)
        if low is not None and high is not None and low > high:
            raise SchemaRefused(path, "allows no number")
        return f"/{_integers(low, high) if schema['type'] == 'integer' else _decimals(low, high)}/"

    def _array(self, path: str, schema: dict[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if type(least) is not int or not (most is None or (type(most) is int and most >= max(least, 1))):
            self._refuse(path, schema)
        if isinstance(schema.get("items"), list):
            why = "is a list of schemas, with a number that is not one of a grammar (float64); expected one schema"
            raise SchemaRefused(f"{path}/items", f"{why}, or the number as a string")
        item = self._rule(self._body(f"{path}/items", schema.get("items", True)))
        count = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
        more = "" if most == 1 else f'(", " {item}){{{count}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _object(self, path: str, schema: dict[str, Any]) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", True)
        if not isinstance(properties, dict) or not isinstance(required, list):
            self._refuse(path, schema)
        names = list(dict.fromkeys([*properties, *map(str, required)]))
        first = after = ""  # the rules after the brace and after a member, built from the end
        if others is not False:
            taken = " | ".join(_quoted(_json(name)) for name in names)
            name = self._rule(_NAME + (f" & ~({taken})" if names else ""), "T")
            member = self._rule(f'{name} ": " {self._body(f"{path}/additionalProperties", others)}')
            first, after = f'({member} (", " {member})*)?', f'(", " {member})*'
        for name in reversed(names):
            is_named = name in properties
            where = f"{path}/properties/{_escaped(name)}" if is_named else f"{path}/additionalProperties"
            value = properties[name] if is_named else others
            if value is False and name not in required:
                continue
            alone = self._rule(f'{_quoted(_json(name))} ": " {self._body(where, value)} {after}')
            if name in required:
                first, after = alone, f'", " {alone}'
            else:
                first = self._rule(f"{alone} | {first}" if first else f"{alone}?")
                after = self._rule(f'", " {alone} | {after}' if after else f'(", " {alone})?')
        return f'"{{" {first} "}}"'

    def _refuse(self, path: str, schema: dict[str, Any]) -> NoReturn:
        reached = _reached(self._root, path, schema)
        found = ((at + more, number) for at, each in reached for more, number in _changed_numbers(each))
        at, number = next(found, (path, ""))
        raise SchemaRefused(
            at,
            f"{str(number)[:_SHOWN]} is not one of the numbers of a grammar (float64), and the keywords of "
            f"{path or 'the schema'} are too many to write it by its digits; expected only {_SIMPLE}, or a string",
        )


def _types(schema: dict[str, Any]) -> list[str]:
    """The types that the schema allows; all types if it names none (a number may be an integer)."""
    named = schema.get("type", [name for name in _OF_TYPE if name != "integer"])
    return [str(each) for each in (named if isinstance(named, list) else [named])]


def _is_of(value: Any, name: str) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value == Decimal(value).to_integral_value())
        case "number":
            return _is_number(value)
    return isinstance(value, {"string": str, "array": list, "object": dict}.get(name, ()))


def _either(bodies: Iterable[str]) -> str:
    some = list(bodies)
    return some[0] if len(some) == 1 else f"({' | '.join(some)})"


def _quoted(text: str) -> str:
    """A literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def _json(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else dumped(value)


def _pieces(value: Any) -> str:
    """The JSON text in the symbols of schemas' grammars, so that alternatives may have a common beginning."""
    if isinstance(value, dict):
        inner = [f'{_quoted(_json(name))} ": " {_pieces(each)}' for name, each in value.items()]
        return " ".join(['"{"', ' ", " '.join(inner), '"}"'])
    if isinstance(value, list):
        return " ".join(['"["', ' ", " '.join(map(_pieces, value)), '"]"'])
    return _quoted(_json(value))


def _integers(low: int | None, high: int | None) -> str:
    """A regular expression of the whole numbers from `low` to `high`, both included."""
    parts = []
    if low is None or low < 0:
        parts.append("-" + _naturals(1 if high is None else max(1, -high), None if low is None else -low))
    if high is None or high >= 0:
        parts.append(_naturals(max(low or 0, 0), high))
    return f"({'|'.join(parts)})"


def _decimals(low: int | None, high: int | None) -> str:
    """A regular expression of the decimal numbers from `low` to `high`, both included."""
    parts = []
    if low is None or low < 0:
        parts.append("-" + _magnitudes(0 if high is None else max(0, -high), None if low is None else -low))
    if high is None or high >= 0:
        parts.append(_magnitudes(max(low or 0, 0), high))
    return f"({'|'.join(parts)})"


def _magnitudes(low: int, high: int | None) -> str:
    if high is None:
        return rf"{_naturals(low, None)}(\.[0-9]+)?"
    below = rf"{_naturals(low, high - 1)}(\.[0-9]+)?|" if low < high else ""
    return rf"({below}{high}(\.0+)?)"


def _naturals(low: int, high: int | None) -> str:
    parts, first = [], str(low)
    last = "9" * len(first) if high is None else str(high)
    for length in range(len(first), len(last) + 1):
        least = first if length == len(first) else "1" + "0" * (length - 1)
        parts.append(_digits(least, last if length == len(last) else "9" * length))
    if high is None:
        parts.append(f"[1-9][0-9]{{{len(first)},}}")
    return f"({'|'.join(parts)})"


def _digits(low: str, high: str) -> str:
    """A regular expression of the numbers between two numbers of the same length."""
    if low == high:
        return low
    if not low.strip("0") and not high.strip("9"):
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return low[0] + _digits(low[1:], high[1:])
    rest = len(low) - 1
    least, most, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):
        parts.append(low[0] + _digits(low[1:], "9" * rest))
        least += 1
    if high[1:].strip("9"):
        parts.append(high[0] + _digits("0" * rest, high[1:]))
        most -= 1
    if least <= most:
        parts.append(f"[{least}-{most}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"({'|'.join(parts)})"
