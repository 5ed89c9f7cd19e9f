"""Millions of decisions with outcomes and sums, made inside Postgres from their numbers alone.

Row `n` of N follows from n: its time lies evenly in seven days up to now, and every property comes
from a hash of n, or of its chain n/10, with a salt. Of ten rows seven are lookups alone and three a
chain of lookup, estimate, materialize. Values are as unequal as in life: 40 tenants of which the
first has a third of all, each with three of 12 models; some values that one row in a hundred
thousand has.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from app.decisions.histogram import ERROR_BOUNDS, LATENCY_BOUNDS_US

DAYS = 7
BATCH_ROWS = 50_000
LOADERS = 2
# Sums by minute are made for so long only: they are read for spans up to six hours.
MINUTES_FOR = timedelta(hours=7)

FUNCTIONS = """
CREATE SCHEMA bench;

-- Even in [0, 1), the same for a number and salt.
CREATE FUNCTION bench.u(n bigint, salt int) RETURNS float8 LANGUAGE sql IMMUTABLE AS
$$ SELECT (hashint8extended(n, salt) & 1073741823) / 1073741824.0 $$;

CREATE FUNCTION bench.at(n bigint, rows bigint, start timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS
$$ SELECT date_trunc('milliseconds', start + interval '7 days' * (n / rows::float8)) $$;

-- A uuidv7 of that time.
CREATE FUNCTION bench.id(n bigint, rows bigint, start timestamptz, salt text) RETURNS uuid
LANGUAGE sql IMMUTABLE AS
$$ SELECT (lpad(to_hex((extract(epoch FROM bench.at(n, rows, start)) * 1000)::bigint), 12, '0')
    || '7' || substr(md5(salt || n), 1, 3) || '8' || substr(md5(salt || n), 4, 15))::uuid $$;

-- A histogram of so many buckets, from the numbers of its buckets and what is in them.
CREATE FUNCTION bench.counts(slots int[], amounts bigint[], buckets int) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE counts bigint[] := array_fill(0::bigint, ARRAY[buckets]);
BEGIN
    FOR place IN 1 .. cardinality(slots) LOOP
        counts[slots[place] + 1] := counts[slots[place] + 1] + amounts[place];
    END LOOP;
    RETURN counts;
END $$;
"""

CHAIN = """
    SELECT n, n / 10 AS g, (n % 10)::int AS c,
        bench.at(n, $3, $4) AS created_at,
        bench.id(n, $3, $4, 'd') AS decision_id,
        CASE n % 10 WHEN 8 THEN bench.id(n - 1, $3, $4, 'd')
            WHEN 9 THEN bench.id(n - 2, $3, $4, 'd') ELSE bench.id(n, $3, $4, 'd') END AS root_id,
        CASE WHEN n % 10 >= 8 THEN bench.id(n - 1, $3, $4, 'd') END AS parent_id,
        CASE WHEN n / 10 % 100003 = 1 THEN 40
            ELSE floor(40 * bench.u(n / 10, 1) ^ 3)::int END AS tenant_no,
        bench.u(n, 5) AS u, bench.u(n, 6) AS v, bench.u(n, 7) AS w
    FROM generate_series($1::bigint, $2::bigint) n
"""

TOLD = f"""
    SELECT *,
        CASE WHEN tenant_no = 40 THEN 'tenant-rare'
            ELSE 'tenant-' || lpad(tenant_no::text, 2, '0') END AS tenant,
        CASE WHEN g % 20011 = 1 THEN 'model-rare'
            ELSE 'model-' || lpad(((tenant_no * 7 + floor(3 * bench.u(g, 2) ^ 2)::int) % 12)::text,
                2, '0') END AS model,
        CASE WHEN g % 30011 = 1 THEN 'rare' WHEN bench.u(g, 3) < 0.9 THEN 'default'
            ELSE 'batch' END AS namespace,
        CASE WHEN g % 50021 = 1 THEN 'canary@1' ELSE 'default@' || 1 + n * 5 / $3 END AS policy,
        CASE WHEN n % 1009 = 0 THEN 'prefetch' WHEN c < 8 THEN 'lookup' WHEN c = 8 THEN 'estimate'
            ELSE 'materialize' END AS kind,
        (64 + floor(8000 * bench.u(g, 4) ^ 2))::bigint AS query_tokens
    FROM ({CHAIN}) chain
"""

# What was chosen, from the kind and the row's own chance.
CHOSEN = f"""
    SELECT *,
        CASE kind WHEN 'lookup' THEN CASE WHEN c = 7 OR u < 0.55 THEN 'hit'
                WHEN u < 0.93 THEN 'miss'
                WHEN u < 0.98 THEN 'excluded' WHEN u < 0.99998 THEN 'unknown' ELSE 'unavailable' END
            WHEN 'estimate' THEN 'estimated' WHEN 'prefetch' THEN 'transferred'
            ELSE CASE WHEN u < 0.97 THEN 'materialized' ELSE 'rejected' END END AS outcome,
        CASE WHEN kind = 'lookup' THEN NULL WHEN v < 0.8 THEN 'baseline_transport'
            WHEN v < 0.9999 THEN 'staged_copy' ELSE 'rdma' END AS backend,
        CASE WHEN kind = 'lookup' AND (u >= 0.55 AND c <> 7) THEN NULL WHEN w < 0.7 THEN 'host_dram'
            WHEN w < 0.9999 THEN 'local_ssd' ELSE 'object_store' END AS tier
    FROM ({TOLD}) told
"""

DECISIONS = f"""
INSERT INTO decision (decision_id, created_at, tenant, namespace, model, kind, outcome,
    fallback_reason, identity_hash, parent_id, root_id, key_id, trace_id, policy_version, entry_id,
    state_id, match, compatibility, excluded, estimate, selected_path, path, index_revision,
    latency_us, inputs, action, backend, tier, target, freshness, durability, query_tokens,
    matched_tokens, predicted_us, recompute_us, writer_id, writer_seq)
SELECT decision_id, created_at, tenant, namespace, model, kind, outcome,
    CASE WHEN outcome = 'miss' THEN 'cache_miss' WHEN outcome = 'excluded' THEN 'lookup_unsupported'
        WHEN outcome = 'rejected' THEN CASE WHEN w < 0.01 THEN 'no_transfer_path'
            ELSE 'preferred_backend_unavailable' END END,
    decode(md5('i' || g), 'hex'), parent_id, root_id, 'benchmark',
    CASE WHEN g % 5 = 0 OR c >= 7 THEN md5('t' || g) END, policy,
    CASE WHEN tier IS NOT NULL THEN 'entry-' || (g % 50000) END,
    CASE WHEN tier IS NOT NULL THEN md5('s' || (g % 50000))::uuid END,
    CASE WHEN tier IS NOT NULL THEN
        jsonb_build_object('classification', 'prefix', 'units', query_tokens / 2) END,
    CASE WHEN tier IS NOT NULL THEN '{{"reusable": true, "compared": ["model", "tokenizer",
        "template", "layout", "dtype", "quantization"]}}'::jsonb END,
    CASE WHEN u < 0.2 THEN jsonb_build_array(jsonb_build_object('entry_id', 'entry-' || c,
        'reason', 'evidence_mismatch', 'field', 'adapter')) ELSE '[]' END,
    CASE WHEN backend IS NOT NULL THEN jsonb_build_object('transfer_us', 900 + floor(4000 * v),
        'recompute_us', query_tokens * 110, 'queue_us', floor(100 * w),
        'provenance', 'measured') END,
    backend, ARRAY['described', 'matched', 'validated'], n / 1000,
    40 + floor(60 / (1.001 - u))::bigint,
    jsonb_build_object('version', 1, 'query_tokens', query_tokens, 'index', jsonb_build_object(
        'revision', n / 1000, 'age_us', floor(250000 * v)), 'candidates', jsonb_build_array(
        md5('1' || n), md5('2' || n), md5('3' || n)), 'costs', jsonb_build_object('transfer_us',
        900 + floor(4000 * v), 'recompute_us', query_tokens * 110, 'source', 'measured'),
        'policy', policy),
    CASE WHEN n % 250007 = 1 THEN 'skip' WHEN kind IN ('estimate', 'materialize', 'prefetch')
        AND outcome <> 'rejected' THEN 'transfer' WHEN outcome = 'hit' THEN 'reuse'
        ELSE 'recompute' END,
    backend, tier, CASE WHEN backend IS NOT NULL THEN 'target-' || g % 16 END, 'fresh',
    CASE WHEN kind = 'materialize' THEN 'group' ELSE 'spooled' END, query_tokens,
    CASE WHEN tier IS NOT NULL THEN query_tokens / 2 END,
    CASE WHEN backend IS NOT NULL THEN 900 + floor(4000 * v)::bigint END,
    CASE WHEN tier IS NOT NULL THEN query_tokens * 55 END, $5, n
