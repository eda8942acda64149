"""Write the tables of columns in docs/format.md from the tables as the code declares them.

    python -m tools.format_tables

Names and types come from the schema. The meaning of a column or table stands on the page alone: the last cell of its row is kept.
A new column joins its table's row in the list of tables; give it a row of its own where readers need it. A new table joins the
internal ones; give it a row where readers may rely on it. tests/store/test_docs.py fails while the page differs from the schema.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from hermes.store.engines.sqlite import schema
from hermes.store.exchange import collect
from hermes.store.gateway import cron, routes
from hermes.store.search import vectors

PAGE = Path(__file__).resolve().parents[1] / "docs" / "format.md"
STATEMENTS = {  # by the module that declares them
    "engines/sqlite/schema.py": (
        *schema.TABLES, *schema.INSIDE, *schema.FULL_TEXT, *schema.INDEXES, *schema.VIEWS
    ),
    "gateway/routes.py": routes.STATEMENTS,
    "gateway/cron.py": cron.TABLES,
    "exchange/collect.py": collect.TABLES,
    "search/vectors.py": vectors.TABLES,
}  # fmt: skip
_BLOCK = re.compile(
    r"(<!-- (columns of (?P<table>\w+)|(?:public|internal) tables|indexes) -->\n).*?(<!-- end -->)", re.DOTALL
)
SHADOW = re.compile(r"messages_fts(_trigram)?_(data|idx|docsize|config|content)|sqlite_.*")
_ROW = re.compile(r"^\| `(\w+)` \|[^|]*\| ?(.*?) ?\|$", re.MULTILINE)
UNTYPED = "FTS5"


class Tables:
    """The tables and indexes of a store that used every feature."""

    def __init__(self) -> None:
        self.columns: dict[str, dict[str, str]] = {}  # by table, the type of each column
        self.indexes: dict[str, list[str]] = defaultdict(list)  # by table
        self.modules: dict[str, list[str]] = defaultdict(list)  # by module, its tables
        connection = sqlite3.connect(":memory:")
        for module, statements in STATEMENTS.items():
            for statement in statements:
                connection.execute(statement)
            rows = connection.execute("SELECT type, name, tbl_name FROM sqlite_master ORDER BY rowid").fetchall()
            for kind, name, table in rows:
                if kind == "index" and not SHADOW.fullmatch(name) and name not in self.indexes[table]:
                    self.indexes[table].append(name)
                elif kind == "table" and not SHADOW.fullmatch(name) and name not in self.columns:
                    self.modules[module].append(name)
                    found = connection.execute(f"PRAGMA table_info({name})").fetchall()
                    self.columns[name] = {column: kind or UNTYPED for _, column, kind, *_ in found}
        connection.close()


def generated(page: str) -> str:
    """The page with its blocks made from the schema."""
    tables = Tables()
    blocks = list(_BLOCK.finditer(page))
    public = {found["table"] for found in blocks}
    public |= {name for found in blocks if found[2] == "public tables" for name, _ in _ROW.findall(found[0])}
    shown: dict[str, set[str]] = {}  # by table, the columns that have rows of their own

    def column_rows(table: str, told: dict[str, str]) -> Iterator[str]:
        yield "| column | type | meaning |\n|---|---|---|"
        kinds = tables.columns[table]
        shown[table] = told.keys() & kinds.keys()
        for column, meaning in told.items():
            if column in kinds:
                yield f"| `{column}` | {kinds[column]} | {meaning} |"

    def table_rows(told: dict[str, str]) -> Iterator[str]:
        yield "| table | columns | holds |\n|---|---|---|"
        for table in filter(tables.columns.__contains__, told):
            by_type: dict[str, list[str]] = defaultdict(list)
            for column, kind in tables.columns[table].items():
                if column not in shown.get(table, ()):
                    by_type[kind].append(f"`{column}`")
            cell = "; ".join(f"{kind} {', '.join(names)}" for kind, names in by_type.items())
            yield f"| `{table}` | {cell or 'none'} | {told[table]} |"

    def internal() -> Iterator[str]:
        for module, names in tables.modules.items():
            listed = (f"`{one}` ({', '.join(tables.columns[one])})" for one in names if one not in public)
            yield f"- `store/{module}`: {'; '.join(listed)}"

    def block(found: re.Match[str]) -> str:
        told = dict(_ROW.findall(found[0]))
        if found["table"]:
            lines = [*column_rows(found["table"], told)]
        elif found[2] == "public tables" or found["table"]:
            lines = [*table_rows(told)]
        elif found[2] == "internal tables":
            lines = [*internal()]
        else:
            lines = [f"- `{table}`: {', '.join(names)}" for table, names in tables.indexes.items()]
        return "\n".join([found[1].rstrip(), "", *lines, "", found[4]])

    return _BLOCK.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
