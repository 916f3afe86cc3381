"""`kolm doctor` on models that cannot be served."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from services.cli.main import app
from tests.fakes.tiny_model import make_tiny_model


def test_a_tokenizer_that_does_not_load_is_found_before_a_service_is_started_on_it(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    result = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert "the tokenizer does not load" in result.stderr
