"""How many jobs of a queue may be claimed now: pause, running limit and rate limit, computed in one place."""

from __future__ import annotations

from msgspec import UNSET, Struct, structs

from jobmill.core.values import QueueChange, QueueSettings


class QueueLimits(Struct, frozen=True, kw_only=True):
    """The settings of a queue and the state of its rate-limit window."""

    settings: QueueSettings = QueueSettings()
    window_ends_ms: int = 0
    window_used: int = 0

    @property
    def counts_claims(self) -> bool:
        """Whether claims of this queue must be counted, and therefore made one after the other."""
        return self.settings.rate_limit is not None or self.settings.running_limit is not None

    def claims_left(self, now_ms: int) -> int | None:
        """How many claims the rate limit allows now; None: any number."""
        rate = self.settings.rate_limit
        if rate is None:
            return None
        return rate.count if now_ms >= self.window_ends_ms else max(0, rate.count - self.window_used)

    def limited_until_ms(self, now_ms: int) -> int | None:
        """When the rate limit allows the next claim; None if it allows one now."""
        return self.window_ends_ms if self.claims_left(now_ms) == 0 else None

    def room(self, running: int, now_ms: int) -> int | None:
        """How many jobs may be claimed while `running` jobs of the queue run; None: any number."""
        if self.settings.at(now_ms).paused:
            return 0
        limit, left = self.settings.running_limit, self.claims_left(now_ms)
        free = None if limit is None else max(0, limit - running)
        if free is None or left is None:
            return left if free is None else free
        return min(free, left)

    def after_claims(self, claims: int, now_ms: int) -> QueueLimits:
        """With these claims counted. The first claim after the end of a window opens the next window."""
        rate = self.settings.rate_limit
        if rate is None or not claims:
            return self
        if now_ms >= self.window_ends_ms:
            return structs.replace(self, window_ends_ms=now_ms + rate.per_ms, window_used=claims)
        return structs.replace(self, window_used=self.window_used + claims)


def changed_settings(settings: QueueSettings, change: QueueChange) -> QueueSettings:
    """The settings of a queue after a change; what the change leaves UNSET stays."""
    given = {field: value for field in change.__struct_fields__ if (value := getattr(change, field)) is not UNSET}
    if "paused" in given:
        given.setdefault("pause", None)
    return structs.replace(settings, **given)
