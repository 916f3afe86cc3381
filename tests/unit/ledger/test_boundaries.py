"""Imports that `ledger` may make; every module of it is documented and can be imported alone."""

import ast
import sys
from pathlib import Path

import pytest

import ledger

PACKAGE = Path(ledger.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


OPTIONAL = {
    "cose.py": {"cbor2"},
    "pkcs11_signer.py": {"pkcs11"},
    "bucket.py": {"obstore"},
    "object_store.py": {"obstore"},
}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names | froms}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_the_ledger_may(path: Path) -> None:
    sql = {"sqlalchemy"} if PACKAGE / "sql" in path.parents else set()
    allowed = {"ledger", "cryptography", "msgspec", "nacl", "rfc8785"} | sql
    allowed |= OPTIONAL.get(path.name, set())
    assert imported(path) - allowed <= sys.stdlib_module_names


def test_the_map_names_every_folder() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py") if f"`{path.parent.name}/`" not in text} == set()
