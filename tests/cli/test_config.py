"""`hermes config …` as a process: values go in and come out, the rest of the file stays as it was."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hermes.config import load_config, parse_config
from hermes.config.editing import HEAD, with_value, without
from hermes.config.settings_schema import every_key
from hermes.errors import ConfigError
from tests.support.program import PROGRAM, environment, run, start
from tests.support.screen import Screen
from tests.support.sizes import some

WITH_COMMENTS = """\
# my settings, do not touch
model:                      # who answers
  default:   "gpt-5"        # the good one
  api_key: ${OPENAI_API_KEY}

  # nothing here yet
owner:
    - telegram:1   # me
    - telegram:2
display: {resume_display: minimal, busy: 'queue'}   # short
sessions:

  retention_days: 30        # a month
platforms:
  telegram: {enabled: true, token: ${TELEGRAM_BOT_TOKEN}}
# the end
"""


@pytest.fixture
def config_file(hermes_home: Path) -> Path:
    hermes_home.mkdir(mode=0o700)
    path = hermes_home / "config.yaml"
    path.write_text(WITH_COMMENTS)
    path.chmod(0o600)
    return path


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went, and lines that came."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


# ── set ──


def test_set_keeps_every_other_character(hermes_home: Path, config_file: Path) -> None:
    for key, value, gone, came in [
        ("model.default", "llama", ['  default:   "gpt-5"        # the good one'], ['  default: "llama"          # the good one']),
        ("sessions.retention_days", "7.5", ["  retention_days: 30        # a month"], ["  retention_days: 7.5       # a month"]),
        ("display.busy", "interrupt", ["display: {resume_display: minimal, busy: 'queue'}   # short"], ["display: {resume_display: minimal, busy: 'interrupt'} # short"]),
        ("model.base_url", "http://localhost:1/v1", [], ["  base_url: http://localhost:1/v1"]),
        ("timezone", "Europe/Berlin", [], ["timezone: Europe/Berlin"]),
        ("sessions.transcripts", "off", [], ["  transcripts: off"]),
        ("compression.threshold", "0.8", [], ["compression:", "  threshold: 0.8"]),
        ("auxiliary.title.model", "small", [], ["auxiliary:", "  title:", "    model: small"]),
    ]:  # fmt: skip
        before = config_file.read_text()
        done = run("config", "set", key, value, home=hermes_home)
        assert (done.status, done.err) == (0, "")
        assert changed_lines(before, config_file.read_text()) == (gone, came), key
        got = run("config", "get", key, home=hermes_home)
        assert got.out == f"{value}\n"
    assert config_file.stat().st_mode & 0o777 == 0o600
    text = config_file.read_text()
    assert text.index("base_url") < text.index("# nothing here yet")  # beside its neighbours, not at the end


def test_set_inside_brackets_and_lists(hermes_home: Path, config_file: Path) -> None:
    assert run("config", "set", "display.platforms", "{telegram: {busy: queue}}", home=hermes_home).status == 0
    assert run("config", "set", "platforms.telegram.enabled", "false", home=hermes_home).status == 0
    assert run("config", "set", "owner", "[telegram:9, discord:3]", home=hermes_home).status == 0
    config = load_config(config_file)
    assert config.display.platforms == {"telegram": {"busy": "queue"}}
    assert config.platforms["telegram"]["enabled"] is False
    assert config.owner == ["telegram:9", "discord:3"]
    for comment in (
        "# my settings, do not touch",
        "# who answers",
        "# nothing here yet",
        "# short",
        "# a month",
        "# the end",
    ):
        assert comment in config_file.read_text()
    assert "token: ${TELEGRAM_BOT_TOKEN}" in config_file.read_text()


def test_set_makes_the_file_with_a_head_that_explains_it(hermes_home: Path) -> None:
    done = run("config", "set", "model.default", "gpt-5", home=hermes_home)
    assert (done.status, done.out) == (0, "model.default: gpt-5\n")
    path = hermes_home / "config.yaml"
    assert path.read_text() == HEAD + "model:\n  default: gpt-5\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert hermes_home.stat().st_mode & 0o777 == 0o700


def test_set_tightens_the_mode_and_follows_a_link(hermes_home: Path, config_file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    config_file.rename(real)
    real.chmod(0o644)
    config_file.symlink_to(real)
    assert run("config", "set", "timezone", "UTC", home=hermes_home).status == 0
    assert config_file.is_symlink()
    assert "timezone: UTC" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "value", "status", "said"),
    [
        ("sessions.retention_days", "soon", 1, "hermes: sessions.retention_days: expected a number of 0 or more, got 'soon'\n"),
        ("store.durability", "ful", 1, "hermes: store.durability: expected one of full, normal, got 'ful'; did you mean full?\n"),
        ("model.defalt", "x", 1, "hermes: unknown configuration key: model.defalt; did you mean default?\n"),
        ("api_key", "x", 1, "hermes: unknown configuration key: api_key; did you mean model.api_key?\n"),
        ("model..default", "x", 1, "hermes: 'model..default' is not a configuration key; join names with dots, as in model.default\n"),
        ("", "x", 1, "hermes: '' is not a configuration key; join names with dots, as in model.default\n"),
        ("owner", "[a", 1, "hermes: owner: not valid YAML; write lists as [a, b] and mappings as {a: b}\n"),
        ("owner", "me", 1, "hermes: owner.1: expected PLATFORM:USER, such as telegram:12345, got 'me'\n"),
        ("mcp_servers.x.args", "[a]", 1, "hermes: mcp_servers.x: needs command (a program to start) or url (an address), and has neither\n"),
        ("model", "gpt-5", 1, "hermes: model: expected a section (default, base_url, api_key, …), got 'gpt-5'\n"),
        ("hooks.on_session_rest", "x", 1, "hermes: unknown configuration key: hooks.on_session_rest; did you mean on_session_reset?\n"),
        ("sessions.retention_days", "-1", 1, "hermes: sessions.retention_days: expected a number of 0 or more, got '-1'\n"),
    ],
)  # fmt: skip
def test_a_wrong_value_or_key_changes_nothing(
    hermes_home: Path, config_file: Path, key: str, value: str, status: int, said: str
) -> None:
    done = run("config", "set", key, value, home=hermes_home)
    assert (done.status, done.out, done.err) == (status, "", said)
    assert config_file.read_text() == WITH_COMMENTS


def test_a_broken_file_is_not_touched_and_the_line_is_told(hermes_home: Path, config_file: Path) -> None:
    config_file.write_text("model:\n\tdefault: x\n")
    for words in (["set", "timezone", "UTC"], ["unset", "timezone"], ["get", "timezone"], ["show"]):
        done = run("config", *words, home=hermes_home)
        assert done.status == 1
        assert "line 2 column 1: not valid YAML" in done.err
        assert len(done.err.splitlines()) == 1
    assert config_file.read_text() == "model:\n\tdefault: x\n"


def test_a_wrong_value_can_be_mended_with_set_and_a_wrong_key_with_unset(hermes_home: Path, config_file: Path) -> None:
    config_file.write_text("sessions: {retention_days: soon}\n")
    assert run("config", "set", "sessions.retention_days", "5", home=hermes_home).status == 0
    config_file.write_text("modle: {default: x}\nqqqq: 1  # two of them\n")
    assert run("config", "unset", "modle.default", home=hermes_home).status == 0
    assert config_file.read_text() == "qqqq: 1  # two of them\n"


def test_text_is_taken_as_it_is(hermes_home: Path) -> None:
    values = ("off", "null and void", "123", "007", "a: b", "# no comment", "", " padded ", "[x", "ü—漢字😀", "it's \"q\"", "${X:-y}", "yes", "- x", "@x", "*x", "!x", "%x")  # fmt: skip
    for value in some(values, 6):
        done = run("config", "set", "model.default", value, home=hermes_home, env={"X": ""})
        assert done.status == 0, (value, done.err)
        got = run("config", "get", "model.default", "--json", home=hermes_home, env={"X": ""})
        assert json.loads(got.out) == (value.replace("${X:-y}", "y") or None), value  # an empty text is no value
    assert run("config", "set", "model.default", "null", home=hermes_home).status == 0
    assert run("config", "get", "model.default", home=hermes_home).out == "null\n"


def test_names_with_dots_go_in_quotes(hermes_home: Path) -> None:
    assert run("config", "set", 'mcp_servers."a.b".command', "npx", home=hermes_home).status == 0
    assert run("config", "get", 'mcp_servers."a.b".command', home=hermes_home).out == "npx\n"
    assert list(load_config(hermes_home / "config.yaml").mcp_servers) == ["a.b"]


# ── secrets ──


def test_secrets_are_masked_unless_revealed(hermes_home: Path) -> None:
    secret = "sk-abcdefghijklmnop9999"
    done = run("config", "set", "model.api_key", secret, home=hermes_home)
    assert done.out == "model.api_key: ••••9999\n"
    run("config", "set", "mcp_servers.web.url", "http://127.0.0.1:1/mcp", home=hermes_home)
    run("config", "set", "mcp_servers.web.headers", "{Authorization: Bearer abc}", home=hermes_home)
    for words in (
        ["get", "model.api_key"],
        ["get", "model"],
        ["show"],
        ["show", "--all"],
        ["show", "--json"],
        ["get", "mcp_servers"],
    ):
        done = run("config", *words, home=hermes_home)
        assert done.status == 0
        assert secret not in done.out and "Bearer abc" not in done.out, words
        assert "••••" in done.out
    assert run("config", "get", "model.api_key", "--reveal", home=hermes_home).out == secret + "\n"
    assert secret in run("config", "show", "--reveal", home=hermes_home).out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("store.url", "postgresql://u:{}@host/db"),
        ("store.url", "postgresql://me@corp:{}@host/db"),
        ("store.url", "postgresql://host/db?user=me&password={}&application_name=x"),
        ("model.base_url", "http://u:{}@host:8080/v1"),
        ("auxiliary.title.base_url", "https://u:{}@host/v1"),
        ("mcp_servers.web.url", "http://u:{}@host/mcp"),
        ("platforms.telegram.proxy", "socks5://u:{}@host:1080"),
        ("mcp_servers.pg", "{{command: pg, args: ['postgresql://u:{}@host/db']}}"),
    ],
)
def test_a_password_in_an_address_is_never_shown(hermes_home: Path, key: str, value: str) -> None:
    for password in ("plainsecret", "Zq/Zr@Zs", "Zq@Zr", "Zq/Zr", "Zq Zr", "Zq?Zr#Zs", "Zq:Zr[Zs", "12/Zq", "Zq%Zr"):
        done = run("config", "set", key, value.format(password), home=hermes_home)
        told = done.out + done.err
        for words in (["show"], ["show", "--json"], ["get", key]):
            done = run("config", *words, home=hermes_home)
            told += done.out + done.err
        told += run("doctor", home=hermes_home).out
        told = told.replace(str(hermes_home), "")  # the name of a temporary folder is any letters
        assert not re.search("plainsecret|Z[qrs]", told), told
        run("config", "unset", key, home=hermes_home)


def test_a_password_that_would_tear_its_address_is_refused_with_a_hint(hermes_home: Path) -> None:
    for value in ("postgresql://u:p@ss/w@host/db", "postgresql://u:p ss@host/db", "postgresql://u:p%ss@host/db"):
        done = run("config", "set", "store.url", value, home=hermes_home)
        assert done.status != 0 and "%40" in done.err
    for key, value in (
        ("store.url", "postgresql://u:p%40ss@host:5432/db?application_name=a@b"),
        ("store.url", "postgresql://host:5432/db?user=me@corp"),
        ("store.url", "postgresql://me@host:5432,other:5433/db"),
        ("store.url", "postgresql://me@[::1]:5432/db"),
        ("mcp_servers.web.url", "https://host:8443/@org/mcp"),
        ("model.base_url", "http://[::1]:8080/v1"),
    ):
        assert run("config", "set", key, value, home=hermes_home).status == 0, value


def test_a_secret_without_a_value_is_asked_for_unseen(hermes_home: Path) -> None:
    with Screen(
        [*PROGRAM, "config", "set", "model.api_key"], env=environment(hermes_home, {"TERM": "xterm"})
    ) as screen:
        screen.wait_for("model.api_key:")
        screen.line("very-secret-key-4321")
        assert screen.wait_until_over() == 0
        shown = screen.history()
    assert "very-secret" not in shown and "••••4321" in shown
    assert load_config(hermes_home / "config.yaml").model.api_key == "very-secret-key-4321"


def test_without_a_value_and_without_a_terminal_it_is_wrong_usage(hermes_home: Path) -> None:
    done = run("config", "set", "model.api_key", home=hermes_home)
    assert (done.status, done.out) == (2, "")
    assert "give a value" in done.err


# ── get, show, unset, path ──


def test_get_and_show(hermes_home: Path, config_file: Path) -> None:
    env = {"OPENAI_API_KEY": "k" * 20, "TELEGRAM_BOT_TOKEN": "t"}
    assert run("config", "get", "sessions.retention_days", home=hermes_home).out == "30\n"
    assert run("config", "get", "store.durability", home=hermes_home).out == "full\n"
    assert run("config", "get", "auxiliary.title.model", home=hermes_home).out == "null\n"
    assert run("config", "get", "owner", home=hermes_home).out == '["telegram:1", "telegram:2"]\n'
    assert yaml.safe_load(run("config", "get", "model", home=hermes_home, env=env).out)["default"] == "gpt-5"
    assert run("config", "get", "mcp_servers.nobody.url", home=hermes_home).status == 1
    shown = yaml.safe_load(run("config", "show", home=hermes_home, env=env).out)
    assert shown["sessions"] == {"retention_days": 30}
    assert "compression" not in shown
    everything = json.loads(run("config", "show", "--all", "--json", home=hermes_home, env=env).out)
    for key in every_key():
        value: object = everything
        for part in key.split("."):
            value = value.get(part, "missing") if isinstance(value, dict) else None
        assert value != "missing", key


def test_unset_takes_the_line_and_an_empty_section_with_it(hermes_home: Path, config_file: Path) -> None:
    assert (
        run("config", "unset", "sessions.retention_days", home=hermes_home).out
        == "sessions.retention_days reset to its default.\n"
    )
    assert "sessions:" not in config_file.read_text()
    assert run("config", "unset", "display.busy", home=hermes_home).status == 0
    assert run("config", "unset", "owner", home=hermes_home).status == 0
    config = load_config(config_file)
    assert (config.display.busy, config.display.resume_display, config.owner) == ("interrupt", "minimal", [])
    for comment in ("# my settings", "# who answers", "# the good one", "# the end"):
        assert comment in config_file.read_text()
    done = run("config", "unset", "owner", home=hermes_home)
    assert (done.status, done.err) == (1, f"hermes: owner is not set in {config_file}\n")
    assert "ownr; did you mean owner?" in run("config", "unset", "ownr", home=hermes_home).err


# ── edit ──


def editor(tmp_path: Path, script: str) -> str:
    """An editor that does what the script says with the file $1."""
    path = tmp_path / "editor.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_edit_saves_what_is_right(hermes_home: Path, config_file: Path, tmp_path: Path) -> None:
    done = run(
        "config",
        "edit",
        home=hermes_home,
        env={"VISUAL": editor(tmp_path, 'sed -i s/gpt-5/llama/ "$1"'), "EDITOR": "false"},
    )
    assert (done.status, done.out) == (0, f"{config_file} was saved.\n")
    assert config_file.read_text() == WITH_COMMENTS.replace("gpt-5", "llama")
    assert config_file.stat().st_mode & 0o777 == 0o600


def test_edit_of_no_file_begins_with_the_head_and_makes_nothing_if_nothing_was_written(
    hermes_home: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    done = run("config", "edit", home=hermes_home, env={"VISUAL": editor(tmp_path, f'cp "$1" {seen}')})
    assert (done.status, done.out) == (0, "Nothing was changed.\n")
    assert seen.read_text() == HEAD
    assert not (hermes_home / "config.yaml").exists()


def test_edit_never_leaves_a_broken_file(hermes_home: Path, config_file: Path, tmp_path: Path) -> None:
    done = run("config", "edit", home=hermes_home, env={"VISUAL": editor(tmp_path, 'echo "modle: x" > "$1"')})
    assert done.status == 1
    assert "✗ line 1: unknown configuration key: modle; did you mean model?" in done.err
    assert config_file.read_text() == WITH_COMMENTS
    kept = re.search(r"your text is kept in (\S+)", done.err)
    assert kept is not None and Path(kept[1]).read_text() == "modle: x\n"
    assert Path(kept[1]).parent.stat().st_mode & 0o777 == 0o700


def test_edit_opens_again_on_a_mistake_if_the_user_wants(hermes_home: Path, config_file: Path, tmp_path: Path) -> None:
    visual = editor(
        tmp_path,
        f'if [ -e {tmp_path}/once ]; then echo "timezone: UTC" > "$1"; else touch {tmp_path}/once; echo "a: [" > "$1"; fi',
    )
    with Screen(
        [*PROGRAM, "config", "edit"], env=environment(hermes_home, {"VISUAL": visual, "TERM": "xterm"})
    ) as screen:
        screen.wait_for("Open it again?")
        assert "not valid YAML" in screen.history()
        screen.line("y")
        assert screen.wait_until_over() == 0
    assert config_file.read_text() == "timezone: UTC\n"


def test_edit_does_not_undo_what_somebody_else_set_meanwhile(
    hermes_home: Path, config_file: Path, tmp_path: Path
) -> None:
    other = " ".join(PROGRAM) + " config set timezone UTC"
    done = run(
        "config",
        "edit",
        home=hermes_home,
        env={"VISUAL": editor(tmp_path, f'{other}; echo "memory: {{enabled: false}}" > "$1"')},
    )
    assert done.status == 1
    assert "was changed by another process meanwhile" in done.err and "your text is kept in" in done.err
    assert load_config(config_file).timezone == "UTC"


# ── many at once, and killed ──


def test_two_processes_never_lose_an_edit(hermes_home: Path) -> None:
    program = (
        "import sys; from hermes.config.editing import set_value\n"
        "for n in range(25): set_value(f'mcp_servers.{sys.argv[1]}{n}.command', f'c{n}')"
    )
    variables = environment(hermes_home)
    running = [subprocess.Popen([sys.executable, "-c", program, name], env=variables) for name in ("a", "b", "c")]
    assert [one.wait(120) for one in running] == [0, 0, 0]
    servers = load_config(hermes_home / "config.yaml").mcp_servers
    assert sorted(servers) == sorted(f"{name}{n}" for name in "abc" for n in range(25))


def test_killed_at_any_time_the_file_is_old_or_new_never_half(hermes_home: Path, config_file: Path) -> None:
    import random

    dice = random.Random(1)
    for _ in range(12):
        child = start("config", "set", "timezone", "UTC", home=hermes_home)
        try:
            child.wait(dice.uniform(0.05, 0.4))
        except subprocess.TimeoutExpired:
            child.kill()
        child.communicate()
        assert parse_config(config_file.read_text(), config_file).timezone in (None, "UTC")
        assert config_file.read_text().startswith("# my settings")


def test_no_permission_is_one_line(hermes_home: Path, config_file: Path) -> None:
    if os.geteuid() == 0:
        program = (  # imports first: others may not be allowed to read the libraries
            "import os, sys, click, locale, yaml, hermes.config.editing, ruamel.yaml, hermes.cli.config, hermes.cli.options\n"
            "from hermes.cli.main import main\nos.setgid(65534); os.setuid(65534)\n"
        )
        for folder in [hermes_home, *hermes_home.parents]:
            if folder.stat().st_uid == 0 and folder.is_relative_to(gettempdir()):
                folder.chmod(folder.stat().st_mode | 0o055)
        config_file.chmod(0o644)
    else:
        program = "from hermes.cli.main import main\nimport sys\n"
        hermes_home.chmod(0o500)
    words = ["config", "set", "timezone", "UTC"]
    done = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(main({words}))"],
        env=environment(hermes_home),
        capture_output=True,
        text=True,
        check=False,
    )
    hermes_home.chmod(0o700)
    assert done.returncode == 1
    assert str(hermes_home) in done.stderr and "permissions" in done.stderr and done.stderr.count("\n") == 1
    assert config_file.read_text() == WITH_COMMENTS


# ── any file, any change ──

_comments = st.sampled_from(["", "  # note", "\n# a line of its own", "\n\n"])
_KEYS = {
    "model.default": ["x", '"x y"', "'it''s'", "~", "${A:-b}"],
    "model.base_url": ["http://a", "'http://b'"],
    "sessions.retention_days": ["1", "2.5"],
    "sessions.transcripts": ["off", "'all'", '"gateway"'],
    "display.busy": ["queue"],
    "timezone": ["UTC"],
    "memory.enabled": ["yes", "true"],
    "auxiliary.title.model": ["small"],
    "auxiliary.summary.max_chars": ["500"],
}


@st.composite
def files(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(st.sampled_from(list(_KEYS)), unique=True))
    indent = " " * draw(st.integers(1, 4))
    tree: dict[str, object] = {}
    for key in chosen:
        inner = tree
        *above, last = key.split(".")
        for part in above:
            inner = inner.setdefault(part, {})  # type: ignore[assignment]
        inner[last] = draw(st.sampled_from(_KEYS[key])) + draw(_comments).replace("\n#", f"\n{indent * len(above)}#")

    def lines(tree: dict[str, object], depth: int) -> list[str]:
        out = []
        for name, value in tree.items():
            if isinstance(value, dict):
                out += [
                    f"{indent * depth}{name}:{draw(st.sampled_from(['', '   # section']))}",
                    *lines(value, depth + 1),
                ]
            else:
                out.append(f"{indent * depth}{name}: {value}")
        return out

    return "# head\n" + "\n".join(lines(tree, 0)) + draw(st.sampled_from(["", "\n", "\n# tail\n"]))


@given(files(), st.sampled_from(list(_KEYS)), st.sampled_from(["new", "it's: #1", "${B}"]))
def test_any_key_can_be_set_and_unset_in_any_file_and_no_comment_is_lost(text: str, key: str, value: str) -> None:
    path = Path("/nowhere/config.yaml")
    keys = key.split(".")
    value_for = {"sessions.retention_days": 3, "memory.enabled": False, "auxiliary.summary.max_chars": 700, "timezone": "UTC",
                 "sessions.transcripts": "off", "display.busy": "queue", "model.base_url": "http://c"}.get(key, value)  # fmt: skip
    before = parse_config(text, path)
    after_text = with_value(text, keys, value_for)
    after = parse_config(after_text, path)
    assert after_text.count("#") >= text.count("#")
    for other in _KEYS:
        if other != key:
            assert at(after, other) == at(before, other), after_text
    assert str(at(after, key)) == str(value_for).replace("${B}", os.environ.get("B", "None"))
    removed = parse_config(without(after_text, keys), path)
    for other in _KEYS:
        if other != key:
            assert at(removed, other) == at(before, other)


CUTS = [  # a file, a key, a value, and the file afterwards (None: left alone)
    ("owner:   # us\n  - a:1  # me\n  - a:2\n\n# end\ntimezone: UTC\n", "owner", ["b:1"], "owner: [b:1] # us\n# end\ntimezone: UTC\n"),
    ("owner:\n- a:1\n- a:2\ntimezone: UTC\n", "owner", ["b:1"], "owner: [b:1]\ntimezone: UTC\n"),
    ("hooks:\n  x: |\n    echo\n\n    # b\n\n# end\n", "hooks.x", "new", "hooks:\n  x: |-\n    new\n\n# end\n"),
    ("hooks:\n  x: |\n    echo\n    # b\n\n# end\n", "hooks.y", "new", "hooks:\n  x: |\n    echo\n    # b\n\n# end\n  y: new\n"),
    ("model:\n  default: a\n    b  # c\n  api_key: x\n", "model.default", "n", "model:\n  default: n # c\n  api_key: x\n"),
    ("display: {\n  busy: queue,  # c\n}\n", "display.x", "y", "display: {busy: queue, x: y}\n"),
    ("model:\r\n  default: a # c\r\ntimezone: UTC\r\n", "model.x", "y", "model:\r\n  default: a # c\r\n  x: y\r\ntimezone: UTC\r\n"),
    ("---\nmodel:\n  default: a\n...\n", "timezone", "UTC", "---\nmodel:\n  default: a\ntimezone: UTC\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "value", "after"), CUTS, ids=[f"{key} in {text[:20]!r}" for text, key, _, _ in CUTS]
)
def test_only_the_value_is_cut_whatever_stands_around_it(text: str, key: str, value: object, after: str | None) -> None:
    if after is None:
        with pytest.raises(
            ConfigError, match=r"can't be changed automatically in this file; change it with `hermes config edit`"
        ):
            with_value(text, key.split("."), value)
    else:
        assert with_value(text, key.split("."), value) == after


@pytest.mark.parametrize(
    ("text", "key", "after"),
    [
        ("d: {a: 1, b: 2, c: 3}\n", "d.a", "d: {b: 2, c: 3}\n"),
        ("d: {a: 1, b: 2, c: 3}\n", "d.c", "d: {a: 1, b: 2}\n"),
        ("d: {a: 1}  # x\ne: 1\n", "d.a", "e: 1\n"),
        ("h:\n  x: |\n    a\n    # b\n\n# end\ne: 1\n", "h.x", "    # b\n# end\ne: 1\n"),
    ],
)
def test_a_removed_key_takes_only_its_own_text_along(text: str, key: str, after: str) -> None:
    assert without(text, key.split(".")) == after


def at(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part, None)
    return config


# ── the guide ──


def test_the_guide_names_every_key_with_its_default() -> None:
    import msgspec

    from hermes.config import Config

    page = (Path(__file__).parents[2] / "docs" / "guide" / "configuration.md").read_text()
    rows: dict[str, str] = {}
    keys_only = page[page.index("## Every key") : page.index("## Variables of the environment")]
    for names, default in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", keys_only, re.MULTILINE):
        keys = re.findall(r"`([^`]+)`", names)
        defaults = default.split(", ") if len(keys) > 1 and ", " in default else [default] * len(keys)
        rows |= dict(zip(keys, (text.strip() for text in defaults), strict=True))
    assert set(every_key()) <= set(rows)
    everything = msgspec.to_builtins(Config())
    for key in every_key():
        value: object = everything
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        assert yaml.safe_load(rows[key]) == value, key


@pytest.mark.parametrize("visual", ["/nowhere/editor", "false", "'unbalanced", " "])
def test_an_editor_that_fails_changes_nothing(hermes_home: Path, config_file: Path, visual: str) -> None:
    done = run("config", "edit", home=hermes_home, env={"VISUAL": visual})
    assert done.status == 1
    assert "editor" in done.err and "Traceback" not in done.err
    assert "kept in" not in done.err  # nothing was written that could be lost
    assert config_file.read_text() == WITH_COMMENTS
