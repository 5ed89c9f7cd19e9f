"""The history as a file: rows of one moment, page by page, in memory that does not grow with it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

import orjson
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from sqlalchemy import Row

from app.db.session import Database
from app.decisions.cursor import Moment, Position
from app.decisions.repository import DecisionFilter, DecisionRepository

# A page is one statement, and must fit its time-out also when inputs are large.
PAGE_ROWS: Final = 500
# A row group is what Parquet's readers skip or take; and what is held until it is written.
GROUP_ROWS: Final = 5_000
GROUP_BYTES: Final = 16 * 1024 * 1024

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = pa.string()
_INTEGER: Final = pa.int64()
# JSON is text here: its shape differs from row to row and from version to version.
SCHEMA: Final = pa.schema(
    [
        pa.field("decision_id", _TEXT, nullable=False),
        pa.field("created_at", _TIME, nullable=False),
        pa.field("tenant", _TEXT, nullable=False),
        pa.field("namespace", _TEXT, nullable=False),
        pa.field("model", _TEXT, nullable=False),
        pa.field("kind", _TEXT, nullable=False),
        pa.field("outcome", _TEXT, nullable=False),
        pa.field("fallback_reason", _TEXT),
        pa.field("identity_hash", _TEXT),
        pa.field("parent_id", _TEXT),
        pa.field("root_id", _TEXT, nullable=False),
        pa.field("key_id", _TEXT, nullable=False),
        pa.field("trace_id", _TEXT),
        pa.field("policy_version", _TEXT, nullable=False),
        pa.field("entry_id", _TEXT),
        pa.field("state_id", _TEXT),
        pa.field("match", _TEXT),
        pa.field("compatibility", _TEXT),
        pa.field("excluded", _TEXT, nullable=False),
        pa.field("estimate", _TEXT),
        pa.field("selected_path", _TEXT),
        pa.field("path", pa.list_(_TEXT), nullable=False),
        pa.field("index_revision", _INTEGER, nullable=False),
        pa.field("latency_us", _INTEGER, nullable=False),
        pa.field("inputs", _TEXT, nullable=False),
        pa.field("action", _TEXT),
        pa.field("backend", _TEXT),
        pa.field("tier", _TEXT),
        pa.field("target", _TEXT),
        pa.field("freshness", _TEXT),
        pa.field("durability", _TEXT),
        pa.field("query_tokens", _INTEGER),
        pa.field("matched_tokens", _INTEGER),
        pa.field("predicted_us", _INTEGER),
        pa.field("recompute_us", _INTEGER),
    ]
)
_JSON: Final = frozenset({"match", "compatibility", "excluded", "estimate", "inputs"})

Rows = Sequence[Row[Any]]


class ExportFormat(StrEnum):
    """`ndjson`: one JSON object a line, as `GET /v1/decisions/{id}` has it but for its chain.
    `parquet`: the same columns, JSON ones as text.
    """

    NDJSON = "ndjson"
    PARQUET = "parquet"


MEDIA_TYPES: Final = {
    ExportFormat.NDJSON: "application/x-ndjson",
    ExportFormat.PARQUET: "application/vnd.apache.parquet",
}


class ExportPages:
    """The pages of one export, newest first, each a short read of its own."""

    def __init__(
        self, database: Database, chosen: DecisionFilter, *, page_rows: int = PAGE_ROWS
    ) -> None:
        self._database = database
        self._chosen = chosen
        self._page_rows = page_rows
        self._moment: Moment | None = None
        self._after: Position | None = None
        self._first: Rows | None = None

    async def begin(self) -> None:
        """Read the first page, so that what keeps an export from beginning is told as an error."""
        self._first = await self._read()

    async def __aiter__(self) -> AsyncGenerator[Rows]:
        rows = self._first if self._first is not None else await self._read()
        self._first = None
        while rows:
            yield rows
            if len(rows) < self._page_rows:
                return
            rows = await self._read()

    async def _read(self) -> Rows:
        async with self._database.read() as session:
            repository = DecisionRepository(session)
            now = await repository.moment()
            self._moment = self._moment or now
            rows = await repository.export_page(
                self._chosen, self._moment, after=self._after, limit_rows=self._page_rows
            )
        if rows:
            self._after = Position(rows[-1].created_at, rows[-1].decision_id)
        return rows


class Encoder(Protocol):
    """Makes the bytes of a file from its rows."""

    def add(self, rows: Rows) -> bytes:
        """What can be sent after these."""

    def end(self) -> bytes:
        """The rest of the file."""


class NdjsonEncoder:
    """One line a row."""

    def add(self, rows: Rows) -> bytes:
        return b"".join(json_line(row) for row in rows)

    def end(self) -> bytes:
        return b""


class ParquetEncoder:
    """Row groups as they fill; the footer at the end."""

    def __init__(self, *, group_rows: int = GROUP_ROWS, group_bytes: int = GROUP_BYTES) -> None:
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), SCHEMA, compression="zstd"
        )
        self._group_rows = group_rows
        self._group_bytes = group_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0

    def add(self, rows: Rows) -> bytes:
        batch = pa.RecordBatch.from_pydict(
            {
                name: [_plain_value(value) for value in values]
                for name, values in _columns(rows).items()
            },
            schema=SCHEMA,
        )
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= self._group_rows or self._held_bytes >= self._group_bytes:
            self._write_group()
        return self._sink.take()

    def end(self) -> bytes:
        self._write_group()
        self._writer.close()
        return self._sink.take()

    def _write_group(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, schema=SCHEMA)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._held = []
        self._held_rows = self._held_bytes = 0


def json_line(row: Row[Any], *, leave_out: str | None = None) -> bytes:
    """A row whose JSON columns are text, as the API writes decisions; with a line end."""
    return orjson.dumps(
        {
            name: _json_value(name, value)
            for name, value in row._asdict().items()
            if name != leave_out
        },
        option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z,
    )


def encoder_of(form: ExportFormat) -> Encoder:
    return ParquetEncoder() if form is ExportFormat.PARQUET else NdjsonEncoder()


async def export_bytes(pages: ExportPages, encoder: Encoder) -> AsyncGenerator[bytes]:
    """The file piece by piece. Encoding runs in a thread: requests are answered meanwhile.

    An error ends it in the middle: without its last piece the file is known to be cut.
    """
    async for rows in pages:
        piece = await asyncio.to_thread(encoder.add, rows)
        if piece:
            yield piece
    rest = await asyncio.to_thread(encoder.end)
    if rest:
        yield rest


class _Sink:
    """A file that is taken away while it is written."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._written_bytes = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._written_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._written_bytes

    def flush(self) -> None:
        """Everything is handed on by `take`."""

    def close(self) -> None:
        """Nothing is held open."""

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _columns(rows: Rows) -> Mapping[str, Sequence[Any]]:
    return dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))


def _plain_value(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value.hex() if isinstance(value, bytes) else value


def _json_value(name: str, value: Any) -> Any:
    if name in _JSON and value is not None:
        # As it is stored: to read and write it again would change nothing.
        return orjson.Fragment(value)
    return _plain_value(value)
