"""The keys of config.yaml, each with its type, its default, and the allowed values.

The classes are the list of keys, and their types say everything that is checked: choices, ranges, patterns, known names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from hermes.errors import ConfigError

MOST_BYTES = 1_000_000  # a configuration written by hand is shorter


Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Hour = Annotated[int, Meta(ge=0, le=23)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Url = Annotated[str, Meta(pattern=r"^https?://[^/\s]", description="a URL that begins with http:// or https://")]
Person = Annotated[str, Meta(pattern=r"^[^\s:]+:\S+$", description="PLATFORM:USER, such as telegram:12345")]
Timezone = Annotated[str, Meta(description="a name such as Europe/Berlin")]
Busy = Literal["interrupt", "queue"]
HookName = Annotated[str, Meta(extra={"names": ("on_session_finalize", "on_session_reset")})]
ResetMode = Literal["none", "idle", "daily", "both"]


class Section(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A mapping with known keys."""


class ModelSettings(Section):
    """Who answers. Nothing set: a server on this machine, then the embedded model."""

    default: str | None = None
    base_url: Url | None = None
    api_key: str | None = None
    context_length: Positive | None = None


class Auxiliary(Section):
    """A model for a side task; unset keys are those of the main model."""

    model: str | None = None
    base_url: Url | None = None
    api_key: str | None = None
    timeout: Annotated[float, Meta(ge=0.1)] | None = None


class Summary(Auxiliary):
    """The model that sums up what session_search found, and how much it may say."""

    max_chars: Annotated[int, Meta(ge=100)] = 12_000
    max_concurrency: Annotated[int, Meta(ge=1, le=64)] = 3


class Auxiliaries(Section):
    """The side tasks."""

    title: Auxiliary | None = None
    summary: Summary = msgspec.field(default_factory=Summary)
    compression: Auxiliary | None = None


class Compression(Section):
    """When a long conversation is summed up, and what stays word for word."""

    enabled: bool = True
    threshold: Share = 0.5
    protect_first_n: Count = 1
    protect_last_n: Count = 20


class DisplaySettings(Section):
    """Settings of the display."""

    resume_display: Literal["full", "minimal"] = "full"
    busy: Busy = "interrupt"
    platforms: dict[str, dict[Annotated[str, Meta(extra={"names": ("busy",)})], Busy]] = {}


class Sessions(Section):
    """How long conversations are kept."""

    auto_prune: bool = False
    retention_days: Amount = 90
    vacuum_after_prune: bool = True
    min_interval_hours: Amount = 24
    transcripts: Literal["all", "gateway", "off"] = "all"
    trash_days: Amount = 7


class Privacy(Section):
    """Settings of masking before text is stored."""

    redact_secrets: bool = True


class Store(Section):
    """Settings of the store."""

    url: str | None = None
    path: str | None = None
    durability: Literal["full", "normal"] = "full"
    key_file: str | None = None
    passphrase_file: str | None = None


class Memory(Section):
    """Lines the agent keeps about you, and what it recalls from earlier conversations."""

    enabled: bool = True
    recall: Literal["auto", "off"] = "auto"


class McpServer(Section):
    """A server with tools: a program to start (command, args, env) or an address (url, headers)."""

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    url: Url | None = None
    headers: dict[str, str] = {}


class Terminal(Section):
    """Which commands the agent asks about."""

    approval: Literal["ask", "all", "never"] = "ask"


class PermissionRule(Section):
    """A rule for a command in one folder and below it."""

    command: str = ""
    folder: str | None = None


class Permissions(Section):
    """Commands that need no question, and commands that never run: program and sub-command, for a folder or everywhere."""

    allow: list[str | PermissionRule] = []
    deny: list[str | PermissionRule] = []


class ResetOverride(Section):
    """When a new session begins on one platform or in one type of chat; None follows session_reset."""

    mode: ResetMode | None = None
    idle_minutes: Amount | None = None
    at_hour: Hour | None = None
    notify: bool | None = None


