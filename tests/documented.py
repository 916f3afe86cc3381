"""The `kolm` commands of the documentation, in the order in which tests run them, unchanged.

`tests/unit/docs/test_pages.py` parses every one and holds these tables against the pages.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "demo/**/*.md", "deploy/**/*.md", "ledger/README.md")
    for path in sorted(ROOT.glob(pattern))
]

SMOLLM2 = (
    'kolm generate --chat "What is gravity?" --max-tokens 128 --save gravity.json',
    "kolm replay gravity.json --model smollm2",
    "kolm receipts list",
    'kolm generate --chat "Who was Ada Lovelace? Answer as JSON." --json-schema person.json --save ada.json',
    "kolm replay ada.json --model smollm2 --trusted .kolm/trusted",
    "kolm ledger verify",
    'kolm generate "The ledger keeps" --promise promise.json --save receipt.json',
    "kolm verify receipt.json --promise promise.json",
    'kolm generate --chat "Explain photosynthesis in one sentence." -n 2 --temperature 0.7 --logprobs 3',
    'git log -20 | kolm generate --system "Summarise." --min-tokens 8',
    'kolm generate --method eagle3 "def area("',
    "kolm generate --chat -f edit.txt --prediction before.py --max-tokens 2000",
    'kolm chat --system "Answer in one sentence." --save talk.tar.gz',
    "kolm receipts list --limit 100000 --json > receipts.json",
    "kolm receipts list --tenant acme --outcome DEVIATION --since 2026-01-02",
    "kolm receipts list --complete --remember seen.checkpoint",
    "kolm receipts show RECEIPT_ID",
    "kolm receipts promised promise.json --remember seen.checkpoint",
    "kolm receipts export RECEIPT_ID deviating.json",
    "kolm replay deviating.json --model smollm2 --trusted .kolm/trusted",
    "kolm receipts export RECEIPT_ID receipt.cose --format cose",
    "kolm verify receipt.cose",
    "kolm receipts list --head cidv1:sha256:… --first 0 --last 999 --limit 1000 --complete --remember seen.checkpoint",
    "kolm halts list",
    "kolm retention",
    "kolm ledger verify --obligations",
    'kolm status && kolm generate "Where is my parcel?" && kolm ledger verify',
    "kolm ledger head --note > seen.checkpoint",
    "kolm ledger export log.tar.gz",
    "kolm verify log.tar.gz --trusted .kolm/trusted",
    "kolm verify log.tar.gz --promise promise.json",
    "kolm verify log.tar.gz --checkpoint seen.checkpoint",
    "kolm verify talk.tar.gz --model smollm2",
    "kolm serve explorer --ledger 127.0.0.1:50052 --trusted-keys .kolm/trusted --token-file .kolm/tokens/explorer "
    "--remember seen.checkpoint",
    "kolm serve explorer --ledger 127.0.0.1:50052 --trusted-keys .kolm/trusted --token-file .kolm/tokens/explorer "
    "--witness-policy policy",
    "kolm ledger export /srv/www/log --format tiles",
    "kolm monitor --tiles https://log.example/ --trusted keys --policy policy --promise promises "
    "--webhook https://alerts.example/kolm",
    "kolm monitor --tiles /srv/www/log --trusted keys --lag 1h --state copy.sqlite3 --once",
    "kolm verify /srv/www/log",
    "kolm verify https://log.example/",
    "kolm monitor --ledger ledger.example:50052 --max-age 24h",
    "kolm ledger verify --obligations --database ledger.sqlite3 --trusted keys/",
    "kolm heads kscore demo/smollm2/head --model smollm2 --no-record --prompts prompts/held-out/code.jsonl",
    "kolm trust add /mnt/other/public/auditor-3f0c2a9d1b7e4c55.pub",
    "kolm trust list",
    "kolm trust remove 3f0c2a9d --retire",
    'kolm ledger erase 0199… --reason "the tenant asked for it"',
    "kolm retention --days 180",
    "kolm retention --days 30 --tenant acme",
    "kolm tokens create acme-app --role generate --tenant acme --expires 90d",
    "kolm tokens create compliance --role audit --tenant '*'",
    "kolm tokens create ledger-mirror --role read --tenant '*' --certificate mirror.example",
    "kolm tokens list",
    "kolm tokens revoke acme-app",
)
"""Run in a folder where `kolm up --head demo/smollm2/head --shared-datastore demo/smollm2/store` has its state."""

DATASTORES = (
    "kolm datastore build docs src --model smollm2 --out docs.store --exclude '*.css' --exclude tests",
    "kolm datastore build answers.txt --out store --passage-tokens 8192",
)

TRAINED_HEAD = (
    "kolm heads train smollm2 --prompts prompts.jsonl --out ./my-head --minutes 40",
    "kolm up --head ./my-head",
    "kolm heads push ./my-head --name support-head",
    "kolm heads kscore support-head --prompts held-out.jsonl --adapters adapters",
    "kolm up --head support-head",
)
"""From prompts to a head that is served by its name."""

WITH_ADAPTERS = (
    "kolm up --draft-model path/to/smaller --adapter courteous=adapters/courteous --adapter capitals=adapters/capitals",
    "kolm heads push demo/smollm2/head --name support-head",
    "kolm heads list",
    "kolm heads pull support-head",
    "kolm heads pull .kolm/heads/<digits> --check --offline",
    'kolm generate --chat --adapter courteous "My printer does not print."',
    'kolm generate --chat --adapter courteous --method eagle3 "Where is my parcel?"',
    'kolm heads withdraw support-head --reason "trained on the wrong data"',
)
"""A base with a smaller one beside it, adapters and a head."""

BY_HAND = (
    "kolm tokens create generation --role append --role read --tenant '*' --out tokens/generation",
    "kolm tokens create auditor --role append --role read --role audit --tenant '*' --out tokens/auditor",
    "kolm tokens create owner --role generate --role read --out .kolm/tokens/owner",
    "kolm serve ledger --data-dir .kolm --principals .kolm/principals.json",
    "kolm serve generation --model smollm2 --principals .kolm/principals.json --token-file tokens/generation",
    "kolm trust add .kolm/generation/public",
    "kolm serve http --generation 127.0.0.1:50051",
    "kolm serve auditor --data-dir /var/lib/kolm/auditor --ledger ledger:50052 --token-file tokens/auditor "
    "--model path/to/base",
    "kolm serve registry --data-dir /var/lib/kolm/registry --ledger ledger:50052 "
    "--blobs 's3://heads/kolm?region=eu-central-1'",
    "kolm serve registry --data-dir .kolm/registry --trusted-keys .kolm/trusted "
    "--blobs 's3://heads/kolm?endpoint=http://127.0.0.1:9000'",
)
"""Services that are started one by one; services that others call stay."""

LEDGERS = (
    "kolm serve ledger --data-dir /var/lib/kolm/ledger",
    "KOLM_LEDGER_DATA_DIR=/var/lib/kolm/ledger kolm serve ledger",
    "kolm serve ledger --config kolm.toml",
    "kolm serve ledger --data-dir .kolm --key-passphrase-file passphrase",
)
WITNESSED = (
    "kolm serve ledger --data-dir ledger",
    "kolm serve witness --data-dir w1 --logs log.vkey --name w1.example/kolm --listen 0.0.0.0:50055 "
    "--tls-cert w1.pem --tls-key w1.key",
)
WITH_TLS = (
    "kolm init deployment --host ledger.example",
    "kolm serve ledger --config deployment/kolm.toml",
    "kolm ledger head --ledger https://ledger.example:50052",
    "kolm trust add deployment/public --trusted deployment/trusted",
)
IN_A_DEVICE = (
    "kolm serve ledger --data-dir .kolm "
    "--key-file 'pkcs11:token=kolm;object=log?module-path=/usr/lib/softhsm/libsofthsm2.so' --key-passphrase-file pin",
)
ON_POSTGRESQL = (
    "kolm serve ledger --data-dir .kolm --database-url postgresql+psycopg://kolm@db/kolm "
    "--guard-url sqlite:////mnt/other/guard.sqlite3",
    "kolm ledger verify --depth deep --database postgresql+psycopg://kolm@db/kolm --guard /mnt/other/guard.sqlite3 "
    "--trusted .kolm/trusted",
)
GENERATIONS = (
    "kolm serve generation --model smollm2 --head demo/smollm2/head",
    "kolm serve generation --quota '*=requests:64,grammar_seconds:20' --quota 'acme=requests:8,tokens:60000'",
    "kolm serve generation --datastore acme=acme.store --shared-datastore docs.store",
)
"""Each is started, answers, and ends."""

WITHOUT_CONTAINERS = (
    "kolm ledger verify --database log.sqlite3 --trusted .kolm/trusted",
    "kolm ledger verify --depth deep --data-dir .kolm",
    "kolm ledger rotate-key log",
    "kolm ledger rotate-key receipts",
    "kolm ledger rotate-key auditor",
)
"""Run by `tests/e2e/test_without_containers.py`, with the other lines of that chapter."""

RESUME = 'kolm halts resume 17 --reason "the kernel was replaced"'
RESUME_BY_SEVERAL = (
    'kolm halts resume 17 --sign-into resume.json --reason "the kernel was replaced"',
    "kolm halts resume --sign-into resume.json",
    "kolm halts resume --file resume.json",
)
"""Run by `tests/e2e/test_deviation.py`."""

CONFIGURED = "kolm up --config kolm.toml --metrics-port 9090 --log-format json"
"""Starts the services of `tests/e2e/test_documentation.py`."""

LONG_CONTEXT = "kolm up --model path/to/model --context-length 32768 --cache-bytes 8GiB"
OWN_MODEL = "kolm up --model path/to/model"

BY_NAME = (
    "kolm up qwen3:4b",
    "kolm up hf:Qwen/Qwen3-4B-GGUF:Q4_K_M",
    "kolm models pull hf:HuggingFaceTB/SmolLM2-360M-Instruct",
    "kolm up ollama:mistral",
)
"""Run by `tests/integration/cli/test_pull.py`, before a hub on this machine."""

HEADS_BY_NAME = (
    "kolm up hf:Qwen/Qwen3-8B-GGUF:Q4_K_M --head auto",
    "kolm up --model BASE --head hf:yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
)
"""Run by `tests/integration/cli/test_hub_heads.py`, before a hub on this machine."""

BEFORE_VLLM = (
    "kolm up --engine vllm --plain-url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --weights path/to/model"
)
"""Run by `tests/integration/cli/test_up.py`."""

RUN = {
    *SMOLLM2,
    *DATASTORES,
    *TRAINED_HEAD,
    *WITH_ADAPTERS,
    *BY_HAND,
    *LEDGERS,
    *GENERATIONS,
    *WITNESSED,
    *WITH_TLS,
    *IN_A_DEVICE,
    *ON_POSTGRESQL,
    *WITHOUT_CONTAINERS,
    *RESUME_BY_SEVERAL,
    RESUME,
    CONFIGURED,
    LONG_CONTEXT,
    OWN_MODEL,
    *BY_NAME,
    *HEADS_BY_NAME,
    BEFORE_VLLM,
}
"""All of them, but for how README starts the services: `docs.outputs` has that."""


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