FROM ({CHOSEN}) chosen
"""

# A tenth of all rows: each chain was completed or fell back, and most were consumed.
OUTCOMES = f"""
INSERT INTO decision_outcome (outcome_id, created_at, decision_id, tenant, status, fallback_reason,
    observed_us, bytes_transferred, physical, detail, model, kind, backend, policy_version, tokens,
    predicted_us, recompute_us, gain_us, writer_id, writer_seq)
SELECT bench.id(n, $3, $4, 'o'), created_at, decision_id, tenant,
    CASE WHEN outcome = 'rejected' THEN 'fell_back' WHEN v < 0.5 THEN 'completed'
        ELSE 'consumed' END,
    CASE WHEN outcome = 'rejected' THEN 'preferred_backend_unavailable' END,
    observed_us, query_tokens * 8192, outcome <> 'rejected', '{{"backend": "measured"}}', model,
    kind, backend, policy, query_tokens / 2, predicted_us, recompute_us, recompute_us - observed_us,
    $5, n + $3
FROM (SELECT *, 900 + floor(4000 * v)::bigint AS predicted_us, query_tokens * 55 AS recompute_us,
        floor((900 + 4000 * v) * (0.7 + 0.8 * w))::bigint AS observed_us
    FROM ({CHOSEN}) chosen WHERE c = 9) done
