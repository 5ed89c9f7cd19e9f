"""Every limit and knob of a process, read once from the environment and the command line."""

from dataclasses import dataclass
from pathlib import Path

DEFAULT_LISTEN = "127.0.0.1:9099"
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_QUERY_TOKENS = 1_000_000
MAX_BATCH_ENTRIES = 1_000

_ROOT = Path(__file__).resolve().parent.parent
# Hosts of this machine: a worker elsewhere has to be named.
DEFAULT_WORKER_HOSTS = ("127.0.0.0/8", "::1", "localhost")
DEFAULT_WORKER_SILENCE_S = 5.0
DEFAULT_ENGINE_SCHEMES = ("tcp",)
DEFAULT_ENGINE_STALE_S = 30.0
DEFAULT_WORKER_LOST_S = 3_600.0
DEFAULT_DEADLINE_S = 8.0
# A transfer ends before its claim does, so that no second one is begun beside it.
CLAIM_SLACK_S = 2.0
DEFAULT_BLOCK_INDEX_BLOCKS = 20_000_000
DEFAULT_BLOCK_INDEX_BYTES = 2 * 1024 * 1024 * 1024
DEFAULT_BLOCK_INDEX_SAVE_S = 60.0
DEFAULT_SPOOL_BYTES = 1024 * 1024 * 1024
DEFAULT_SPOOL_SYNC_S = 1.0
DEFAULT_HISTORY_DAYS = 30
DEFAULT_ROLLUP_MINUTE_DAYS = 3
DEFAULT_ROLLUP_HOUR_DAYS = 400
DEFAULT_POLICY_FILE = _ROOT / "policies" / "default.yaml"
# What `nexuskv profile import --starting-set` imports; the reference is in force without it.
STARTING_PROFILES = _ROOT / "profiles"
REFERENCE_PROFILE_FILE = STARTING_PROFILES / "reference.yaml"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one API process runs with."""

    database_url: str
    handle_secret: str
    policy_file: Path = DEFAULT_POLICY_FILE
    keyless_loopback: bool = False
    pool_connections: int = 10
    statement_timeout_s: float = 5.0
    # Registrations reach every replica within a second; four polls leave room for a slow one.
    sync_interval_s: float = 0.25
    # With no successful poll for this long, absence of a match is "unknown" and not a miss.
    sync_stale_s: float = 5.0
    max_candidates: int = 64
    source_handle_ttl_s: float = 600.0
    option_ttl_s: float = 30.0
    transfer_deadline_s: float = DEFAULT_DEADLINE_S
    claim_ttl_s: float = DEFAULT_DEADLINE_S + CLAIM_SLACK_S
    consumed_retention_s: float = 7 * 86_400.0
    drain_s: float = 15.0
    # Where decisions lie until they are in Postgres; None: a directory that goes with the process.
    spool_dir: Path | None = None
    spool_bytes: int = DEFAULT_SPOOL_BYTES
    # What a crash of the machine, not of the process, may take with it.
    spool_sync_s: float = DEFAULT_SPOOL_SYNC_S
    # child, here or elsewhere: see app.decisions.recording.
    copier: str = "here"
    # Within this time an answer that waits for its decision's commit leaves without it.
    group_wait_s: float = 2.0
    log_level: str = "info"
    # One or two: the first signs worker tokens, both verify. None: no token is made or honoured.
    worker_secrets: tuple[str, ...] = ()
    # Where workers may be: names, addresses, networks.
    worker_hosts: tuple[str, ...] = DEFAULT_WORKER_HOSTS
    # A worker that was not heard for this long is unavailable.
    worker_silence_s: float = DEFAULT_WORKER_SILENCE_S
    # What one that was silent for this long held is charged to nobody any more.
    worker_lost_s: float = DEFAULT_WORKER_LOST_S
    # Where engines' event sockets may be, and by which transports they are reached.
    engine_hosts: tuple[str, ...] = DEFAULT_WORKER_HOSTS
    engine_schemes: tuple[str, ...] = DEFAULT_ENGINE_SCHEMES
    # What an engine holds that was not heard for this long is not known any more.
    engine_stale_s: float = DEFAULT_ENGINE_STALE_S
    # Beyond either, what engines stored longest ago is forgotten.
    block_index_blocks: int = DEFAULT_BLOCK_INDEX_BLOCKS
    block_index_bytes: int = DEFAULT_BLOCK_INDEX_BYTES
    # Where the process that writes the index keeps a copy of it over a restart, and how often.
    block_index_file: Path | None = None
    block_index_save_s: float = DEFAULT_BLOCK_INDEX_SAVE_S
    # Days for which decisions are kept without a rule, and rollups by minute and by hour.
    history_days: int = DEFAULT_HISTORY_DAYS
    rollup_minute_days: int = DEFAULT_ROLLUP_MINUTE_DAYS
    rollup_hour_days: int = DEFAULT_ROLLUP_HOUR_DAYS
    # Of the process that writes the index, which this one then reads; None: it is this one.
    index_socket: Path | None = None
