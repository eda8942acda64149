"""`hermes gateway setup`: asks for a platform's settings, or takes them from `--set`, tries them, and writes them to config.yaml.

Secrets go to `<home>/.env`, which only the user can read, and config.yaml names them; so config.yaml can be shown to others.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hermes.cli.gateway import make_owner
from hermes.cli.output import message, wrapped
from hermes.config import environment, load_config, suggestion
from hermes.config.editing import put_value
from hermes.config.settings_schema import ACCOUNTS, ANSWERS_ONLY, DEFAULT_ACCOUNT
from hermes.errors import HermesError
from hermes.gateway.platforms import adapter_class, known_platforms
from hermes.gateway.settings import PEOPLE, listening, section_key, setting_value, variable_ending
from hermes.home import get_hermes_home, make_private, write_whole

if TYPE_CHECKING:
    from hermes.gateway.adapter import Adapter, Setting


LOGIN_SECONDS = 3600.0  # a person is asked for codes, or scans one
Answer = TypeVar("Answer")
_OWNER = "owner"  # the key of --set for the user's own id


@dataclass(frozen=True, slots=True)
class _Target:
    """The target of a setup: a platform, or one of several accounts of it."""

    kind: type[Adapter]
    name: str  # "telegram", or "telegram/work"
    account: str | None  # None: the platform's only one, or the one called `default`
    key: str  # where its section stands in config.yaml
    home: Path  # the folder of its files
    section: dict[str, Any]  # its present settings

    @property
    def ending(self) -> str:
        """The ending of its variables."""
        return variable_ending(self.account)

    def adapter(self, values: dict[str, Any]) -> Adapter:
        """The adapter, made as the gateway makes it."""
        made = self.kind(values, self.home)
        made.account_name = self.account
        made.webhook_place = listening(load_config())
        return made


def set_up(platform: str | None, *, check: bool, given: Sequence[str] = ()) -> int:
    """Ask for the settings, or take those `given` as KEY=VALUE; check and write them; the exit status."""
    if not given and not sys.stdin.isatty():
        give = f"`hermes gateway setup {platform or 'PLATFORM'} --set KEY=VALUE …`"
        raise click.ClickException(f"setup asks questions and needs a terminal; without one, give the values: {give}")
    if platform is None and given:
        raise click.UsageError("--set needs a platform: `hermes gateway setup PLATFORM --set KEY=VALUE …`")
    if platform is None:
        known = known_platforms()
        click.echo(message(f"Platforms: {', '.join(known)}", sys.stdout))
        kind_of = click.Choice(known, case_sensitive=False)
        platform = str(click.prompt("Which platform?", type=kind_of, show_choices=False))
    platform, _, account = platform.partition("/")  # the form in which status and doctor name an account
    kind, home = adapter_class(platform), get_hermes_home()
    target, variables = _target(kind, account, home), environment(home)
    mine = others = ""
    if given:
        mine, others, found = _given(target, given)
    else:
        page = guide_page(f"platforms/{platform}.md")
        where = f" {page} shows the steps;" if page is not None else ""
        which = f", account {target.account}" if target.account is not None else ""
        click.echo(message(f"Setting up {kind.title}{which}.{where} Ctrl-C changes nothing.", sys.stdout))
        found = _asked(target, variables)
        if kind.logs_in:
            values = {
                one.name: one.default if found.get(one.name) is None else found[one.name] for one in kind.settings
            }
            found |= _with(target, values, lambda adapter: adapter.login(click.echo), LOGIN_SECONDS)
    section = {**target.section, **found}
    values = {
        one.name: setting_value(one, section, variables, target.key, target.ending, target.name)
        for one in kind.settings
    }
    target.adapter(values).validate()
    if check:
        who = _with(target, values, lambda adapter: adapter.check(), 30)
        click.echo(f"✓ Logged in to {kind.title} as {who}.")
    if not given:
        ask = partial(click.prompt, default="", show_default=False)
        mine = ask(wrapped("Your own user id there (full access; leave empty to set it later)"))
        others = ask(wrapped("Other user ids that may talk, separated by commas (empty: none)"))
    _write(target, values, home, mine.strip(), _listed(others))
    home_chat = "" if platform in ANSWERS_ONLY else "; send /sethome in the chat where handoffs should arrive"
    click.echo(f"Written. `hermes gateway` starts it{home_chat}.")
    if not mine.strip() and not any(one.startswith(f"{platform}:") for one in load_config().owner):
        click.echo("Write to it, and it sends you a code: `hermes pairing approve --owner CODE` makes you its owner.")
    return 0


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _target(kind: type[Adapter], account: str, home: Path) -> _Target:
    """The section for the settings of a platform or an account. ClickException when that is not clear."""
    from hermes.gateway.startup import account_home

    config, platform = load_config(), kind.platform
    there = config.platforms.get(platform, {}).get(ACCOUNTS)
    accounts = there if isinstance(there, dict) else {}
    named = account or (DEFAULT_ACCOUNT if accounts else "")
    if named and named not in accounts:
        names = ", ".join(f"{platform}/{one}" for one in accounts) or "none"
        adds = f"an account is listed under platforms.{platform}.{ACCOUNTS} first (`hermes config edit`)"
        raise click.ClickException(f"{adds}; there now: {names}")
    name, own = (platform, None) if account in ("", DEFAULT_ACCOUNT) else (f"{platform}/{account}", account)
    folder = home if own is None else account_home(home, platform, own)
    return _Target(kind, name, own, section_key(config, name), folder, config.platform_section(name))


def _given(target: _Target, given: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """The owner, the other people, and the settings that are given as KEY=VALUE."""
    settings = {one.name: one for one in target.kind.settings}
    known = [*settings, _OWNER, PEOPLE]
    found: dict[str, Any] = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not sign or key not in known:
            wrong = f"unknown key {key!r}{suggestion(key, known)}" if sign else f"{key!r} is not KEY=VALUE"
            raise click.UsageError(f"--set: {wrong}; keys of {target.kind.platform}: {', '.join(known)}")
        found[key] = _listed(value) if key in settings and settings[key].kind is list else value
    return str(found.pop(_OWNER, "")), str(found.pop(PEOPLE, "")), found


def _asked(target: _Target, variables: dict[str, str]) -> dict[str, Any]:
    """Ask for each setting. One that others can replace, or that the login gives, is optional and may be asked first."""
    found: dict[str, Any] = {}
    kind, section = target.kind, target.section
    choices = {setting.unless for setting in kind.settings} | {one.name for one in kind.settings if one.asked}
    for setting in sorted(kind.settings, key=lambda one: one.unless is not None):
        known = section.get(setting.name) or variables.get(f"{setting.variable}{target.ending}")
        needed = setting.required or (setting.unless is not None and not found.get(setting.unless))
        by_login = kind.logs_in and setting.required and setting.secret and known is None
        is_asked = needed or setting.name in choices or (known is not None and setting.unless is None)
        if by_login or not is_asked:
            found[setting.name] = None  # its default, or what the login gives
        else:
            found[setting.name] = _one(setting, known, optional=setting.name in choices)
    return found


def _one(setting: Setting, known: Any, *, optional: bool) -> Any:
    keep = " (Enter keeps the current value)" if known else " (Enter: none)" if optional else ""
    default = known if known is not None else "" if optional else setting.default
    shown = default is not None and not setting.secret
    answer = click.prompt(
        wrapped(f"{setting.help}{keep}"), default=default if default is not None else None, hide_input=setting.secret,
        show_default=shown, type=setting.kind if setting.kind in (int, float, bool) else str,
    )  # fmt: skip
    return _listed(answer) if setting.kind is list and isinstance(answer, str) else answer


def _with(
    target: _Target, values: dict[str, Any], ask: Callable[[Adapter], Awaitable[Answer]], seconds: float
) -> Answer:
    """Call the adapter; ClickException when that fails."""

    async def answer() -> Answer:
        adapter = target.adapter(values)
        try:
            async with asyncio.timeout(seconds):
                return await ask(adapter)
        except TimeoutError:
            raise HermesError(f"no answer within {seconds:.0f} seconds") from None
        finally:
            await adapter.disconnect()

    try:
        return asyncio.run(answer())
    except HermesError as error:
        title = target.kind.title
        text = str(error) if title in str(error) else f"{title}: {error}"
        raise click.ClickException(f"{text}. Nothing was written.") from error


def _write(target: _Target, values: dict[str, Any], home: Path, mine: str, others: list[str]) -> None:
    for setting in target.kind.settings:
        value = values[setting.name]
        if value in (setting.default, "") and not setting.required:
            continue
        if setting.secret:
            name = (setting.variable or f"{target.kind.platform}_{setting.name}".upper()) + target.ending
            remember(home / ".env", name, str(value))
            value = "${" + name + "}"
        put_value(f"{target.key}.{setting.name}", value)
    put_value(f"{target.key}.enabled", True)
    if mine:
        make_owner(f"{target.kind.platform}:{mine}")
    if others:
        allowed = [str(one) for one in target.section.get("allowed_users", [])]
        put_value(f"{target.key}.allowed_users", list(dict.fromkeys([*allowed, *others])))


def guide_page(name: str) -> Path | None:
    """The path of a page of the guide: installed with the program, or in the repository it runs from."""
    import hermes

    package = Path(hermes.__file__).parent
    pages = (package / "guide" / name, package.parents[1] / "docs" / "guide" / name)
    return next((page for page in pages if page.is_file()), None)


def remember(path: Path, name: str, value: str) -> None:
    """Put a variable into a .env file that only its owner can read, replacing an older value."""
    make_private(path.parent)
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if line.removeprefix("export ").partition("=")[0].strip() != name]
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    write_whole(path, "\n".join([*kept, f'{name}="{text}"']) + "\n")
