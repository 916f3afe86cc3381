"""The table of methods: what stands in it can be told apart by name."""

from __future__ import annotations

from services.generation.drafting.methods import METHODS, method_of


def test_names_of_methods_and_parameters_are_unique() -> None:
    names = [spec.name for spec in METHODS]
    parameters = [each.name for spec in METHODS for each in spec.parameters]
    assert len(set(names)) == len(names)
    assert len(set(parameters)) == len(parameters)
    assert not {"auto", "off"} & set(names)
    assert all(method_of(name) == name for name in names)


def test_what_needs_something_says_what_is_missing_and_which_flag_brings_it() -> None:
    assert all(bool(spec.missing) == bool(spec.flag) for spec in METHODS)
    assert any(spec.missing is None for spec in METHODS)  # `auto` has something to fall back on
    assert all(spec.least < spec.most for method in METHODS for spec in method.parameters)
