"""A platform's section of config.yaml (who may talk there, the home chat, the adapter's settings), and the gateway's timings."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hermes.config.settings_schema import ACCOUNTS, DEFAULT_ACCOUNT
from hermes.errors import ConfigError, HermesError, PlatformUnreachable, SlowDown

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter, Listening, Setting


COMMON = {"enabled": bool, "allow_all": bool, "home_channel": str, "require_mention": bool, "titles": bool}
PEOPLE = "allowed_users"
ACCOUNT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_SWITCHES = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
_KINDS = {bool: "true or false", list: "a list", str: "a text", int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """One section below `platforms:`, checked."""

    platform: str  # its name; of one of several accounts "telegram/work"
    allowed_users: frozenset[str] = frozenset()
    allow_all: bool = False
    home_channel: str | None = None
    require_mention: bool | None = None  # None: the platform's default
    values: Mapping[str, Any] = field(default_factory=dict)  # the adapter's own settings
    titles: bool = True  # whether the model gives conversations a title
    local_ids: bool = False  # in the events of a named account, its name and a slash stand before user ids


def platform_settings(
    config: Config, adapter: type[Adapter], variables: Mapping[str, str], *, account: str | None = None
) -> PlatformSettings:
    """A platform's section, or that of one of its accounts, completed from the environment.

    ConfigError names what is missing or wrong. An account's variables end with its name: TELEGRAM_BOT_TOKEN_WORK.
    """
    name = adapter.platform if account is None else f"{adapter.platform}/{account}"
    for one in config.unset_of(name):
        raise ConfigError(str(one))
    check_accounts(config, adapter, name, variables)
    section = config.platform_section(name)
    where, ending = section_key(config, name), variable_ending(account)
    known = {setting.name: setting for setting in adapter.settings}
    for key in section:
        if key not in known and key not in COMMON and key != PEOPLE:
            from hermes.config import suggestion

            raise ConfigError(f"unknown configuration key: {where}.{key}{suggestion(key, [*known, *COMMON, PEOPLE])}")
    typed = {key: _typed(section.get(key), kind, f"{where}.{key}") for key, kind in COMMON.items()}
    common = {key: value for key, value in typed.items() if value is not None and key != "enabled"}
    values = {one.name: setting_value(one, section, variables, where, ending, name) for one in adapter.settings}
    variable = allowed_variable(adapter.platform) + ending
    allowed = _people(section.get(PEOPLE), f"{where}.{PEOPLE}") | _people(variables.get(variable), variable)
    return PlatformSettings(name, allowed, values=values, local_ids=adapter.local_ids, **common)


def variable_ending(account: str | None) -> str:
    """How the environment variables of an account end: "_WORK"; "" for a platform's only account."""
    return "" if account is None else f"_{account.upper().replace('-', '_')}"


def setup_command(name: str) -> str:
    """The command that asks for the settings of "telegram" or "telegram/work"."""
    return f"hermes gateway setup {name}"


def section_key(config: Config, name: str) -> str:
    """The path of a platform's or an account's section in config.yaml."""
    platform, _, account = name.partition("/")
    has_accounts = isinstance(config.platforms.get(platform, {}).get(ACCOUNTS), dict)
    return f"platforms.{platform}.{ACCOUNTS}.{account or DEFAULT_ACCOUNT}" if has_accounts else f"platforms.{platform}"


def check_accounts(config: Config, adapter: type[Adapter], name: str, variables: Mapping[str, str]) -> None:
    """ConfigError when `accounts:` is wrong, or an earlier account is the same bot: each message would be answered twice."""
    platform = adapter.platform
    accounts, where = config.platforms.get(platform, {}).get(ACCOUNTS), f"platforms.{platform}.{ACCOUNTS}"
    if accounts is None:
        return
    mine = name.partition("/")[2] or DEFAULT_ACCOUNT
    if not isinstance(accounts, dict) or not isinstance(accounts.get(mine), dict):
        raise ConfigError(
            f"{where} must be names, each with the settings of that account: {{work: {{…}}, private: {{…}}}}"
        )
    if not ACCOUNT_NAME.fullmatch(mine):
        raise ConfigError(f"{where}: {mine!r} is not a valid account name; use up to 32 of a-z, 0-9, _ and -")
    secrets = [one for one in adapter.settings if one.secret and (one.required or one.unless)]
    seen: dict[tuple[Any, ...], str] = {}
    for account in accounts:
        own = None if account == DEFAULT_ACCOUNT else account
        section = config.platform_section(platform if own is None else f"{platform}/{own}")
        logins = [section.get(one.name) or variables.get(f"{one.variable}{variable_ending(own)}") for one in secrets]
        first = seen.setdefault(tuple(map(str, logins)), account)
        if any(logins) and account == mine and first != account:
            raise ConfigError(f"{where}.{account} is the same account as {first}: give it its own {secrets[0].name}")


