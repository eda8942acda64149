"""Session keys: the same place and person always give the same key, two different ones never do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.chats.router import (
    Source,
    build_session_key,
    canonical_whatsapp_identifier,
    normalize_whatsapp_identifier,
    source_of,
)
from hermes.gateway.events import CHANNEL, DM, GROUP, Chat, Event, Sender

# Ids as hostile as they come: separators, escapes of separators, each other's beginnings, any sign there is.
TRICKY = st.text(alphabet=st.one_of(st.sampled_from(list(":%3A25/ ab")), st.characters()), min_size=1, max_size=8)
# An adapter sees to it that a thread's id can't be a user's: here the one begins with t, the other with u.
THREADS, USERS = TRICKY.map("t".__add__), TRICKY.map("u".__add__)
SOURCES = st.builds(
    Source,
    platform=st.sampled_from(["telegram", "discord"]),
    chat_id=TRICKY,
    chat_type=st.sampled_from([DM, GROUP, CHANNEL]),
    thread_id=st.none() | THREADS,
    user_id=st.none() | USERS,
    user_id_alt=st.none() | USERS,
)


def meant(source: Source, *, group_sessions_per_user: bool, thread_sessions_per_user: bool) -> tuple[Any, ...]:
    """The fields that two messages in one session have in common, by the table of session keys."""
    place = (source.platform, source.chat_type, source.chat_id, source.thread_id)
    if source.chat_type == DM:
        return place
    apart = thread_sessions_per_user if source.thread_id else group_sessions_per_user
    return (*place, (source.user_id_alt or source.user_id) if apart else None)


@given(SOURCES, SOURCES, st.booleans(), st.booleans())
def test_equal_sources_have_equal_keys_and_different_ones_different(
    one: Source, other: Source, groups: bool, threads: bool
) -> None:
    settings = {"group_sessions_per_user": groups, "thread_sessions_per_user": threads}
    same = meant(one, **settings) == meant(other, **settings)
    assert (build_session_key(one, **settings) == build_session_key(other, **settings)) == same
    again = Source(**{name: getattr(one, name) for name in one.__struct_fields__})
    assert build_session_key(again, **settings) == build_session_key(one, **settings)


@given(TRICKY, THREADS, USERS)
def test_a_colon_in_an_id_is_no_border_between_two(chat: str, thread: str, user: str) -> None:
    cuts = [
        Source(platform="matrix", chat_type=GROUP, chat_id=chat, thread_id=thread, user_id=user),
        Source(platform="matrix", chat_type=GROUP, chat_id=f"{chat}:{thread}", user_id=user),
        Source(platform="matrix", chat_type=GROUP, chat_id=chat, thread_id=f"{thread}:{user}"),
        Source(platform="matrix", chat_type=GROUP, chat_id=f"{chat}:{thread}:{user}"),
    ]
    assert len({build_session_key(source, thread_sessions_per_user=True) for source in cuts}) == 4


def place(chat_type: str = DM, thread: str | None = None, user: str | None = "7", **more: Any) -> Source:
    return Source(platform="telegram", chat_id="42", chat_type=chat_type, thread_id=thread, user_id=user, **more)


@pytest.mark.parametrize(
    ("source", "settings", "key"),
    [
        (place(), {}, "agent:main:telegram:dm:42"),
        (place(thread="t9"), {}, "agent:main:telegram:dm:42:t9"),
        (place(user=None), {}, "agent:main:telegram:dm:42"),
        (place(GROUP), {}, "agent:main:telegram:group:42:7"),
        (place(GROUP, user_id_alt="stable"), {}, "agent:main:telegram:group:42:stable"),
        (place(GROUP, user=None), {}, "agent:main:telegram:group:42"),
        (place(GROUP), {"group_sessions_per_user": False}, "agent:main:telegram:group:42"),
        (place(GROUP, "t9"), {}, "agent:main:telegram:group:42:t9"),
        (place(GROUP, "t9"), {"group_sessions_per_user": False}, "agent:main:telegram:group:42:t9"),
        (place(GROUP, "t9"), {"thread_sessions_per_user": True}, "agent:main:telegram:group:42:t9:7"),
        (place(GROUP, "t9", None), {"thread_sessions_per_user": True}, "agent:main:telegram:group:42:t9"),
        (place(CHANNEL), {}, "agent:main:telegram:channel:42:7"),
        (place(CHANNEL), {"group_sessions_per_user": False}, "agent:main:telegram:channel:42"),
        (place(CHANNEL, "t9"), {}, "agent:main:telegram:channel:42:t9"),
        (place(CHANNEL, "t9"), {"thread_sessions_per_user": True}, "agent:main:telegram:channel:42:t9:7"),
        (Source(platform="matrix", chat_id="!a:b.org"), {}, "agent:main:matrix:dm:!a%3Ab.org"),
        (Source(platform="matrix", chat_id="50%3A"), {}, "agent:main:matrix:dm:50%253A"),
    ],
)
def test_the_table_of_keys(source: Source, settings: dict[str, bool], key: str) -> None:
    assert build_session_key(source, **settings) == key


def test_an_event_is_keyed_by_its_chat_and_its_senders_stable_id() -> None:
    chat = Chat(platform="signal", chat_id="g", type=GROUP)
    said = [
        Event(id=str(n), chat=chat, sender=Sender(user_id=number, stable_id="uuid-1", proven=True))
        for n, number in enumerate(("+491", "+492", None))
    ]
    assert {build_session_key(source_of(event)) for event in said} == {"agent:main:signal:group:g:uuid-1"}


# ------------------------------------------------------------------------------------------------ WhatsApp


def mapped(home: Path, **files: Any) -> Path:
    """A home where the bridge has written these: `_60123="777"` is lid-mapping-60123.json."""
    folder = home / "whatsapp" / "session"
    folder.mkdir(parents=True, exist_ok=True)
    for name, other in files.items():
        text = other if isinstance(other, bytes) else json.dumps(other).encode()
        (folder / f"lid-mapping-{name.removeprefix('_')}.json").write_bytes(text)
    return home


@pytest.mark.parametrize(
    ("value", "bare"),
    [
        ("60123456789@s.whatsapp.net", "60123456789"),
        ("60123456789:12@s.whatsapp.net", "60123456789"),
        (" +60123456789 ", "60123456789"),
        ("999999@lid", "999999"),
        ("", ""),
        ("@lid", ""),
    ],
)
def test_what_changes_from_message_to_message_is_no_part_of_an_id(value: str, bare: str) -> None:
    assert normalize_whatsapp_identifier(value) == bare
    assert normalize_whatsapp_identifier(bare) == bare


def test_phone_and_lid_of_one_person_are_one(tmp_path: Path) -> None:
    home = mapped(tmp_path, _60123456789="999888777666555", _999888777666555_reverse="60123456789")
    for alias in ("60123456789@s.whatsapp.net", "60123456789:4@s.whatsapp.net", "999888777666555@lid", "+60123456789"):
        assert canonical_whatsapp_identifier(alias, home=home) == "60123456789"
        dm = Source(platform="whatsapp", chat_id=alias)
        assert build_session_key(dm, home=home) == "agent:main:whatsapp:dm:60123456789"
        member = Source(platform="whatsapp", chat_id="1-2@g.us", chat_type=GROUP, user_id=alias)
        assert build_session_key(member, home=home) == "agent:main:whatsapp:group:1-2@g.us:60123456789"


def test_aliases_are_walked_to_the_end_and_in_circles(tmp_path: Path) -> None:
    home = mapped(tmp_path, _1111="22222", _22222="333", _333_reverse="1111", _1111_reverse="22222")
    assert {canonical_whatsapp_identifier(one, home=home) for one in ("1111", "22222@lid", "333@lid")} == {"333"}


def test_of_two_as_short_the_phone_number_counts_then_the_smaller(tmp_path: Path) -> None:
    home = mapped(tmp_path, _500="100", _100_reverse="500")
    assert {canonical_whatsapp_identifier(one, home=home) for one in ("500", "100@lid", "100")} == {"500"}
    home = mapped(tmp_path / "two", _500="100", _100_reverse="400", _400="100")
    assert {canonical_whatsapp_identifier(one, home=home) for one in ("500", "100@lid")} == {"400"}


@given(st.lists(st.tuples(st.integers(10, 30), st.integers(10, 30)), max_size=12))
def test_whoever_is_asked_first_all_aliases_of_a_person_give_one_id(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    files: dict[str, str] = {}
    for phone, lid in pairs:  # as the bridge does it: both files of a pair, and one pair for an id
        if f"_1{phone}" not in files and f"_9{lid}_reverse" not in files:
            files |= {f"_1{phone}": f"9{lid}", f"_9{lid}_reverse": f"1{phone}"}
    home = mapped(tmp_path_factory.mktemp("aliases"), **files)
    for phone, lid in pairs:
        if files.get(f"_1{phone}") == f"9{lid}":
            assert canonical_whatsapp_identifier(f"1{phone}@s.whatsapp.net", home=home) == f"1{phone}"
            assert canonical_whatsapp_identifier(f"9{lid}@lid", home=home) == f"1{phone}"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"17", b'["1"]', b'""', b'"@lid"'])
def test_a_file_that_says_nothing_is_no_alias(tmp_path: Path, content: bytes) -> None:
    assert canonical_whatsapp_identifier("60123", home=mapped(tmp_path, _60123=content)) == "60123"


@pytest.mark.parametrize("hostile", ["../x", "..", "a/../../x", "\0", "x" * 5000, "\ud800", "*", "@", "@lid", ":"])
def test_hostile_ids_reach_no_file_and_stay_apart(tmp_path: Path, hostile: str) -> None:
    home = mapped(tmp_path, _60123="777")
    (tmp_path / "whatsapp" / "x.json").write_text('"60123"')
    (tmp_path / "whatsapp" / "session" / "x.json").write_text('"60123"')
    (tmp_path / "whatsapp" / "session" / "lid-mapping-").mkdir()
    assert canonical_whatsapp_identifier(hostile, home=home) not in ("60123", "777", "")


def test_a_person_without_a_readable_id_does_not_share_the_rooms_session(tmp_path: Path) -> None:
    keys = {
        build_session_key(
            Source(platform="whatsapp", chat_id="g@g.us", chat_type=GROUP, user_id=who), home=tmp_path
        )
        for who in (None, "@lid", "1@lid")
    }  # fmt: skip
    assert len(keys) == 3
