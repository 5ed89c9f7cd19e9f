"""How long the history is kept, by tenant and kind, and what follows from that for one day.

Kept days are whole UTC days: what is kept N days leaves once its day is more than N days old, so
that a row stays between N and N + 1 days. Pure; `retention_rounds` acts on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.clock import Clock
from app.decisions.retention_repository import KeepRule, Leaving

ANY_TENANT: Final = "*"
ANY_KIND: Final = ""
MAX_HISTORY_DAYS: Final = 400
MAX_KEEP_RULES: Final = 10_000
_MAX_DISAGREEMENT: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """Days that are kept without a rule, and days of rollups by minute and by hour.

    Rollups by day are kept for ever.
    """

    days: int = 30
    minute_days: int = 3
    hour_days: int = MAX_HISTORY_DAYS


class Keeping:
    """The rules, looked up. The most special one counts: a tenant's kind, a tenant, a kind."""

    def __init__(self, rules: Sequence[KeepRule], default_days: int) -> None:
        self._days = {(rule.tenant, rule.kind): rule.days for rule in rules}
        self._default_days = default_days
        every = [default_days, *self._days.values()]
        self.shortest_days, self.longest_days = min(every), max(every)

    def days(self, tenant: str, kind: str) -> int:
        """For how many days rows of a tenant and kind are kept."""
        for key in ((tenant, kind), (tenant, ANY_KIND), (ANY_TENANT, kind)):
            if key in self._days:
                return self._days[key]
        return self._default_days

    def leaving(self, tenant: str, age_days: int) -> Leaving | None:
        """What of a tenant leaves a day of that age; None when nothing does."""
        named = {kind for owner, kind in self._days if owner in (tenant, ANY_TENANT) and kind}
        expired = {kind for kind in named if self.days(tenant, kind) < age_days}
        if self.days(tenant, ANY_KIND) < age_days:
            return Leaving(tuple(sorted(named - expired)), but=True)
        return Leaving(tuple(sorted(expired)), but=False) if expired else None


class TrustedClocks:
    """Says what time it is for removal: only when no clock gives a reason to doubt it.

    A clock that stepped forward would make everything look old, and what was removed does not
    come back. So the process and the database have to agree within an hour, and the wall clock
    must have advanced as the monotonic one did since the last look. A step that lasts is
    believed at the next look.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_us: int | None = None

    def agreed(self, database_now: datetime) -> datetime | None:
        """The earlier of both clocks; None where they are in doubt."""
        now = self._clock.now()
        offset_us = self._clock.now_us() - self._clock.monotonic_us()
        before_us, self._offset_us = self._offset_us, offset_us
        limit_us = _MAX_DISAGREEMENT // timedelta(microseconds=1)
        stepped = before_us is not None and abs(offset_us - before_us) > limit_us
        if stepped or abs(now - database_now) > _MAX_DISAGREEMENT:
            return None
        return min(now, database_now)
