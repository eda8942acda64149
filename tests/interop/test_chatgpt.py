"""ChatGPT's data export: a zip, shards, or the bare file."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

from tests.interop.importing import PIXEL, brought_in, hidden, sessions, told


def node(
    name: str, parent: str | None, children: list[str], role: str | None, parts: list[Any], **more: Any
) -> dict[str, Any]:
    kind = more.pop("kind", "text")
    content = {"content_type": kind, "parts": parts, **more.pop("content", {})}
    told_ = None if role is None else {"id": name, "author": {"role": role}, "create_time": 1772700000.0 + len(name),
                                       "content": content, "metadata": {"model_slug": "gpt-5"}, **more}  # fmt: skip
    return {"id": name, "parent": parent, "children": children, "message": told_}


def chatgpt() -> list[Any]:
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-ABC"}
    mapping = {
        "root": node("root", None, ["u1"], None, []),
        "u1": node("u1", "root", ["a1", "a2"], "user", ["what is this?", picture], kind="multimodal_text"),
        "a1": node("a1", "u1", [], "assistant", ["A first answer."]),
        "a2": node(
            "a2", "u1", ["a3"], "assistant", [], kind="code", content={"language": "python", "text": "print(1)"}
        ),
        "a3": node("a3", "a2", [], "assistant", ["A better answer."]),
    }
    one = {"conversation_id": "conv-1", "title": "A dot", "create_time": 1772700000.5, "update_time": 1772700100.0,
           "current_node": "a3", "mapping": mapping, "default_model_slug": "gpt-5"}  # fmt: skip
    return [one, {**one, "conversation_id": "conv-2", "title": "A dot again"}]


def test_chatgpts_export_as_zip_shards_and_file(tmp_path: Path) -> None:
    for number, (name, shards) in enumerate({"a.zip": [chatgpt()], "b.zip": [[c] for c in chatgpt()]}.items()):
        home = tmp_path / f"home{number}"
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for place, shard in enumerate(shards):
                member = "conversations.json" if len(shards) == 1 else f"conversations-{place:03}.json"
                archive.writestr(member, json.dumps(shard))
            archive.writestr("file-ABC-dot.png", base64.b64decode(PIXEL))
        assert "2 sessions with 6 messages imported" in brought_in(tmp_path / name, home)
        session = sessions(home)["chatgpt-conv-1"]
        assert (session["title"], session["model"]) == ("A dot", "gpt-5")
        assert told(session)[1:] == [("assistant", "```python\nprint(1)\n```"), ("assistant", "A better answer.")]
        assert "attachment:sha256:" in session["messages"][0]["content"][1]["image_url"]["url"]
        assert hidden(session) == ["A first answer."]
    home = tmp_path / "bare"
    (tmp_path / "conversations.json").write_text(json.dumps(chatgpt(), indent=1))
    assert "2 sessions with 6 messages imported" in brought_in(tmp_path / "conversations.json", home)
    assert "not in the export" in sessions(home)["chatgpt-conv-1"]["messages"][0]["content"]


def test_an_export_that_ends_in_the_middle_costs_that_conversation(tmp_path: Path) -> None:
    text = json.dumps(chatgpt())
    (tmp_path / "conversations.json").write_text(text[: len(text) * 3 // 4])
    printed = brought_in(tmp_path / "conversations.json", tmp_path / "home", status=1)
    assert "1 session with 3 messages imported" in printed and "ends in the middle" in printed


def test_an_empty_first_shard_pictures_in_folders_and_a_lost_parent(tmp_path: Path) -> None:
    whole = chatgpt()
    whole[0]["mapping"]["lost"] = node("lost", "nowhere", [], "user", ["said before it"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("conversations-000.json", "[]")
        archive.writestr("conversations-001.json", json.dumps(whole))
    assert "2 sessions with 6 messages imported" in brought_in(tmp_path / "a.zip", tmp_path / "home")
    assert hidden(sessions(tmp_path / "home")["chatgpt-conv-1"]) == ["said before it", "A first answer."]
    folder = tmp_path / "unpacked"
    (folder / "dalle-generations").mkdir(parents=True)
    (folder / "conversations.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(chatgpt()).encode())
    (folder / "dalle-generations" / "file-ABC-dot.png").write_bytes(base64.b64decode(PIXEL))
    brought_in(folder, tmp_path / "other")
    shown = sessions(tmp_path / "other")["chatgpt-conv-1"]["messages"][0]["content"]
    assert "attachment:sha256:" in shown[1]["image_url"]["url"]
