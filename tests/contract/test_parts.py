"""Content parts: lists come back as lists; base64 payloads become attachments and leave a reference."""

from __future__ import annotations

import base64
import json

import pytest

from . import contents, found, shown, talk


def test_content_parts_come_back_equal(db):
    parts = [
        {"type": "text", "text": "look at this"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "custom", "n": 1, "deep": {"list": [1, None, True]}},
    ]
    talk(db, "s", parts)
    assert shown(db, "s") == [parts]
    assert contents(db.get_messages_as_conversation("s")) == [parts]
    assert db.export_session("s")["messages"][0]["content"] == parts


def image_message(payload: bytes):
    url = "data:image/png;base64," + base64.b64encode(payload).decode()
    return [
        {"type": "text", "text": "what is on this picture of a wombat"},
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
    ]


def files_with(folder, payload: bytes):
    return [path for path in folder.rglob("*") if path.is_file() and path.read_bytes() == payload]


def test_a_base64_payload_is_lifted_into_the_attachments(db):
    payload = bytes(range(256)) * 40
    parts = image_message(payload)
    encoded = parts[1]["image_url"]["url"].split(",")[1]
    talk(db, "s", parts)
    (back,) = shown(db, "s")
    assert back[0] == parts[0]
    assert encoded not in json.dumps(back), "the bytes are not kept inline"
    assert back[1]["type"] == "image_url" and back[1]["image_url"]["detail"] == "high"
    assert isinstance(back[1]["image_url"]["url"], str) and back[1]["image_url"]["url"]
    assert len(files_with(db.attachments_dir, payload)) == 1


def test_the_reference_in_place_of_a_payload_names_its_file(db):
    payload = b"\x89PNG\r\n" + bytes(5000)
    talk(db, "s", image_message(payload))
    url = shown(db, "s")[0][1]["image_url"]["url"]
    (path,) = files_with(db.attachments_dir, payload)
    assert path.name in url or path.stem in url


def test_a_base64_payload_is_not_indexed_and_the_text_beside_it_is(db):
    payload = b"wombatwombat" * 300
    parts = image_message(payload)
    encoded = parts[1]["image_url"]["url"].split(",")[1]
    (message_id,) = talk(db, "s", parts)
    assert found(db, "wombat") == {message_id}
    assert found(db, encoded[:24]) == set()
    assert found(db, encoded[:8] + "*") == set()
    (hit,) = db.search_messages("picture")
    assert encoded[:40] not in hit["snippet"]


def test_the_preview_of_content_parts_is_their_text(db):
    talk(db, "s", image_message(bytes(3000)))
    (row,) = db.list_sessions_rich()
    assert row["preview"] == "what is on this picture of a wombat"


def test_the_same_picture_twice_is_one_file_and_goes_with_the_last_that_shows_it(db):
    payload = bytes(range(256)) * 20
    talk(db, "a", image_message(payload))
    talk(db, "b", image_message(payload))
    assert len(files_with(db.attachments_dir, payload)) == 1
    db.delete_session("a")
    assert len(files_with(db.attachments_dir, payload)) == 1
    db.delete_session("b")
    assert files_with(db.attachments_dir, payload) == []


def test_lifted_payloads_are_in_no_transcript(db):
    parts = image_message(bytes(range(256)) * 30)
    encoded = parts[1]["image_url"]["url"].split(",")[1]
    talk(db, "s", parts)
    text = (db.sessions_dir / "s.jsonl").read_text(encoding="utf-8", errors="replace")
    assert "wombat" in text and encoded[:200] not in text


@pytest.mark.parametrize(
    "url", ["data:,hello", "data:image/png;base64,!!!not base64!!!", "data:", "data:image/png;base64,"]
)
def test_a_broken_data_url_is_never_an_error(db, url):
    parts = [{"type": "text", "text": "hm"}, {"type": "image_url", "image_url": {"url": url}}]
    talk(db, "s", parts)
    assert shown(db, "s")[0][0] == parts[0]
