"""Who may see what: bob is let in, but is not the owner; he tries to reach what is alice's, and what is carol's, and fails.

Every conversation he must not see holds the word Kardamom, which he never types; whatever he is shown, that word is not
in it, nor is a title or an id before he has typed it himself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.chats.participants import home_of
from hermes.gateway.runner import Gateway
from hermes.store.gateway import approvals, inbox, outbox, routes
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import Plain, PlainLab

WORD, SECRET = "Zwetschgenkuchen", "Kardamom"
TITLE = "plum recipe"
# One person tries a hundred things in a few seconds: without the limit that is for loops.
QUIET: dict[str, Any] = {"streaming": {"enabled": False}, "brake": {"per_minute": 0}}
EVERYONE = ["u-alice", "u-bob", "u-carol"]


class Scene:
    """A gateway with alice (the owner), bob and carol."""

    def __init__(self, lab: PlainLab, gateway: Gateway) -> None:
        self.lab, self.gateway, self.db = lab, gateway, gateway.db

    def ask(self, who: str, text: str, where: str = "dm") -> str:
        """Say a text and wait for the complete answer; returns the answer."""
        before = len(self.lab.shown(where, who=who))
        number = self.lab.say(text, who=who, where=where)

        def done() -> bool:
            found = self.gateway.store.read(inbox.progress, self.lab.platform, number)
            return found is not None and found[0] and not self.gateway.store.read(outbox.unsent)

        until(done, f"no answer to {text!r}: {self.lab.shown(where, who=who)}")
        return "\n".join(self.lab.shown(where, who=who)[before:])

    def secret_of(self, who: str, where: str = "dm") -> str:
        """Somebody talks about the secret; the id of that session."""
        known = {row["id"] for row in self.db.list_sessions_rich(limit=100)}
        self.ask(who, f"my recipe for {WORD}: a little {SECRET}", where)
        (made,) = {row["id"] for row in self.db.list_sessions_rich(limit=100)} - known
        self.ask(who, f"/title {TITLE}", where)
        return made

    def tool(self, who: str, name: str, where: str = "dm", /, **arguments: Any) -> str:
        """Have the agent that answers this person call a tool; returns the tool's result."""
        return self.ask(who, f"call={name} {json.dumps(arguments)}", where)


@pytest.fixture
def scene(model: Echo) -> Iterator[Scene]:
    lab = PlainLab()
    platforms = {"plain": {"allowed_users": EVERYONE}}
    with running(lab, model, gateway=QUIET, platforms=platforms) as gateway:
        yield Scene(lab, gateway)
    lab.close()


ATTEMPTS: dict[str, Callable[[str, int], str]] = {
    "list": lambda session, message: "/sessions",
    "choice": lambda session, message: "/resume",
    "tool: recent": lambda session, message: "call=session_search {}",
    "id": lambda session, message: f"/resume {session}",
    "beginning of an id": lambda session, message: f"/resume {session[:-2]}",
    "first letters of an id": lambda session, message: "/resume 2",
    "title": lambda session, message: f"/resume {TITLE}",
    "part of a title": lambda session, message: "/resume plum",
    "search": lambda session, message: f"/sessions {WORD}",
    "search by a beginning": lambda session, message: "/sessions zwetsch*",
    "history": lambda session, message: "/history 1000",
    "branch from a message": lambda session, message: f"/branch {message}",
    "handoff": lambda session, message: "/handoff plain",
    "status": lambda session, message: "/status",
    "undo": lambda session, message: "/undo redo",
    "retry": lambda session, message: "/retry",
    "tool: words": lambda session, message: 'call=session_search {"query": "recipe"}',
    "tool: id": lambda session, message: f'call=session_search {{"session_id": "{session}"}}',
    "tool: id and words": lambda session, message: f'call=session_search {{"session_id": "{session}", "query": "recipe"}}',
    "tool: title": lambda session, message: f'call=session_search {{"session_id": "{TITLE}"}}',
    "tool: message": lambda session, message: f'call=session_search {{"around_message_id": {message}}}',
    "tool: other source": lambda session, message: 'call=session_search {"query": "recipe", "source": "cli"}',
    "tool: memory": lambda session, message: 'call=memory {"action": "remove", "old_text": "nothing"}',
    "tool: skills": lambda session, message: 'call=skills {"action": "view", "name": "plums"}',
    "tool: skills by a path": lambda session, message: 'call=skills {"action": "view", "name": "../../skills/plums"}',
    "tool: terminal": lambda session, message: 'call=terminal {"command": "cat ~/.hermes/* $HERMES_HOME/*/*"}',
    "tool: process": lambda session, message: 'call=process {"action": "list"}',
}  # fmt: skip


