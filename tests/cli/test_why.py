"""`hermes why`: a real git repository whose files Claude Code and Codex wrote, and every way a file can move away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import run

BEGAN = 1_770_000_000
AREA = "def area(width, height):\n    return width * height\n"
EDGE = "\n\ndef edge(width, height):\n    return 2 * (width + height)\n"
CLAUDE, CODEX = "claude-code-a1", "codex-0199aaaa-0000-7000-8000-000000000002"


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


class Story:
    """A repository, a home, and what happened there, a hundred seconds apart."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home, self.repo, self.now = folder, home, folder / "app", BEGAN
        (self.repo / "src").mkdir(parents=True)
        self.file = self.repo / "src" / "shapes.py"
        self.git("init", "-q")

    def git(self, *words: str) -> None:
        who = {f"GIT_{one}_{what}": "ann" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        when = {f"GIT_{one}_DATE": f"@{int(self.now)} +0000" for one in ("AUTHOR", "COMMITTER")}
        env = {**os.environ, **who, **when, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *words], cwd=self.repo, env=env, check=True, capture_output=True)

    def commit(self, text: str | None = None) -> None:
        if text is not None:
            self.file.write_text(text)
        self.now += 100
        self.git("add", "-A")
        self.git("commit", "-qm", "a commit")

    def bring_in(self, name: str, lines: list[dict[str, Any]]) -> None:
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert run("sessions", "import", path, home=self.home).status == 0

    def claude(
        self, name: str, request: str, words: str, tool: str, given: dict[str, Any], result: Any = "done"
    ) -> None:
        self.now += 100
        told: list[tuple[str, Any]] = [
            ("user", request),
            ("assistant", [{"type": "text", "text": words}, {"type": "tool_use", "id": f"t-{name}", "name": tool, "input": given}]),
            ("user", [{"type": "tool_result", "tool_use_id": f"t-{name}", "content": result}]),
        ]  # fmt: skip
        self.bring_in(name, [
            {"type": role, "uuid": f"{name}-{number}", "parentUuid": f"{name}-{number - 1}" if number else None, "sessionId": name,
             "cwd": str(self.repo), "timestamp": iso(self.now + number), "message": {"id": f"m-{name}-{number}", "role": role, "content": content}}
            for number, (role, content) in enumerate(told)
        ])  # fmt: skip

    def codex(self, patch: str) -> None:
        self.now += 100
        name = CODEX.removeprefix("codex-")
        items: list[dict[str, Any]] = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And its edge, please"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Adding edge()."}]},
            {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c1", "input": patch},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Success. Updated the following files"},
            {"type": "function_call", "name": "shell", "call_id": "c2", "arguments": json.dumps({"command": ["pytest", "-q"]})},
            {"type": "function_call_output", "call_id": "c2", "output": "1 failed, 3 passed"},
        ]  # fmt: skip
        meta = {
            "id": name,
            "timestamp": iso(self.now),
            "cwd": str(self.repo),
            "originator": "codex",
            "cli_version": "1",
        }
        self.bring_in(f"rollout-2026-02-02T00-00-00-{name}", [
            {"timestamp": iso(self.now), "type": "session_meta", "payload": meta},
            *({"timestamp": iso(self.now + number), "type": "response_item", "payload": item} for number, item in enumerate(items)),
        ])  # fmt: skip

    def ask(self, where: str, *more: str, folder: Path | None = None, status: int = 0) -> dict[str, Any]:
        done = run("why", where, "--json", *more, home=self.home, cwd=folder or self.repo)
        assert done.status == status, done.err
        return dict(json.loads(done.out))

    def who(self, where: str, folder: Path | None = None) -> tuple[str, list[str]]:
        answer = self.ask(where, folder=folder)
        return answer["matched"], [change["session_id"] for change in answer["changes"]]


@pytest.fixture
def story(tmp_path: Path, hermes_home: Path) -> Story:
    story = Story(tmp_path, hermes_home)
    given = {"file_path": str(story.file), "content": AREA}
    story.claude("a1", "Write the area of a rectangle", "I create shapes.py.", "Write", given)
    story.commit(AREA)
    added = "".join(f"+{line}\n" for line in EDGE.splitlines())
    story.codex(
        f"*** Begin Patch\n*** Update File: src/shapes.py\n@@\n     return width * height\n{added}*** End Patch\n"
    )
    story.commit(AREA + EDGE)
    return story


def test_each_line_names_its_conversation(story: Story) -> None:
    answer = story.ask("src/shapes.py:2")
    (change,) = answer["changes"]
    assert (answer["path"], answer["lines"], answer["matched"], answer["conversations"]) == (
        str(story.file),
        [2, 2],
        "line",
        2,
    )
    assert (change["session_id"], change["source"], change["kind"]) == (CLAUDE, "claude-code", "write")
    assert (change["request"], change["words"]) == ("Write the area of a rectangle", "I create shapes.py.")
    assert change["resume"] == f"hermes -r {CLAUDE}" and change["time"] > BEGAN and change["message_id"] > 0
    assert story.who("src/shapes.py:5") == ("line", [CODEX])
    assert story.who("src/shapes.py:1-6") == ("line", [CODEX, CLAUDE])
    assert story.who("src/shapes.py") == ("file", [CODEX, CLAUDE])
    assert story.who("shapes.py:2", story.file.parent) == ("line", [CLAUDE])


