"""Which commands run without a question: the table, and that no way of joining commands changes a verdict."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.tools.permission import NO_USER, Answer, covers, read_answer, rule_for
from hermes.agent.tools.terminal import question, terminal
from hermes.agent.tools.tool import Context
from hermes.config import Config, load_config
from hermes.config.settings_schema import PermissionRule
from hermes.errors import ToolDeclined
from tests.support.sizes import size

from .commands_table import ASKED, HARMLESS


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose files include links that lead out of it and a name that looks like an option."""
    place = tmp_path_factory.mktemp("work") / "project"
    for name in ("notes.txt", "other.txt", "a file.txt", "src/x.py", "package.json", "-oevil"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("precious\n")
    (place / "links").mkdir()
    (place / "link").symlink_to(Path.home() / ".ssh")
    (place / "shadowlink").symlink_to("/etc/shadow")
    (place / "links" / "passwd").symlink_to("/etc/passwd")
    subprocess.run(["git", "init", "-q", place], check=True)
    subprocess.run(["git", "init", "-q", "--bare", place / "bare"], check=True)
    return place


@pytest.fixture(scope="module")
def asks(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str | None]:
    home = tmp_path_factory.mktemp("hermes")

    def verdict(command: str, folder: Path = project, **config: Any) -> str | None:
        made: Any = Context(
            db=None, config=Config(**config), session_id="s", home=home, cwd=folder, confirm=lambda _: False,
            cancelled=lambda: False, root=project,
        )  # fmt: skip
        return question(made, command, folder)

    return verdict


def test_what_is_not_known_to_be_harmless_is_asked_about(asks: Callable[..., Any]) -> None:
    """One test for the whole table: each row takes a tenth of a millisecond."""
    assert [command for command in ASKED if asks(command) is None] == []


def test_everyday_reading_just_runs(asks: Callable[..., Any]) -> None:
    assert [(command, str(found)) for command in HARMLESS if (found := asks(command)) is not None] == []


def test_a_program_that_lies_in_the_working_folder_is_asked_about(
    asks: Callable[..., Any], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files there can be written without a question, and an activated environment there stands first in PATH."""
    programs = project / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "ls").write_text("#!/bin/sh\nrm -rf ~\n")
    (programs / "ls").chmod(0o755)
    (tmp_path / "cat").symlink_to(programs / "ls")
    for folders in (str(programs), ".venv/bin"):
        monkeypatch.setenv("PATH", f"{folders}{os.pathsep}{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.chdir(project)
        assert "working folder" in asks("ls") and "working folder" in asks("echo a && cat notes.txt")
        assert asks("head notes.txt") is None and asks("/bin/ls") is None and asks("echo a") is None
    shutil.rmtree(project / ".venv")


def test_a_question_shows_the_whole_command_and_hides_nothing(asks: Callable[..., Any]) -> None:
    long = "rm " + " ".join(f"file-{number}" for number in range(3_000))
    assert f"`{long}`" in asks(long)
    several = "cat <<E\n\x1b[2J secret\u202e\nE\n" + "rm x\n" * 500
    asked = asks(several)
    assert asked.count("rm x") == 500 and "\\u001b[2J secret\\u202e" in asked
    assert "\x1b" not in asked and "\u202e" not in asked
    # in a chat no part of it becomes a link or a spoiler
    assert "Run ``` echo `` [ls](http://x) ` ```? " in asks("echo `` [ls](http://x) `")
    assert asks("cat <<E\n```\nE").endswith("\n````\ncat <<E\n```\nE\n````")


@pytest.mark.parametrize(
    "command, told",
    [
        ("npm publish", "npm is not known to only read"),
        ("git push --force", "git push is not known to only read"),
        ("sort -o x notes.txt", "sort -o is not known to only read"),
        ("ls > fresh.txt", "it writes to fresh.txt"),
        ("cat ~/.ssh/id_rsa", "is outside the working folder"),
        ("echo $(id)", "it uses $; what that does can't be known beforehand"),
        ("ls; rm a; mv b c", "rm is not known to only read; mv is not known to only read"),
    ],
)
def test_the_reason_says_what_is_in_doubt(asks: Callable[..., Any], command: str, told: str) -> None:
    assert told in asks(command)


# -- no joining makes a command harmless ---------------------------------------------------------------------------

JOINTS = [" && ", " || ", " ; ", ";", "|", " | ", "\n", "&&", " & ", "\n\n", " |& ", " &&\n", "; : ; "]
AROUND = ["{}", "({})", "{{ {}; }}", "! {}", "if true; then {}; fi", "echo $({})", 'echo "$({})"', "cat <({})", "time {}", "`{}`",
          "for i in 1; do {}; done", "f() {{ {}; }}; f", "{} &", "eval '{}'", "bash -c \"{}\""]  # fmt: skip
SIMPLE = [row for row in HARMLESS if row.strip() and "#" not in row]
SHORT = [row for row in ASKED if "#" not in row and not row.endswith("\\")]


@given(st.sampled_from(SIMPLE), st.sampled_from(JOINTS), st.sampled_from(SHORT), st.sampled_from(AROUND), st.booleans())
def test_no_concatenation_with_a_harmless_command_hides_another(
    asks: Callable[..., Any], harmless: str, joint: str, asked: str, around: str, first: bool
) -> None:
    wrapped = around.format(asked)
    assert asks(joint.join([harmless, wrapped] if first else [wrapped, harmless])) is not None


@given(st.lists(st.sampled_from(SIMPLE), min_size=2, max_size=4), st.sampled_from([" && ", " || ", "; ", " | ", "\n"]))
def test_harmless_commands_stay_harmless_together(asks: Callable[..., Any], commands: list[str], joint: str) -> None:
    """Unless one of them changes the folder: then the others are judged in both."""
    commands = [one for one in commands if not one.startswith("cd ")]
    assert asks(joint.join(commands)) is None


PIECES = ["rm", "rm", "ls", "cat", "echo", "'", '"', "\\", "$(", "(", ")", "`", "{", "}", ";", "&&", "||", "|", "<", ">", "<<E", "\nE\n", "E", "\n",
          "#", "if", "then", "fi", "case", "x", "in", "esac", "for", "do", "done", "[[", "]]", "a=", "a=(", "!", "-c", "bash", "eval", "env",
          "time", "exec", "command", "nohup", "trap", "EXIT", "f()", "function", "$a", "${a:-", "$((", "))", "$'", "2>&1", "2>", "1", "&",
          "builtin", ".", "xargs", "find", "-exec", "+", "\\;", "{}", "-I", "cp", "coproc", ";;", "*)", "<(", ">(", "<<<", "-", "*", "?",
          "~", "@{x}", "[", "]", "&>", ">&", "\\\n", "\t", "notes.txt", "sort", "-o", "tee", "sed", "w notes.txt", "awk", "=", "/dev/null", "2"]  # fmt: skip


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A PATH on which `rm` only leaves a mark, and little else can be found."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    (folder / "rm").write_text(f"#!/bin/sh\ncase $0 in {folder}/rm) : > {tmp_path}/mark;; esac\n")  # started, not read
    (folder / "rm").chmod(0o755)
    for name in ("bash", "env", "nohup", "xargs", "find", "ls", "cat", "cp", "tee", "sed", "sort", "awk"):
        (folder / name).symlink_to(shutil.which(name) or "/bin/false")
    return folder


def run_for_real(command: str, work: Path, path: Path) -> None:
    """Let bash do it, with that folder as its home, and leave nothing running."""
    running = subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=work, env={"PATH": str(path), "HOME": str(work)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        running.wait(10)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        running.wait()


@given(
    st.one_of(
        st.lists(st.sampled_from(PIECES), max_size=10).map(" ".join),
        st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
        st.tuples(st.lists(st.sampled_from(PIECES), max_size=5), st.lists(st.sampled_from(PIECES), max_size=5)).map(
            lambda around: " ".join([*around[0], "rm", *around[1]])
        ),
    )
)
def test_what_a_real_shell_runs_or_writes_was_asked_about(
    tmp_path: Path, stubs: Path, asks: Callable[..., Any], command: str
) -> None:
    """The reader against bash itself: if bash started rm or changed a file, there was a question."""
    mark, work = tmp_path / "mark", tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    mark.unlink(missing_ok=True)
    work.mkdir()
    (work / "notes.txt").write_text("precious\n")
    asked = asks(command, work)
    if asked is not None:
        return  # whatever it does, the user decides
    run_for_real(command, work, stubs)
    assert not mark.exists(), command
    assert {path.name: path.read_text() for path in work.iterdir()} == {"notes.txt": "precious\n"}, command


@given(st.text())
def test_no_text_makes_the_reader_crash(asks: Callable[..., Any], command: str) -> None:
    asks(command)


@pytest.mark.parametrize(
    "piece", ["$((", "(", "`", "{ ", "! ", "sh -c ", "\\a", "<<E\n", "'", "ls;", "ls | ", "cd src;", "* "]
)
def test_monsters_end_soon(asks: Callable[..., Any], piece: str) -> None:
    asks(piece * size(4_000, 20_000))


# -- what git would start by itself --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [("core.fsmonitor", "./x"), ("diff.external", "./x"), ("diff.a.textconv", "./x"), ("filter.a.clean", "./x"),
     ("gpg.program", "./x"), ("include.path", "../x"), ("core.worktree", "/etc")],
)  # fmt: skip
def test_a_repository_that_names_programs_is_asked_about(
    project: Path, asks: Callable[..., Any], setting: tuple[str, str]
) -> None:
    assert asks("git status") is None
    before = (project / ".git" / "config").read_text()
    subprocess.run(["git", "-C", project, "config", *setting], check=True)
    try:
        assert "the repository's settings" in asks("git status")
    finally:
        (project / ".git" / "config").write_text(before)


# -- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, rule",
    [
        (["git", "commit", "-m", "x"], "git commit"),
        (["pytest", "-x", "tests/a.py"], "pytest"),
        (["npm", "run", "build", "--", "-v"], "npm run build"),
        (["docker", "system", "prune", "-af"], "docker system prune"),
        (["terraform", "destroy"], "terraform destroy"),
        (["python3", "-m", "pytest", "-x"], "python3 -m pytest"),
        (["rm", "-rf", "build"], "rm"),
        # what runs other programs, or has an option in place of a sub-command, is allowed word for word
        (["python3", "x.py"], "python3 x.py"),
        (["sh", "-c", "rm *"], "sh -c 'rm *'"),
        (["sudo", "apt", "install", "x"], "sudo apt install x"),
        (["git", "-c", "a=b", "commit"], "git -c a=b commit"),
        (["uv", "run", "python", "x.py"], "uv run python x.py"),
    ],
)
def test_a_lasting_yes_is_for_the_program_and_its_sub_command(command: list[str], rule: str) -> None:
    assert rule_for(command) == rule and covers(rule, command)


def test_no_rule_is_offered_that_the_configuration_would_read_in_another_way(asks: Callable[..., Any]) -> None:
    assert asks("echo ${HOME}").rules == () and asks("echo $HOME").rules == ("echo $HOME",)


@pytest.mark.parametrize(
    "rule, words, covered",
    [
        ("git commit", ["git", "commit", "--amend"], True),
        ("git commit", ["git", "push"], False),
        ("git", ["git", "push"], True),
        ("npm run *", ["npm", "run", "build"], True),
        ("npm run *", ["npm", "publish"], False),
        ("*", ["anything", "at", "all"], True),
        ("", ["ls"], False),
        ("python3 x.py", ["python3", "x.py", "y"], False),
        ("cat /etc/hosts", ["cat", "/etc/hosts", "/etc/shadow"], False),
        ("sh -c 'echo *'", ["sh", "-c", "echo; rm x"], False),
        ("read_file /data/*", ["read_file", "/data/a/b"], True),
        ("read_file /data/*", ["read_file", "/etc/a"], False),
        ("git 'unclosed", ["git", "status"], False),
    ],
)
def test_what_a_rule_covers(rule: str, words: list[str], covered: bool) -> None:
    assert covers(rule, words) is covered


def test_rules_allow_in_their_folder_and_every_part_must_be_allowed(asks: Callable[..., Any], project: Path) -> None:
    def with_rules(*allow: Any, deny: list[Any] | None = None, approval: str = "ask") -> Callable[..., Any]:
        config = Config()
        config.permissions.allow, config.permissions.deny, config.terminal.approval = list(allow), deny or [], approval
        return lambda command: asks(command, permissions=config.permissions, terminal=config.terminal)

    pytest_here = PermissionRule(command="pytest", folder=str(project))
    assert with_rules(pytest_here)("pytest -x 2>&1 | tail -5") is None
    assert with_rules(PermissionRule(command="pytest", folder="/elsewhere"))("pytest") is not None
    remove = PermissionRule(command="rm", folder=str(project))
    assert with_rules(remove)("rm notes.txt src/x.py") is None and with_rules(remove)("cd src && rm x.py") is None
    for outside in (
        "rm /etc/hosts",
        "rm ../x",
        "cd .. && rm x",
        "cd / && rm x",
        "rm link/x",
        "rm ~/x",
        "cd link; rm x",
    ):
        assert with_rules(remove)(outside) is not None, outside
    assert with_rules(PermissionRule(command="cp", folder=str(project)))("cp a --target-directory=/etc") is not None
    assert with_rules("pytest")("pytest && git push") is not None
    assert with_rules("pytest", "git push")("pytest && git push") is None
    assert with_rules("pytest")("pytest > out.txt") is not None  # a rule for a program allows no file to be written
    assert with_rules("pytest > out.txt")("pytest > out.txt") is None
    assert with_rules("echo $HOME")("echo $HOME") is None and with_rules("echo $HOME")("echo $HOME $X") is not None
    assert with_rules(approval="all")("ls") is not None and with_rules("ls", approval="all")("ls") is None
    assert with_rules(approval="never")("rm -rf x; echo $(id)") is None
    for approval in ("ask", "all", "never"):
        for command in ("rm x", "ls; rm x", "echo $(rm x)", "cat notes.txt | (rm x)", "sudo rm x", "/bin/rm x"):
            with pytest.raises(ToolDeclined, match="permissions.deny"):
                with_rules("rm", deny=["rm"], approval=approval)(command)


def test_what_deny_names_may_still_be_read_about(asks: Callable[..., Any]) -> None:
    permissions = Config().permissions
    permissions.deny = ["git push", "rm"]
    assert asks("grep -rn 'git push' . | head; echo rm", permissions=permissions) is None
    with pytest.raises(ToolDeclined):
        asks("git -c a=b push origin", permissions=permissions)


def test_a_command_of_several_lines_can_be_allowed_for_good(make_context: Any) -> None:
    context = make_context()
    asked: list[str] = []
    context.confirm = lambda question: asked.append(question) or Answer(True, "here")
    command = "cat > made.txt <<'END'\nit's: \"a\" # b\n\tEND \nEND"
    for _ in range(2):
        assert "exit status 0" in terminal.run(context, {"command": command})
    assert len(asked) == 1
    context.config = load_config(context.home / "config.yaml")  # in the next program as well
    terminal.run(context, {"command": command})
    assert len(asked) == 1 and context.config.permissions.allow[0].command == command


def test_the_answers() -> None:
    assert read_answer(" Y ") == Answer(True) and read_answer("a") == Answer(True, "here")
    assert read_answer("e") == Answer(True, "everywhere") and read_answer("") == read_answer("no") == Answer(False)
    assert read_answer("use git mv") == Answer(False, reason="use git mv")


def test_where_no_one_can_be_asked_the_refusal_says_so(make_context: Any) -> None:
    context = make_context()
    context.confirm = lambda question: NO_USER
    with pytest.raises(ToolDeclined, match=r"Run `git push`.*permissions.allow.*git push"):
        terminal.run(context, {"command": "git push"})
    context.config.permissions.allow.append("touch")
    assert "exit status 0" in terminal.run(context, {"command": "touch made"})
