"""The style as functions: each takes one parsed file and yields what is wrong in it.

Rules on text (`forbidden_words`) take any committed file. Where a rule has exceptions, they are
listed beside it with a reason, and an exception that nothing needs any more fails the test.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

Functions = ast.FunctionDef | ast.AsyncFunctionDef

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
MAX_TEST_FILE_LINES = 800
VAGUE_NAMES = frozenset(
    {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
)
BARE_NAMES = frozenset({"size", "timeout"})

READS_CLOCK_OR_CHANCE = {
    "app/clock.py": "the one place that reads them",
}
STATEMENTS = frozenset({"delete", "insert", "select", "text", "update"})
WRITES_SQL = re.compile(r"app/(db/.*|(\w+/)+((\w+_)?repository|partitions)\.py)|migrations/.*")
# Upper case, as all our SQL is: in lower case these are words of prose.
SQL_TEXT = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s"
    r"|(CREATE|ALTER|DROP)\s+(TABLE|INDEX)\s)"
)
COMMITS = "app/db/session.py"

CLOCK_MODULES = frozenset({"random", "secrets", "time"})
CLOCK_NAMES = frozenset({"getrandom", "uuid1", "uuid4", "urandom"})
CLOCK_CALLS = frozenset(
    {("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"), ("date", "today")}
)

# Classes of one character keep the words out of this file itself.
WORDS = re.compile(
    r"(?<![\w.~/-])/[w]ork/\w+|(?<![\w.~/-])/[r]oot/\w+|(?<![\w.~/-])/[h]ome/\w+"
    r"|\b[C]laude\b|\b[A]nthropic\b|\b[C]opilot\b|\b[C]hatGPT\b|\b[C]odex\b|\bsub-?[a]gents?\b"
    r"|\b[i]ssues? #?\d+\b|\b[p]ypi\.org\b|\b[p]ythonhosted\b|\b[n]pmjs\b|\bdeb\.[d]ebian\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Source:
    """A Python file; `path` is relative to the project, with slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> list[Functions]:
        return [node for node in self.nodes if isinstance(node, Functions)]

    @property
    def line_count(self) -> int:
        return self.text.count("\n")


def long_functions(source: Source) -> Iterator[str]:
    for function in source.functions:
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield f"{function.lineno}: {function.name} has {lines} lines"


def long_file(source: Source) -> Iterator[str]:
    most = MAX_TEST_FILE_LINES if source.path.startswith("tests/") else MAX_FILE_LINES
    if source.line_count > most:
        yield f"1: {source.line_count} lines, at most {most}"


def vague_module_name(source: Source) -> Iterator[str]:
    path = PurePosixPath(source.path)
    for part in [*path.parts[:-1], path.stem]:
        if VAGUE_NAMES & set(part.split("_")):
            yield f"1: `{part}` does not say what is in it"


def sql_outside_repositories(source: Source) -> Iterator[str]:
    """Statements are built, and written as text, only where SQL lives; models describe tables."""
    if WRITES_SQL.fullmatch(source.path):
        return
    allowed = {"text"} if source.path.endswith("/models.py") else set()
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
            for name in sorted({a.name for a in node.names} & STATEMENTS - allowed):
                yield f"{node.lineno}: imports `{name}` of sqlalchemy"
        elif isinstance(node, ast.Attribute) and node.attr in STATEMENTS - allowed:
            if isinstance(node.value, ast.Name) and node.value.id in {"sa", "sqlalchemy"}:
                yield f"{node.lineno}: builds a statement with `{node.value.id}.{node.attr}`"
        elif isinstance(node, ast.Constant) and SQL_TEXT.match(str(node.value)):
            yield f"{node.lineno}: holds SQL"


def commits(source: Source) -> Iterator[str]:
    if source.path == COMMITS:
        return
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "commit":
            yield f"{node.lineno}: only {COMMITS} commits"


def reads_clock_or_chance(source: Source) -> Iterator[str]:
    if source.path in READS_CLOCK_OR_CHANCE:
        return
    for node in source.nodes:
        match node:
            case ast.Import():
                found = {alias.name for alias in node.names} & CLOCK_MODULES
            case ast.ImportFrom():
                names = {alias.name for alias in node.names}
                found = names & CLOCK_NAMES or {node.module or ""} & CLOCK_MODULES
            case ast.Attribute(value=ast.Name(id=owner), attr=attr):
                known = attr in CLOCK_NAMES or (owner, attr) in CLOCK_CALLS
                found = {f"{owner}.{attr}"} if known else set()
            case ast.Attribute(attr=attr) if attr in CLOCK_NAMES | {"utcnow"}:
                found = {attr}
            case _:
                continue
        for name in sorted(found):
            yield f"{node.lineno}: `{name}`; take a Clock or an IdSource"


def http_middleware_base(source: Source) -> Iterator[str]:
    for node in source.nodes:
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else {name}
        if "BaseHTTPMiddleware" in names:
            yield f"{getattr(node, 'lineno', 1)}: middleware is plain ASGI"


def function_level_imports(source: Source) -> Iterator[str]:
    for function in source.functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield f"{node.lineno}: import inside {function.name}"


def bare_names(source: Source) -> Iterator[str]:
    """A parameter that measures something names its unit."""
    for function in source.functions:
        arguments = function.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            if argument.arg in BARE_NAMES:
                yield f"{argument.lineno}: `{argument.arg}` of {function.name} names no unit"


def forbidden_words(text: str) -> Iterator[str]:
    """Paths of one machine, names of tools that wrote the code, hosts that only a mirror needs."""
    for number, line in enumerate(text.splitlines(), start=1):
        for found in WORDS.finditer(line):
            yield f"{number}: `{found[0]}`"