def test_for_people_it_says_who_asked_and_how_to_resume(story: Story) -> None:
    done = run("why", "src/shapes.py:5", home=story.home, cwd=story.repo)
    assert done.status == 0 and "And its edge, please" in done.out and "Adding edge()." in done.out
    assert f"hermes -r {CODEX}" in done.out and CLAUDE not in done.out


def test_the_tests_that_were_run_after_a_change(story: Story) -> None:
    changes = {one["source"]: one["tests"] for one in story.ask("src/shapes.py", "--tests")["changes"]}
    assert changes == {"codex": [{"command": "pytest -q", "passed": False}], "claude-code": []}
    assert "failed" in run("why", "src/shapes.py", "--tests", home=story.home, cwd=story.repo).out


def test_a_line_of_a_person_is_not_claimed(story: Story) -> None:
    story.commit(f"# shapes, by hand\n{AREA}{EDGE}")
    assert story.who("src/shapes.py:1") == ("file", [CODEX, CLAUDE])
    assert "2 conversations" in run("why", "src/shapes.py:1", home=story.home, cwd=story.repo).out
    assert story.who("src/shapes.py:3") == ("line", [CLAUDE])


def test_indented_and_slightly_changed_lines_are_traced(story: Story) -> None:
    text = "class Shapes:\n" + "".join(f"    {line}\n" for line in (AREA + EDGE).splitlines())
    story.file.write_text(text.replace("return 2 *", "return 2.0 *"))
    assert story.who("src/shapes.py:3") == ("line", [CLAUDE])  # not committed: the text alone decides
    story.commit()
    assert story.who("src/shapes.py:7") == ("line", [CODEX])


def test_a_renamed_file_a_clone_and_a_moved_folder_still_answer(story: Story) -> None:
    (story.repo / "lib").mkdir()
    story.git("mv", "src/shapes.py", "lib/figures.py")
    story.commit()
    assert story.who("lib/figures.py:2") == ("line", [CLAUDE])
    assert story.who("lib/figures.py") == ("file", [CODEX, CLAUDE])
    clone = story.folder / "another-name"
    story.git("clone", "-q", str(story.repo), str(clone))
    assert story.who("lib/figures.py:6", clone) == ("line", [CODEX])
    moved = story.repo.rename(story.folder / "moved")
    answer = story.ask("lib/figures.py:2", folder=moved)
    assert answer["changes"][0]["path"] == str(story.file)  # where it was when it was changed


def test_a_file_of_another_project_is_not_taken_for_this_one(story: Story) -> None:
    other = story.folder / "elsewhere" / "app"
    (other / "src").mkdir(parents=True)
    (other / "src" / "shapes.py").write_text("import math\n\ncircle = math.pi\n")
    done = run("why", "src/shapes.py:3", "--json", home=story.home, cwd=other)
    assert done.status == 1 and json.loads(done.out)["matched"] == "nothing"


def test_without_git_the_text_alone_decides(story: Story) -> None:
    subprocess.run(["rm", "-rf", str(story.repo / ".git")], check=True)
    assert story.who("src/shapes.py:2") == ("line", [CLAUDE])
    assert story.who("src/shapes.py:6") == ("line", [CODEX])


def test_the_newest_change_before_the_commit_counts(story: Story) -> None:
    story.commit((AREA + EDGE).replace("width * height", "height * width"))
    again = {"file_path": str(story.file), "old_string": "height * width", "new_string": "width * height"}
    again = {**again, "old_string": "    return height * width", "new_string": "    return width * height"}
    story.claude("a2", "Turn it round again", "As it was.", "Edit", again)
    story.file.write_text(AREA + EDGE)
    assert story.who("src/shapes.py:2") == ("line", ["claude-code-a2"])  # not committed
    story.commit()
    assert story.who("src/shapes.py:2") == ("line", ["claude-code-a2"])
    given = {"file_path": str(story.file), "content": AREA + EDGE}
    story.claude("a3", "Write it again", "The whole file.", "Write", given)
    assert story.who("src/shapes.py:2") == ("line", ["claude-code-a2"])  # it was committed before


def test_a_change_inside_a_line_is_traced(story: Story) -> None:
    given = {"file_path": str(story.file), "old_string": "width * height", "new_string": "height * width"}
    story.claude("a2", "Turn it round", "Turned.", "Edit", given)
    story.file.write_text((AREA + EDGE).replace("width * height", "height * width"))
    assert story.who("src/shapes.py:2") == ("line", ["claude-code-a2"])
    assert story.who("src/shapes.py:6") == ("line", [CODEX])
    story.commit()
    assert story.who("src/shapes.py:2") == ("line", ["claude-code-a2"])


def test_a_declined_change_is_not_claimed(story: Story) -> None:
    given = {"file_path": str(story.file), "old_string": "def area", "new_string": "def space(a, b): pass\ndef area"}
    story.claude("a2", "Add space", "Adding it.", "Edit", given, "The user doesn't want to proceed with this tool use.")
    assert story.who("src/shapes.py") == ("file", [CODEX, CLAUDE])


