"""Content parts: lists come back as lists; base64 payloads become attachments and leave a reference."""

from __future__ import annotations

import base64
import hashlib

import pytest

from hermes.errors import StoreError

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


def is_stored(db, payload: bytes) -> bool:
    try:
        return db.read_attachment(hashlib.sha256(payload).hexdigest()) == payload
    except FileNotFoundError:
        return False


def test_the_reference_in_place_of_a_payload_names_its_file(db):
    payload = b"\x89PNG\r\n" + bytes(5000)
    talk(db, "s", image_message(payload))
    url = shown(db, "s")[0][1]["image_url"]["url"]
    digest = hashlib.sha256(payload).hexdigest()
    assert url == f"attachment:sha256:{digest}" and db.read_attachment(digest) == payload
    file = db.attachment_file(digest)
    assert db.is_encrypted if file is None else file.read_bytes() == payload


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


def test_the_same_picture_twice_is_stored_once_and_goes_with_the_last_that_shows_it(db):
    payload = bytes(range(256)) * 20
    talk(db, "a", image_message(payload))
    talk(db, "b", image_message(payload))
    assert is_stored(db, payload)
    db.delete_session("a")
    assert is_stored(db, payload)
    db.delete_session("b")
    assert not is_stored(db, payload)


def test_lifted_payloads_are_in_no_transcript(db):
    parts = image_message(bytes(range(256)) * 30)
    encoded = parts[1]["image_url"]["url"].split(",")[1]
    talk(db, "s", parts)
    text = (db.sessions_dir / "s.jsonl").read_text(encoding="utf-8", errors="replace")
    assert db.list_sessions_rich()[0]["preview"] == "what is on this picture of a wombat"
    assert "wombat" in text and encoded[:200] not in text


@pytest.mark.parametrize(
    "url", ["data:,hello", "data:image/png;base64,!!!not base64!!!", "data:", "data:image/png;base64,"]
)
def test_a_broken_data_url_is_never_an_error(db, url):
    parts = [{"type": "text", "text": "hm"}, {"type": "image_url", "image_url": {"url": url}}]
    talk(db, "s", parts)
    assert shown(db, "s")[0][0] == parts[0]


def test_a_payload_that_cannot_be_written_is_an_error_of_the_store_and_nothing_is_stored(db, engine):
    if engine != "sqlite":
        pytest.skip("its payloads are in a table")
    db.create_session("s", "cli")
    db.attachments_dir.parent.mkdir(parents=True, exist_ok=True)
    db.attachments_dir.symlink_to("/proc")  # a folder in which no one can make a file
    with pytest.raises(StoreError) as refused:
        db.append_message("s", "user", image_message(bytes(range(256)) * 40))
    assert (
        str(db.attachments_dir) in str(refused.value) and "\n" not in str(refused.value) and db.get_messages("s") == []
    )
    db.attachments_dir.unlink()
    db.append_message("s", "user", image_message(bytes(range(256)) * 40))
    assert len(db.get_messages("s")) == 1