def listening(config: Config) -> Listening:
    """The address of the gateway's HTTP listener, and what it allows."""
    from hermes.gateway.adapter import Listening

    here = config.gateway.listen
    return Listening(host=here.host, port=here.port, public_url=here.public_url)


def allowed_variable(platform: str) -> str:
    """The environment variable that names people who may talk: TELEGRAM_ALLOWED_USERS."""
    return f"{platform.upper().replace('-', '_')}_ALLOWED_USERS"


def _people(value: Any, where: str) -> frozenset[str]:
    """User ids as people write them: a list, a single one, or a text with commas. An impossible id is an error."""
    if value is None:
        return frozenset()
    if not isinstance(value, list | str | int) or isinstance(value, bool):
        raise ConfigError(f"{where} must be a list of user ids, not {type(value).__name__}")
    several = value if isinstance(value, list) else str(value).split(",")
    for one in several:
        if not isinstance(one, str | int) or isinstance(one, bool):
            raise ConfigError(f"{where}: {one!r} is not a user id; put ids in quotes")
        if str(one).strip() == "*":
            raise ConfigError(f'{where}: "*" matches no user; to let everyone in, write `allow_all: true`')
    return frozenset(str(one).strip() for one in several if str(one).strip())


def setting_value(
    setting: Setting, section: Mapping[str, Any], variables: Mapping[str, str], place: str, ending: str, name: str
) -> Any:
    """A setting of the connection `name`, from its section at `place`, else from its variable; ConfigError if it is missing."""
    where = f"{place}.{setting.name}"
    value = section.get(setting.name)
    if _is_blank(value):
        value = variables.get(f"{setting.variable}{ending}") if setting.variable else None
        if value is not None and setting.kind is list:
            value = [one.strip() for one in str(value).split(",") if one.strip()]
    if _is_blank(value):
        if setting.required:
            hint = f" (or the variable {setting.variable}{ending})" if setting.variable else ""
            raise ConfigError(f"{where} is missing: {setting.help}{hint}; `{setup_command(name)}` asks for it")
        return setting.default
    return _typed(value, setting.kind, where)


def _is_blank(value: Any) -> bool:
    """Whether a value is missing: a secret of spaces alone would be an empty one."""
    return value is None or (isinstance(value, str) and not value.strip())


def _typed(value: Any, kind: type, where: str) -> Any:
    """A value of the wanted type; texts from the environment are parsed."""
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind is bool and isinstance(value, str):
        value = _SWITCHES.get(value.lower(), value)
    parsed = kind in (int, float) and isinstance(value, str)
    try:
        return None if value is None else msgspec.convert(value, kind, strict=not parsed)
    except msgspec.ValidationError:
        raise ConfigError(f"{where} must be {_KINDS.get(kind, kind.__name__)}, not {type(value).__name__}") from None


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds. A program that embeds a Gateway can give it other ones."""

    turns_end: float = 5.0  # for turns to end by themselves when the gateway stops
    answer: float = 300.0  # for a person to answer a question; then the answer is no
    reconnect: float = 1.0  # before a lost connection is established again; doubled with each failure
    retry: float = 0.25  # before a failed message is sent again; doubled with each failure
    reset_check: float = 30.0  # between two searches for quiet conversations
    index_pause: float = 0.15  # between two writes of sessions.json, at least
    index_check: float = 60.0  # between two checks for changes without a notification: a title, another process


STANDARD = Timings()


async def retried(
    work: Callable[[], Awaitable[Result]], seconds: float, may_repeat: Callable[[Exception], bool]
) -> Result:
    """Return what `work` gives; a rate limit or a broken connection is waited out, if it may be repeated, for so many seconds."""
    loop, pause = asyncio.get_running_loop(), 0.5
    end = loop.time() + seconds
    async with asyncio.timeout_at(end):
        while True:
            try:
                return await work()
            except (SlowDown, PlatformUnreachable) as error:
                wait = error.retry_after if isinstance(error, SlowDown) else pause
                if not may_repeat(error) or loop.time() + wait > end:
                    raise
            await asyncio.sleep(max(0.05, wait))
            pause = min(pause * 2, 10.0)


async def repeat(work: Callable[[], Awaitable[object]], seconds: float, failed: str) -> None:
    """Do something again and again, with a pause after each time, until cancelled; `failed` is logged where it fails."""
    while True:
        try:
            await work()
        except HermesError as error:
            logging.getLogger("hermes.gateway").warning("%s: %s", failed, error)
        await asyncio.sleep(seconds)
