"""A typical life on an encrypted store: no file of the home, of the WAL or of the temporary folder has a word that was said.

Files are searched byte by byte, while programs run, after they were killed and at the end.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from tests.chat.server import ModelServer
from tests.support import program
from tests.support.echo import Echo
from tests.support.encrypted_homes import files_with
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.screen import Screen

Open = Callable[..., Screen]
SAID, REPLIED, TYPED, SHOWN, HALF, EARLIER = (
    "quokkaword", "bilbyword", "numbatword", "potorooword", "dunnartword", "bettongword",
)  # fmt: skip
WORDS = [word.encode() for word in (SAID, REPLIED, TYPED, SHOWN, HALF, EARLIER)]


@pytest.fixture
def places(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The home and the temporary folder, both empty; the passphrase lies elsewhere."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")
    monkeypatch.setenv("HERMES_PASSPHRASE_FILE", str(tmp_path / "passphrase"))
    return home, temporary


def run(home: Path, *words: object, status: int = 0) -> str:
    done = program.run(*words, home=home)
    assert done.status == status, done.err
    return done.out


def test_a_life(server: ModelServer, open_screen: Open, places: tuple[Path, Path], tmp_path: Path) -> None:
    home, _ = places
    server.scripts = [[f"the {EARLIER} reply"]]
    run(home, "-q", f"an {EARLIER} question")
    (home / "history").write_text(f"\n# 2026-01-01 10:00:00\n+{EARLIER} typed\n")
    assert files_with(WORDS, *places), "or nothing is proved"

    done = program.run("sessions", "encrypt", "--passphrase-file", tmp_path / "passphrase", home=home)
    assert "encrypted" in done.out, done
    assert files_with(WORDS, *places) == {}

    server.scripts = [[f"the {REPLIED} of the model"]] * 4
    assert REPLIED in run(home, "-q", f"what is a {SAID}?")
    screen = open_screen(width=120)
    screen.line(f"a {TYPED} that is typed")
    screen.wait_for(REPLIED)
    assert files_with(WORDS, *places) == {}, "while the program runs"
    screen.leave()

    with SessionDB(home / "state.db") as db:
        url = "data:image/png;base64," + base64.b64encode(f"{SHOWN} in a picture ".encode() * 20).decode()
        db.create_session("talk", "cli", system_prompt=f"you know the {SAID}")
        for number in range(8):
            db.append_message("talk", ("user", "assistant")[number % 2], f"{SAID} {number} " + "and more " * 40)
        db.append_message("talk", "tool", f"{SAID} " * 2000, tool_call_id="c", tool_name="read")
        db.append_message("talk", "user", [{"type": "image_url", "image_url": {"url": url}}])
        db.set_session_title("talk", f"about the {SAID}")
        db.compress_session("talk", "tip", summary=f"they spoke of the {SAID}")
        draft = db.drafts.begin("tip", after=1, model="m", mask=db.masked)
        for piece in (f"half a {HALF}", " comes\n", "and ghp_", "more"):
            draft.write(piece)
        assert len(db.search_messages(SAID, limit=50)) >= 8
        assert files_with(WORDS, *places) == {}, "with the WAL"
        draft.close(keep=True)
        with db.drafts.left_behind("tip") as left:
            assert left is not None
            assert left.text == f"half a {HALF} comes\nand ghp_more"
    assert SAID in run(home, "sessions", "search", SAID)
    with SessionDB(home / "state.db") as db:
        db.backup(home / "after.db")
        db.vacuum()
        assert db.check() == []
        db.repair(rebuild_index=True)
    assert files_with(WORDS, *places) == {}

    other = tmp_path / "other"
    assert "imported" in program.run("sessions", "import", home / "after.db", home=other).out
    with SessionDB(other / "state.db") as db:
        assert len(db.search_messages(SAID, limit=50)) >= 8
    assert "decrypted" in run(home, "sessions", "decrypt")
    assert not (home / "state.db-key").exists()
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        assert any(TYPED in file.read_text() for file in (home / "sessions").glob("*.jsonl"))


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


def test_a_gateway(lab: PlainLab, places: tuple[Path, Path], tmp_path: Path) -> None:
    home, _ = places
    with SessionDB(home / "state.db") as db:
        db.create_session("s", "cli")
    run(home, "sessions", "encrypt", "--passphrase-file", tmp_path / "passphrase")
    with Echo() as echo, GatewayProcess(home, [lab], echo.base_url) as gateway:
        lab.say(f"hello {SAID}")
        until(lambda: SAID in " ".join(lab.shown()))
        assert files_with(WORDS, *places) == {}, "while it runs"
        lab.fail(1000)  # nothing more can be sent: replies wait in the outbox
        lab.say(f"two {SAID}")
        lab.say(f"pause=60 three {SAID}", where="group")
        until(lambda: "three" in str(echo.requests))
        gateway.kill()
        echo.hurry = True
    assert files_with(WORDS, *places) == {}, "after it was killed"
    lab.reset()
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        assert db.search_messages(SAID)
