"""The session browser, used the way a person does: by keys and clicks, on a store of thousands of conversations."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Input, Static

from hermes.chat.browse.panes import ListLine, SessionList, matching
from hermes.chat.browse.screen import Browser
from hermes.errors import StoreClosed
from hermes.store.text.index_text import fold
from hermes_state import SessionDB
from tests.support.program import PROGRAM, environment, run
from tests.support.sizes import size
from tests.support.waiting import until, until_async

MANY = size(5_000, 10_000)  # a filter test names number 4,321
NEWEST = [f"s{MANY - number:05}" for number in range(1, 6)]
TOPICS = ("Docker on the Pi", "Café Übersicht", "服务器部署配置", "Einkauf 🛒 Samstag", "שלום עולם", "👨‍👩‍👧 plans")


class Hand:
    """Someone at the keyboard."""

    def __init__(self, pilot: Any) -> None:
        self.pilot, self.app = pilot, pilot.app

    @property
    def list(self) -> SessionList:
        return self.app.screen_stack[1].query_one(SessionList)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def dialog(self, key: str) -> None:
        """Press the key that opens a dialog."""
        await self.press(key)
        await self.until(lambda: len(self.app.screen_stack) == 3)

    async def type(self, text: str) -> None:
        await self.pilot.press(*("space" if c == " " else c for c in text))

    async def until(self, condition: Callable[[], Any]) -> Any:
        return await until_async(condition, lambda: f"status: {self.status!r}", pause=self.pilot.pause)

    async def loaded(self) -> None:
        await self.until(lambda: self.app.screen_stack[1].loaded)

    def text(self, selector: str) -> str:
        """The text of a widget (of the window on top, else of the screen)."""
        for screen in reversed(self.app.screen_stack):
            for widget in screen.query(selector):
                if isinstance(widget, Static):
                    return str(widget.content)
        raise AssertionError(f"no {selector}")

    @property
    def status(self) -> str:
        return self.text("#status")

    def ids(self) -> list[str]:
        return [line.id for line in self.list.lines]

    def rows(self) -> list[str]:
        """The lines of the list as they are drawn."""
        return [self.list.render_line(y).text for y in range(self.list.size.height)]


@asynccontextmanager
async def browsing(db: Any, size: tuple[int, int] = (110, 30)) -> AsyncIterator[Hand]:
    """The browser, open for the block; then `hand.app.return_value` is what it ended with."""
    app = Browser(db)
    async with app.run_test(size=size) as pilot:
        hand = Hand(pilot)
        await hand.until(lambda: len(app.screen_stack) > 1)
        await hand.loaded()
        yield hand


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionDB]:
    """Thousands of conversations; no test changes them."""
    now = time.time()

    def conversation(number: int) -> dict[str, Any]:
        at = now - (MANY - number) * 60
        topic = TOPICS[number % len(TOPICS)]
        said = [
            ("user", f"Please help with {topic}, number {number}"),
            ("assistant", f"The secret word is kiwi{number}x."),
        ]
        return {
            "id": f"s{number:05}", "source": ("cli", "telegram")[number % 2], "started_at": at,
            "title": f"{topic} {number}" if number % 3 else None,
            "messages": [{"role": role, "content": text, "timestamp": at} for role, text in said],
        }  # fmt: skip

    with SessionDB(tmp_path_factory.mktemp("many") / "state.db", durability="normal", transcripts="off") as db:
        db.import_sessions(conversation(number) for number in range(MANY))
        yield db


@pytest.fixture
def few(db: Any) -> Any:
    for number, (name, title) in enumerate([("old", "Alpha plan"), ("middle", None), ("new", "Beta plan")]):
        at = time.time() - 1000 + number
        db.create_session(name, "cli", started_at=at)
        db.append_message(name, "user", f"First words of {name}", timestamp=at)
        db.append_message(name, "assistant", f"An answer about pears in {name}", timestamp=at + 0.1)
        if title:
            db.set_session_title(name, title)
    return db


# ── thousands ──


async def test_thousands_are_all_there_newest_first_and_only_what_is_seen_is_drawn(many: SessionDB) -> None:
    async with browsing(many) as hand:
        assert len(hand.list.lines) == MANY and hand.ids()[:2] == NEWEST[:2]
        assert f"{MANY:,} conversations" in hand.status
        assert len(hand.list.children) == 0  # no widget per line
        await hand.press("ctrl+end")
        assert hand.list.current.id == "s00000" and "Docker on the Pi" in hand.rows()[-1]
        await hand.press("pageup", "ctrl+home", "down", "down", "up")
        assert hand.list.current.id == NEWEST[1]


TYPED = [
    ("number 4321", ["s04321"]),  # first words
    ("S04321", ["s04321"]),  # id
    ("CAFE docker 4321", []),
    ("cafe ubersicht 4327", ["s04327"]),  # no accents, other case, words in any order
    ("4327 ÜBERSICHT", ["s04327"]),
    ("部署 4328", ["s04328"]),
    ("nothing like this", []),
]


async def test_typing_filters_by_title_first_words_and_id(many: SessionDB) -> None:
    async with browsing(many) as hand:
        for typed, found in TYPED:
            hand.app.screen.query_one(Input).value = typed
            await hand.until(lambda found=found: hand.ids() == found)
            assert f"{len(found)} of {MANY:,} conversations" in hand.status, typed
            if not found:
                assert "Tab searches inside" in "".join(hand.rows())
            await hand.press("escape")
            await hand.until(lambda: len(hand.list.lines) == MANY)


async def test_tab_searches_inside_the_conversations(many: SessionDB) -> None:
    async with browsing(many) as hand:
        await hand.type("kiwi777x")
        await hand.until(lambda: not hand.list.lines)  # not in any title
        await hand.press("tab")
        await hand.until(lambda: hand.ids() == ["s00777"])
        assert "kiwi777x" in hand.rows()[0] and ">>>" not in hand.rows()[0]
        await hand.until(lambda: "found here" in hand.text("#conversation"))
        await hand.press("escape", "escape")  # what was typed, then the search
        await hand.until(lambda: len(hand.list.lines) == MANY)
        assert hand.text("#mode") == "Filter"


async def test_hits_that_are_only_near_are_said_to_be(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.press("tab")
        await hand.type("which pears did Veronica answer for")
        await hand.until(lambda: hand.list.lines)
        assert "Nothing closely matches" in hand.status


async def test_a_conversation_with_very_many_matches_hides_no_other_one(few: Any) -> None:
    few.create_session("one", "cli")
    few.append_message("one", "user", "a walrus")
    few.create_session("long", "cli")
    few.replace_messages("long", [{"role": "user", "content": f"walrus {number}"} for number in range(500)])
    async with browsing(few) as hand:
        await hand.type("walrus")
        await hand.press("tab")
        await hand.until(lambda: set(hand.ids()) == {"long", "one"})


# ── choosing ──


async def test_enter_ends_with_the_chosen_session(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.press("down", "enter")
    assert hand.app.return_value == "middle"


async def test_escape_and_ctrl_c_leave_without_one(few: Any) -> None:
    for key in ("escape", "ctrl+c", "ctrl+q"):
        async with browsing(few) as hand:
            await hand.press(key)
        assert hand.app.return_value is None


async def test_the_mouse_moves_and_chooses(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.pilot.click(SessionList, offset=(5, 1))
        assert hand.list.current.id == "middle"
        await hand.pilot.click(SessionList, offset=(5, 20))  # below the last line: nothing
        assert hand.list.current.id == "middle"
        await hand.pilot.click(SessionList, offset=(5, 2), times=2)
    assert hand.app.return_value == "old"


async def test_a_chain_of_compressions_is_one_line(few: Any) -> None:
    few.compress_session("old", "old-2", summary="so far, with apricots")
    async with browsing(few) as hand:
        assert hand.ids() == ["old-2", "new", "middle"] and "Alpha plan #2" in hand.rows()[0]


async def test_an_archived_conversation_is_not_listed_but_found(few: Any) -> None:
    few.archive_session("new")
    async with browsing(few) as hand:
        assert hand.ids() == ["middle", "old"]
        await hand.press("tab")
        await hand.type("pears")
        await hand.until(lambda: sorted(hand.ids()) == ["middle", "new", "old"])


async def test_an_automated_run_is_not_listed_but_found(few: Any) -> None:
    few.end_session("new", "oneshot")
    few.create_session("nightly", "cron")
    few.append_message("nightly", "user", "Report on pears")
    async with browsing(few) as hand:
        assert hand.ids() == ["middle", "old"]
        await hand.press("tab")
        await hand.type("pears")
        await hand.until(lambda: hand.ids()[:2] == ["middle", "old"] and sorted(hand.ids()[2:]) == ["new", "nightly"])


# ── the preview ──


async def test_the_preview_shows_the_conversation_under_the_cursor(few: Any) -> None:
    few.tag_session("new", "work")
    async with browsing(few) as hand:
        await hand.until(lambda: "pears in new" in hand.text("#conversation"))
        shown = hand.text("#conversation")
        assert "Beta plan" in shown and "● you" in shown and "◆ assistant" in shown and "#work" in shown
        await hand.press("down")
        await hand.until(lambda: "pears in middle" in hand.text("#conversation"))
        await hand.press("ctrl+t")
        await hand.until(lambda: not hand.app.screen.query_one("#preview").display)
        await hand.press("ctrl+t")
        await hand.until(lambda: hand.app.screen.query_one("#preview").display)


async def test_of_a_long_conversation_the_beginning_and_the_end_are_shown(db: Any) -> None:
    db.create_session("long", "cli")
    for number in range(100):
        db.append_message("long", "user", f"question {number} " + "x" * 5000)
        call = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
        db.append_message("long", "assistant", None, tool_calls=[call, call])
        db.append_message("long", "tool", "OUTPUT", tool_name="terminal", tool_call_id="c")
    async with browsing(db) as hand:
        await hand.until(lambda: "question 99" in hand.text("#conversation"))
        shown = hand.text("#conversation")
        assert "question 0 " in shown and "question 40" not in shown and "earlier messages" in shown
        assert "[2 tool calls: terminal]" in shown and "OUTPUT" not in shown and len(shown) < 30_000


# ── changing ──


async def test_rename_and_a_clash_that_is_explained(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.dialog("ctrl+r")
        field = hand.app.screen.query_one(Input)
        assert field.value == "Beta plan"
        field.value = "Alpha plan"
        await hand.press("enter")
        await hand.until(lambda: "Alpha plan" in hand.text("#wrong"))  # names the holder, and stays open
        field.value = "Gamma plan"
        await hand.press("enter")
        await hand.until(lambda: len(hand.app.screen_stack) == 2)
        await hand.until(lambda: "Gamma plan" in hand.rows()[0])
        await hand.type("gamma")
        await hand.until(lambda: hand.ids() == ["new"])
    assert few.get_session_title("new") == "Gamma plan"


async def test_delete_asks_and_puts_it_into_the_trash(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.dialog("ctrl+x")
        await hand.press("n")
        await hand.until(lambda: len(hand.app.screen_stack) == 2)
        assert few.get_session("new") is not None
        await hand.dialog("ctrl+x")
        await hand.press("y")
        await hand.until(lambda: hand.ids() == ["middle", "old"])
        assert "hermes sessions restore new" in hand.status
    assert [row["id"] for row in few.list_trash()] == ["new"]


@pytest.mark.parametrize("found", [False, True])
async def test_a_compressed_conversation_is_deleted_whole(few: Any, found: bool) -> None:
    few.compress_session("old", "old-2", summary="so far, with apricots")
    async with browsing(few) as hand:
        assert hand.ids() == ["old-2", "new", "middle"]
        if found:
            await hand.press("tab")
            await hand.type("old OR apricots")
            await hand.until(lambda: sorted(hand.ids()) == ["old", "old-2"])
        await hand.dialog("ctrl+x")
        assert "before it was compressed" in hand.text(".hint")
        await hand.press("y")
        await hand.until(lambda: hand.ids() == ([] if found else ["new", "middle"]))
        assert "hermes sessions restore old-2" in hand.status
    assert {row["id"] for row in few.list_trash()} == {"old", "old-2"}


async def test_a_live_session_is_not_deleted(few: Any) -> None:
    few.hold_session("new", "somebody")
    async with browsing(few) as hand:
        await hand.dialog("ctrl+x")
        await hand.press("y")
        await hand.until(lambda: "elsewhere" in hand.status)
    assert few.get_session("new") is not None


async def test_pin_and_unpin(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.press("ctrl+p")
        await hand.until(lambda: hand.rows()[0].startswith("★"))
        assert few.get_session("new")["pinned_at"] is not None
        await hand.press("ctrl+p")
        await hand.until(lambda: not hand.rows()[0].startswith("★"))
    assert few.get_session("new")["pinned_at"] is None


async def test_export_in_three_forms_and_never_over_a_file(few: Any, make_db: Any, tmp_path: Path) -> None:
    there = tmp_path / "there.md"
    there.write_text("mine")
    async with browsing(few) as hand:
        await hand.dialog("ctrl+e")
        field = hand.app.screen.query_one(Input)
        assert field.value == "Beta-plan.jsonl"
        for wrong, reason in (
            (there, "already exists"),
            (tmp_path / "x.pdf", "must end with"),
            (tmp_path / "no/x.md", "No such"),
        ):
            field.value = str(wrong)
            await hand.press("enter")
            await hand.until(lambda reason=reason: reason in hand.text("#wrong"))
        field.value = str(tmp_path / "out.jsonl")
        await hand.press("enter")
        await hand.until(lambda: "Exported to" in hand.status)
        for ending in ("md", "html"):
            await hand.dialog("ctrl+e")
            hand.app.screen.query_one(Input).value = str(tmp_path / f"out.{ending}")
            await hand.press("enter")
            await hand.until(lambda ending=ending: f"out.{ending}" in hand.status)
    assert there.read_text() == "mine"
    assert "pears in new" in (tmp_path / "out.md").read_text() and "pears in new" in (tmp_path / "out.html").read_text()
    other = make_db()
    assert other.import_session(json.loads((tmp_path / "out.jsonl").read_text()))
    assert other.export_session("new")["messages"] == few.export_session("new")["messages"]


async def test_the_keys_are_explained(few: Any) -> None:
    async with browsing(few) as hand:
        await hand.dialog("f1")
        await hand.press("x")
        await hand.until(lambda: len(hand.app.screen_stack) == 2)
        assert len(hand.list.lines) == 3  # the key went nowhere else


# ── little room, nothing there, strange text ──


async def test_an_empty_store_says_so(db: Any) -> None:
    async with browsing(db) as hand:
        assert "No conversations yet" in "".join(hand.rows())
        await hand.press("enter", "ctrl+r", "ctrl+x", "ctrl+p", "ctrl+e", "down", "pagedown", "ctrl+end", "tab", "tab")
        assert len(hand.app.screen_stack) == 2
    assert hand.app.return_value is None


@pytest.mark.parametrize(
    ("size", "preview"), [((110, 30), True), ((80, 24), True), ((60, 15), False), ((30, 7), False)]
)
async def test_where_there_is_no_room_the_preview_goes(few: Any, size: tuple[int, int], preview: bool) -> None:
    async with browsing(few, size) as hand:
        assert hand.app.screen.query_one("#preview").display is preview
        assert "Beta plan" in hand.rows()[0]
        await hand.press("down", "enter")
    assert hand.app.return_value == "middle"


@pytest.mark.parametrize("size", [(8, 3), (3, 2), (1, 1)])
async def test_a_terminal_of_any_size_can_be_left(few: Any, size: tuple[int, int]) -> None:
    async with browsing(few, size) as hand:
        await hand.press("down", "ctrl+x", "n", "f1", "x", "enter")
    assert hand.app.return_value == "middle"


async def test_text_from_elsewhere_can_do_nothing_to_the_terminal(db: Any) -> None:
    db.create_session("evil", "cli\x1b[2J")
    db.append_message("evil", "user", "\x1b]0;owned\x07\x1b[31mred\x9b2J \u202eturned \ud800 [bold]not markup[/bold]")
    db.append_message("evil", "assistant", "fine\x1b[2J\x00\x07")
    async with browsing(db) as hand:
        await hand.until(lambda: "fine" in hand.text("#conversation"))
        await hand.dialog("ctrl+x")
        assert "[bold]not markup[/bold]" in hand.text("#conversation") + "".join(hand.rows())
        picture = hand.app.export_screenshot()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", picture)


@given(st.lists(st.text(max_size=20), max_size=8), st.text(max_size=5))
def test_a_filter_puts_titles_first_in_their_order_and_loses_nothing_for_no_words(titles: list[str], text: str) -> None:
    lines = [ListLine(f"id{number}", title, "", "cli", 0.0) for number, title in enumerate(titles)]
    assert matching(lines, "  ") == lines
    kept, words = matching(lines, text), fold(text).split()
    titled = [line for line in lines if all(word in line.folded_title for word in words)]
    assert kept[: len(titled)] == titled
    elsewhere = [line for line in lines if line not in titled and all(word in line.haystack for word in words)]
    assert kept[len(titled) :][: len(elsewhere)] == elsewhere
    assert len({line.id for line in kept}) == len(kept)
    for line in lines:
        assert line in matching(lines, line.id)


async def test_a_store_that_can_not_be_read_ends_it_with_the_reason(few: Any) -> None:
    app = Browser(few)
    few.close()
    async with app.run_test() as pilot:
        await Hand(pilot).until(lambda: app.problem)
    assert isinstance(app.problem, StoreClosed)


# ── as a program ──


def test_without_a_terminal_it_is_refused_in_one_line(home: Path) -> None:
    done = run("sessions", "browse", home=home)
    assert done.status == 2 and len(done.err.strip().splitlines()) == 1 and "needs a terminal" in done.err


def _talks(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        for number in range(30):
            db.create_session(f"s{number}", "cli", started_at=time.time() - 1000 + number)
            db.append_message(
                f"s{number}", "user", f"The {number}th question about Zürich", timestamp=time.time() - 900 + number
            )
            db.append_message(f"s{number}", "assistant", f"The {number}th answer", timestamp=time.time() - 899 + number)


def test_in_a_terminal_enter_resumes_the_conversation(home: Path, server: Any, open_screen: Any) -> None:
    _talks(home)
    screen = open_screen("sessions", "browse", width=100, until="30 conversations")
    screen.type("zurich 7th")
    screen.wait_for("3 of 30 conversations")
    screen.press("Down")
    screen.wait_for("The 17th answer")
    screen.press("Enter")
    screen.wait_for("Ctrl-D leaves")
    assert "The 17th question about Zürich" in screen.text() and "The 18th" not in screen.text()
    screen.leave()
    assert "s17" in screen.history()
    with SessionDB(home / "state.db") as db:
        assert db.get_session("s17")["end_reason"] == "user_exit"


def test_what_was_found_in_an_older_part_goes_on_in_the_newest(home: Path, server: Any, open_screen: Any) -> None:
    _talks(home)
    with SessionDB(home / "state.db") as db:
        db.compress_session("s3", "s3-next", summary="So far we spoke of lakes.")
    screen = open_screen("sessions", "browse", width=100, until="30 conversations")
    screen.press("Tab")
    screen.type('"3th answer"')
    screen.wait_for("Found in 1 conversation")
    screen.press("Enter")
    screen.wait_for("Ctrl-D leaves")
    assert "s3-next" in screen.text()


def test_no_color_is_honoured(home: Path, open_screen: Any) -> None:
    _talks(home)
    from tests.support.screen import Screen

    screen = Screen([*PROGRAM, "sessions", "browse"], 100, 24, env=environment(home, {"NO_COLOR": "1"}))
    try:
        screen.wait_for("30 conversations")
        assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|[34]8;)", screen.styled())
        screen.press("Escape")
        assert screen.wait_until_over() == 0
    finally:
        screen.close()


def test_a_small_screen_wraps_its_text_and_a_word_is_no_id(home: Path, open_screen: Any) -> None:
    empty = open_screen("sessions", "browse", width=40, height=12, until="")
    assert "No conversations yet. Esc leaves," in empty.wait_for("starts one.")  # wrapped, not cut
    empty.press("Escape")
    empty.wait_until_over()
    line = ListLine("20260101_101010_cafe01", "Notes", "", "cli", 0.0)
    assert matching([line], "cafe") == [] and matching([line], "20260101") == [line]


@pytest.mark.thorough
def test_the_number_of_conversations_found_is_true(home: Path, open_screen: Any) -> None:
    with SessionDB(home / "state.db") as db:
        for number in range(1001):
            db.create_session(f"s{number}", "cli")
            db.append_message(f"s{number}", "user", f"the walrus {number}" + " sleeps" * (number < 239))
    screen = open_screen("sessions", "browse", width=100, until="1,001 conversations")
    screen.press("Tab")
    screen.type("sleeps")
    screen.wait_for("Found in 239 conversations")
    screen.press("Escape")
    screen.wait_for("words from a message")
    screen.type("walrus")
    screen.wait_for("Found in more than 1,000 conversations")


def test_it_ends_with_its_terminal_under_nohup(tmp_path: Path) -> None:
    env = {**environment(tmp_path / "home"), "TERM": "xterm-256color"}
    with SessionDB(tmp_path / "home" / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "hello")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execve(PROGRAM[0], [*map(str, PROGRAM), "sessions", "browse"], env)
    os.set_blocking(terminal, False)
    shown = bytearray()

    def is_drawn() -> bool:
        with suppress(BlockingIOError):
            shown.extend(os.read(terminal, 65_536))
        return b"hello" in shown

    until(is_drawn, lambda: f"the list shows it: {shown!r}")
    os.close(terminal)
    ended = until(lambda: (found := os.waitpid(pid, os.WNOHANG))[0] and found, "the program ends")
    assert os.waitstatus_to_exitcode(ended[1]) == -signal.SIGHUP
