"""Both engines answer alike: the same random calls on a file and on a server, and every answer compared.

Ids that are drawn, times and scores may differ in detail; which messages, in which order, with which text may not. Where
ranking may put equals in another order, the set of what was found is compared.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hermes.errors import HermesError
from hermes_state import SessionDB
from tests.support import postgres
from tests.support.sizes import size

WORDS = ("docker", "Deploy", "getUserById", "déployé", "部署配置", "文", "ไทย", "🙂", "a_b", "get_user_by_id", "user by", "it's", "50%", "x\0y", "\ud800z",
         "\ufdd0", "user@host", "a/b.py", "#123")  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS), min_size=0, max_size=6).map(" ".join)
QUERIES = st.one_of(
    st.lists(st.sampled_from((*WORDS, "dock*", "OR", "NOT", "(", ")", '"', "UserBy", "user_by", "t_user", "et_user_by_i", "plo", "部署", "署", "y")), min_size=1,
             max_size=5).map(" ".join),
    st.just("how do I docker the 部署 deploy thing"),
)  # fmt: skip
SESSIONS = [f"s{number}" for number in range(6)]
NAMES = st.sampled_from(SESSIONS)
TITLES = st.sampled_from(["work", "work #2", "Ärger", "x" * 99, "部署", "a%b_c", "", "\ufdd0"])
USERS = st.sampled_from([None, ("telegram", "1"), ("cli", "2")])
_VARIES = frozenset(("started_at", "ended_at", "timestamp", "last_active", "session_started", "score", "trashed_at", "at",
                     "pinned_at", "archived_at", "handoff_requested_at"))  # fmt: skip
_stores = itertools.count()


def steady(value: Any) -> Any:
    """An answer without what the clock and the ranking's arithmetic put into it."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in _VARIES}
    if isinstance(value, (list, tuple)):
        return [steady(item) for item in value]
    return value


