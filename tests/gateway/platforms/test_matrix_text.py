"""Matrix: what we say as HTML and what people say as events, without a server."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nio")

from nio import MatrixRoom, RoomMemberEvent

from hermes.gateway.adapter import utf16_units
from hermes.gateway.events import as_json
from hermes.gateway.platforms.matrix import incoming
from hermes.gateway.platforms.matrix.adapter import Matrix, html_of, replacement, text_message
from hermes.gateway.platforms.matrix.client import SavedState
from tests.support.anything import anything
from tests.support.markdown import MARKDOWN

pytestmark = pytest.mark.mechanism

ME = "@hermes:lab.test"
ALICE = "@alice:lab.test"
ALLOWED = {
    *("h1 h2 h3 h4 h5 h6 blockquote p a ul ol li strong em s code pre hr br".split()),
    *("table thead tbody tr th td".split()),
}
LONGEST = Matrix.capabilities.longest


class Balance(HTMLParser):
    """Every tag is closed, in order, and is one that Matrix knows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()
        self.problems += [f"<{tag}> is left open" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ALLOWED:
            self.problems.append(f"<{tag}> is not allowed")
        for name, value in attrs:
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")
            elif (tag, name) not in {("a", "title"), ("ol", "start"), ("code", "class")}:
                self.problems.append(f"<{tag} {name}> is not allowed")
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "hr") and (not self.open or self.open.pop() != tag):
            self.problems.append(f"</{tag}> closes nothing")


@given(MARKDOWN)
def test_html_is_always_balanced_and_has_only_what_matrix_allows(text: str) -> None:
    html = html_of(text)
    if html is None:
        return
    read = Balance(html)
    assert read.problems == []
    assert all(link.lower().startswith(("http:", "https:", "ftp:", "mailto:", "magnet:")) for link in read.links)


@given(MARKDOWN, st.one_of(st.none(), st.just("$root")), st.one_of(st.none(), st.just("$before")))
def test_a_message_can_always_be_sent_and_pings_nobody(text: str, thread: str | None, reply: str | None) -> None:
    for content in (text_message(text, thread=thread, reply_to=reply), replacement(text, "$mine")):
        json.dumps(content).encode()
        words = json.dumps(content, ensure_ascii=False)
        words.encode()
        assert "@room" not in words.lower()
        assert content["m.mentions"] == {}


