"""What components count of themselves, as the series of a scrape.

`app.metrics` has what requests are counted with; here nothing is counted, only read.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class WorkerCalls(Protocol):
    """What the client of workers counts of itself."""

    @property
    def calls(self) -> Mapping[tuple[str, str], int]:
        """Calls by operation and result, both of closed sets."""

    @property
    def retried(self) -> int: ...
    @property
    def cancels_dropped(self) -> int: ...


class PolicyGauges(NamedTuple):
    """`number` is 0 for the file that the process was given."""

    number: int
    stale_s: float
    faulted: bool
    changes: int


class FollowedGauges(NamedTuple):
    """Of what is followed in Postgres: a number of what is in force, and how sure that is."""

    number: int
    stale_s: float
    faulted: bool
    changes: int


class PolicyCounts(Protocol):
    """What the store of policies counts of itself, by result; both sets are closed."""

    @property
    def documents(self) -> Mapping[str, int]: ...
    @property
    def activations(self) -> Mapping[str, int]: ...


class PipelineCounts(Protocol):
    """What the pipeline counts of itself; keys are label values, in the order of the labels."""

    @property
    def selections(self) -> Mapping[tuple[str, ...], int]: ...
    @property
    def rejections(self) -> Mapping[tuple[str, ...], int]: ...
    @property
    def quota(self) -> Mapping[tuple[str, ...], int]: ...
    @property
    def transfers(self) -> Mapping[tuple[str, ...], int]: ...
    @property
    def executions(self) -> Mapping[tuple[str, ...], int]: ...
    @property
    def moved_bytes(self) -> Mapping[str, int]: ...


class EngineTotals(Protocol):
    """What the views of all engines counted, since the process began."""

    @property
    def events(self) -> Mapping[str, int]: ...
    @property
    def frames(self) -> int: ...
    @property
    def repeated_frames(self) -> int: ...
    @property
    def refused_frames(self) -> int: ...
    @property
    def other_rank_frames(self) -> int: ...
    @property
    def gaps(self) -> int: ...
    @property
    def lost_frames(self) -> int: ...
    @property
    def skipped_events(self) -> int: ...
    @property
    def unattributed(self) -> int: ...
    @property
    def unplaced(self) -> int: ...
    @property
    def beyond_limits(self) -> int: ...
    @property
    def unclear(self) -> int: ...
    @property
    def left_out(self) -> Mapping[str, int]: ...
    @property
    def index_full(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def quarantine_dropped(self) -> int: ...


class EngineCounts(Protocol):
    """What the directory of engines knows; keys are of closed sets."""

    def counts(self) -> Mapping[str, int]:
        """Engines by state."""

    def totals(self) -> EngineTotals:
        """See there."""

    def replays(self) -> Mapping[str, int]:
        """Replays by how they ended."""


class MatcherCounts(Protocol):
    """What the matcher counts of itself."""

    @property
    def unusable_kinds(self) -> int: ...


class Scraped(Collector):
    """Metrics made at scrape time from what a component counts anyway."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read a component that may not have started yet."""
        return ()


def policy_families(status: PolicyGauges, counts: PolicyCounts) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "nexuskv_policy_number",
        "Number of the policy in force; 0 for the file that the process was given.",
        value=status.number,
    )
    yield GaugeMetricFamily(
        "nexuskv_policy_stale_seconds",
        "Time since the database was last asked which policy is active.",
        value=status.stale_s,
    )
    yield GaugeMetricFamily(
        "nexuskv_policy_faulted",
        "1 while the latest activation cannot come into force, else 0.",
        value=float(status.faulted),
    )
    yield CounterMetricFamily(
        "nexuskv_policy_changes",
        "Times that another policy came into force in this process.",
        value=status.changes,
    )
    yield counted(
        "nexuskv_policy_documents",
        "Policy documents sent here: `stored`, `known` or `refused` when uploaded, `valid` or "
        "`invalid` when only checked.",
        ("result",),
        {(result,): count for result, count in counts.documents.items()},
    )
    yield counted(
        "nexuskv_policy_activations",
        "Activations asked for here: `changed`, `unchanged` where it was active, or `refused`.",
        ("result",),
        {(result,): count for result, count in counts.activations.items()},
    )


