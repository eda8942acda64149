"""config.yaml: every key of the specification with its default, and every mistake told with its line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hermes.config import Config, load_config, parse_config
from hermes.config.loading import read_env
from hermes.config.reading import check_text
from hermes.config.settings_schema import every_key, is_secret, masked
from hermes.errors import ConfigError

# The specification's table of keys and defaults, word for word.
SPECIFICATION = """
model: {default: null, base_url: null, api_key: null, context_length: null}
auxiliary:
  title: null
  summary: {max_chars: 12000, max_concurrency: 3}
  compression: null
compression: {enabled: true, threshold: 0.5, protect_first_n: 1, protect_last_n: 20}
display: {resume_display: full, busy: interrupt, platforms: {}}
sessions: {auto_prune: false, retention_days: 90, vacuum_after_prune: true, min_interval_hours: 24, transcripts: all, trash_days: 7}
privacy: {redact_secrets: true}
store: {url: null, path: null, durability: full, key_file: null, passphrase_file: null}
owner: []
timezone: null
memory: {enabled: true, recall: auto}
mcp_servers: {}
terminal: {approval: ask}
permissions: {allow: [], deny: []}
group_sessions_per_user: true
thread_sessions_per_user: false
session_reset: {mode: none, idle_minutes: 1440, at_hour: 4, notify: true, by_platform: {}, by_type: {}}
gateway: {listen: {host: 127.0.0.1, port: 8644, public_url: null}, streaming: {enabled: true, edit_interval: 1.0, buffer_threshold: 40, cursor: " ▉"}, media: {vision_model: null, stt_model: null, max_mb: 20}, brake: {per_minute: 30}}
platforms: {}
api_server: {enabled: false, host: 127.0.0.1, port: 8642, token: null}
web: {host: 127.0.0.1, port: 0, password: null, url: null, user_header: null, proxy_secret: null, users: {}}
webhooks: {host: 127.0.0.1, port: 8644, routes: {}}
hooks: {}
"""
HERE = Path("config.yaml")


def written(home: Path, text: str | bytes) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    path = home / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, HERE)
    said = str(caught.value)
    assert "\n" not in said
    return said


# ── keys and defaults ──


def test_every_key_of_the_specification_has_its_default() -> None:
    specified = yaml.safe_load(SPECIFICATION)
    built = msgspec.to_builtins(Config())
    side = {"model": None, "base_url": None, "api_key": None, "timeout": None}
    specified["auxiliary"]["summary"] |= side  # "each: {model, base_url, api_key, timeout}"
    assert built == specified


def test_the_specification_itself_is_a_valid_file_and_changes_nothing() -> None:
    assert parse_config(SPECIFICATION, HERE) == Config()


def test_no_file_means_all_defaults(hermes_home: Path) -> None:
    assert load_config() == Config()
    written(hermes_home, "")
    assert load_config() == Config()
    written(hermes_home, "# only a comment\n")
    assert load_config() == Config()


def test_a_key_with_nothing_behind_it_has_its_default() -> None:
    config = parse_config(
        "model:\nsessions:\n  retention_days:\n  transcripts: ~\nowner:\nmcp_servers:\nplatforms:\n", HERE
    )
    assert config == Config()


def test_each_shape_can_be_written() -> None:
    config = parse_config(
        """
model: {default: gpt-5, base_url: "https://api.example/v1", context_length: 128_000}
auxiliary: {title: {model: small, timeout: 3.5}}
owner: [telegram:12345]
timezone: Europe/Berlin
mcp_servers:
  files: {command: npx, args: [-y, server, 8080], env: {PORT: 8080, DEBUG: yes}}
  web: {url: "https://mcp.example", headers: {Authorization: "Bearer x"}}
