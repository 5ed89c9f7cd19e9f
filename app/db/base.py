"""The declarative base of every table, and the column types Postgres has and SQLAlchemy lacks."""

from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import UserDefinedType

# Constraints get predictable names, so that a later migration can drop what an earlier one made.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Every table of the service hangs on this class's metadata."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class Xid8(UserDefinedType[int]):
    """A transaction id that never wraps (`xid8`); a Python int on both sides."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "XID8"


# Lets reflection, and so the drift check, read the type back.
ischema_names["xid8"] = Xid8