class BothEngines(RuleBasedStateMachine):
    """A store on each engine, and the same calls to both."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = itertools.count(1_700_000_000)
        self.name = f"equivalence {next(_stores)}"
        root = Path(self.folder.name)
        self.file = SessionDB(db_path=root / "file" / "state.db")
        self.server = SessionDB(url=postgres.server().store(self.name), db_path=root / "server" / "state.db")
        self.messages: list[int] = []
        for name, text in zip(
            SESSIONS[:4], ("docker 部署配置", "getUserById it's", "x\0y déployé", "a/b.py"), strict=True
        ):
            self.create(name, "cli", None, None)
            self.append(name, "user", text, False)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                assert self.both(lambda db: db.check()) == []
                assert steady(self.file.export_all()) == steady(self.server.export_all())
            finally:
                self.file.close()
                self.server.close()
                self.folder.cleanup()
                postgres.server().forget(self.name)

    def both(self, call: Callable[[SessionDB], Any]) -> Any:
        """The result of a call, which must be equal on both engines."""
        answers: list[Any] = []
        for db in (self.file, self.server):
            try:
                answers.append(steady(call(db)))
            except (HermesError, TypeError, ValueError, OverflowError) as error:
                answers.append((type(error).__name__, str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(name=NAMES, source=st.sampled_from(["cli", "telegram"]), user=st.sampled_from([None, "1", "2"]),
          prompt=st.sampled_from([None, "p" * 2000, "p" * 2000 + "q", "\0\ud800" * 700]))  # fmt: skip
    def create(self, name: str, source: str, user: str | None, prompt: str | None) -> None:
        at = float(next(self.clock))
        self.both(lambda db: db.create_session(name, source, user_id=user, system_prompt=prompt, started_at=at))

    @rule(name=NAMES, role=st.sampled_from(["user", "assistant", "tool"]), text=TEXTS, calls=st.booleans())
    def append(self, name: str, role: str, text: str, calls: bool) -> None:
        at = float(next(self.clock))
        made = [{"id": "c", "function": {"name": "terminal", "arguments": '{"command": "' + "docker ps" + '"}'}}]
        answer = self.both(
            lambda db: db.append_message(
                name, role, text, tool_calls=made if calls else None, tool_name="terminal" if role == "tool" else None,
                timestamp=at,
            )
        )  # fmt: skip
        if isinstance(answer, int):
            self.messages.append(answer)

    @rule(name=NAMES, text=TEXTS)
    def append_long(self, name: str, text: str) -> None:
        at = float(next(self.clock))
        long = f"{text} " * 400 + "zebra crossing"
        self.both(lambda db: db.append_message(name, "tool", long, timestamp=at))

    @rule(
        query=QUERIES, user=USERS, roles=st.sampled_from([None, ["user"], []]), source=st.sampled_from([None, ["cli"]])
    )
    def search(self, query: str, user: Any, roles: Any, source: Any) -> None:
        def found(db: SessionDB) -> list[Any]:
            hits = db.search_messages(query, role_filter=roles, source_filter=source, visible_to=user, limit=500)
            return sorted(([hit["id"], hit["reason"], hit["session_id"], steady(hit)] for hit in hits), key=str)

        self.both(found)

    @rule(query=st.sampled_from(["zebra docker", '"zebra crossing"', "zebra NOT docker", "crossing OR 部署"]))
    def search_long(self, query: str) -> None:
        self.both(lambda db: sorted(hit["id"] for hit in db.search_messages(query, limit=500)))

    @rule(user=USERS, active=st.booleans(), children=st.booleans())
    def list(self, user: Any, active: bool, children: bool) -> None:
        def rows(db: SessionDB) -> Any:
            return db.list_sessions_rich(
                limit=50, visible_to=user, order_by_last_active=active, include_children=children
            )

        # Times of branches and the like are drawn: only what is listed can be compared when they decide the order.
        self.both(lambda db: sorted((steady(row) for row in rows(db)), key=str))

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        self.both(lambda db: db.get_session(name))
        self.both(lambda db: db.get_messages(name))
        self.both(lambda db: db.get_messages_as_conversation(name, include_ancestors=True))
        self.both(lambda db: db.get_compression_chain(name))
        self.both(lambda db: db.resolve_resume_session_id(name))

    @rule(name=NAMES, title=TITLES)
    def title(self, name: str, title: str) -> None:
        self.both(lambda db: db.set_session_title(name, title))
        self.both(lambda db: db.get_next_title_in_lineage(title))
        self.both(lambda db: db.get_session_by_title(title))
        self.both(lambda db: db.search_messages("docker", title=title, limit=500) is not None)

    @rule(name=NAMES, new=NAMES)
    def branch(self, name: str, new: str) -> None:
        self.both(lambda db: db.branch_session(name, new))

    @rule(name=NAMES, new=NAMES)
    def compress(self, name: str, new: str) -> None:
        shown = self.file.get_messages(name)
        tail = shown[-1]["id"] if shown else None
        self.both(lambda db: db.compress_session(name, new, summary="docker summary", tail_from=tail))

    @precondition(lambda self: self.messages)
    @rule(name=NAMES, data=st.data())
    def rewind(self, name: str, data: Any) -> None:
        message = data.draw(st.sampled_from([0, *self.messages[-8:]]))
        self.both(lambda db: db.rewind(name, message))

    @rule(name=NAMES)
    def unrewind(self, name: str) -> None:
        self.both(lambda db: db.unrewind(name))

    @rule(name=NAMES, texts=st.lists(TEXTS, max_size=3))
    def replace(self, name: str, texts: list[str]) -> None:
        rows = [{"role": "user", "content": text, "timestamp": float(next(self.clock))} for text in texts]
        self.both(lambda db: db.replace_messages(name, rows))

    @rule(name=NAMES, how=st.sampled_from(["trash_session", "restore_session", "delete_session", "reopen_session"]))
    def remove(self, name: str, how: str) -> None:
        self.both(lambda db: getattr(db, how)(name))

    @rule(name=NAMES, tokens=st.integers(0, 1 << 40))
    def count(self, name: str, tokens: int) -> None:
        self.both(lambda db: db.update_token_counts(name, input_tokens=tokens, estimated_cost_usd=0.25, model="m"))
        self.both(lambda db: db.end_session(name, "done"))

    @rule(name=NAMES, tag=st.sampled_from(["work", "部署"]))
    def tag(self, name: str, tag: str) -> None:
        self.both(lambda db: db.tag_session(name, tag))
        self.both(lambda db: db.share_session(name, "telegram", "1"))
        self.both(lambda db: db.get_tags(name))

    @rule(name=NAMES, platform=st.sampled_from(["telegram", "discord"]))
    def hand_off(self, name: str, platform: str) -> None:
        self.both(lambda db: db.request_handoff(name, platform))
        self.both(lambda db: [row["id"] for row in db.list_pending_handoffs()])
        self.both(lambda db: db.claim_handoff(name))

    @rule(name=NAMES, key=st.sampled_from(["k", "\0", "部"]))
    def meta(self, name: str, key: str) -> None:
        self.both(lambda db: db.set_meta(key, f"{name}\0\ud800"))
        self.both(lambda db: db.get_meta(key))
        self.both(lambda db: [db.session_count(), db.message_count(), db.source_counts()])
        self.both(lambda db: db.acquire_lease(f"lease {key}", name))


BothEngines.TestCase.settings = settings(max_examples=size(5, 25), stateful_step_count=30, deadline=None)
TestBothEngines = BothEngines.TestCase