class SessionReset(Section):
    """When a chat begins a new session."""

    mode: ResetMode = "none"
    idle_minutes: Amount = 1440
    at_hour: Hour = 4
    notify: bool = True
    by_platform: dict[str, ResetOverride] = {}
    by_type: dict[Annotated[str, Meta(extra={"names": ("dm", "group", "channel")})], ResetOverride] = {}


class StreamingSettings(Section):
    """How a reply grows on a chat platform."""

    enabled: bool = True
    edit_interval: Amount = 1.0
    buffer_threshold: Positive = 40
    cursor: str = " ▉"


class Media(Section):
    """Pictures and voice messages."""

    vision_model: str | None = None
    stt_model: str | None = None
    max_mb: Amount = 20


class BrakeSettings(Section):
    """Rate limit per sender, so that two programs do not answer each other without end; 0 disables it."""

    per_minute: Count = 30


class Listen(Section):
    """The port that platforms call: webhooks of all adapters share it."""

    host: str = "127.0.0.1"
    port: Port = 8644
    public_url: Url | None = None


class GatewaySettings(Section):
    """Settings of the messengers."""

    listen: Listen = msgspec.field(default_factory=Listen)
    brake: BrakeSettings = msgspec.field(default_factory=BrakeSettings)
    streaming: StreamingSettings = msgspec.field(default_factory=StreamingSettings)
    media: Media = msgspec.field(default_factory=Media)


