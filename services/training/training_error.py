"""The error family of head training: everything that can be wrong with what a run is given."""


class TrainingError(Exception):
    """A run that cannot start or go on; the message says what was found, what was expected and what to do."""


class PromptsInvalid(TrainingError):
    """A prompt file is missing, or a line of it is not a prompt; the message names the file and the line."""


class OutputInvalid(TrainingError):
    """The folder to write to is in use, or belongs to a run with other settings."""


class SettingsInvalid(TrainingError):
    """A setting is out of range, or does not fit this base; the message names it."""


class DiskFull(TrainingError):
    """There is no room for the recorded features; nothing that was recorded before is lost."""