"""

DECISION_SUMS = """
INSERT INTO decision_rollup
SELECT step, bucket, tenant, model, kind, backend, policy_version, outcome, action, reason,
    sum(decisions), sum(query_tokens), sum(matched_tokens), sum(latency_us), sum(predicted_us),
    sum(recompute_us),
    bench.counts(array_agg(slot), array_agg(decisions), $4)
FROM (
    SELECT $1::text AS step, date_trunc($1, created_at) AS bucket, tenant, model, kind,
        coalesce(backend, '') AS backend, policy_version, outcome, coalesce(action, '') AS action,
        coalesce(fallback_reason, '') AS reason,
        width_bucket(latency_us::float8, $5::float8[]) AS slot, count(*) AS decisions,
        sum(query_tokens) AS query_tokens, sum(coalesce(matched_tokens, 0)) AS matched_tokens,
        sum(latency_us) AS latency_us, sum(coalesce(predicted_us, 0)) AS predicted_us,
        sum(coalesce(recompute_us, 0)) AS recompute_us
    FROM decision WHERE created_at >= $2 AND created_at < $3
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
) slots
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
"""

OUTCOME_SUMS = """
INSERT INTO outcome_rollup (step, bucket, tenant, model, kind, backend, policy_version, status,
    reason, outcomes, physical, bytes, tokens, observed_us, predicted_us, gain_us, compared,
    compared_observed_us, error_counts)
SELECT step, bucket, tenant, model, kind, backend, policy_version, status, reason,
    sum(outcomes), sum(physical), sum(bytes), sum(tokens), sum(observed_us), sum(predicted_us),
    sum(gain_us), sum(outcomes), sum(observed_us),
    bench.counts(array_agg(slot), array_agg(outcomes), $4)
