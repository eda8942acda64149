"""config.yaml: every key with its default, read once, checked whole.

The classes below are the list of keys. `${VAR}` and `${VAR:-default}` are expanded from the environment and from
`<home>/.env`; whatever is wrong (a key nobody knows, a value of the wrong type, broken YAML) is said with the file, the
line and, for a misspelt key, the name that was probably meant.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from hermes.errors import ConfigError
from hermes.home import get_hermes_home


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A mapping with known keys."""


class Model(Section):
    default: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    context_length: int | None = None


class Auxiliary(Section):
    """A model for a side task; what is not set is the main model's."""

    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    timeout: float | None = None


class Summary(Auxiliary):
    max_chars: int = 12_000
    max_concurrency: int = 3


class Auxiliaries(Section):
    title: Auxiliary | None = None
    summary: Summary = msgspec.field(default_factory=Summary)
    compression: Auxiliary | None = None


class Compression(Section):
    enabled: bool = True
    threshold: float = 0.5
    protect_first_n: int = 1
    protect_last_n: int = 20


class Display(Section):
    resume_display: str = "full"
    busy: str = "interrupt"
    platforms: dict[str, dict[str, Any]] = {}


class Sessions(Section):
    auto_prune: bool = False
    retention_days: float = 90
    vacuum_after_prune: bool = True
    min_interval_hours: float = 24
    transcripts: str = "all"
    trash_days: float = 7


class Privacy(Section):
    redact_secrets: bool = True


class Store(Section):
    url: str | None = None
    durability: str = "full"


class Memory(Section):
    enabled: bool = True


class McpServer(Section):
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}


class Terminal(Section):
    confirm: str = "destructive"


class SessionReset(Section):
    mode: str = "none"
    idle_minutes: float = 1440
    at_hour: int = 4
    notify: bool = True
    by_platform: dict[str, dict[str, Any]] = {}
    by_type: dict[str, dict[str, Any]] = {}


class Streaming(Section):
    enabled: bool = True
    edit_interval: float = 1.0
    buffer_threshold: int = 40
    cursor: str = " ▉"


class Media(Section):
    vision_model: str | None = None
    stt_model: str | None = None
    max_mb: float = 20


class Gateway(Section):
    streaming: Streaming = msgspec.field(default_factory=Streaming)
    media: Media = msgspec.field(default_factory=Media)


class ApiServer(Section):
    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 8642
    token: str | None = None


class WebhookRoute(Section):
    secret: str | None = None
    prompt: str | None = None
    deliver: str | None = None


class Webhooks(Section):
    host: str = "127.0.0.1"
    port: int = 8644
    routes: dict[str, WebhookRoute] = {}


class Config(Section):
    """The whole file."""

    model: Model = msgspec.field(default_factory=Model)
    auxiliary: Auxiliaries = msgspec.field(default_factory=Auxiliaries)
    compression: Compression = msgspec.field(default_factory=Compression)
    display: Display = msgspec.field(default_factory=Display)
    sessions: Sessions = msgspec.field(default_factory=Sessions)
    privacy: Privacy = msgspec.field(default_factory=Privacy)
    store: Store = msgspec.field(default_factory=Store)
    owner: list[str] = []
    timezone: str | None = None
    memory: Memory = msgspec.field(default_factory=Memory)
    mcp_servers: dict[str, McpServer] = {}
    terminal: Terminal = msgspec.field(default_factory=Terminal)
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    session_reset: SessionReset = msgspec.field(default_factory=SessionReset)
    gateway: Gateway = msgspec.field(default_factory=Gateway)
    platforms: dict[str, dict[str, Any]] = {}
    api_server: ApiServer = msgspec.field(default_factory=ApiServer)
    webhooks: Webhooks = msgspec.field(default_factory=Webhooks)
    hooks: dict[str, Any] = {}


# Values of which only a few are allowed: path → what may stand there.
CHOICES: dict[str, tuple[str, ...]] = {
    "display.resume_display": ("full", "minimal"),
    "display.busy": ("interrupt", "queue"),
    "sessions.transcripts": ("all", "gateway", "off"),
    "store.durability": ("full", "normal"),
    "terminal.confirm": ("destructive", "always", "never"),
    "session_reset.mode": ("none", "idle", "daily", "both"),
}

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def config_path() -> Path:
    """Where the file is looked for."""
    return get_hermes_home() / "config.yaml"


