"""The recap's omissions and cuts, for any conversation."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hermes.chat.resume import cut_assistant, cut_user, recalled, recap
from hermes.config import Config

pytestmark = pytest.mark.mechanism


def drawn(db: Any, session_id: str, width: int = 80, **display: str) -> str:
    config = Config()
    for name, value in display.items():
        setattr(config.display, name, value)
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(recap(db, session_id, config, width))
    return out.getvalue()


def talked(db: Any, *rounds: tuple[str, str]) -> str:
    db.create_session("s", "cli", system_prompt="SYSTEM SECRET")
    for question, answer in rounds:
        db.append_message("s", "user", question)
        db.append_message("s", "assistant", answer)
    return "s"


def test_both_voices_are_marked_and_in_order(db: Any) -> None:
    text = drawn(db, talked(db, ("what is two and two?", "four")))
    assert text.index("● what is two and two?") < text.index("◆ four")


def test_system_messages_tool_results_and_reasoning_are_hidden(db: Any) -> None:
    talked(db)
    db.append_message("s", "system", "SYSTEM MESSAGE")
    db.append_message("s", "user", "look")
    calls = [
        {"id": str(n), "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(("terminal", "web_search", "terminal"))
    ]
    db.append_message("s", "assistant", None, tool_calls=calls, reasoning="REASONED")
    db.append_message("s", "tool", "RESULT", tool_call_id="0", tool_name="terminal")
    db.append_message("s", "assistant", "found it", reasoning_content="REASONED TOO")
    text = drawn(db, "s")
    assert "[3 tool calls: terminal, web_search]" in text and "found it" in text
    assert not any(hidden in text for hidden in ("SYSTEM", "RESULT", "REASONED"))


def test_only_the_last_ten_exchanges_are_shown_and_the_rest_is_counted(db: Any) -> None:
    talked(db, *((f"question {n}.", f"answer {n}.") for n in range(13)))
    text = drawn(db, "s")
    assert "... 6 earlier messages ..." in text
    assert "question 2." not in text and "question 3." in text and "answer 12." in text


def test_minimal_is_one_line(db: Any) -> None:
    talked(db, ("hello", "hi"))
    db.set_session_title("s", "greetings")
    text = drawn(db, "s", resume_display="minimal")
    assert text.count("\n") == 1 and "greetings" in text and "2 messages" in text


def test_escape_sequences_of_a_message_do_nothing(db: Any) -> None:
    talked(db, ("\x1b]0;title\x07 \x1b[2J hello", "a\rb \u202e turned"))
    text = drawn(db, "s")
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and "hello" in text


@given(st.text())
def test_user_text_is_cut_at_300_characters(text: str) -> None:
    for long in (text, text * 50):
        cut = cut_user(long)
        assert (
            cut == long if len(long) <= 300 else (cut.endswith("...") and len(cut) <= 303 and long.startswith(cut[:-3]))
        )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=120), max_size=8))
def test_assistant_text_is_cut_at_200_characters_or_3_lines(lines: list[str]) -> None:
    cut = cut_assistant("\n".join(lines))
    assert len(cut) <= 203 and len(cut.splitlines()) <= 3
    full = [line for text in lines for line in text.splitlines() if line.strip()]
    if len(full) <= 3 and len("\n".join(full)) <= 200:
        assert cut == "\n".join(full)
    else:
        assert cut.endswith("...")


@given(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=60))
def test_what_is_shown_and_what_is_counted_are_all_there_is(roles: list[str]) -> None:
    rows = [{"id": n, "role": role, "content": f"m{n}", "tool_calls": None} for n, role in enumerate(roles, 1)]
    earlier, entries = recalled(rows)
    assert earlier + len(entries) == sum(role in ("user", "assistant") for role in roles)
    assert sum(entry.role == "user" for entry in entries) <= 10


def test_any_width_can_be_drawn(db: Any) -> None:
    talked(db, ("日本語のテキスト " * 20, "x" * 500))
    drawn(db, "s", 1)  # nothing fits, nothing breaks
    for width in (4, 8, 23, 24, 40, 200):
        assert "●" in drawn(db, "s", width)