@pytest.mark.parametrize("whose", ["alice", "carol"])
def test_nobody_reads_another_ones_conversation(scene: Scene, whose: str) -> None:
    session = scene.secret_of(whose)
    scene.tool("alice", "memory", action="add", text=f"she bakes {SECRET}")
    scene.tool("alice", "skills", action="save", name="plums", content=f"how to bake {SECRET}")
    before = scene.db.get_messages(session)
    message = before[0]["id"]
    said: dict[str, str] = {}
    for where in ("dm", "group", "thread"):
        for name, attempt in ATTEMPTS.items():
            said[f"{name} ({where})"] = scene.ask("bob", attempt(session, message), where)
    assert {name: text for name, text in said.items() if SECRET in text} == {}
    for name in ("list", "choice", "tool: recent"):  # he has not typed either by then
        assert session not in said[f"{name} (dm)"]
        assert TITLE not in said[f"{name} (dm)"]
    assert scene.db.get_messages(session) == before
    for where in ("dm", "group", "thread"):
        assert "no tool" in said[f"tool: terminal ({where})"]
        assert "only the owner" in said[f"handoff ({where})"]
    for row in scene.db.list_sessions_rich(limit=100, visible_to=("plain", "u-bob")):
        assert row["id"] != session


@pytest.mark.parametrize("where", ["dm", "thread"])
def test_commands_and_tools_of_chats_show_a_guest_nothing_of_others(scene: Scene, where: str) -> None:
    scene.secret_of("alice")
    assert SECRET not in scene.ask("bob", '/queue call=session_search {"query": "recipe"}', where)
    assert "only the owner" in scene.ask("bob", "/model other", where)
    arguments = {
        "action": "list",
        "task": "look",
        "path": "/",
        "pattern": SECRET[:3],
        "content": "x",
        "old": "a",
        "new": "b",
    }
    for tool in ("cron", "read_file", "write_file", "edit_file", "send_file"):
        assert "no tool" in scene.tool("bob", tool, where, **arguments), tool
    assert SECRET.encode() not in b"".join(data for _, data, _ in scene.lab.sent_files(where, who="bob"))


def test_the_same_user_id_on_another_platform_is_another_person(model: Echo) -> None:
    class Elsewhere(Plain):
        platform = "elsewhere"

    class OtherLab(PlainLab):
        platform = "elsewhere"
        adapter = Elsewhere

    lab, other = PlainLab(), OtherLab()
    with running([lab, other], model, gateway=QUIET, owner=["plain:u-alice"]) as gateway:
        session = Scene(lab, gateway).secret_of("bob")
        there = Scene(other, gateway)
        for who in ("bob", "alice"):  # alice is the owner on one platform only
            for attempt in ATTEMPTS.values():
                line = attempt(session, gateway.db.get_messages(session)[0]["id"])
                assert SECRET not in there.ask(who, line)
        assert "only the owner" in there.ask("alice", "/sethome")
    lab.close()
    other.close()


ROOM = {"chat_id": "room-1", "type": "dm"}


def in_room(scene: Scene, *said: str) -> None:
    """People say something in the room, one after another (who, what, who, what …), and each is answered."""
    for who, text in zip(said[::2], said[1::2], strict=True):
        number = scene.lab.say(text, who=who, chat=ROOM)
        until(lambda number=number: (scene.gateway.store.read(inbox.progress, "plain", number) or (False,))[0])


