"""Chat histories of aider, as aider 0.86 writes them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from tests.interop.importing import brought_in, sessions, told
from tests.support import program

STARTED = "2026-03-09 10:00:00"
REPLY = """I'll change it.

#### A heading of the model's

> a quotation of the model's

a.py
```python
<<<<<<< SEARCH
x = 1
=======
# aider chat started at 2020-01-01 00:00:00
#### not a prompt
> not a status
>>>>>>> REPLACE
```"""
HISTORY = f"""
# aider chat started at {STARTED}

> aider --model gpt-5 --message make x two
please··
> Aider v0.86.2··
> Main model: openai/gpt-5 with diff edit format··

#### make x two··
#### please··

{REPLY}

> Tokens: 2.1k sent, 58 received. Cost: $0.0057 message, $0.0057 session.··
> Applied edit to a.py··
> Commit b2b17a1 feat: two

#### of the commit's message··
"""
OTHER = """
# aider chat started at 2026-03-09 11:00:00

> Aider v0.86.2··

#### and now?··

Nothing. It ends in a block:
```
"""


def history(path: Path, *parts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(parts).replace("·", " "))
    return path


def test_a_history(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    file = history(project / ".aider.chat.history.md", HISTORY)
    assert "1 session with 4 messages imported" in brought_in(project, home)
    (name, session), *_ = sessions(home).items()
    assert name.startswith("aider-") and (session["cwd"], session["model"]) == (str(project), "openai/gpt-5")
    assert session["started_at"] == datetime.fromisoformat(STARTED).timestamp()
    start, asked, reply, status = session["messages"]
    assert start["content"].startswith("aider --model gpt-5 --message make x two\nplease\nAider")
    assert (asked["content"], reply["content"]) == ("make x two\nplease", REPLY)
    assert (status["role"], status["tool_name"]) == ("tool", "aider") and status["content"].endswith(
        "of the commit's message"
    )
    assert (reply["input_tokens"], reply["output_tokens"], reply["cost_usd"]) == (2100, 58, 0.0057)
    history(
        file,
        HISTORY,
        "\n#### more··\n",
        OTHER,
        OTHER.replace("Nothing", "Something"),
        "\n# aider chat started at 2026-03-09 12:00:00\n\n> Aider··\n",
    )
    brought_in(file, home)
    found = sessions(home)
    assert told(found[name])[-1] == ("user", "more") and len(found) == 3
    assert [told(one)[-1][1].split(".")[0] for one in found.values()] == ["more", "Nothing", "Something"]
    assert "3 sessions already here" in brought_in(file, home)
    history(file, OTHER)  # the older sessions were cut off: they stay, and nothing takes their place
    brought_in(file, home)
    assert sessions(home) == found


def test_a_history_that_an_editor_has_trimmed(tmp_path: Path) -> None:
    """Without the spaces at the ends of lines, marks in code blocks are text."""
    said = REPLY.replace("#### A heading of the model's\n\n> a quotation of the model's\n\n", "")
    trimmed = HISTORY.replace(REPLY, said).replace("··", "").partition("> Commit")[0]
    brought_in(history(tmp_path / "notes.md", trimmed), tmp_path / "home")
    (session,) = sessions(tmp_path / "home").values()
    assert [role for role, _ in told(session) if role != "tool"] == ["assistant", "user", "assistant"]
    assert told(session)[-2] == ("assistant", said)


def test_the_history_of_the_home_is_found(tmp_path: Path) -> None:
    history(tmp_path / ".aider.chat.history.md", OTHER)
    done = program.run("sessions", "import", "--found", "--yes", home=tmp_path / "home", env={"HOME": str(tmp_path)})
    assert done.status == 0 and "1 session with 3 messages imported" in done.out, done
