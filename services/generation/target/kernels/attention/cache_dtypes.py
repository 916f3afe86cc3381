"""The forms of keys and values in the cache, by the names of `--cache-dtype`."""

from __future__ import annotations

from collections.abc import Mapping

from services.generation.target.kernels.attention.form import Form
from services.generation.target.kernels.attention.numbers import Numbers
from services.generation.target.kernels.attention.rounded import Rounded

FORMS: Mapping[str, Form] = {form.name: form for form in (Numbers("float32", 4), Numbers("bfloat16", 2), Rounded())}
