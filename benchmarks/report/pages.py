"""`python -m benchmarks report`: render the result files into the marked blocks of README.md and docs.

A block is between `<!-- benchmarks: NAME -->` and `<!-- end -->`. `tests/unit/benchmarks/test_report.py` compares the
pages with this module's output for `benchmarks/results`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.machine import RESULTS
from benchmarks.measurement import Measurement, measurements
from benchmarks.report import audits, drafts, ledger, servers
from benchmarks.report.readme import readme
from benchmarks.report.tables import FOLDER, Results, machines
from benchmarks.report.targets import targets

_ROOT = Path(__file__).parents[2]
_PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("benchmarks", "serving", "heads", "engines", "scaling")),
    "benchmarks/results/README.md",
)
_BLOCK = re.compile(r"(<!-- benchmarks: (?P<name>[a-z0-9 -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_RENDERERS: Mapping[str, Callable[[Results], str]] = {
    "readme": readme,
    "machines": machines,
    "targets": targets,
    "speculation": drafts.speculation,
    "kinds": drafts.kinds,
    "head": drafts.head,
    "llama-cpp": partial(servers.llama_cpp, long=False),
    "llama-cpp long": partial(servers.llama_cpp, long=True),
    "passes": servers.passes,
    "losses": servers.losses,
    "callers": servers.callers,
    "start": servers.start,
    "first start": servers.first_start,
    "identity": audits.identity,
    "identity of others": audits.identity_of_others,
    "verdicts": audits.verdicts,
    "faults": audits.faults,
    "lies": audits.lies,
    "ledger": ledger.ledger,
    "bundle": ledger.bundle,
    "fleet": ledger.fleet,
}


def write() -> None:
    """Rewrite the pages whose blocks have changed."""
    for path, text in render().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"rendered {path.relative_to(_ROOT)}")


def render(pages: Iterable[str] = _PAGES, folder: Path = RESULTS) -> dict[Path, str]:
    """Text of each page with its blocks rendered. Raises KeyError for a block of an unknown name."""
    results = by_benchmark(measurements(folder))
    return {path: render_text(path.read_text(), results, path.parent) for path in map(_ROOT.joinpath, pages)}


def render_text(text: str, results: Results, folder: Path = _ROOT) -> str:
    """`text`, of a page in `folder`, with its blocks rendered. Raises KeyError for a block of an unknown name."""
    there = os.path.relpath(RESULTS, folder) + "/"

    def block(match: re.Match[str]) -> str:
        rendered = _RENDERERS[match["name"]](results).replace(FOLDER, "" if there == "./" else there)
        return f"{match[1]}{rendered}\n{match[3]}"

    return _BLOCK.sub(block, text)


def by_benchmark(found: Iterable[Measurement]) -> Results:
    results: dict[str, list[Measurement]] = {}
    for record in found:
        results.setdefault(record.benchmark, []).append(record)
    return results