def load_config(path: Path | None = None) -> Config:
    """The configuration; all defaults when there is no file. ConfigError says what is wrong and where."""
    path = config_path() if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read ({error}); mend it or move it away") from error
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """The configuration in a text (`path` is where it came from)."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
        raw = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{at}: this is not YAML ({getattr(error, 'problem', None) or error})") from error
    if raw is None:
        return Config()
    raw = expanded(raw, environment(path.parent))
    try:
        config = msgspec.convert(_without_empty(raw), Config)
    except msgspec.ValidationError as error:
        raise _explained(error, node, path) from error
    _check_choices(config, node, path)
    return config


def environment(home: Path) -> dict[str, str]:
    """The process's variables, and beneath them those of `<home>/.env`."""
    values: dict[str, str] = {}
    try:
        lines = (home / ".env").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip() and not name.startswith("#"):
            value = value.strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            values[name.strip()] = value
    return {**values, **os.environ}


def expanded(value: Any, variables: dict[str, str]) -> Any:
    """The value with `${VAR}` and `${VAR:-default}` filled in, at any depth; an unset variable is empty."""
    if isinstance(value, str):
        if "${" not in value:
            return value
        filled = _VARIABLE.sub(lambda m: variables.get(m[1]) or m[2] or "", value)
        return filled if filled or not _VARIABLE.fullmatch(value) else None
    if isinstance(value, dict):
        return {key: expanded(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [expanded(item, variables) for item in value]
    return value


def _without_empty(raw: Any) -> Any:
    """`section:` with nothing under it means its defaults."""
    if not isinstance(raw, dict):
        return raw
    known = Config.__annotations__
    return {key: value for key, value in raw.items() if value is not None or "None" in str(known.get(key, "None"))}


def _explained(error: msgspec.ValidationError, node: Any, path: Path) -> ConfigError:
    """msgspec's finding, with the line it is about and a likely name."""
    what, _, where = str(error).partition(" - at `$")
    keys = [part for part in re.split(r"[.\[\]`]+", where) if part and part != "..."]
    unknown = re.search(r"unknown field `([^`]*)`", what)
    if unknown:
        keys.append(unknown[1])
        hint = suggestion(unknown[1], _known_keys(keys[:-1]))
        what = f"nobody knows the key {'.'.join(keys)}{hint}"
        return ConfigError(f"{path} line {line_of(node, keys)}: {what}")
    name = ".".join(keys) or "the file"
    return ConfigError(f"{path} line {line_of(node, keys)}: {name}: {what[:1].lower()}{what[1:]}")


def _check_choices(config: Config, node: Any, path: Path) -> None:
    for name, allowed in CHOICES.items():
        keys = name.split(".")
        value: Any = config
        for key in keys:
            value = getattr(value, key)
        if value not in allowed:
            hint = suggestion(str(value), allowed)
            raise ConfigError(
                f"{path} line {line_of(node, keys)}: {name} is one of {', '.join(allowed)}, not {value!r}{hint}"
            )


def suggestion(name: str, known: Any) -> str:
    """'; did you mean X?' or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def line_of(node: Any, keys: list[str]) -> int:
    """The line of the key a path leads to, as far as the path can be followed."""
    line = 1
    for key in keys:
        items = getattr(node, "value", None)
        if not isinstance(items, list):
            break
        found = None
        for item in items:
            if isinstance(item, tuple) and str(item[0].value) == key:
                found = item
                break
        if found is None and key.isdigit() and int(key) < len(items) and not isinstance(items[int(key)], tuple):
            node = items[int(key)]
            line = node.start_mark.line + 1
            continue
        if found is None:
            break
        line = found[0].start_mark.line + 1
        node = found[1]
    return line


def _known_keys(keys: list[str]) -> list[str]:
    kind: Any = Config
    for key in keys:
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if _is_section(kind) else {}
        kind = _section_in(fields.get(key))
    return [field.name for field in msgspec.structs.fields(kind)] if _is_section(kind) else []


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _section_in(kind: Any) -> Any:
    if _is_section(kind):
        return kind
    return next((part for part in getattr(kind, "__args__", ()) if _is_section(part)), None)