def users_words(scene: Scene, key: str) -> list[str]:
    """The user messages of the session that a key leads to."""
    route = scene.gateway.store.read(routes.get, key)
    assert route is not None
    assert route.session_id is not None
    return [m["content"] for m in scene.db.get_messages(route.session_id) if m["role"] == "user"]


def test_a_room_of_two_that_passes_to_another_person_does_not_hand_on_the_conversation(
    scene: Scene, model: Echo
) -> None:
    """On platforms where a room of two is a DM, its members change: she invites him and leaves."""
    for who, text in (
        ("carol", f"{WORD} needs {SECRET}"),
        ("bob", "and what did she say?"),
        ("bob", "/history"),
        ("carol", "I am back"),
    ):
        in_room(scene, who, text)
    asked = [one for one in model.requests if "what did she say" in str(one["messages"][-1])]
    assert asked
    assert SECRET not in str(asked)
    assert users_words(scene, "agent:main:plain:dm:room-1") == [f"{WORD} needs {SECRET}", "I am back"]
    assert users_words(scene, "agent:main:plain:dm:room-1:u-bob") == ["and what did she say?"]
    until(lambda: not scene.gateway.store.read(outbox.unsent))
    shown = scene.lab.shown_in("room-1")
    assert len([one for one in shown if "what did she say" in one]) == 2
    assert len([one for one in shown if SECRET in one]) == 1
    for row in scene.db.list_sessions_rich(limit=100, visible_to=("plain", "u-bob")):
        assert SECRET not in str(scene.db.get_messages(row["id"]))


def test_of_two_who_begin_at_once_each_has_a_session(scene: Scene) -> None:
    numbers = [scene.lab.say(f"from {who}", who=who, chat=ROOM) for who in ("carol", "bob", "carol", "bob")]
    until(lambda: all((scene.gateway.store.read(inbox.progress, "plain", number) or (False,))[0] for number in numbers))
    first = users_words(scene, "agent:main:plain:dm:room-1")
    (other,) = {"agent:main:plain:dm:room-1:u-bob", "agent:main:plain:dm:room-1:u-carol"} & {
        row["key"] for row in scene.gateway.store.read(routes.index)
    }
    assert sorted([first, users_words(scene, other)]) == [["from bob"] * 2, ["from carol"] * 2]


def test_what_the_owner_hands_to_a_room_that_was_anothers_is_the_owners_alone(scene: Scene) -> None:
    in_room(scene, "bob", "this was mine", "alice", "now we are here", "alice", "/sethome")
    scene.lab.no_threads = True
    scene.db.create_session("s-cli", source="cli")
    scene.db.append_message("s-cli", "user", f"the {SECRET}")
    scene.db.request_handoff("s-cli", "plain")
    until(lambda: (scene.db.get_session("s-cli") or {}).get("handoff_state") == "completed")
    in_room(scene, "bob", "bob goes on", "alice", "alice goes on")
    assert users_words(scene, "agent:main:plain:dm:room-1") == ["this was mine", "bob goes on"]
    route = scene.gateway.store.read(routes.of_session, "s-cli")
    assert route is not None
    assert route.key == "agent:main:plain:dm:room-1:u-alice"
    assert users_words(scene, route.key)[-1] == "alice goes on"