@given(st.sampled_from(["a", '"', "\\", "\n", "é", "日", "😀", "*a*", "- a\n", "|a\n|-\n|b\n", "> a\n\n", "&", "&<>"]))
def test_a_text_of_the_longest_length_fits_into_an_event_even_encrypted(unit: str) -> None:
    text = (unit * LONGEST)[:LONGEST]
    while utf16_units(text) > LONGEST:
        text = text[: -((utf16_units(text) - LONGEST + 1) // 2)]
    for content in (text_message(text, thread="$" + "r" * 43), replacement(text, "$" + "m" * 43)):
        assert len(json.dumps(content)) * 4 / 3 + 2_000 < 65_536
        shown = content.get("m.new_content", content)
        assert shown["body"] == text


def test_what_language_models_write_becomes_html() -> None:
    html = html_of(
        "# Plan\n\nSome **bold** and *soft* `code`.\n\n1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\nprint('<hi>')\n```\n[docs](https://x.test/?a=1&b=2) ~~old~~"
    )
    assert html is not None
    for part in (
        "<h1>Plan</h1>",
        "<strong>bold</strong>",
        "<em>soft</em>",
        "<code>code</code>",
        "<ol>\n<li>one</li>",
        "<td>1</td>",
        "<code class=\"language-python\">print('&lt;hi&gt;')\n</code>",
        '<a href="https://x.test/?a=1&amp;b=2">docs</a>',
        "<s>old</s>",
    ):
        assert part in html


def test_plain_words_have_no_html_and_line_breaks_stay() -> None:
    assert html_of("Just words & more.\nTwo lines.") is None
    assert html_of("**a**\nb") == "<p><strong>a</strong><br />\nb</p>"


def test_pictures_become_links_and_html_is_shown_not_used() -> None:
    assert html_of("![a <b>](https://x.test/p.png)") == '<p><a href="https://x.test/p.png">a &lt;b&gt;</a></p>'
    assert "<script>" not in str(html_of("**x** <script>alert(1)</script>"))


# ---------------------------------------------------------------------------------------------------- incoming


def room(*people: str, name: str = "") -> MatrixRoom:
    made = MatrixRoom("!room:lab.test", ME)
    for person in (ME, *people):
        shown = person[1:].partition(":")[0].capitalize()
        member = {
            "type": "m.room.member",
            "state_key": person,
            "sender": person,
            "event_id": f"$join{shown}",
            "origin_server_ts": 1,
            "content": {"membership": "join", "displayname": shown},
        }
        made.handle_membership(RoomMemberEvent.from_dict(member))
    made.name = name or None
    return made


def said(body: str, **content: Any) -> dict[str, Any]:
    whole = {"msgtype": "m.text", "body": body, **content}
    return {
        "type": "m.room.message",
        "event_id": "$one",
        "sender": ALICE,
        "origin_server_ts": 1_700_000_000_500,
        "content": whole,
    }


GROUP = (ALICE, "@bob:lab.test")


def test_two_in_a_room_is_a_direct_chat_and_three_a_group() -> None:
    alone = incoming.event_of(room(ALICE), said("hi"), ME)
    assert alone is not None
    assert (alone.chat.type, alone.chat.name, alone.addressed, alone.sent_at) == ("dm", "Alice", True, 1_700_000_000.5)
    many = incoming.event_of(room(*GROUP, name="Team"), said("hi"), ME)
    assert many is not None
    assert (many.chat.type, many.chat.name, many.addressed, many.sender.name) == ("group", "Team", False, "Alice")


@pytest.mark.parametrize(
    ("body", "mentions", "text", "addressed"),
    [
        ("Hermes: what now?", True, "what now?", True),
        ("Hermes what now?", True, "what now?", True),
        ("hermes, what now?", False, "what now?", True),
        ("@hermes:lab.test what now?", False, "what now?", True),
        ("@hermes what now?", False, "what now?", True),
        ("what do you think, @hermes?", False, "what do you think,?", True),
        ("Hermes is a god", False, "Hermes is a god", False),
        ("ask Hermes about it", True, "ask Hermes about it", True),
        ("@hermes:other.test hi", False, "@hermes:other.test hi", False),
        ("@hermestown is far", False, "@hermestown is far", False),
        ("  nobody  ", False, "  nobody  ", False),
    ],
)
def test_a_mention_addresses_us_and_is_not_part_of_the_text(
    body: str, mentions: bool, text: str, addressed: bool
) -> None:
    event = incoming.event_of(room(*GROUP), said(body, **({"m.mentions": {"user_ids": [ME]}} if mentions else {})), ME)
    assert event is not None
    assert (event.text, event.addressed) == (text, addressed)


def test_an_old_clients_link_to_us_is_a_mention_too() -> None:
    html = f'<a href="https://matrix.to/#/{ME}">Hermes</a>: hi'
    event = incoming.event_of(room(*GROUP), said("Hermes: hi", formatted_body=html), ME)
    assert event is not None
    assert (event.text, event.addressed) == ("hi", True)


def test_a_thread_is_its_root_and_its_fallback_is_no_answer() -> None:
    relation = {"rel_type": "m.thread", "event_id": "$root", "is_falling_back": True}
    relation["m.in_reply_to"] = {"event_id": "$last"}
    event = incoming.event_of(room(*GROUP), said("hi", **{"m.relates_to": relation}), ME)
    assert event is not None
    assert (event.chat.thread_id, event.reply_to) == ("$root", None)
    answer = incoming.event_of(room(*GROUP), said("hi", **{"m.relates_to": {**relation, "is_falling_back": False}}), ME)
    assert answer is not None
    assert answer.reply_to == "$last"


def test_an_answer_has_no_quoted_text() -> None:
    content = {"m.relates_to": {"m.in_reply_to": {"event_id": "$before"}}}
    event = incoming.event_of(room(ALICE), said("> <@hermes:lab.test> long\n> words\n\nyes", **content), ME)
    assert event is not None
    assert (event.text, event.reply_to) == ("yes", "$before")


def test_a_file_has_a_caption_only_if_its_name_is_given_besides() -> None:
    info = {"mimetype": "image/png", "size": 5}
    plain = {"msgtype": "m.image", "url": "mxc://lab.test/a", "info": info}
    event = incoming.event_of(room(ALICE), said("cat.png", **plain), ME)
    assert event is not None
    assert (event.text, event.attachments[0].name, event.attachments[0].mime) == ("", "cat.png", "image/png")
    captioned = incoming.event_of(room(ALICE), said("my cat", filename="cat.png", **plain), ME)
    assert captioned is not None
    assert (captioned.text, captioned.attachments[0].name) == ("my cat", "cat.png")


def test_the_key_of_an_encrypted_file_is_not_kept_with_the_event() -> None:
    file = {"url": "mxc://lab.test/a", "key": {"k": "SECRETKEY"}, "iv": "SECRETIV", "hashes": {"sha256": "x"}}
    event = incoming.event_of(room(ALICE), said("a.bin", msgtype="m.file", file=file), ME)
    assert event is not None
    assert "SECRET" not in as_json(event)
    assert event.attachments[0].reference == {"room_id": "!room:lab.test", "event_id": "$one"}


@pytest.mark.parametrize(
    "source",
    [
        said("new words", **{"m.relates_to": {"rel_type": "m.replace", "event_id": "$x"}, "m.new_content": {}}),
        said("beep", msgtype="m.notice"),
        said("geo", msgtype="m.location"),
        {**said("x"), "type": "m.reaction"},
        {**said("x"), "state_key": ""},
        {**said("x"), "content": {}},
        {**said("x"), "content": {"msgtype": "m.text", "body": 7}},
    ],
)
def test_edits_notices_reactions_and_nonsense_are_no_events(source: dict[str, Any]) -> None:
    assert incoming.event_of(room(ALICE), source, ME) is None


any_json = anything()
keys = st.sampled_from(
    "body msgtype url file info filename formatted_body m.mentions m.relates_to m.new_content format".split()
)


@given(st.dictionaries(keys, any_json), st.sampled_from(["m.text", "m.image", "m.file", "m.emote", 3]), st.text())
def test_whatever_others_write_into_an_event_it_never_raises(content: dict[str, Any], kind: Any, body: str) -> None:
    for whole in (content, {**content, "msgtype": kind, "body": body}):
        source = {**said("x"), "content": whole}
        event = incoming.event_of(room(*GROUP), source, ME)
        assert event is None or as_json(event)


# ---------------------------------------------------------------------------------------------------- memory


def test_what_is_remembered_belongs_to_one_account_and_is_private(tmp_path: Path) -> None:
    memory = SavedState(tmp_path, "https://a.test")
    memory.keep_since(ME, "s1")
    memory.keep_login(ME, ME, "DEVICE", "token")
    assert SavedState(tmp_path, "https://a.test").since(ME) == "s1"
    assert SavedState(tmp_path, "https://a.test").since(ALICE) is None
    assert SavedState(tmp_path, "https://b.test").since(ME) is None
    assert SavedState(tmp_path, "https://b.test").login(ME) is None
    assert memory.folder.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in memory.folder.iterdir())


def test_a_damaged_file_counts_as_not_there(tmp_path: Path) -> None:
    memory = SavedState(tmp_path, "https://a.test")
    for damage in ("", "[]", "{", f'{{"homeserver": "https://a.test", "owner": "{ME}", "events": 3}}'):
        for name in ("sync.json", "login.json", "waiting.json"):
            (memory.folder / name).write_text(damage)
        assert (memory.since(ME), memory.login(ME), memory.waiting(ME)) == (None, None, [])