FROM (
    SELECT $1::text AS step, date_trunc($1, created_at) AS bucket, tenant, model, kind, backend,
        policy_version, status, coalesce(fallback_reason, '') AS reason,
        width_bucket(observed_us::float8 / predicted_us, $5::float8[]) AS slot,
        count(*) AS outcomes, count(*) FILTER (WHERE physical) AS physical,
        sum(bytes_transferred) AS bytes, sum(tokens) AS tokens, sum(observed_us) AS observed_us,
        sum(predicted_us) AS predicted_us, sum(gain_us) AS gain_us
    FROM decision_outcome WHERE created_at >= $2 AND created_at < $3
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
) slots
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: enough to name any row of it."""

    rows: int
    start: datetime
    took_s: dict[str, float]
    counts: dict[str, int]

    @property
    def end(self) -> datetime:
        return self.start + timedelta(days=DAYS)

    async def ids(self, connection: asyncpg.Connection, numbers: Sequence[int]) -> list[UUID]:
        found = await connection.fetch(
            "SELECT bench.id(n, $2, $3, 'd') FROM unnest($1::bigint[]) n",
            numbers,
            self.rows,
            self.start,
        )
        return [row[0] for row in found]


async def load(url: str, rows: int, now: datetime) -> Loaded:
    """Fill the history of a migrated database, whose partitions of the last days are there."""
    start = (now - timedelta(days=DAYS)).replace(microsecond=0)
    took_s = {}
    connection = await asyncpg.connect(url)
    await connection.execute(FUNCTIONS)
    writer = UUID(int=1)
    begin = time.perf_counter()
    batches = iter(range(0, rows, BATCH_ROWS))
    await asyncio.gather(*(_fill(url, batches, rows, start, writer) for _ in range(LOADERS)))
    took_s["rows"] = time.perf_counter() - begin
    begin = time.perf_counter()
    await _sum_up(connection, start, now)
    took_s["sums"] = time.perf_counter() - begin
    begin = time.perf_counter()
    await connection.execute("VACUUM (ANALYZE) decision, decision_outcome")
    await connection.execute("VACUUM (ANALYZE) decision_rollup, outcome_rollup")
    took_s["vacuum"] = time.perf_counter() - begin
    counts = {
        table: await connection.fetchval(f"SELECT count(*) FROM {table}")
        for table in ("decision", "decision_outcome", "decision_rollup", "outcome_rollup")
    }
    counts["bytes"] = await connection.fetchval("SELECT pg_database_size(current_database())")
    await connection.close()
    return Loaded(rows, start, took_s, counts)


async def _fill(url: str, batches: Any, rows: int, start: datetime, writer: UUID) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("SET synchronous_commit = off")
    for first in batches:
        last = min(first + BATCH_ROWS, rows) - 1
        values = (first, last, rows, start, writer)
        await connection.execute(DECISIONS, *values)
        await connection.execute(OUTCOMES, *values)
    await connection.close()


async def _sum_up(connection: asyncpg.Connection, start: datetime, now: datetime) -> None:
    day = start.replace(hour=0, minute=0, second=0)
    await connection.execute("SET work_mem = '256MB'")
    while day <= now:
        spans = {"hour": (day, day + timedelta(days=1)), "day": (day, day + timedelta(days=1))}
        for step, span in spans.items():
            await _sum_step(connection, step, *span)
        day += timedelta(days=1)
    end = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    await _sum_step(connection, "minute", end - MINUTES_FOR, end)


async def _sum_step(
    connection: asyncpg.Connection, step: str, first: datetime, end: datetime
) -> None:
    for statement, bounds in ((DECISION_SUMS, LATENCY_BOUNDS_US), (OUTCOME_SUMS, ERROR_BOUNDS)):
        await connection.execute(statement, step, first, end, len(bounds) + 1, list(bounds))