def planning_families(profiles: FollowedGauges, topology: FollowedGauges) -> Iterable[Metric]:
    for name, help_text, found in (
        ("profiles_in_force", "Stored cost profiles in force, by model and hardware.", profiles),
        ("topology_version", "Version of the topology in force; 0 for none.", topology),
    ):
        what = name.partition("_")[0]
        yield GaugeMetricFamily(f"nexuskv_{name}", help_text, value=found.number)
        yield GaugeMetricFamily(
            f"nexuskv_{what}_stale_seconds",
            f"Time since the database was last asked for the {what}.",
            value=found.stale_s,
        )
        yield GaugeMetricFamily(
            f"nexuskv_{what}_faulted",
            f"1 while the latest {what} cannot come into force, else 0.",
            value=float(found.faulted),
        )
        yield CounterMetricFamily(
            f"nexuskv_{what}_changes",
            f"Times that other {what} came into force in this process.",
            value=found.changes,
        )


def pipeline_families(counts: PipelineCounts) -> Iterable[Metric]:
    yield counted(
        "nexuskv_backend_selections",
        "Backends chosen between two workers: the wanted one, or `degraded` to a lesser one.",
        ("kind", "backend", "result"),
        counts.selections,
    )
    yield counted(
        "nexuskv_backend_rejections",
        "Backends that a choice passed over, by why.",
        ("kind", "backend", "reason"),
        counts.rejections,
    )
    yield counted(
        "nexuskv_quota_exceeded",
        "Charges beyond a limit of their tenant: `denied`, or `advisory` and let through.",
        ("kind", "result", "limit"),
        counts.quota,
    )
    yield counted(
        "nexuskv_transfers",
        "Materialize, prefetch and store that were tried, by the status of their transfer.",
        ("kind", "status"),
        counts.transfers,
    )
    yield counted(
        "nexuskv_executions",
        "Materialize, prefetch and store by what became of them: `completed` (bytes verified), "
        "`registered` (protocol only), or the reason of their fallback.",
        ("kind", "result"),
        counts.executions,
    )
    yield counted(
        "nexuskv_moved_bytes",
        "Bytes that a worker verified at their destination.",
        ("kind",),
        {(kind,): moved for kind, moved in counts.moved_bytes.items()},
    )


def sink_families(reports: Mapping[tuple[str, ...], int]) -> Iterable[Metric]:
    yield counted(
        "nexuskv_sink_reports",
        "What workers told of sinks, by the state they came to: `matched` is the outcome of a "
        "decision, `unmatched` of none of ours, `refused` not believed.",
        ("state", "result"),
        reports,
    )


def counted(
    name: str, help_text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]
) -> Metric:
    """One counter with a series for each key, whose parts are the labels' values."""
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def index_families(stats: Mapping[str, int]) -> Iterable[Metric]:
    for key, help_text in (
        ("entries", "States in the index."),
        ("blocks", "Distinct token blocks in the index."),
        ("scopes", "Isolated scopes (tenant, namespace, model and so on) in the index."),
        ("memory_bytes", "Memory that the index holds."),
    ):
        yield GaugeMetricFamily(f"nexuskv_index_{key}", help_text, value=stats[key])


