"""The system prompt: who, the rule of use for session_search, memory lines, skills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.agent.prompt import system_prompt
from hermes.config import Config

pytestmark = pytest.mark.mechanism


@pytest.fixture
def home(hermes_home: Path) -> Path:
    (hermes_home / "memories").mkdir(parents=True)
    (hermes_home / "skills").mkdir()
    return hermes_home


def skill(home: Path, name: str, text: str | bytes) -> None:
    (home / "skills" / name).mkdir()
    (home / "skills" / name / "SKILL.md").write_bytes(text if isinstance(text, bytes) else text.encode())


def made(home: Path, config: Config | None = None, **more: Any) -> str:
    return system_prompt(config or Config(), home, Path("/work/dir"), **more)


def test_the_rule_of_use_is_there_when_the_tool_is(home: Path) -> None:
    assert "search before you ask" in made(home)
    assert "session_search" in made(home, tools={"session_search", "memory"})
    assert "session_search" not in made(home, tools=set())


def test_memory_lines_are_shown_unless_switched_off(home: Path) -> None:
    (home / "memories" / "MEMORY.md").write_text("- deploys go through staging\n")
    (home / "memories" / "USER.md").write_text("- prefers short answers\n")
    prompt = made(home)
    assert "deploys go through staging" in prompt
    assert "prefers short answers" in prompt
    config = Config()
    config.memory.enabled = False
    assert "staging" not in made(home, config)


def test_skills_are_listed_by_name_and_one_line(home: Path) -> None:
    skill(home, "deploy", "---\nname: deploy\ndescription: 'How we deploy'\n---\n# Deploy\nSECRET STEPS\n")
    skill(home, "bake", "# Baking bread\n\nFlour, water, time.\n\nThen more.\n")
    skill(home, "bare", "# Only a heading\n")
    skill(home, "empty", "")
    skill(home, "odd", b"\xff\xfe not quite text")
    prompt = made(home)
    assert "- deploy: How we deploy" in prompt
    assert prompt.index("- bake: ") < prompt.index("- bare: Only a heading") < prompt.index("- deploy: ")
    assert "SECRET STEPS" not in prompt


def test_where_several_people_talk_the_agent_is_told(home: Path) -> None:
    assert "one person" in made(home)
    several = made(home, shared=True)
    assert "Several people" in several and "one person" not in several


def test_prompts_share_their_beginning(home: Path) -> None:
    one = system_prompt(Config(), home, Path("/a"))
    two = system_prompt(Config(), home, Path("/b"))
    shared = next(n for n, (x, y) in enumerate(zip(one, two, strict=False)) if x != y)
    assert shared > len(one) - 150