def test_what_is_handed_to_a_room_without_a_conversation_is_the_owners_whoever_speaks_there_first(scene: Scene) -> None:
    """The owner has said nothing in the room yet, or has left it to another person."""
    scene.gateway.store.write(approvals.set_home, "plain", '{"platform":"plain","chat_id":"room-1"}')
    scene.lab.no_threads = True
    scene.db.create_session("s-cli", source="cli")
    scene.db.append_message("s-cli", "user", f"the {SECRET}")
    scene.db.request_handoff("s-cli", "plain")
    until(lambda: (scene.db.get_session("s-cli") or {}).get("handoff_state") == "completed")
    before = len(scene.lab.shown_in("room-1"))
    in_room(scene, "bob", "what was it about?", "bob", "/history", "alice", "alice goes on")
    until(lambda: not scene.gateway.store.read(outbox.unsent))
    assert SECRET not in str(scene.lab.shown_in("room-1")[before:])
    assert users_words(scene, "agent:main:plain:dm:room-1:u-bob") == ["what was it about?"]
    assert users_words(scene, "agent:main:plain:dm:room-1")[-1] == "alice goes on"
    assert scene.db.get_session("s-cli", visible_to=("plain", "u-bob")) is None


def test_the_owner_sees_all(scene: Scene) -> None:
    session = scene.secret_of("bob")
    assert session in scene.ask("alice", "/sessions")
    assert session in scene.ask("alice", f"/sessions {WORD}")
    assert SECRET in scene.tool("alice", "session_search", query="recipe")
    scene.ask("alice", f"/resume {TITLE}")
    assert SECRET in scene.ask("alice", "/history")


def test_whose_conversation_the_owner_goes_on_with_is_told_and_can_have_it_back(scene: Scene) -> None:
    session = scene.secret_of("bob")
    before = len(scene.lab.shown(who="bob"))
    scene.ask("alice", f"/resume {session}")
    scene.ask("alice", "the owner was here")
    until(lambda: len(scene.lab.shown(who="bob")) == before + 1)
    notice = scene.lab.shown(who="bob")[-1]
    assert TITLE in notice
    assert f"`/resume {session}`" in notice
    alices = len(scene.lab.shown())
    assert SECRET in scene.ask("bob", f"/resume {session}") + scene.ask("bob", "/history")
    scene.ask("bob", "I am back")
    assert users_words(scene, "agent:main:plain:dm:dm-bob")[-2:] == ["the owner was here", "I am back"]
    until(lambda: len(scene.lab.shown()) == alices + 1)  # and the owner is told that it went back


def test_whose_conversation_is_handed_over_is_told(scene: Scene) -> None:
    session = scene.secret_of("bob")
    scene.ask("alice", "/sethome")
    before = len(scene.lab.shown(who="bob"))
    assert scene.db.request_handoff(session, "plain")
    until(lambda: len(scene.lab.shown(who="bob")) == before + 1)
    assert f"`/resume {session}`" in scene.lab.shown(who="bob")[-1]


def test_owner_rights_end_with_the_owners_turn(scene: Scene, model: Echo) -> None:
    """One agent serves a shared thread; what it may do depends on who speaks."""
    scene.secret_of("alice")

    def offered() -> set[str]:
        asked = [one for one in model.requests if one.get("tools")][-1]
        return {tool["function"]["name"] for tool in asked["tools"]}

    for _ in range(2):
        scene.ask("alice", "from the owner", "thread")
        assert {"terminal", "process"} <= offered()
        scene.ask("bob", "from a guest", "thread")
        assert offered() == {"session_search", "memory", "skills"}
    assert "of-the-owner" in scene.tool("alice", "terminal", "thread", command="echo of-the-owner")
    assert "no tool" in scene.tool("bob", "terminal", "thread", command="echo of-the-owner")
    assert SECRET not in scene.tool("bob", "session_search", "thread", query="recipe")
    assert SECRET in scene.tool("alice", "session_search", "thread", query="recipe")
    assert "no tool" in scene.tool("bob", "process", "thread", action="list")


def test_asking_again_in_a_shared_thread_uses_the_rights_of_who_asks(scene: Scene) -> None:
    scene.tool("alice", "terminal", "thread", command="echo of-the-owner")
    again = scene.ask("bob", "/retry", "thread")
    assert "no tool" in again
    assert "of-the-owner" not in again.replace("echo of-the-owner", "")


