"""`hermes mcp install`: one entry in another program's settings; everything else in the file stays as it was."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.cli.mcp_install import SettingsFile
from tests.support import program
from tests.support.sizes import size

PLACES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "GEMINI_CLI_HOME", "QWEN_HOME", "XDG_CONFIG_HOME")
FILES = {
    "claude-code": (".claude.json", "mcpServers"), "codex": (".codex/config.toml", "mcp_servers"),
    "copilot": (".copilot/mcp-config.json", "mcpServers"), "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"), "opencode": (".config/opencode/opencode.json", "mcp"),
    "qwen": (".qwen/settings.json", "mcpServers"), "windsurf": (".codeium/windsurf/mcp_config.json", "mcpServers"),
    "zed": (".config/zed/settings.json", "context_servers"),
}  # fmt: skip
ZED = """\
// Zed settings
{
  "theme": "One Dark", // mine
  /* servers { */
  "context_servers": {
    // the files
    "files": {"command": "npx", "args": ["-y", "@x/files",]}, // tail
  },
  "ui_font_size": 16,
}
"""
CODEX = """\
model = "x" # mine

[mcp_servers.other]
command = "other"

# about profiles
[profiles.a]
list = [
  ["a"],
]
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    return folder


def install(user: Path, *words: str, env: dict[str, str] | None = None, home: Path | None = None) -> program.Result:
    quiet = {"HOME": str(user), "HERMES_HOME": str(home or ""), **dict.fromkeys(PLACES, ""), **(env or {})}
    return program.run("mcp", "install", *words, home=user, env=quiet)


def done(user: Path, *words: str, **more: Any) -> str:
    result = install(user, *words, **more)
    assert result.status == 0, result
    return result.out


def refused(user: Path, *words: str) -> str:
    result = install(user, *words)
    assert result.status == 1 and result.err.count("\n") == 1 and "Traceback" not in result.err, result
    return result.err


def entry(path: Path, section: str) -> Any:
    data = tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())
    return data[section]["hermes"]


@pytest.mark.parametrize("name", FILES)
def test_a_new_file_has_the_entry_and_loses_it_again(name: str, user: Path) -> None:
    path, section = user / FILES[name][0], FILES[name][1]
    done(user, name)
    found = entry(path, section)
    words = found["command"] if name == "opencode" else [found["command"], *found["args"]]
    assert words[-1] == "mcp" and os.access(words[0], os.X_OK) and os.path.isabs(words[0])
    assert "env" not in found and "environment" not in found
    before = path.read_bytes()
    assert "nothing to do" in done(user, name) and path.read_bytes() == before
    done(user, name, "--remove")
    assert "hermes" not in path.read_text()
    assert "no entry" in done(user, name, "--remove")


def test_the_rest_of_the_file_stays(user: Path) -> None:
    zed, codex = user / ".config/zed/settings.json", user / ".codex/config.toml"
    for path, text in ((zed, ZED), (codex, CODEX)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    done(user, "zed", "codex")
    for before, after in ((ZED, zed.read_text()), (CODEX, codex.read_text())):
        kept = iter(after.splitlines())
        assert all(line in kept for line in before.splitlines())  # every line is there, in this order
    assert set(tomllib.loads(codex.read_text())["mcp_servers"]) == {"other", "hermes"}
    done(user, "zed", "codex", "--remove")
    assert (zed.read_text(), codex.read_text()) == (ZED, CODEX)


def test_a_table_with_parts_and_comments_is_taken_out_whole(user: Path) -> None:
    path = user / ".codex/config.toml"
    path.parent.mkdir()
    own = '[mcp_servers."hermes"] # ours\ncommand = "hermes"\n# why\nargs = [\n  "mcp",\n]\n[mcp_servers.hermes.env]\nA = "b"\n'
    path.write_text(CODEX.replace("# about", f"{own}\n# about"))
    done(user, "codex", "--remove")
    assert path.read_text() == CODEX


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zed", '{"a": 1'),
        ("zed", "[1]"),
        ("zed", '{"context_servers": [1]}'),
        ("cursor", "{a: 1}"),
        ("cursor", '{"mcpServers": null}'),
        ("codex", "a = "),
    ],
)
def test_a_broken_file_is_left_alone(name: str, text: str, user: Path) -> None:
    path = user / FILES[name][0]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert str(path) in refused(user, name) and path.read_text() == text
    assert str(path) in refused(user, name, "--remove") and path.read_text() == text


