"""Results of a batch."""

from __future__ import annotations

from typing import Any

from services.cli.jobs.batch.work import Progress


def batch_json(lines: int, done_before: int, progress: Progress, seconds: float) -> dict[str, Any]:
    """Counts of lines; those of statuses by status, 0 for lines that are no requests."""
    return {
        "lines": lines,
        "done_before": done_before,
        "answered": progress.statuses[200],
        "failed": progress.failed,
        "statuses": {str(status): count for status, count in sorted(progress.statuses.items())},
        "completion_tokens": progress.completion_tokens,
        "num_draft_tokens": progress.draft_tokens,
        "num_accepted_tokens": progress.accepted_tokens,
        "seconds": round(seconds, 3),
    }


def batch_text(lines: int, done_before: int, progress: Progress, seconds: float) -> str:
    """One line."""
    speed = f"{progress.completion_tokens / seconds:.0f} tokens/s" if seconds > 0 else "no time at all"
    before = f", {done_before} were there" if done_before else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{progress.statuses[200]} of {lines} answered{before}{failed}; {progress.completion_tokens} tokens, {speed}"
