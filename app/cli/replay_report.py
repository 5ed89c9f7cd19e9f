"""What a run shows: progress while it goes, a table and a JSON file at its end."""

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from app.cli.replay_bodies import ReplayScope
from app.cli.replay_tally import Tally

LINE_EVERY = 200


class ProgressView:
    """A bar on a terminal, elsewhere a line every LINE_EVERY requests. `total` may be unknown."""

    def __init__(self, console: Console, total: int | None) -> None:
        self._console = console
        self._total = total
        self._bar = Progress(
            TextColumn("replaying"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("hit rate {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, rate="-")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, tally: Tally) -> None:
        if self._console.is_terminal:
            rate = f"{tally.token_hit_rate:.2%}"
            self._bar.update(self._task, completed=tally.requests, rate=rate)
        elif tally.requests % LINE_EVERY == 0:
            of_total = "" if self._total is None else f" of {self._total}"
            self._console.print(
                f"{tally.requests}{of_total} requests, token hit rate {tally.token_hit_rate:.4f}, "
                f"bound {tally.token_hit_rate_bound:.4f}, errors {tally.errors}"
            )


@dataclass(frozen=True, slots=True)
class Figures:
    """A finished or interrupted run. `decisions` is None where the history could not be read."""

    tally: Tally
    scope: ReplayScope
    concurrency: int
    duration_s: float
    decisions: int | None
    interrupted: bool

    def document(self) -> dict[str, object]:
        """What `--json` writes. Rates are shares of 1; a figure without a value is null."""
        tally, scope = self.tally, self.scope
        return {
            "requests": tally.requests,
            "token_hit_rate": tally.token_hit_rate,
            "token_hit_rate_bound": tally.token_hit_rate_bound,
            "lookup_p50_ms": tally.lookup_ms(50),
            "lookup_p99_ms": tally.lookup_ms(99),
            "decisions": self.decisions,
            "decisions_answered": len(tally.decision_ids),
            "input_tokens": tally.input_tokens,
            "matched_tokens": tally.matched_tokens,
            "reusable_tokens": tally.reusable_tokens,
            "hits": tally.hits,
            "estimates": tally.estimates,
            "states_registered": tally.states_registered,
            "errors": tally.errors,
            "error_codes": dict(tally.error_codes),
            "duration_s": round(self.duration_s, 3),
            "concurrency": self.concurrency,
            "block_tokens": scope.block_tokens,
            "tenant": scope.tenant,
            "namespace": scope.namespace,
            "model": scope.model,
            "interrupted": self.interrupted,
        }

    def table(self) -> Table:
        tally = self.tally
        title = "Replay (interrupted)" if self.interrupted else "Replay"
        table = Table(title=title, show_header=False)
        table.add_column(justify="left")
        table.add_column(justify="right")
        per_s = tally.requests / self.duration_s if self.duration_s else 0.0
        table.add_row("requests", f"{tally.requests:,} ({per_s:,.1f}/s)")
        table.add_row("input tokens", f"{tally.input_tokens:,}")
        table.add_row("token hit rate", f"{tally.token_hit_rate:.6f}")
        table.add_row("infinite-cache bound", f"{tally.token_hit_rate_bound:.6f}")
        table.add_row("lookup p50 / p99", f"{_ms(tally, 50)} / {_ms(tally, 99)} ms")
        table.add_row("hits and estimates", f"{tally.hits:,} and {tally.estimates:,}")
        table.add_row("states registered", f"{tally.states_registered:,}")
        recorded = "unknown" if self.decisions is None else f"{self.decisions:,}"
        table.add_row("decisions recorded", f"{recorded} of {len(tally.decision_ids):,}")
        table.add_row("errors", f"{tally.errors:,}")
        table.add_row("tenant / namespace", f"{self.scope.tenant} / {self.scope.namespace}")
        return table


def _ms(tally: Tally, percentile: int) -> str:
    value = tally.lookup_ms(percentile)
    return "-" if value is None else f"{value:.2f}"