def worker_families(
    counts: Mapping[str, int], heartbeats: Mapping[str, int], calls: WorkerCalls
) -> Iterable[Metric]:
    workers = GaugeMetricFamily(
        "nexuskv_workers", "Registered workers, by whether they are heard.", labels=["status"]
    )
    for status, count in counts.items():
        workers.add_metric([status], count)
    yield workers
    beats = CounterMetricFamily(
        "nexuskv_worker_heartbeats", "Heartbeats, by what became of them.", labels=["result"]
    )
    for result, count in heartbeats.items():
        beats.add_metric([result], count)
    yield beats
    asked = CounterMetricFamily(
        "nexuskv_worker_calls",
        "Calls of workers by `ok` or the kind of fault.",
        labels=["operation", "result"],
    )
    for (operation, result), count in calls.calls.items():
        asked.add_metric([operation, result], count)
    yield asked
    yield CounterMetricFamily(
        "nexuskv_worker_call_retries", "Attempts beyond a call's first.", value=calls.retried
    )
    yield CounterMetricFamily(
        "nexuskv_worker_cancels_dropped",
        "Cancellations given up because too many were under way.",
        value=calls.cancels_dropped,
    )


def engine_families(
    engines: EngineCounts, stats: Mapping[str, int], matcher: MatcherCounts
) -> Iterable[Metric]:
    found = GaugeMetricFamily(
        "nexuskv_engines", "Registered engines, by what is known of their blocks.", labels=["state"]
    )
    for state, count in engines.counts().items():
        found.add_metric([state], count)
    yield found
    totals = engines.totals()
    yield counted(
        "nexuskv_engine_events",
        "Events of engines that were applied, by type.",
        ("type",),
        {(name,): count for name, count in totals.events.items()},
    )
    yield counted(
        "nexuskv_engine_frames",
        "Frames of engines: `applied`, `repeated`, `refused` because they cannot be read, of "
        "another `rank` than is registered, or `lost`.",
        ("result",),
        {
            ("applied",): totals.frames - totals.refused_frames,
            ("repeated",): totals.repeated_frames,
            ("refused",): totals.refused_frames,
            ("rank",): totals.other_rank_frames,
            ("lost",): totals.lost_frames,
        },
    )
    yield counted(
        "nexuskv_engine_replays",
        "Replays that engines were asked for, by how they ended.",
        ("result",),
        {(result,): count for result, count in engines.replays().items()},
    )
    yield counted(
        "nexuskv_engine_blocks_left_out",
        "Blocks that came with events and are not in the index, by why.",
        ("reason",),
        _left_out(totals),
    )
    for name, help_text, count in (
        ("gaps", "Times that frames of an engine were missing.", totals.gaps),
        ("events_skipped", "Events of types that nobody here knows.", totals.skipped_events),
        ("index_full", "Frames that the index had no room for.", totals.index_full),
    ):
        yield CounterMetricFamily(f"nexuskv_engine_{name}", help_text, value=count)
    yield GaugeMetricFamily(
        "nexuskv_engine_blocks_quarantined",
        "Blocks that wait for their parent.",
        value=totals.quarantined,
    )
    yield CounterMetricFamily(
        "nexuskv_engine_queries_unusable_kind",
        "Queries that left out blocks of an engine with an unknown attention kind.",
        value=matcher.unusable_kinds,
    )
    yield from block_families(stats)


def _left_out(totals: EngineTotals) -> dict[tuple[str, ...], int]:
    return {
        ("unattributed",): totals.unattributed,
        ("unplaced",): totals.unplaced,
        ("limits",): totals.beyond_limits,
        ("quarantine",): totals.quarantine_dropped,
        ("unclear",): totals.unclear,
        **{(reason,): count for reason, count in totals.left_out.items()},
    }


def block_families(stats: Mapping[str, int]) -> Iterable[Metric]:
    for key, help_text in (
        ("blocks", "Distinct blocks of engines in the index."),
        ("streams", "Streams of engines in the index."),
        ("holders", "Places of engines' blocks in the index."),
        ("memory_bytes", "Memory that the index of blocks holds."),
    ):
        yield GaugeMetricFamily(f"nexuskv_block_index_{key}", help_text, value=stats[key])
    for key, help_text in (
        ("forgotten", "Blocks that made room for others."),
        ("collisions", "Names of engines that came to mean another block."),
    ):
        yield CounterMetricFamily(f"nexuskv_block_index_{key}", help_text, value=stats[key])