def test_a_shared_thread_is_seen_by_those_who_spoke_there_and_no_one_else(scene: Scene) -> None:
    session = scene.secret_of("alice", "thread")
    assert SECRET not in scene.ask("bob", f"/resume {session}")
    scene.ask("bob", "may I join?", "thread")
    assert session in scene.ask("bob", f"/sessions {WORD}")
    assert SECRET in scene.tool("bob", "session_search", query="recipe")
    assert SECRET not in scene.tool("carol", "session_search", query="recipe")
    assert session not in scene.ask("carol", "/sessions")
    assert SECRET not in scene.ask("carol", f"/resume {session}")


def test_a_command_in_a_shared_thread_is_taking_part(scene: Scene) -> None:
    session = scene.secret_of("alice", "thread")
    assert SECRET in scene.ask("bob", "/history", "thread")
    assert scene.db.get_session(session, visible_to=("plain", "u-bob")) is not None


def test_what_the_agent_knows_of_the_owner_is_not_told_to_guests_of_the_conversation(scene: Scene, model: Echo) -> None:
    """A conversation that began with the owner's memories in its prompt is brought to a thread where others speak."""
    scene.tool("alice", "memory", action="add", target="user", text=f"bakes {SECRET} on Sundays")
    scene.ask("alice", "/new")
    scene.ask("alice", "hello")
    assert SECRET in str([one for one in model.requests if one.get("tools")][-1]["messages"][0])
    (session,) = [
        row["id"]
        for row in scene.db.list_sessions_rich(limit=100)
        if scene.db.get_messages(row["id"])[0]["content"] == "hello"
    ]
    scene.ask("alice", "first words here", "thread")
    scene.ask("alice", f"/resume {session}", "thread")
    scene.ask("alice", "go on", "thread")
    scene.ask("bob", "and what do you know of her?", "thread")
    seen = [one for one in model.requests if "what do you know of her" in str(one["messages"][-1])]
    assert seen
    assert SECRET not in str(seen)


def test_people_remember_apart(scene: Scene, hermes_home: Path) -> None:
    scene.tool("alice", "memory", action="add", text="the owner's")
    scene.tool("bob", "memory", action="add", text="of bob")
    scene.tool("carol", "memory", "thread", action="add", text="of the thread")
    assert "the owner's" in (hermes_home / "memories" / "MEMORY.md").read_text()
    assert "of bob" not in scene.tool("alice", "memory", action="remove", old_text="nothing")
    assert "of bob" in scene.tool("bob", "memory", action="remove", old_text="nothing")
    assert "of bob" not in scene.tool("bob", "memory", "thread", action="remove", old_text="nothing")
    assert "of the thread" in scene.tool("alice", "memory", "thread", action="remove", old_text="nothing")
    assert "of the thread" not in scene.tool("carol", "memory", action="remove", old_text="nothing")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("..", "."),
        ("../../x", "x"),
        ("a" * 300 + "1", "a" * 300 + "2"),
        ("U1", "u1"),
        ("a/b", "a%2Fb"),
        ("", "everyone"),
    ],
)
def test_two_people_never_share_a_folder(one: str, other: str, tmp_path: Path) -> None:
    first, second = (home_of(tmp_path, "plain", who, owner=False) for who in (one, other))
    assert str(first).casefold() != str(second).casefold()
    for folder in (first, second):
        assert folder.resolve().parent == (tmp_path / "people" / "plain").resolve()
        assert len(folder.name) < 200


@pytest.mark.parametrize("line", [TITLE, f"{TITLE} #2"])
def test_a_title_that_another_person_has_is_not_told(scene: Scene, line: str) -> None:
    """Neither that there is such a session nor whose it is: no refusal, no number, no id."""
    session = scene.secret_of("alice")
    scene.db.create_session("s-2", source="cli")
    scene.db.set_session_title("s-2", f"{TITLE} #2")
    answers = [scene.ask("bob", f"/title {line}")]  # before his first message
    scene.ask("bob", "hello gardening")
    answers += [scene.ask("bob", "/title"), scene.ask("bob", f"/title {line}"), scene.ask("bob", "/title")]
    for answer in answers:
        assert session not in answer
        assert "already" not in answer
        assert "another" not in answer
        assert line in answer
        assert f"{line} #" not in answer
    (row,) = scene.db.list_sessions_rich(visible_to=("plain", "u-bob"))
    assert row["title"].startswith(f"{line}, ")
    assert scene.db.get_session_title(session) == TITLE
    scene.ask("bob", "/new")
    scene.ask("bob", "hello again")
    assert "already" in scene.ask("bob", f"/title {row['title']}")  # his own he is told of


