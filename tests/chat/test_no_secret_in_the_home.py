"""Secrets of every kind come in by every door, and no file of the home holds one: not the record, not a file beside it.

The home is searched byte by byte while programs run and after they were killed, with -wal, drafts, history and logs. What
the user put there (config.yaml, attachments) is the user's, and stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.redact import redact
from tests.chat.server import Call, Gate, ModelServer
from tests.support import program
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.screen import Screen
from tests.support.secret_kinds import SECRETS, everything, leaks

Open = Callable[..., Screen]
TOLD = "was masked before it was stored (privacy.redact_secrets)"
GITHUB = next(secret for kind, _, secret in SECRETS if kind == "github")


def stored(home: Path) -> str:
    """Everything the record says, also what is compressed in the file."""
    with SessionDB(home / "state.db", read_only=True) as db:
        return json.dumps([db.export_session(row["id"]) for row in db.list_sessions_rich(limit=100)], default=str)


def test_typed_and_pasted(server: ModelServer, open_screen: Open, home: Path) -> None:
    screen = open_screen(width=200, height=50)
    screen.line(f"typed: password=hunter2secret and {GITHUB}")
    screen.wait_for("That is all", times=1)
    screen.wait_for("a secret in your message " + TOLD)
    for turns, piece in ((2, everything()[:900]), (3, everything())):  # a short paste is shown, a long one is folded
        screen.wait_for("k tokens")  # the prompt is back: what comes earlier is typed, not pasted
        screen.paste(piece)
        screen.press("Enter")
        screen.wait_for("That is all", times=turns)
    assert leaks(home) == []
    screen.press("Up", "Up", "Up")
    screen.wait_for(f"❯ typed: password=hunter2secret and {GITHUB}")  # in memory: what one typed can be typed again
    screen.press("C-c", "C-d")
    screen.wait_until_over()
    assert screen.history().count(TOLD) == 1
    assert leaks(home) == []
    history = (home / "history").read_text()
    assert "+typed: password=[masked:password] and [masked:github]\n" in history and "[masked:private-key]" in history
    assert "typed: password=[masked:password] and [masked:github]" in stored(home)


def test_with_masking_off_the_history_is_as_typed(server: ModelServer, open_screen: Open, home: Path) -> None:
    with (home / "config.yaml").open("a") as file:
        file.write("privacy: {redact_secrets: false}\n")
    screen = open_screen()
    screen.line("password=hunter2secret")
    screen.wait_for("That is all")
    assert "password=hunter2secret" in (home / "history").read_text() and TOLD not in screen.text()


def test_piped_and_asked_in_one_go(server: ModelServer, home: Path) -> None:
    server.scripts = [[everything()]]
    server.task_answer = lambda body: f"Key {GITHUB}"  # a title
    done = program.run("chat", "-q", f"what is {GITHUB}", input=everything(), home=home)
    assert done.status == 0 and done.out.strip() == everything()
    assert done.err.count(TOLD) == 1 and GITHUB not in done.err
    assert leaks(home) == []
    program.run("sessions", "import", "-", input=json.dumps({"nonsense": everything()}), home=home)
    assert leaks(home) == []


def test_in_the_output_of_tools_and_what_the_agent_writes_down(server: ModelServer, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "all of them.txt"
    file.write_text(everything() + "\n" + "x " * 4000)  # long enough to be compressed in the record
    skill = f"---\nname: deploy\ndescription: d\n---\n{everything()}\n"
    server.scripts = [
        [Call("terminal", command=f"cat '{file}'")],
        [Call("terminal", command=f"echo {GITHUB} >&2; exit 3")],
        [
            Call("memory", action="add", text=f"the token is {GITHUB}"),
            Call("skills", action="save", name="deploy", content=skill),
        ],
        [Call("memory", action="replace", old_text=GITHUB, text="the token is password=hunter2secret")],
        ["done"],
    ]
    done = program.run("chat", "--yes", "-q", "look", home=home)
    assert done.status == 0 and done.out == "done\n"
    assert done.err.count(TOLD) == 1
    assert leaks(home) == []
    kept = stored(home)
    assert not [kind for kind, _, secret in SECRETS if len(secret) >= 12 and json.dumps(secret)[1:-1] in kept]
    assert GITHUB in str(server.requests[1]["messages"])  # the model reads what the tool said
    assert "the token is password=[masked:password]" in (home / "memories" / "MEMORY.md").read_text()
    assert "[masked:anthropic]" in (home / "skills" / "deploy" / "SKILL.md").read_text()


def test_in_a_reply_that_was_cut_off_by_a_kill(server: ModelServer, home: Path) -> None:
    gate = Gate()
    pieces = [everything()[at : at + 23] for at in range(0, len(everything()), 23)]
    server.scripts = [[*pieces, "\nthe last one is ", GITHUB[:-6], gate]]
    running = program.start("chat", "-q", "hello", home=home)
    assert gate.reached.wait(60)
    until(lambda: any(b"the last one is" in path.read_bytes() for path in (home / "drafts").glob("*")))
    running.kill()
    running.communicate()
    gate.open.set()
    assert leaks(home) == []
    assert GITHUB[:12].encode() not in b"".join(path.read_bytes() for path in (home / "drafts").iterdir())
    program.run("chat", "-c", "-q", "again", home=home)
    assert leaks(home) == []
    assert "the last one is" in stored(home)


@pytest.mark.parametrize("number", range(len(SECRETS)))
def test_a_draft_never_holds_more_of_a_secret_than_its_beginning(number: int, tmp_path: Path) -> None:
    kind, around, secret = SECRETS[number]
    text = f"Here it is:\n{around.replace('§', secret)}\nand more."
    with SessionDB(tmp_path / "state.db") as db:
        draft = db.drafts.begin("s", after=1, model=None, mask=redact)
        for end in range(1, len(text) + 1):
            draft.write(text[end - 1 : end])
            (path,) = (tmp_path / "drafts").iterdir()
            body = path.read_text().partition("\n")[2]
            assert secret[: max(12, len(secret) // 3)] not in body or kind == "basic"
            assert secret not in body
        draft.close(keep=True)
        with db.drafts.left_behind("s") as found:
            assert found is not None and found.text == redact(text)


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as one:
        yield one


def test_in_a_chat_also_when_the_gateway_is_killed(lab: PlainLab, echo: Echo, hermes_home: Path) -> None:
    home = hermes_home
    with GatewayProcess(home, [lab], echo.base_url) as gateway:
        lab.say(everything())
        until(lambda: GITHUB in " ".join(lab.shown()))  # the reply is sent as it is
        assert GITHUB in str(echo.requests)  # and the model read what was said
        lab.say(f"/title My {GITHUB}", where="group")  # a title that waits for its session
        until(lambda: lab.shown("group"))
        lab.fail(1000)  # nothing more can be sent: replies wait in the outbox
        lab.say(f"two {GITHUB} password=hunter2secret")
        lab.say("pause=60 three " + everything(), where="group")
        until(lambda: "three" in str(echo.requests))
        assert leaks(home) == []
        gateway.kill()
    assert leaks(home) == []
    lab.reset()
    echo.hurry = True
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
    assert leaks(home) == []


def test_in_a_file_that_is_imported_and_in_another_store(home: Path, tmp_path: Path) -> None:
    """Whole texts, as other machines have them: an export, a history of another program, a state.db, a synchronised store."""
    said = {"role": "user", "content": everything(), "timestamp": 1000.0, "reasoning_content": everything()}
    exported = {
        "id": "exported",
        "source": "cli",
        "title": f"Use {GITHUB}",
        "system_prompt": everything(),
        "messages": [said],
    }
    (tmp_path / "own.jsonl").write_text(json.dumps(exported) + "\n")
    name = "0c4f1a52-8a47-4b6e-9d0c-1f2e3d4c5b6a"
    line = {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": name, "timestamp": "2026-03-01T10:00:00Z",
            "cwd": "/work", "message": {"role": "user", "content": everything()}}  # fmt: skip
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    with SessionDB(tmp_path / "there" / "state.db", redact_secrets=False) as other:
        other.create_session("there", "cli", system_prompt=everything())
        other.append_message("there", "user", everything())
    for file in ("own.jsonl", f"{name}.jsonl", "there/state.db"):
        done = program.run("sessions", "import", tmp_path / file, home=home)
        assert done.status == 0 and "1 session with 1 message imported" in done.out, done
    with SessionDB(tmp_path / "there" / "state.db", redact_secrets=False) as other:
        other.append_message("there", "user", "later: " + everything())
    done = program.run("sessions", "sync", tmp_path / "there" / "state.db", home=home)
    assert done.status == 0, done
    assert stored(home).count("[masked:mailgun]") >= 6 and "later: " in stored(home)
    assert leaks(home) == []
