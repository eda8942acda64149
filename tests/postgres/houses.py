"""A store with two tenants, each with a database role of its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg

from hermes.store.engines.postgres import tenants
from hermes_state import SessionDB
from tests.support import postgres

VERSIONS = [name.removeprefix("postgres") for name in postgres.ENGINES if name != "sqlite"]
BEGINNING = "You are a helpful assistant. " * 60
SECRET = "xylophone"  # stands in everything of Bob's


@dataclass
class House:
    """A store with two tenants, Alice and Bob, and their database roles."""

    server: postgres.Shared
    url: str
    alice: str
    bob: str

    @property
    def place(self) -> str:
        """The store's schema."""
        return self.url.rpartition("search_path%3D")[2].partition("%2C")[0]

    def of(self, role: str, *, tables: bool = False) -> str:
        """The store's URL for somebody else: where its views are, or where the tables are."""
        url = self.url.replace("postgres@", f"{quote(role)}@", 1)
        return url if tables else url.replace(self.place, f"{self.place}_tenants", 1)

    def ask(self, role: str, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.of(role), autocommit=True) as connection:
            return connection.execute(sql.encode(), params or None).fetchall()

    def do(self, role: str, sql: str, *, tables: bool = False) -> int:
        with psycopg.connect(self.of(role, tables=tables), autocommit=True) as connection:
            return connection.execute(sql.encode()).rowcount


def _fill(db: SessionDB) -> None:
    db.create_session("alices", "telegram", user_id="1", system_prompt=BEGINNING + "Alice likes tea.")
    db.append_message("alices", "user", "teapot of mine, said Alice")
    db.set_session_title("alices", "tea")
    db.tag_session("alices", "kitchen")
    db.create_session("bobs", "telegram", user_id="2", system_prompt=BEGINNING + f"Bob has a {SECRET}.")
    data = "data:image/png;base64," + base64.b64encode(b"a picture of a " + SECRET.encode() * 30).decode()
    db.append_message(
        "bobs",
        "user",
        [{"type": "text", "text": f"{SECRET} teapot"}, {"type": "image_url", "image_url": {"url": data}}],
    )
    db.append_message("bobs", "tool", f"{SECRET} {'words ' * 200}" * 60, tool_name="terminal")
    db.set_session_title("bobs", f"{SECRET} plan")
    db.tag_session("bobs", SECRET)
    db.branch_session("bobs", new_session_id="bobs-branch")
    db.create_session("shared", "telegram", user_id="2")
    db.append_message("shared", "user", "a trumpet for both")
    db.share_session("shared", "telegram", "1")
    db.create_session("nobodys", "cli")
    db.append_message("nobodys", "user", f"the owner's {SECRET}")


@contextmanager
def built(version: str, name: str) -> Iterator[House]:
    server = postgres.server(version)
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    alice, bob = f"alice_{mark}", f'Bob "{mark}'
    roles = [f'"{role.replace(chr(34), chr(34) * 2)}"' for role in (alice, bob)]
    server.sql(*(f"CREATE ROLE {role} LOGIN" for role in roles))
    url = server.store(name)
    try:
        with SessionDB(url=url) as db:
            _fill(db)
        tenants.switch_on(url, [(alice, "telegram", "1"), (bob, "telegram", "2")])
        yield House(server, url, alice, bob)
    finally:
        server.forget(name)
        for role in roles:
            server.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
