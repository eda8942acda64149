"""No space left: a typed error that names the file, nothing lost or stored twice, and on it goes once there is room.

The disk is a small tmpfs in a mount namespace of the worker's own; a limit on the size of files needs no rights at all.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from . import Refused, Remote, assert_kept, can_mount, contents, need, size, transcript_ids
from .workers import message

DISK = 8000  # KiB
ROOM = list(range(60, 1600, size(700, 45)))  # KiB left before the writing starts


@pytest.fixture(scope="module")
def mounts() -> None:
    need(can_mount(), "file systems can't be mounted here (it takes root, or user namespaces)")


def small_disk(remote: Remote, folder: Path, kilobytes: int) -> Path:
    trouble = remote.mount(str(folder), "-t", "tmpfs", "-o", f"size={kilobytes}k", "faults")
    need(not trouble, f"a small file system can't be mounted: {trouble}")
    return folder / "state.db"


def assert_says_full(error: dict[str, Any] | None, path: Path) -> None:
    assert error is not None, "the disk was never full"
    assert error["type"] == "StoreFull", error["trace"]
    assert str(path) in error["text"]


def assert_exactly(remote: Remote, session_id: str, wanted: list[tuple[int, int]], tag: str) -> None:
    """The session holds the acknowledged messages, in order, and none that was refused."""
    rows = remote.get_messages(session_id)
    assert [row["id"] for row in rows] == [message_id for message_id, _ in wanted]
    assert contents(rows) == [message(tag, number)["content"] for _, number in wanted]
    assert remote.get_session(session_id)["message_count"] == len(wanted)


@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_full_disk_refuses_with_a_typed_error_and_goes_on_when_there_is_room(
    mounts: None, tmp_path: Path, room: int, durability: str
) -> None:
    with Remote(own_mounts=True) as remote:
        path = small_disk(remote, tmp_path / "disk", DISK)
        remote.open(str(path), durability=durability)
        remote.create_session("talk", "cli")
        remote.fill(str(path.parent / "ballast"), leave=room << 10)
        outcome = remote.attempt("talk", "w", 0, 5000)
        assert_says_full(outcome["error"], path)
        done = [tuple(one) for one in outcome["done"]]
        again = remote.attempt("talk", "w", outcome["failed"] + 1, 3)
        done += [tuple(one) for one in again["done"]]  # a smaller one may still fit
        assert again["error"] is None or again["error"]["type"] == "StoreFull", again["error"]
        assert_exactly(remote, "talk", done, "w")
        remote.os("unlink", str(path.parent / "ballast"))
        first = outcome["failed"] + 4
        later = remote.append("talk", "w", first, 10)
        done += list(zip(later, range(first, first + 10), strict=True))
        assert_exactly(remote, "talk", done, "w")
        for message_id, number in done[-12:]:
            assert [hit["id"] for hit in remote.search_messages(f"wn{number}q")] == [message_id]
        remote.catch_up()
        remote.close()
        remote.open(str(path))
        assert_exactly(remote, "talk", done, "w")
        assert_lines(remote, path, Counter(message_id for message_id, _ in done))
        assert remote.check() == []


def assert_lines(remote: Remote, path: Path, wanted: Counter[int]) -> None:
    """The transcript has each message once (read by the worker: the disk is in its namespace)."""
    lines: Counter[int] = Counter()
    for raw in remote.read(str(path.parent / "sessions" / "talk.jsonl")).split("\n"):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if line.get("type") == "message":
            lines[line["id"]] += 1
    assert lines == wanted


def test_a_message_that_is_stored_is_not_refused_because_its_index_finds_no_room(mounts: None, tmp_path: Path) -> None:
    """Indexing follows the commit; the message that sets it off is safe by then. Refused, it would come twice."""
    stored = 0
    for room in range(200, 1600, size(280, 35)):
        with Remote(own_mounts=True) as remote:
            path = small_disk(remote, tmp_path / "disk", DISK)
            remote.open(str(path))
            remote.create_session("talk", "cli")
            remote.fill(str(path.parent / "ballast"), leave=room << 10)
            outcome = remote.attempt("talk", "words", 0, 1)
            assert outcome["error"] is None or outcome["error"]["type"] == "StoreFull", outcome["error"]
            assert_exactly(remote, "talk", [tuple(one) for one in outcome["done"]], "words")
            stored += len(outcome["done"])
            remote.os("unlink", str(path.parent / "ballast"))
            if not outcome["done"]:
                remote.append("talk", "words", 0)
            assert len(remote.get_messages("talk")) == len(remote.search_messages("wordsn0q")) == 1
            remote.close()
            remote.open(str(path))
            assert remote.check() == []
    assert stored > 0, "nothing ever fitted: this test would prove nothing"


def test_everything_that_writes_says_so_on_a_full_disk_and_changes_nothing(mounts: None, tmp_path: Path) -> None:
    with Remote(own_mounts=True) as remote:
        path = small_disk(remote, tmp_path / "disk", 2500)
        remote.open(str(path))
        remote.create_session("talk", "cli")
        remote.append("talk", "w", 0, 20)
        before = remote.export_session("talk")
        remote.fill(str(path.parent / "ballast"))
        large = [{"role": "user", "content": "word " * 20_000} for _ in range(10)]
        picture = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4000).decode()
        calls = [
            ("replace_messages", "talk", large),
            ("append_message", "talk", "user", [{"type": "image_url", "image_url": {"url": picture}}]),
            ("append_message", "talk", "user", "word " * 400_000),
            ("create_session", "new", "cli", None, None, "prompt " * 400_000),
            ("import_session", {**before, "id": "other", "messages": large}),
            ("backup", str(path.parent / "copy.db")),
        ]
        for call in calls:
            with pytest.raises(Refused) as refused:
                getattr(remote, call[0])(*call[1:])
            assert refused.value.kind == "StoreFull", (call[0], refused.value)
        assert remote.export_session("talk") == before
        assert not [name for name in remote.paths(str(path.parent / "attachments")) if name.endswith(".part")]
        assert [remote.get_session(one) for one in ("new", "other")] == [None, None]
        assert len(remote.search_messages("wn7q")) == 1
        remote.os("unlink", str(path.parent / "ballast"))
        assert remote.check() == []
        remote.replace_messages("talk", [{"role": "user", "content": "fine again"}])
        assert contents(remote.get_messages("talk")) == ["fine again"]
        assert remote.check() == []


def test_a_store_can_be_read_and_closed_and_opened_on_a_full_disk(mounts: None, tmp_path: Path) -> None:
    with Remote(own_mounts=True) as remote:
        path = small_disk(remote, tmp_path / "disk", 2000)
        remote.open(str(path))
        remote.create_session("talk", "cli")
        ids = remote.append("talk", "w", 0, 30)
        remote.fill(str(path.parent / "ballast"))
        assert len(remote.get_messages("talk")) == 30
        remote.close()
        remote.open(str(path), read_only=True)  # `hermes sessions list` works while the disk is full
        assert [row["id"] for row in remote.get_messages("talk")] == ids
        remote.close()
        for read_only in (True, False):
            try:
                remote.open(str(path), read_only=read_only)
                assert [row["id"] for row in remote.get_messages("talk")] == ids
                remote.close()
            except Refused as refused:
                if refused.kind != "StoreFull":
                    raise
        remote.os("unlink", str(path.parent / "ballast"))
        remote.open(str(path))
        assert [row["id"] for row in remote.get_messages("talk")] == ids
        assert remote.check() == []


def test_a_new_store_on_a_full_disk_is_refused_and_can_be_made_later(mounts: None, tmp_path: Path) -> None:
    with Remote(own_mounts=True) as remote:
        path = small_disk(remote, tmp_path / "disk", 600)
        remote.fill(str(path.parent / "ballast"))
        with pytest.raises(Refused) as refused:
            remote.open(str(path))
        assert refused.value.kind == "StoreFull", refused.value
        remote.os("unlink", str(path.parent / "ballast"))
        remote.open(str(path))
        remote.create_session("talk", "cli")
        assert remote.append_message("talk", "user", "hello") > 0
        assert remote.check() == []


@pytest.mark.parametrize("room", [150, 400])
def test_a_limit_on_file_size_is_a_full_disk_too(folder: Path, room: int) -> None:
    """Quotas and limits show themselves as other error numbers; for the user it is all the same."""
    path = folder / "state.db"
    with Remote(path) as remote:
        remote.create_session("talk", "cli")
        remote.append("talk", "w", 0, 5)
        remote.limit_file_size(max(one.stat().st_size for one in folder.glob("state.db*")) + room * 1024)
        outcome = remote.attempt("talk", "w", 5, 3000)
        assert_says_full(outcome["error"], path)
        done = [(row["id"], n) for n, row in enumerate(remote.get_messages("talk")[:5])]
        done += [tuple(one) for one in outcome["done"]]
        assert_exactly(remote, "talk", done, "w")
        remote.limit_file_size(-1)
        first = outcome["failed"] + 1
        done += list(zip(remote.append("talk", "w", first, 5), range(first, first + 5), strict=True))
        assert_exactly(remote, "talk", done, "w")
        remote.close()
        remote.open(str(path))
        assert_exactly(remote, "talk", done, "w")
        assert transcript_ids(folder / "sessions", "talk") == Counter(message_id for message_id, _ in done)
        assert remote.check() == []


# ── the transcripts' folder alone ──


def test_a_full_transcript_folder_stops_no_message(mounts: None, tmp_path: Path) -> None:
    """Only the folder of the transcripts is full: the messages are safe, one warning, the lines come later."""
    with Remote(own_mounts=True) as remote:
        path = tmp_path / "store" / "state.db"
        small_disk(remote, path.parent / "sessions", 200)
        remote.open(str(path))
        remote.create_session("talk", "cli")
        remote.append("talk", "w", 0, 3)
        assert remote.warnings() == []
        remote.fill(str(path.parent / "sessions" / "ballast"), leave=700)  # room for half a line
        ids = remote.append("talk", "w", 3, 40)
        assert len(ids) == 40
        said = remote.warnings()
        assert len(said) == 1, said
        assert "transcript" in said[0]
        remote.close()
        remote.open(str(path))  # still full: no harm
        remote.append("talk", "w", 43, 2)
        remote.close()
        remote.os("unlink", str(path.parent / "sessions" / "ballast"))
        remote.open(str(path))
        rows = remote.get_messages("talk")
        assert len(rows) == 45
        assert_lines(remote, path, Counter(row["id"] for row in rows))
        assert remote.check() == []


def test_an_unwritable_transcript_folder_stops_no_message(open_folder: Path) -> None:
    path = open_folder / "state.db"
    with Remote() as remote:
        assert remote.become_nobody() != 0
        remote.open(str(path))
        remote.create_session("talk", "cli")
        remote.append("talk", "w", 0, 3)
        remote.close()
        remote.os("chmod", str(open_folder / "sessions"), 0o500)
        for one in (open_folder / "sessions").rglob("*"):
            remote.os("chmod", str(one), 0o500 if one.is_dir() else 0o400)
        remote.warnings()
        remote.open(str(path))
        acks = list(zip(remote.append("talk", "w", 3, 5), ["talk"] * 5, ["w"] * 5, range(3, 8), strict=True))
        said = remote.warnings()
        assert len(said) == 1, said
        remote.kill()
    with Remote() as remote:
        remote.become_nobody()
        for one in (open_folder / "sessions").rglob("*"):
            remote.os("chmod", str(one), 0o700 if one.is_dir() else 0o600)
        remote.os("chmod", str(open_folder / "sessions"), 0o700)
        remote.open(str(path))
        assert_kept(remote, acks)
        wanted = Counter(row["id"] for row in remote.get_messages("talk"))
        assert len(wanted) == 8
        assert transcript_ids(open_folder / "sessions", "talk") == wanted
        assert remote.check() == []
