"""The `kolm` commands of the documentation: which of them a test runs as they stand, and why others are only parsed.

`tests/unit/docs/test_readme.py` parses every one and holds these tables against the pages; the commands of `SMOLLM2`
and `DEMO_BASE` are run, in this order, by `tests/e2e/test_documented_commands.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "demo/**/*.md", "ledger/README.md")
    for path in sorted(ROOT.glob(pattern))
]

SMOLLM2 = (
    'kolm generate --chat "Why is the sky blue?" --temperature 0.7 --seed 7 --verify inline --max-tokens 48',
    "kolm audit run --model smollm2",
    "kolm ledger verify",
    'kolm generate --chat "Who was Ada Lovelace? Answer as JSON." --json-schema person.json --save ada.json',
    "kolm replay ada.json --model smollm2 --trusted .kolm/trusted",
    'kolm generate "The sky is" --max-tokens 32 --save sky.json',
    "kolm verify sky.json --trusted .kolm/trusted --model smollm2",
    "kolm replay sky.json --model smollm2",
    'kolm generate "The ledger keeps" --promise promise.json',
    'kolm generate "def add(a, b):" -n 2 --logprobs 3 --presence-penalty 0.5',
    'git log -20 | kolm generate --system "Summarise." --min-tokens 8',
    'kolm generate --method eagle3 "def area("',
    'kolm generate --method eagle3 --k 1 "def area("',
    "kolm generate --chat -f edit.txt --prediction before.py --max-tokens 2000",
    "kolm batch requests.jsonl --out results.jsonl",
    'kolm chat --system "Answer in one sentence." --save talk.tar.gz',
    "kolm receipts list",
    "kolm receipts list --tenant acme --outcome DEVIATION --since 2026-01-02",
    "kolm receipts list --complete --remember seen.checkpoint",
    "kolm receipts show RECEIPT_ID",
    "kolm receipts promised promise.json --remember seen.checkpoint",
    "kolm receipts export RECEIPT_ID deviating.json",
    "kolm replay deviating.json --model smollm2 --trusted .kolm/trusted",
    "kolm receipts export RECEIPT_ID receipt.cose --format cose",
    "kolm receipts export RECEIPT_ID receipt.intoto.json --format in-toto --key my-key.pem",
    "kolm verify receipt.cose",
    "kolm verify receipt.intoto.json --trusted .kolm/trusted",
    "kolm halts list",
    "kolm retention show",
    "kolm audit obligations",
    "kolm audit obligations --open",
    "kolm audit jobs",
    'kolm status && kolm generate "Where is my parcel?" && kolm ledger verify',
    "kolm ledger head --note > seen.checkpoint",
    "kolm ledger export log.tar.gz",
    "kolm ledger export receipts.csv --format csv",
    "kolm verify log.tar.gz --trusted .kolm/trusted",
    "kolm verify log.tar.gz --promise promise.json",
    "kolm verify log.tar.gz --checkpoint seen.checkpoint",
    "kolm verify talk.tar.gz --model smollm2",
    "kolm trust list",
    'kolm ledger erase 0199… --reason "the tenant asked for it"',
    "kolm retention set --days 180",
    "kolm retention set --days 30 --tenant acme",
    "kolm tokens create acme-app --role generate --tenant acme --expires 90d",
    "kolm tokens create compliance --role audit --tenant '*'",
    "kolm tokens create ledger-mirror --role read --tenant '*' --certificate mirror.example",
    "kolm tokens create generation --role append --role read --tenant '*' --out tokens/generation",
    "kolm tokens create auditor --role append --role read --role audit --tenant '*' --out tokens/auditor",
    "kolm tokens list",
    "kolm tokens revoke acme-app",
    "kolm registry collect --dry-run",
    "kolm registry collect --older-than 7d",
    "kolm init deployment --host ledger.example",
)
"""Run in a folder where `kolm up --head demo/smollm2/head --shared-corpus demo/smollm2/store` has its state."""

DEMO_BASE = (
    "kolm heads push demo/head --name support-head --model demo/base",
    "kolm heads list",
    "kolm heads pull support-head",
    "kolm heads verify .kolm/heads/<digits> --offline",
    'kolm generate --chat --adapter courteous "My printer does not print."',
    'kolm generate --chat --adapter courteous --method eagle3 "Where is my parcel?"',
    'kolm generate --chat --method draft "Where is my parcel?"',
    'kolm heads withdraw support-head --reason "trained on the wrong data"',
)
"""Run where `kolm up --model demo/base` has head, adapters and draft model of the demo."""

ONLY_PARSED = {
    "kolm up": "stays in the foreground; tests/e2e/test_recorded_outputs.py starts it as the README does",
    "KOLM_LEDGER_DATA_DIR=/var/lib/kolm/ledger kolm serve": "the same, by a variable",
    "kolm serve": "stays in the foreground, and names hosts and paths of an operator's own",
    "kolm monitor": "follows a log of another host",
    "kolm heads train": "trains for as long as it is given",
    "kolm heads kscore": "minutes of decoding; tests/integration/cli/test_kscore.py measures a tiny head",
    "kolm heads push demo/head --name demo": "the same with another name",
    "kolm heads push ./my-head": "pushes what a training has made",
    "kolm corpus build": "minutes on folders as large as these; tests/integration/cli/test_corpus.py builds one",
    "kolm halts resume": "needs an open halt: tests/e2e/test_deviation.py",
    "kolm halts sign": "needs an open halt: tests/e2e/test_deviation.py",
    "kolm trust add": "names a key on another disk: tests/integration/cli/test_trust.py",
    "kolm trust remove": "names a key by its digits: tests/integration/cli/test_trust.py",
    "kolm audit obligations --database": "needs a log at rest: tests/integration/auditor/test_command_line.py",
    "kolm ledger fsck": "names a PostgreSQL of an operator's own",
    "kolm generate --generation HEAD": "asks another host: tests/cluster/test_ray.py",
    "kolm ledger head --ledger": "asks another host",
    "kolm ledger tiles": "writes where a web server reads",
    "kolm ledger export receipts.parquet": "entries 1000 to 2000; the same as CSV is run",
    "kolm receipts list --head": "entries 1000 to 1999 of a head",
    "kolm verify receipt.json": "needs a promise about that very receipt: tests/e2e/test_lies.py",
}
"""Beginnings of commands, and why no test runs them as they stand."""


def shell_lines(document: str) -> Iterator[str]:
    """Indented or fenced lines that run `kolm`, without prompt and comment; continued lines in one."""
    text = re.sub(r" \\\n +", " ", (ROOT / document).read_text("utf-8"))
    for line in text.splitlines():
        shown = re.match(r"^(?: {4}|\$ )(\S.*)$", line)
        command = shown[1].split("  #")[0].strip() if shown else ""
        if re.search(r"(?:^|[|&] |^[A-Z_]+=\S+ )kolm [a-z]", command):
            yield command


def kolm_commands(line: str) -> list[list[str]]:
    """The words after `kolm` of each of its commands in a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in ("|", "&&", ">"):
            commands.append([])
        else:
            commands[-1].append(word)
    bare = [words[1:] if words and re.match(r"[A-Z_]+=", words[0]) else words for words in commands]
    return [words[1:] for words in bare if words[:1] == ["kolm"]]


ALL = sorted({line for document in DOCUMENTS for line in shell_lines(document)})