def test_lists_and_searches_of_the_conversations_that_changed_a_file(story: Story) -> None:
    given = {"file_path": str(story.repo / "other.py"), "content": "other = 1\n"}
    story.claude("a2", "Write something else please", "I write it.", "Write", given)

    def ids(*words: str) -> list[str]:
        done = run("sessions", *words, "--json", home=story.home, cwd=story.repo)
        found = [one.get("session_id") or one["id"] for one in json.loads(done.out)]
        return list(dict.fromkeys(found))

    assert ids("list", "--file", "src/shapes.py") == [CODEX, CLAUDE]
    assert ids("list", "--file", "src/shapes.py", "--limit", "1") == [CODEX]
    assert ids("list", "--file", "unknown.py") == []
    assert set(ids("search", "please")) == {CODEX, "claude-code-a2"}
    assert ids("search", "please", "--file", "src/shapes.py") == [CODEX]
    assert ids("search", "please", "--file", "unknown.py") == []


def test_what_is_not_known_and_what_is_not_there(story: Story) -> None:
    done = run("why", "src/unknown.py", home=story.home, cwd=story.repo)
    assert done.status == 1 and done.err.count("\n") == 1
    for where in ("src/shapes.py:99", "src/shapes.py:0", "src/unknown.py:1"):
        done = run("why", where, home=story.home, cwd=story.repo)
        assert done.status == 2 and done.err.count("\n") == 1, where
    assert run("why", "src/shapes.py", home=story.folder / "empty", cwd=story.repo).status == 1


def test_no_program_of_a_repository_is_run(story: Story) -> None:
    changed = AREA.replace("width * height", "width * height + 0") + EDGE
    story.commit(changed)
    story.file.write_text(f"{changed}# not committed\n")
    ran, program = story.folder / "ran", story.folder / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {ran}\ncat\n')
    program.chmod(0o755)
    (story.repo / ".gitattributes").write_text("* diff=theirs filter=their=s\n")
    for key in ("diff.theirs.textconv", "diff.theirs.command", "diff.external", "filter.their=s.clean",
                "filter.their=s.process", "core.fsmonitor", "core.pager", "gpg.program"):  # fmt: skip
        story.git("config", key, str(program))
    story.git("config", "filter.their=s.required", "true")
    story.git("config", "log.showSignature", "true")
    story.git("config", "color.ui", "always")
    for name in ("post-index-change", "post-checkout"):
        hook = story.repo / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.symlink_to(program)
    ran.unlink(missing_ok=True)
    assert story.who("src/shapes.py:1") == ("line", [CLAUDE])
    assert story.who("src/shapes.py:2") == ("line", [CLAUDE])
    assert story.who("src/shapes.py:6") == ("line", [CODEX])
    story.ask("src/nothing.py", status=1)
    assert not ran.exists(), ran.read_text()


def test_settings_of_another_repository_do_not_count(story: Story) -> None:
    done = run("why", "src/shapes.py:2", "--json", home=story.home, cwd=story.repo, env={"GIT_DIR": "/nowhere"})
    assert json.loads(done.out)["matched"] == "line"
    story.file.write_text(story.file.read_text().replace("width * height", "width * height + 0"))
    story.commit()
    done = run("why", "src/shapes.py:2", "--json", home=story.home, cwd=story.repo, env={"GIT_DIR": "/nowhere"})
    assert json.loads(done.out)["matched"] == "line"


def test_files_that_are_no_text(story: Story) -> None:
    binary = story.repo / "picture"
    given = {"file_path": str(binary), "content": "its first words"}
    story.claude("b1", "Draw", "I draw.", "Write", given)
    for changed in (b"", b"!"):
        binary.write_bytes(bytes(range(256)) * 3 + changed)
        story.commit()
    assert story.who("picture:2") == ("file", ["claude-code-b1"])
    os.mkfifo(story.repo / "pipe")
    story.ask("pipe", status=1)
    story.ask("/dev/zero", status=1)


@pytest.mark.parametrize("name", ["two words.py", "größe.py", "[id].tsx", ":(top)a.py", "-a.py"])
def test_names_that_mean_something_to_git(story: Story, name: str) -> None:
    file = story.repo / name
    story.claude("n1", "Write it", "I write it.", "Write", {"file_path": str(file), "content": "its own words\r\n"})
    file.write_bytes(b"its own words\r\n")
    story.commit()
    assert story.who(f"./{name}:1") == ("line", ["claude-code-n1"])
    file.write_bytes(b"its own words, changed\r\n")
    story.commit()
    file.rename(story.repo / "other.py")
    story.commit()
    assert story.who("other.py:1") == ("line", ["claude-code-n1"])


def test_where_git_refuses_a_repository_the_lines_decide(story: Story) -> None:
    copy = story.folder / "copy"
    shutil.copytree(story.repo, copy)
    (copy / ".git" / "config").write_text("[broken")
    assert story.who("src/shapes.py:6", folder=copy) == ("line", [CODEX])