class ApiServerSettings(Section):
    """Settings of the HTTP server."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Port = 8642
    token: str | None = None


class WebSettings(Section):
    """The page (`hermes web`), where others than the person at this machine reach it."""

    host: str = "127.0.0.1"
    port: Port = 0
    password: str | None = None
    url: Url | None = None
    user_header: str | None = None
    proxy_secret: str | None = None
    users: dict[str, str] = {}


class WebhookRouteSettings(Section):
    """One address that other programs call."""

    secret: str | None = None
    scheme: Literal["github", "gitlab", "standard", "stripe", "x-signature"] = "github"
    prompt: str | None = None
    deliver: str | None = None


class Webhooks(Section):
    """Addresses that other programs call."""

    host: str = "127.0.0.1"
    port: Port = 8644
    routes: dict[str, WebhookRouteSettings] = {}


class Unset(msgspec.Struct, frozen=True):
    """A variable that a value names (`${NAME}`, without a default) and that has no value."""

    key: str  # the key whose value it is: "api_server.token"
    variable: str

    def __str__(self) -> str:
        return (
            f"{self.key}: the variable {self.variable} is not set; set it in the environment or in the file .env"
            f" beside config.yaml (for an empty value write ${{{self.variable}:-}})"
        )


ACCOUNTS, DEFAULT_ACCOUNT = "accounts", "default"
# Platforms where a bot may only answer, and why: they get no handoffs and no replies of cron jobs.
ANSWERS_ONLY = {
    "qqbot": "QQ has taken no messages on a bot's own account since April 2025; a bot can only answer there"
}


def _connection(platform: str, account: Any) -> str:
    return platform if account == DEFAULT_ACCOUNT else f"{platform}/{account}"


def _is_on(section: dict[str, Any]) -> bool:
    return str(section.get("enabled", True)).strip().lower() not in ("false", "no", "off", "0")


class Config(Section, dict=True):
    """The whole file. A value whose variable is not set is missing from it, and listed in `unset`."""

    model: ModelSettings = msgspec.field(default_factory=ModelSettings)
    auxiliary: Auxiliaries = msgspec.field(default_factory=Auxiliaries)
    compression: Compression = msgspec.field(default_factory=Compression)
    display: DisplaySettings = msgspec.field(default_factory=DisplaySettings)
    sessions: Sessions = msgspec.field(default_factory=Sessions)
    privacy: Privacy = msgspec.field(default_factory=Privacy)
    store: Store = msgspec.field(default_factory=Store)
    owner: list[Person] = []
    timezone: Timezone | None = None
    memory: Memory = msgspec.field(default_factory=Memory)
    mcp_servers: dict[str, McpServer] = {}
    terminal: Terminal = msgspec.field(default_factory=Terminal)
    permissions: Permissions = msgspec.field(default_factory=Permissions)
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    session_reset: SessionReset = msgspec.field(default_factory=SessionReset)
    gateway: GatewaySettings = msgspec.field(default_factory=GatewaySettings)
    platforms: dict[str, dict[str, Any]] = {}
    api_server: ApiServerSettings = msgspec.field(default_factory=ApiServerSettings)
    web: WebSettings = msgspec.field(default_factory=WebSettings)
    webhooks: Webhooks = msgspec.field(default_factory=Webhooks)
    hooks: dict[HookName, str | list[str]] = {}

    @property
    def unset(self) -> tuple[Unset, ...]:
        """The variables that values name and that are not set."""
        found: tuple[Unset, ...] = self.__dict__.get("unset_variables", ())
        return found

    def unset_in(self, *parts: str) -> list[Unset]:
        """The unset variables that values at or below these keys name."""
        return [one for one in self.unset if any(one.key == part or one.key.startswith(f"{part}.") for part in parts)]

    def require_set(self, *parts: str) -> None:
        """ConfigError when a value at or below these keys names a variable that is not set.

        To be called by the code that uses these keys: a missing secret must never count as "no secret wanted".
        """
        for one in self.unset_in(*parts):
            raise ConfigError(str(one))

    def require_known(self, *parts: str) -> None:
        """ConfigError when a key at or below these is unknown.

        To be called where a misspelt key would send messages elsewhere or give a stranger access; other such keys are ignored
        with a warning.
        """
        unknown: dict[str, str] = self.__dict__.get("unknown_keys", {})
        for key, problem in unknown.items():
            if any(key.startswith(f"{part}.") for part in parts):
                raise ConfigError(problem)

    def changed(self, **values: Any) -> Config:
        """A copy with other values; the variables that are not set stay known (msgspec's own `replace` forgets them)."""
        made = msgspec.structs.replace(self, **values)
        made.__dict__.update(self.__dict__)
        return made

    @property
    def enabled_platforms(self) -> list[str]:
        """The chat platforms that are switched on: those named, unless they say `enabled: false` (also by a variable).

        Of a platform with `accounts:` each account: "telegram" for the one called `default`, "telegram/work" for others.
        """
        found = []
        for platform, section in self.platforms.items():
            accounts = section.get(ACCOUNTS)
            names = [platform] if not isinstance(accounts, dict) else [_connection(platform, one) for one in accounts]
            found += [name for name in names if _is_on(self.platform_section(name))]
        return found

    def why_answers_only(self, name: str) -> str | None:
        """Why a platform takes only answers, no handoffs and no deliveries; None where it takes everything."""
        return ANSWERS_ONLY.get(name.partition("/")[0])

    def platform_section(self, name: str) -> dict[str, Any]:
        """The section of "telegram" or of its account "telegram/work": the platform's keys, replaced by the account's own."""
        platform, _, account = name.partition("/")
        section = self.platforms.get(platform, {})
        accounts = section.get(ACCOUNTS)
        own = accounts.get(account or DEFAULT_ACCOUNT) if isinstance(accounts, dict) else None
        common = {key: value for key, value in section.items() if key != ACCOUNTS or not isinstance(value, dict)}
        return {**common, **own} if isinstance(own, dict) else common

    def unset_of(self, name: str) -> list[Unset]:
        """The variables without a value that the section of "telegram" or "telegram/work" asks for."""
        platform, _, account = name.partition("/")
        mine = f"platforms.{platform}.{ACCOUNTS}.{account or DEFAULT_ACCOUNT}"
        others = f"platforms.{platform}.{ACCOUNTS}."
        found = self.unset_in(f"platforms.{platform}")
        return [one for one in found if not one.key.startswith(others) or one.key.startswith(f"{mine}.")]


_SECRET = re.compile(
    r"(?:^|[_-])(?:api_?key|token|secret|password|passphrase|credentials?|authorization|cookie)$", re.I
)
_SECRET_VARIABLE = re.compile(r"key|token|secret|pass|cred|auth", re.I)
# Up to the last @: a password that is not percent-encoded may have / @ and spaces in it.
_PASSWORD_IN_URL = re.compile(r"(\A[a-z][a-z0-9+.-]*://[^/:]*:)(.+)@|(://[^/:\s]*:)[^/\s]+@", re.I | re.S)
# Its password, if any, is percent-encoded; after the host an @ only begins a folder's name, or is in the query.
_HOST = r"(?:\[[^\]@\s]*\]|[^/:@?#,\s\[\]]*)(?::\d*)?"
_SOUND_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[^/:@?#\s]*(?::(?:[^/?#@\[\]\s%]|%[0-9a-f]{2})*)?@)?"
    rf"{_HOST}(?:,{_HOST})*(?:/[^@?#\s]*)?(?:/@[^@?#\s]*)*(?:[?#]|\Z)",
    re.I,
)
_SECRET_IN_QUERY = re.compile(r"([?&](?:\w*password|\w*token|\w*secret|\w*key)=)[^&]+", re.I)


def is_secret(keys: list[str]) -> bool:
    """Whether the value under a key is secret."""
    if len(keys) >= 2 and keys[-2] in ("headers", "keys"):
        return True
    if len(keys) >= 2 and keys[-2] == "env":
        return _SECRET_VARIABLE.search(keys[-1]) is not None
    return bool(keys) and _SECRET.search(keys[-1]) is not None


def masked(value: Any, keys: list[str]) -> Any:
    """A value as it may be shown: secrets as dots and their last characters, at any depth."""
    if isinstance(value, dict):
        return {key: masked(item, [*keys, str(key)]) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, keys) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if is_secret(keys):
        text = str(value)
        return "••••" + (text[-4:] if len(text) >= 16 else "")
    if not isinstance(value, str) or "://" not in value:
        return value
    hidden = _PASSWORD_IN_URL.sub(lambda found: f"{found[1] or found[3]}••••@", value)
    return _SECRET_IN_QUERY.sub(r"\1••••", hidden)


def is_torn(url: str) -> bool:
    """Whether a URL's password has characters that end it too early; what follows them would be shown as host or path."""
    found = _PASSWORD_IN_URL.match(url)
    return found is not None and found[2] is not None and not _SOUND_URL.match(url)


def suggestion(name: str, known: Any) -> str:
    """The hint '; did you mean X?', or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name[:100], list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def meant(keys: list[str], known: Iterable[str]) -> str:
    """The hint '; did you mean X?' for an unknown key: one of the `known` keys beside it, else one of its name elsewhere."""
    elsewhere = [key for key in every_key() if key.split(".")[-1] == keys[-1]]
    return suggestion(keys[-1], known) or (f"; did you mean {elsewhere[0]}?" if elsewhere else "")


def fields_of(kind: Any) -> dict[str, Any]:
    """The known keys of a section or a mapping, and their types; none where every key is allowed."""
    if is_section(kind):
        return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    if get_origin(kind) is dict and get_origin(get_args(kind)[0]) is Annotated:
        return dict.fromkeys(get_args(kind)[0].__metadata__[0].extra["names"], get_args(kind)[1])
    return {}


def is_section(kind: Any) -> bool:
    """Whether a type is a mapping with known keys."""
    return isinstance(kind, type) and issubclass(kind, Section)


def members(kind: Any) -> tuple[Any, ...]:
    """The types a value may have, without None."""
    if get_origin(kind) in (UnionType, Union):
        return tuple(part for part in get_args(kind) if part is not NoneType)
    return (kind,)


def may_be_null(kind: Any) -> bool:
    """Whether null is a value of its own here."""
    return kind is Any or NoneType in get_args(kind)


def type_at(keys: list[str]) -> Any:
    """The type of the value under a key; KeyError at the first unknown name."""
    kind: Any = Config
    for key in keys:
        inner = members(kind)[0]
        if inner is Any:
            return Any
        known = fields_of(inner)
        kind = get_args(inner)[1] if get_origin(inner) is dict and not known else known[key]
    return kind


def every_key(kind: Any = Config, above: tuple[str, ...] = ()) -> list[str]:
    """The full name of each key that has a value of its own, sections that may be null as well."""
    found = []
    for name, inner in fields_of(kind).items():
        section = members(inner)[0]
        if not is_section(section) or may_be_null(inner):
            found.append(".".join((*above, name)))
        if is_section(section):
            found += every_key(section, (*above, name))
    return found
