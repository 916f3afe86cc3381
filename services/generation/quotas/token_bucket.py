"""A token bucket: so much a minute, and no more than a minute's worth at once."""

from __future__ import annotations

from dataclasses import dataclass, field

_MINUTE = 60.0


@dataclass(slots=True)
class TokenBucket:
    """Holds `a_minute` tokens, which flow in each minute. Times are seconds of one clock, and do not fall."""

    a_minute: int
    level: float = field(init=False)
    _at: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.a_minute

    def wait(self, tokens: int, now: float) -> float:
        """Seconds until `tokens` may be taken; 0 is now. More than it holds may be taken when it is full."""
        self._flow(now)
        missing = min(tokens, self.a_minute) - self.level
        return max(missing, 0.0) * _MINUTE / self.a_minute

    def take(self, tokens: int) -> None:
        """Takes tokens that `wait` has allowed; the level may fall below 0."""
        self.level -= tokens

    def give_back(self, tokens: int) -> None:
        """Gives back tokens that were taken and not used."""
        self.level = min(self.level + tokens, self.a_minute)

    def _flow(self, now: float) -> None:
        self.level = min(self.level + (now - self._at) * self.a_minute / _MINUTE, self.a_minute)
        self._at = now