def test_a_branch_does_not_tell_of_another_persons_branch(scene: Scene) -> None:
    """A number at the end of its title would."""
    scene.db.create_session("s-1", source="cli")
    scene.db.set_session_title("s-1", "tulips (branch)")
    scene.ask("bob", "hello gardening")
    scene.ask("bob", "/title tulips")
    scene.ask("bob", "/branch")
    title = scene.ask("bob", "/title")
    assert title.startswith("Title: tulips (branch)")
    assert "#" not in title
    scene.ask("alice", "hello gardening")
    scene.ask("alice", "/title roses")
    scene.ask("alice", "/branch")
    scene.ask("alice", "/branch")
    assert scene.ask("alice", "/title") == "Title: roses (branch) #2"  # her own is numbered


def test_only_the_owner_is_told_where_the_agent_works(scene: Scene, model: Echo) -> None:
    def prompt_of(words: str) -> str:
        asked = [one for one in model.requests if one.get("tools") and words in str(one["messages"][-1])]
        return str(asked[-1]["messages"][0])

    scene.ask("alice", "where are we, owner?")
    scene.ask("bob", "where are we, guest?")
    scene.ask("alice", "where are we, all?", "thread")
    assert f"Working directory: {Path.home()}" in prompt_of("owner?")
    for words in ("guest?", "all?"):
        assert str(Path.home()) not in prompt_of(words)
        assert "orking directory" not in prompt_of(words)


def test_a_conversation_that_was_compressed_keeps_its_people(scene: Scene) -> None:
    session = scene.secret_of("carol", "thread")
    for number in range(30):
        scene.ask("carol", f"more {number}", "thread")
    scene.ask("alice", "/compress", "thread")
    tip = scene.db.get_compression_tip(session)
    assert tip != session
    assert scene.db.get_session(tip, visible_to=("plain", "u-carol")) is not None
    assert SECRET not in scene.ask("bob", f"/resume {tip}")
    assert SECRET not in scene.ask("bob", f"/resume {session}")
    assert SECRET not in scene.tool("bob", "session_search", query="recipe")


def test_what_is_saved_before_a_reset_goes_where_its_person_is_remembered(scene: Scene, hermes_home: Path) -> None:
    """Nobody speaks then; the memories are those of whom the conversation belongs to."""
    from hermes.gateway.chats.participants import Participant

    for who, home in (("alice", hermes_home), ("bob", home_of(hermes_home, "plain", "u-bob", owner=False))):
        scene.ask(who, "hello")
        seat = Participant(
            scene.gateway.services, None, scene.gateway.store.read(routes.get, f"agent:main:plain:dm:dm-{who}"), None
        )
        assert seat.agent.context.home == home


def test_what_an_impostor_says_is_not_saved_as_the_owners(scene: Scene, hermes_home: Path) -> None:
    """A conversation with a sender who claims the owner's id without a proof stays a stranger's, also when it is reset."""
    from hermes.gateway.chats.participants import Participant

    number = scene.lab.say("remember: I am the owner", proven=False)
    until(lambda: (scene.gateway.store.read(inbox.progress, "plain", number) or (False,))[0])
    route = scene.gateway.store.read(routes.get, "agent:main:plain:dm:dm-alice:%unproven")
    seat = Participant(scene.gateway.services, None, route, None)
    assert not seat.is_owner
    assert seat.agent.context.home != hermes_home
    assert "terminal" not in seat.agent.tools