session_reset: {mode: idle, by_platform: {telegram: {idle_minutes: 60}}}
platforms: {telegram: {enabled: true, allowed_users: [1, two], token: abc}}
webhooks: {routes: {build: {secret: s, prompt: p, deliver: cli}}}
hooks: {on_session_reset: "notify-send reset", on_session_finalize: [a, b]}
sessions: {transcripts: off, retention_days: 0.5}
""",
        HERE,
    )
    assert config.model.context_length == 128_000
    assert config.auxiliary.title is not None and config.auxiliary.title.timeout == 3.5
    assert config.mcp_servers["files"].args == ["-y", "server", "8080"]
    assert config.mcp_servers["files"].env == {"PORT": "8080", "DEBUG": "yes"}
    assert config.session_reset.by_platform["telegram"].idle_minutes == 60
    assert config.platforms["telegram"] == {"enabled": True, "allowed_users": [1, "two"], "token": "abc"}
    assert config.sessions.transcripts == "off"  # YAML alone would read: false
    assert config.hooks["on_session_finalize"] == ["a", "b"]


# ── variables ──


def test_variables_are_filled_in_from_the_environment_then_from_the_env_file(
    hermes_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(
        hermes_home,
        "model: {default: '${NAME}', api_key: ${KEY}, base_url: 'https://${HOST:-h.example}/v1', context_length: ${SIZE}}\n"
        "api_server: {port: ${PORT:-9000}, enabled: ${ON}, token: ${UNSET_ONE}}\n",
    )
    (path.parent / ".env").write_text("KEY='from file'\nNAME=file\nexport SIZE=4096 # tokens\nON=true\n# NAME=no\n")
    monkeypatch.setenv("NAME", "from environment")
    for name in ("KEY", "HOST", "SIZE", "PORT", "ON", "UNSET_ONE"):
        monkeypatch.delenv(name, raising=False)
    config = load_config()
    assert (config.model.default, config.model.api_key) == ("from environment", "from file")
    assert config.model.base_url == "https://h.example/v1"
    assert (config.model.context_length, config.api_server.port, config.api_server.enabled) == (4096, 9000, True)
    assert config.api_server.token is None
    assert [(one.key, one.variable) for one in config.unset] == [("api_server.token", "UNSET_ONE")]


def test_a_variable_without_a_value_leaves_no_part_of_its_text_behind(
    hermes_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET_ONE", raising=False)
    path = written(
        hermes_home,
        "api_server: {token: 'x-${EMPTY}'}\nowner: ['email:${UNSET_ONE}', 'email:a@b']\n"
        "mcp_servers: {t: {url: '${UNSET_ONE}'}}\nplatforms: {p: {token: '${UNSET_ONE}-${EMPTY}', other: '${UNSET_ONE:-}'}}\n",
    )
    config = load_config(path)
    assert (config.api_server.token, config.owner) == (None, ["email:a@b"])
    assert config.platforms["p"] == {"token": None, "other": None}
    found = [(one.key, one.variable) for one in config.unset]
    assert found == [
        ("api_server.token", "EMPTY"), ("owner.1", "UNSET_ONE"), ("mcp_servers.t.url", "UNSET_ONE"),
        ("platforms.p.token", "UNSET_ONE"), ("platforms.p.token", "EMPTY"),
    ]  # fmt: skip
    for part in ("api_server", "owner", "mcp_servers.t", "platforms.p"):
        with pytest.raises(ConfigError, match="is not set"):
            config.changed(timezone="UTC").require_set(part)
    config.require_set("store", "model", "platforms.q", "webhooks")


def test_what_a_variable_holds_is_never_read_as_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", "x\nprivacy: {redact_secrets: false}")
    config = parse_config("model: {default: ${EVIL}}", HERE)
    assert config.privacy.redact_secrets is True
    assert config.model.default == "x\nprivacy: {redact_secrets: false}"


def test_a_variable_is_percent_encoded_as_the_user_and_password_of_an_address_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAW", "p/a@ss w:rd?#%[")
    monkeypatch.setenv("PLAIN", "simple-1!")
    monkeypatch.setenv("ENCODED", "p%2Fa")
    monkeypatch.setenv("BOTH", "me:p/a@b")
    monkeypatch.setenv("AND", "a&b=c")
    encoded = "p%2Fa%40ss%20w%3Ard%3F%23%25%5B"
    for written, url in (
        ("postgresql://me:${RAW}@h/db", f"postgresql://me:{encoded}@h/db"),
        ("postgresql://me:${UNSET_ONE:-a/b@c}@h/db", "postgresql://me:a%2Fb%40c@h/db"),
        ("postgresql://${PLAIN}:x${RAW}y@h/db", f"postgresql://simple-1!:x{encoded}y@h/db"),
        ("postgresql://me:${ENCODED}@h/db", "postgresql://me:p%2Fa@h/db"),
        ("postgresql://${BOTH}@h/db", "postgresql://me:p%2Fa%40b@h/db"),
        ("postgresql://me@h/${RAW}", "postgresql://me@h/p/a@ss w:rd?#%["),
        ("postgresql://h/db?password=${RAW}", f"postgresql://h/db?password={encoded}"),
        ("postgresql://h/db?user=a&password=${AND}&x=1", "postgresql://h/db?user=a&password=a%26b=c&x=1"),
        ("postgresql://h/db?password=${ENCODED}", "postgresql://h/db?password=p%2Fa"),
        ("postgresql://h/db?options=${AND}", "postgresql://h/db?options=a&b=c"),
        ("${RAW}", "p/a@ss w:rd?#%["),
        ("${BOTH}@h", "me:p/a@b@h"),
    ):
        assert parse_config(f"store: {{url: '{written}'}}", HERE).store.url == url
    many = "postgresql://" + "${PLAIN}" * 2_000
    assert parse_config(f"store: {{url: '{many}'}}", HERE).store.url == "postgresql://" + "simple-1!" * 2_000


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"), ("  export A = b", "b"), ("A='b # c'", "b # c"), ('A="b\\n\\"c\\""', 'b\n"c"'), ("A=b # c", "b"),
        ("A=b#c", "b#c"), ("A=", ""), ("A='it''s'", "'it''s'"), ("A=\"\"", ""), ("A=x=y", "x=y"), ("A= # c", ""),
    ],
)  # fmt: skip
def test_lines_of_an_env_file(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / ".env").write_text(line + "\nB=2\n")
    assert read_env(tmp_path / ".env") == {"A": value, "B": "2"}


def test_an_env_file_that_cant_be_read_is_told(hermes_home: Path) -> None:
    written(hermes_home, "model: {api_key: ${X}}")
    (hermes_home / ".env").write_bytes(b"X=\xff\xfe")
    with pytest.raises(ConfigError, match=r"\.env is not UTF-8"):
        load_config()


# ── mistakes ──

MISTAKES = [
    ("modle: {default: x}", "line 1: unknown configuration key: modle; did you mean model?"),
    ("model:\n  defualt: x", "line 2: unknown configuration key: model.defualt; did you mean default?"),
    ("# c\n\nauxiliary:\n  title:\n    modl: x", "line 5: unknown configuration key: auxiliary.title.modl; did you mean model?"),
    ("mcp_servers:\n  x:\n    command: a\n    argz: []", "line 4: unknown configuration key: mcp_servers.x.argz; did you mean args?"),
    ("webhooks: {routes: {r: {sekret: x}}}", "unknown configuration key: webhooks.routes.r.sekret; did you mean secret?"),
    ("webhooks: {routes: {r: {scheme: strip}}}", "webhooks.routes.r.scheme: expected one of github, gitlab, standard, stripe, x-signature, got 'strip'; did you mean stripe?"),
    ("gateway:\n  streaming:\n    enable: no", "line 3: unknown configuration key: gateway.streaming.enable; did you mean enabled?"),
    ("hooks: {on_session_rest: x}", "unknown configuration key: hooks.on_session_rest; did you mean on_session_reset?"),
    ("session_reset: {by_type: {dm: {mod: idle}}}", "session_reset.by_type.dm.mod; did you mean mode?"),
    ("terminal: {approval: destructive}", "terminal.approval: expected one of ask, all, never, got 'destructive'"),
    ("permissions: {allow: [{comand: x}]}", "unknown configuration key: permissions.allow.1.comand; did you mean command?"),
    ("permissions: {deny: rm}", "permissions.deny: expected a list"),
    ("api_key: x", "line 1: unknown configuration key: api_key; did you mean model.api_key?"),
    ("qqqqq: 1", "line 1: unknown configuration key: qqqqq"),
    ("\nsessions:\n  retention_days: soon", "line 3: sessions.retention_days: expected a number of 0 or more, got 'soon'"),
    ("sessions: {retention_days: -1}", "sessions.retention_days: expected a number of 0 or more, got '-1'"),
    ("sessions: {retention_days: .inf}", "sessions.retention_days: expected a number of 0 or more, got '.inf'"),
    ("sessions: {retention_days: .nan}", "sessions.retention_days: expected a number of 0 or more, got '.nan'"),
    ("sessions: {auto_prune: maybe}", "sessions.auto_prune: expected true or false, got 'maybe'"),
    ("compression: {threshold: 1.5}", "compression.threshold: expected a number from 0 to 1, got '1.5'"),
    ("api_server: {port: 70000}", "api_server.port: expected a whole number from 0 to 65535, got '70000'"),
    ("api_server: {port: 80.5}", "api_server.port: expected a whole number from 0 to 65535, got '80.5'"),
    ("api_server: {port: [80]}", "api_server.port: expected a whole number from 0 to 65535, got a list"),
    ("session_reset: {by_platform: {x: {at_hour: 24}}}", "session_reset.by_platform.x.at_hour: expected a whole number from 0 to 23, got '24'"),
    ("auxiliary: {title: {timeout: 0}}", "auxiliary.title.timeout: expected a number of 0.1 or more, got '0'"),
    ("auxiliary: {title: small}", "auxiliary.title: expected a section (model, base_url, api_key, …), got 'small'"),
    ("model: 0", "model: expected a section (default, base_url, api_key, …), got '0'"),
    ("owner: 5", "owner: expected a list, got '5'"),
    ("store: gpt-5", "store: expected a section (url, path, durability, …), got 'gpt-5'"),
    ("store: {durability: ful}", "store.durability: expected one of full, normal, got 'ful'; did you mean full?"),
    ("display: {busy: true}", "display.busy: expected one of interrupt, queue, got 'true'"),
    ("display: {platforms: {telegram: {busy: often}}}", "display.platforms.telegram.busy: expected one of interrupt, queue"),
    ("display: {platforms: {telegram: {bussy: queue}}}", "did you mean busy?"),
    ("session_reset: {by_type: {grup: {mode: idle}}}", "did you mean group?"),
    ("owner: telegram:1", "owner: expected a list, got 'telegram:1'"),
    ("owner:\n  - telegram:1\n  - me", "line 3: owner.2: expected PLATFORM:USER, such as telegram:12345, got 'me'"),
    ("timezone: Europe/Berln", "timezone: expected a name such as Europe/Berlin, got 'Europe/Berln'; did you mean Europe/Berlin?"),
    ("model: {base_url: localhost}", "model.base_url: expected a URL that begins with http:// or https://, got 'localhost'"),
    ("mcp_servers: {x: {}}", "mcp_servers.x: needs command (a program to start) or url (an address), and has neither"),
    ("mcp_servers:\n  x:", "line 2: mcp_servers.x: needs command"),
    ("mcp_servers: {x: {command: a, url: 'http://b'}}", "(an address), not both"),
    ("mcp_servers: [x]", "mcp_servers: expected a mapping, got a list"),
    ("hooks: {on_session_reset: {a: b}}", "hooks.on_session_reset: expected text or a list, got a mapping"),
    ("just words", "line 1: the file: expected a section (model, auxiliary, compression, …)"),
    ("- a", "line 1: the file: expected a section (model, auxiliary, compression, …), got a list"),
    ("model:\n  default: a\n\nmodel:\n  default: b", "line 4: model: given twice (first in line 1); keep one"),
    ("model: {default: a, default: b}", "line 1: model.default: given twice"),
    ("? [a]\n: b", "line 1: the file: a key must be text, not a list or a mapping"),
    ("model: {default: !secret x}", "tags (!name) are not supported"),
    ("model: !!python/object:os.system {}", "tags (!name) are not supported"),
    ("model:\n  default: a: b", "line 2 column 13: not valid YAML: unexpected colon"),
    ("model: 'x", "column"),
    ("model:\n\tdefault: x", "line 2 column 1: not valid YAML: a value can't begin with a tab"),
    ("model: {a", "not valid YAML: a bracket is opened and not closed"),
    ("model: *nobody", "aliases (*name) are not supported"),
    ("a: 1\n---\nb: 2", "line 2 column 1: not valid YAML: a second document begins here"),
    ("model: {default: \x07}", "line 1: not valid YAML: a control character"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[text[:40] for text, _ in MISTAKES])
def test_a_mistake_is_told_with_its_line_in_plain_words(text: str, said: str) -> None:
    assert said in complaint(text)


def test_several_mistakes_are_counted_and_the_first_is_told() -> None:
    assert complaint("a1: 1\nb2: 2\nc3: 3").endswith("line 1: unknown configuration key: a1 (and 2 more)")


SECRET = "hunter2-very-secret"


@pytest.mark.parametrize(
    "text",
    [
        f"model: {{api_key: [{SECRET}]}}", f"model: {{api_key: {{a: {SECRET}}}}}", f"api_server: {{token: [{SECRET}]}}",
        f"model: sk-{SECRET}", f"model: {{base_url: sk-{SECRET}}}", f"sk-{SECRET}: x", f"{SECRET}", f"model: *{SECRET}",
        f"model: {{api_key: !{SECRET} x}}", f"mcp_servers: {{x: {{url: u, headers: {{Authorization: [{SECRET}]}}}}}}",
        f"model: {{api_key: '{SECRET}", f"model: {{api_key: @{SECRET}}}", f"model: {{api_key: &{SECRET} *{SECRET}x}}",
        "api_server: {port: ${HELD}}", "store: {durability: ${HELD}}", "timezone: ${HELD}", "owner: ['${HELD}']",
    ],
)  # fmt: skip
def test_a_secret_is_never_in_a_message(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", SECRET)
    assert SECRET not in complaint(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"model:\n  default: \xff\xfe", "line 2: this is not UTF-8 text"),
        ("model: {default: x}".encode("utf-16"), "line 1: this is not UTF-8 text"),
        (b"a: " + b"x" * 2_000_000, "is larger than a configuration may be"),
        (b"owner: " + b"[" * 100_000, ""),
        (b"[" * 900_000, ""),
        (b"{a: " * 200_000, ""),
        (b"- " * 400_000, ""),
        (b"? " * 400_000, ""),
        (b"".join(b" " * depth + b"a:\n" for depth in range(1200)), ""),
        (b"platforms:\n  x: {y: &a [*a]}\n", "aliases (*name) are not supported"),
        (
            b"platforms: {x: {a: &a [z,z,z,z,z,z,z,z,z], b: &b [*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b],"
            b" d: &d [*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d,*d], f: [*e,*e,*e,*e,*e,*e,*e,*e]}}",
            "aliases (*name) are not supported",
        ),
    ],
    ids=["latin", "utf-16", "large", "deep list", "deeper list", "deep map", "deep dashes", "deep questions", "deep block", "itself", "laughs"],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_refused_at_once(hermes_home: Path, content: bytes, said: str) -> None:
    path = written(hermes_home, content)
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_in_its_place_is_told(hermes_home: Path) -> None:
    (hermes_home / "config.yaml").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is a folder"):
        load_config()


def test_a_pipe_in_its_place_does_not_hang(hermes_home: Path) -> None:
    hermes_home.mkdir()
    os.mkfifo(hermes_home / "config.yaml")
    with pytest.raises(ConfigError, match="not an ordinary file"):
        load_config()


def test_a_file_nobody_may_read_is_told(hermes_home: Path) -> None:
    path = written(hermes_home, "model: {}")
    path.chmod(0)
    program = "import os; os.geteuid() == 0 and os.setuid(65534); from hermes.config import load_config; load_config()"
    hermes_home.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", f"import hermes.config.reading\n{program}"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if "Permission denied" not in done.stderr:
        pytest.skip("this user may read everything")
    assert "ConfigError" in done.stderr and "config.yaml can't be read (Permission denied)" in done.stderr


# ── any text ──

_words = st.sampled_from(
    [*every_key(), "model", "null", "true", "off", "-1", "1e9", "${A}", "${A:-b}", "x", "&a", "*a", "<<", "!t", "'", '"', "|", "[", "]", "{", "}", ":",
     "- ", "\n", "\n  ", "\n    ", ": ", ",", "#", "---", "? ", "\t", "%", "@", "=", "2024-99-99", "0x", "1:99", "\x00", "\ud800", "\u2028"]
)  # fmt: skip


def _read(text: str) -> Config | None:
    try:
        config = parse_config(text, Path("/nowhere/config.yaml"))
    except ConfigError as error:
        if "\n" in str(error):
            raise AssertionError("one line, please") from error
        return None
    assert isinstance(config, Config)
    return config


_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([part for key in every_key() for part in key.split(".")]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(list(Config.__struct_fields__)), _trees, max_size=4))
def test_any_values_under_known_keys_give_a_sound_configuration_or_a_config_error(data: dict[str, Any]) -> None:
    config = _read(yaml.safe_dump(data, allow_unicode=True))
    if config is not None:  # what was accepted has the types it should have
        assert msgspec.convert(msgspec.to_builtins(config), Config) == config


@given(st.binary(max_size=60))
def test_any_bytes_are_a_configuration_or_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    try:
        assert isinstance(load_config(path), Config)
    except ConfigError:
        pass


# ── secrets and cost ──


def test_secrets_are_masked_at_any_depth() -> None:
    assert masked({"model": {"api_key": "sk-1234567890abcdef", "default": "x"}}, []) == {
        "model": {"api_key": "••••cdef", "default": "x"}
    }
    assert masked("short", ["api_server", "token"]) == "••••"
    assert masked({"h": {"X": "abc"}}, ["mcp_servers", "a", "headers"])["h"]["X"] == "abc"
    assert masked({"X": "abc"}, ["mcp_servers", "a", "headers"]) == {"X": "••••"}
    assert masked({"GITHUB_TOKEN": "abc", "PORT": "1"}, ["mcp_servers", "a", "env"]) == {
        "GITHUB_TOKEN": "••••",
        "PORT": "1",
    }
    assert masked("postgresql://me:pw@host/db", ["store", "url"]) == "postgresql://me:••••@host/db"
    assert masked(None, ["model", "api_key"]) is None
    assert is_secret(["platforms", "telegram", "webhook_secret"]) and not is_secret(
        ["auxiliary", "summary", "max_chars"]
    )


@pytest.mark.parametrize("with_file", [False, True])
def test_yaml_is_loaded_only_when_there_is_a_file(hermes_home: Path, with_file: bool) -> None:
    if with_file:
        written(hermes_home, "model: {default: x}\n")
    program = (
        "import sys, hermes.config as c; assert 'yaml' not in sys.modules; c.load_config();"
        "print([m for m in ('yaml', 'httpx', 'rich', 'difflib', 'dataclasses', 'zoneinfo') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    heavy = eval(done.stdout)
    assert heavy == [] if not with_file else "yaml" in heavy


def test_problems_are_all_listed_in_order_of_their_lines() -> None:
    _, problems = check_text("sessions: {retention_days: soon}\nmodle: x\nstore: {durability: f}\n", HERE)
    assert [problem.line for problem in problems] == [1, 2, 3]


@given(st.text())
@example("\ud800")
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    _read(text)
