"""Extractive titles and summaries: what must survive, in several languages, on conversations as they happen."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.history import SUMMARY_MARK
from hermes.agent.summary import DENSE_RUN, MOST, SECTIONS, is_stop, summary_of, words
from hermes.agent.titler import title_of, word_count
from tests.support.sizes import size, some

from .transcripts import ALL, OUTAGE, PARSER, Transcript, assistant, tool, user

pytestmark = pytest.mark.mechanism

every = pytest.mark.parametrize("transcript", ALL, ids=lambda transcript: transcript.name)


def section(summary: str, name: str) -> str:
    return summary.partition(f"## {name}\n")[2].partition("\n## ")[0]


def folded(text: str) -> str:
    return " ".join(text.split())


# ------------------------------------------------------------------ summaries


@every
def test_a_summary_keeps_names_numbers_and_identifiers(transcript: Transcript) -> None:
    summary = folded(summary_of(transcript.messages))
    assert [fact for fact in transcript.anywhere if folded(fact) not in summary] == []


@every
def test_a_summary_keeps_every_decision(transcript: Transcript) -> None:
    decisions = section(summary_of(transcript.messages), "Decisions")
    assert [decision for decision in transcript.decisions if decision not in decisions] == []


@every
def test_a_summary_keeps_open_questions_and_open_work(transcript: Transcript) -> None:
    open_work = section(summary_of(transcript.messages), "Open work")
    assert [question for question in transcript.open_work if question not in open_work] == []


@every
def test_a_summary_names_every_file_once(transcript: Transcript) -> None:
    files = section(summary_of(transcript.messages), "Files").strip().split(", ")
    assert [path for path in transcript.files if path not in files] == []
    assert len(files) == len(set(files))


@every
def test_a_summary_has_its_five_sections_and_the_goal_is_the_first_request(transcript: Transcript) -> None:
    summary = summary_of(transcript.messages)
    assert re.findall(r"^## (.*)$", summary, re.MULTILINE) == list(SECTIONS)
    first = str(transcript.messages[0]["content"])
    assert folded(first)[:20] in folded(section(summary, "Goal"))


def test_what_an_earlier_summary_held_is_in_the_next_one() -> None:
    first = summary_of(PARSER.messages)
    again = summary_of([user(f"{SUMMARY_MARK}: 5 messages]\n\n{first}"), *OUTAGE.messages])
    for name, wanted in (("Decisions", PARSER.decisions), ("Open work", PARSER.open_work), ("Files", PARSER.files)):
        assert [line for line in wanted if line not in section(again, name)] == [], name
    assert [fact for fact in PARSER.anywhere if fact not in again] == []
    assert [fact for fact in OUTAGE.anywhere if fact not in again] == []
    third = summary_of([user(f"{SUMMARY_MARK}: 9 messages]\n\n{again}"), user("And now the weather.")])
    assert [fact for fact in (*PARSER.anywhere, *PARSER.decisions, *OUTAGE.anywhere) if fact not in third] == []


def test_a_focus_brings_its_sentences_first() -> None:
    messages = [
        user("Plan the garden. The apple trees stand in the north. Roses need sun. The compost is behind the shed."),
        assistant("Noted."),
    ]
    summary = summary_of(messages, focus="roses")
    assert "Roses need sun." in section(summary, "Focus: roses")
    assert "apple trees" not in section(summary, "Focus: roses")


def test_a_long_conversation_stays_within_the_bound_and_keeps_what_was_decided_first_and_last() -> None:
    messages = [user("We decided to call the project Bluebird, the code lives in src/bluebird/main.py.")]
    for number in range(size(250, 2000)):
        messages += [
            user(f"Look at src/part_{number}/module_{number}.py, it takes {number} ms."),
            assistant("Seen. " * 50),
        ]
    messages.append(user("We decided to ship it on Tuesday. Who tells the customers?"))
    summary = summary_of(messages)
    assert len(summary) <= MOST
    assert "Bluebird" in section(summary, "Decisions")
    assert "ship it on Tuesday" in section(summary, "Decisions")
    assert "Who tells the customers?" in section(summary, "Open work")


def test_floods_of_tool_output_do_not_push_out_what_was_said() -> None:
    listing = "\n".join(f"/usr/share/doc/package-{n}/changelog_{n}.txt" for n in range(5000))
    messages = [
        user("List the packages."),
        tool(1, "terminal", listing),
        user("We decided to remove libfoo_old, it wastes 40 MB."),
    ]
    summary = summary_of(messages)
    assert "libfoo_old" in section(summary, "Decisions")
    assert "40 MB" in summary


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user("")],
        [user(None)],
        [assistant("…")],
        [tool(1, "x", "")],
        [user([{"type": "image_url", "image_url": {"url": "x"}}])],
    ],
)
def test_a_summary_is_never_empty(messages) -> None:
    assert "## Goal" in summary_of(messages)


@pytest.mark.parametrize(
    "piece",
    some(
        ["-", "a.", "1,", "Aa", "AaA", "a_", "/", "a/", "`", "é", "解", "@", "<", " ", "we  ", ".", "?", "a-", "x@", "1 000 ", "https://", "**"],
        9,
    ),
)  # fmt: skip
@pytest.mark.parametrize("end", some(["_", ""], 1))
def test_long_runs_of_anything_are_read_in_one_go(piece: str, end: str) -> None:
    text = piece * (40_000 // len(piece)) + end  # nothing here may take a pattern more than a glance
    assert len(summary_of([user(text), assistant(text), tool(1, "x", text)])) <= MOST
    assert title_of(text, text)


roles = st.sampled_from(["user", "assistant", "tool", "system", "odd"])


@given(st.lists(st.fixed_dictionaries({"role": roles, "content": st.none() | st.text(max_size=400)}), max_size=12))
def test_any_messages_give_a_bounded_summary_without_control_characters(messages) -> None:
    summary = summary_of(messages)
    assert 0 < len(summary) <= MOST
    summary.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", summary)


# ------------------------------------------------------------------ titles


def ends_well(title: str) -> bool:
    found = words(title)
    return all(DENSE_RUN.match(word) or not is_stop(word) for word in (found[0], found[-1]))


@every
def test_a_title_is_three_to_seven_words_about_the_subject(transcript: Transcript) -> None:
    said = {
        role: next(str(m["content"]) for m in transcript.messages if m["role"] == role)
        for role in ("user", "assistant")
    }
    title = title_of(said["user"], said["assistant"])
    assert 3 <= word_count(title) <= 7, title
    assert ends_well(title), title
    assert any(word.lower() in title.lower() for word in transcript.title_words), title


@pytest.mark.parametrize(
    "asked, answered, title",
    [
        ("Hi! Can you help me fix the login page of our shop?", "", "Fix the login page of our shop"),
        ("please", "I can help with the tax return of 2025.", "Tax return of 2025"),
        ("docker", "", "Conversation about docker"),
        ("docker", "Docker?", "Conversation about docker"),
        ("```\nprint(1)\n```\nWhy does this loop never end?", "", "Loop never end"),
        ("https://example.com/a/b?c=d summarise this page about whales", "", "Summarise this page about whales"),
        ("**Rename** `old_name` to `new_name` everywhere", "", "Rename old_name to new_name everywhere"),
    ],
)
def test_titles_of_short_and_odd_beginnings(asked: str, answered: str, title: str) -> None:
    assert title_of(asked, answered) == title


@pytest.mark.parametrize(
    "asked, answered", [("", ""), ("hi", "hello"), ("???", "…"), ("\u200b\x00", ""), ("ok thanks", "")]
)
def test_without_one_usable_word_the_title_is_the_date(asked: str, answered: str) -> None:
    assert re.fullmatch(r"Conversation of \d{1,2} \w+ \d{4}", title_of(asked, answered))


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_first_exchange_gives_a_title_that_the_store_accepts(asked: str, answered: str) -> None:
    from hermes_state import SessionDB

    title = title_of(asked, answered)
    assert "\n" not in title
    assert SessionDB.sanitize_title(title), title
    assert word_count(title) <= 9  # "Conversation about …" in front of what there is
