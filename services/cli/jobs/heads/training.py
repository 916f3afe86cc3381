"""Training a head, in this process, until it is done or somebody stops it."""

from __future__ import annotations

import errno

from services.cli.failures.exits import Failed, UsageError
from services.cli.jobs.heads.training_reporter import terminal_reporter
from services.cli.jobs.stop_signals import stop_signals
from services.generation.drafting.heads import HeadError
from services.generation.target.errors import TargetError
from services.training.devices import devices
from services.training.kscore import Measured
from services.training.plan import DiskFull, Job, TrainingError
from services.training.run import train_head


def run(job: Job, device: str | None) -> dict[str, Measured] | None:
    """Held-out acceptance by domain, in the leading process; None if Ctrl-C or SIGTERM stopped the run on the way.

    The step under way is finished and saved first.

    Raises:
        UsageError, Failed: what does not fit, or what ran out; the message says what to do.
    """
    came: list[int] = []
    try:
        with devices(device) as place, terminal_reporter() as reporter, stop_signals(came.append):
            return train_head(job, place, reporter, stop=lambda: bool(came))
    except DiskFull as error:
        raise Failed(str(error)) from error
    except (TrainingError, HeadError, TargetError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        hint = "free some and run the same command again, which continues from the last checkpoint"
        raise Failed(f"{error.filename or job.work}: no space is left", hint) from error