def test_a_file_made_read_only_is_left_alone(user: Path) -> None:
    path = user / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text("{}\n")
    path.chmod(0o444)
    assert "read-only" in refused(user, "cursor") and path.read_text() == "{}\n"


def test_an_entry_of_another_program_stays_and_an_old_one_of_ours_is_renewed(user: Path) -> None:
    path = user / ".cursor/mcp.json"
    path.parent.mkdir()
    other = '{"mcpServers": {"hermes": {"command": "npx", "args": ["hermes-mail"]}}}'
    path.write_text(other)
    for words in (("cursor",), ("cursor", "--remove")):
        assert "npx hermes-mail" in refused(user, *words) and path.read_text() == other
    old = {
        "command": "/gone/bin/hermes",
        "args": ["mcp", "--user", "telegram:42"],
        "env": {"A": "b"},
        "disabled": False,
    }
    path.write_text(json.dumps({"mcpServers": {"hermes": old, "x": {}}}))
    done(user, "cursor")
    found = entry(path, "mcpServers")
    assert os.access(found["command"], os.X_OK)
    assert {**found, "command": "/gone/bin/hermes"} == old


def test_a_link_stays_and_the_mode_too(user: Path, tmp_path: Path) -> None:
    target, path = tmp_path / "dotfiles.json", user / ".cursor/mcp.json"
    target.write_text("{}\n")
    target.chmod(0o640)
    path.parent.mkdir()
    path.symlink_to(target)
    done(user, "cursor")
    assert path.is_symlink() and "hermes" in target.read_text() and stat.S_IMODE(target.stat().st_mode) == 0o640
    done(user, "cursor", "--remove")
    assert path.is_symlink() and json.loads(target.read_text()) == {"mcpServers": {}}


def test_a_home_of_its_own_is_in_the_entry(user: Path, tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    done(user, "cursor", "opencode", "codex", home=home)
    for name, key in (("cursor", "env"), ("opencode", "environment"), ("codex", "env")):
        assert entry(user / FILES[name][0], FILES[name][1])[key] == {"HERMES_HOME": str(home)}
    done(user, "cursor", home=home / "moved")
    assert entry(user / ".cursor/mcp.json", "mcpServers")["env"] == {"HERMES_HOME": str(home / "moved")}
    done(user, "cursor")
    assert not entry(user / ".cursor/mcp.json", "mcpServers")["env"]


def test_a_program_must_be_named_and_known(user: Path) -> None:
    for words in ((), ("--remove",), ("emacs",)):
        refused = install(user, *words)
        assert refused.status == 2 and "claude-code" in refused.err


# ------------------------------------------------------------------------------------------------ any JSON with comments

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(['"', "// x", "/* {", ",}", "\\", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=12,
)  # fmt: skip
servers = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "hermes"), values, min_size=1, max_size=3)
files = st.builds(
    lambda rest, own, after: {**rest, **({"mcpServers": own} if own else {}), **after},
    st.dictionaries(st.text(max_size=5), values, max_size=3), st.none() | servers,
    st.dictionaries(st.text(max_size=5), values, max_size=2),
)  # fmt: skip
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


@settings(max_examples=size(40, 300), deadline=None)
@given(st.data())
def test_any_file_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    held = data.draw(files)
    text = json.dumps(
        held, indent=data.draw(st.sampled_from([None, 2, 4, "\t"])), ensure_ascii=data.draw(st.booleans())
    )
    if data.draw(st.booleans()):
        between = st.sampled_from(["", "", "", ' /* { " */', " // , }\n", "\n"])
        text = _TOKEN.sub(lambda token: token[0] + data.draw(between), text)
    if data.draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    path = tmp_path_factory.mktemp("any") / "settings.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    value = {"command": "/x y/hermes", "args": ["mcp"], "env": {"A": '"\\'}}
    try:
        file = SettingsFile(path, "mcpServers", "hermes")
    except Exception:
        assert "\\ud" in ascii(text)  # half a surrogate pair is not UTF-8
        return
    file.write(file.text_with(value))
    again = SettingsFile(path, "mcpServers", "hermes")
    assert again.entry == value
    back = again.text_with(None)
    if "mcpServers" in held:
        assert back == text
    else:  # an empty section stays
        again.write(back)
        assert SettingsFile(path, "mcpServers", "hermes").entry is None
