"""Statements sent to the driver as they are: SQLAlchemy's `text()`, without its execution.

A statement of ours is written as SQL with named parameters and types. SQLAlchemy turns it into the
driver's form once; from then on the driver is asked directly, which takes a tenth of the CPU that
the ORM's and the dialect's way to the same call takes. Composed statements (`select(...)`) still go
that way, unless they are made once and kept, as `Kept`.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Select, TextClause
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import MultipleResultsFound, NoResultFound
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.types import TypeEngine


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Kept:
    """A composed statement with named parameters, made once; lists are array parameters."""

    statement: Select[Any]


Native = TextClause | TextualSelect | Kept
Convert = Callable[[Any], Any]


class Prepared(NamedTuple):
    """A statement in the driver's form. A converter is None where values go as they are."""

    sql: str
    names: tuple[str, ...]
    bind: tuple[Convert | None, ...]
    # Of parameters that were bound when the statement was written.
    bound: Mapping[str, Any]
    result: Mapping[str, Convert]


class Statements:
    """The statements of one dialect, each translated once for as long as it is referred to."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: WeakKeyDictionary[Native, Prepared] = WeakKeyDictionary()

    def prepared(self, statement: Native) -> Prepared:
        found = self._known.get(statement)
        if found is None:
            found = self._known[statement] = self._translated(statement)
        return found

    def _translated(self, statement: Native) -> Prepared:
        composed = statement.statement if isinstance(statement, Kept) else statement
        compiled: Any = composed.compile(dialect=self._dialect)
        names = tuple(compiled.positiontup or ())
        columns = () if isinstance(composed, TextClause) else composed.selected_columns
        converts = {column.name: self._result(column.type) for column in columns}
        return Prepared(
            compiled.string,
            names,
            tuple(self._bind(compiled.binds[name].type) for name in names),
            {name: bind.value for name, bind in compiled.binds.items() if not bind.required},
            {name: convert for name, convert in converts.items() if convert is not None},
        )

    def _bind(self, of_type: TypeEngine[Any]) -> Convert | None:
        found: Convert | None = of_type.dialect_impl(self._dialect).bind_processor(self._dialect)
        return found

    def _result(self, of_type: TypeEngine[Any]) -> Convert | None:
        implemented = of_type.dialect_impl(self._dialect)
        found: Convert | None = implemented.result_processor(self._dialect, None)
        return found


def arguments(prepared: Prepared, values: Mapping[str, Any]) -> list[Any]:
    """The values in the order of the statement. Raises KeyError for one that is missing."""
    if prepared.bound:
        values = {**prepared.bound, **values}
    return [
        values[name] if convert is None else convert(values[name])
        for name, convert in zip(prepared.names, prepared.bind, strict=True)
    ]


_ROW_TYPES: Final[dict[tuple[str, ...], type[Any]]] = {}
_MAX_ROW_TYPES: Final = 1_000


class Rows:
    """What a statement returned: every row, as a named tuple, in memory."""

    def __init__(self, records: Sequence[Any], prepared: Prepared) -> None:
        self._rows = _rows(records, prepared.result) if records else []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def one_or_none(self) -> Any:
        """None when there is no row. Raises MultipleResultsFound for more than one."""
        if len(self._rows) > 1:
            raise MultipleResultsFound("More than one row was found where one was required")
        return self._rows[0] if self._rows else None

    def one(self) -> Any:
        """Raises NoResultFound when there is none."""
        row = self.one_or_none()
        if row is None:
            raise NoResultFound("No row was found where one was required")
        return row

    def scalars(self) -> "Scalars":
        """The first column."""
        return Scalars(row[0] for row in self._rows)

    def scalar_one_or_none(self) -> Any:
        row = self.one_or_none()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalar(self) -> Any:
        """The first column of the first row; None when there is no row."""
        return self._rows[0][0] if self._rows else None


class Scalars(list[Any]):
    """One column."""

    def all(self) -> list[Any]:
        return self


def _rows(records: Sequence[Any], converts: Mapping[str, Convert]) -> list[Any]:
    names = tuple(records[0].keys())
    row_type = _ROW_TYPES.get(names)
    if row_type is None:
        if len(_ROW_TYPES) >= _MAX_ROW_TYPES:
            _ROW_TYPES.clear()
        row_type = _ROW_TYPES[names] = _row_type(names)
    if not converts:
        return [row_type._make(record.values()) for record in records]
    return [
        row_type._make(
            converts[name](value) if name in converts and value is not None else value
            for name, value in record.items()
        )
        for record in records
    ]


def _row_type(names: tuple[str, ...]) -> type[Any]:
    # An expression without a name has one that is no attribute; such a row is read by position.
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    return type("Row", (base,), {"__slots__": (), "_mapping": property(base._asdict)})
