"""The skills tool: one folder a skill, nothing outside of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.memory import skill_list, skills
from hermes.agent.tools.tool import Context
from hermes.errors import ToolError

RELEASE = "---\nname: release\ndescription: How we publish a version\n---\n# Release\n\n1. Run the tests.\n"


def do(context: Context, action: str, **more: Any) -> str:
    return skills.run(context, {"action": action, **more})


def test_a_skill_is_saved_listed_and_viewed(context: Context) -> None:
    assert "no skills" in do(context, "list")
    assert do(context, "save", name="release", content=RELEASE).endswith(": How we publish a version")
    assert do(context, "list") == "release: How we publish a version"
    assert do(context, "view", name="release") == RELEASE
    assert (context.home / "skills/release/SKILL.md").read_text() == RELEASE
    assert do(context, "save", name="release", content="# Release\nJust do it.").startswith(
        "Replaced the skill release"
    )
    assert skill_list(context.home) == {"release": "Just do it."}


def test_skills_are_for_the_owner_only(context: Context) -> None:
    old = os.umask(0)
    try:
        do(context, "save", name="x", content="y")
    finally:
        os.umask(old)
    assert stat.S_IMODE((context.home / "skills").stat().st_mode) == 0o700
    assert stat.S_IMODE((context.home / "skills/x/SKILL.md").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "/etc", "A", "ä", "a b", "-x", "a" * 65, ".git", "a\n", "a\0", "a.b"]
)
@pytest.mark.parametrize("action", ["view", "save"])
def test_names_that_are_none_are_refused(context: Context, action: str, name: str) -> None:
    before = sorted(context.home.rglob("*")) if context.home.exists() else []
    with pytest.raises(ToolError):
        do(context, action, name=name + ("!" if name == "a\n" else ""), content="x")
    assert (sorted(context.home.rglob("*")) if context.home.exists() else []) == before


def test_links_that_lead_out_are_not_followed(context: Context, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SKILL.md").write_text("secret")
    root = context.home / "skills"
    (root / "b").mkdir(parents=True)
    (root / "a").symlink_to(outside)
    (root / "b/SKILL.md").symlink_to(outside / "SKILL.md")
    for name in ("a", "b"):
        with pytest.raises(ToolError, match="outside"):
            do(context, "view", name=name)
        with pytest.raises(ToolError, match="outside"):
            do(context, "save", name=name, content="overwritten")
    assert skill_list(context.home) == {}
    assert (outside / "SKILL.md").read_text() == "secret"


def test_an_unknown_skill_names_the_known_ones(context: Context) -> None:
    do(context, "save", name="release", content=RELEASE)
    with pytest.raises(ToolError, match="relase.*: release"):
        do(context, "view", name="relase")


@pytest.mark.parametrize(
    "content, told",
    [
        ("", "content"),
        (None, "content"),
        ("x" * 70_000, "may have 60,000 characters"),
        ("a\0b", "null characters"),
        ("---\n[1, 2\n---\n", "not YAML"),
        ("---\n- a\n- b\n---\n", "must be lines like"),
        ("---\nname: other\n---\nx", "names the skill 'other', but it would be saved as 'x'"),
    ],
)
def test_bad_contents_are_refused(context: Context, content: Any, told: str) -> None:
    with pytest.raises(ToolError, match=told):
        do(context, "save", name="x", content=content)
    assert skill_list(context.home) == {}


def test_broken_skills_of_the_owner_do_not_hide_the_others(context: Context) -> None:
    do(context, "save", name="good", content="Fine.")
    root = context.home / "skills"
    for name, text in [("broken", b"---\n: [\n---\nStill a line."), ("bytes", b"\xff\xfe"), ("empty", b"")]:
        (root / name).mkdir()
        (root / name / "SKILL.md").write_bytes(text)
    (root / "folder" / "SKILL.md").mkdir(parents=True)
    (root / "Not A Name").mkdir()
    assert list(skill_list(context.home)) == ["broken", "bytes", "empty", "good"]
    assert skill_list(context.home)["broken"] == "Still a line."


def test_files_beside_a_skill_are_named(context: Context) -> None:
    do(context, "save", name="release", content=RELEASE)
    (context.home / "skills/release/checklist.md").write_text("x")
    assert "checklist.md]" in do(context, "view", name="release")


@given(st.text())
def test_any_content_is_saved_as_it_is_or_refused(context: Context, content: str) -> None:
    try:
        do(context, "save", name="x", content=content)
    except ToolError:
        return
    expected = content if content.endswith("\n") else content + "\n"
    assert (context.home / "skills/x/SKILL.md").read_bytes().decode() == expected.encode("utf-8", "replace").decode()
    assert all(len(about) <= 200 for about in skill_list(context.home).values())
