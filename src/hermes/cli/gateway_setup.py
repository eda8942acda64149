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

from hermes.cli.options import wrapped
from hermes.cli.output import message
from hermes.cli.pairing import make_owner
from hermes.config import environment, load_config, suggestion
from hermes.config.editing import put_value
from hermes.config.settings_schema import ACCOUNTS, ANSWERS_ONLY, DEFAULT_ACCOUNT
from hermes.errors import HermesError
from hermes.gateway.platforms import adapter_class, known_platforms
from hermes.gateway.settings import ACCOUNT_NAME, PEOPLE, check_accounts, listening, setting_value, variable_ending
from hermes.home import get_hermes_home, make_private, write_whole

if TYPE_CHECKING:
    from hermes.gateway.adapter import Adapter, Setting


# Keys that a new account does not take over from the platform's section, and what it has instead: no user may talk to it yet.
LOGIN_SECONDS = 3600.0  # a person is asked for codes, or scans one
Answer = TypeVar("Answer")
_OWNER = "owner"  # the key of --set for the user's own id
_OWN: dict[str, Any] = {"allowed_users": [], "allow_all": False, "home_channel": None}


@dataclass(frozen=True, slots=True)
class _Target:
    """The target of a setup: a platform, or one of several accounts of it."""

    kind: type[Adapter]
    account: str | None  # None: the platform's only one, or the one called `default`
    key: str  # where its section stands in config.yaml
    home: Path  # the folder of its files
    section: dict[str, Any]  # its present settings, without another account's secrets
    ending: str  # the ending of its variables
    new: bool = False  # an account that was not there yet

    @property
    def platform(self) -> str:
        return self.kind.platform

    def adapter(self, values: dict[str, Any]) -> Adapter:
        """The adapter, made as the gateway makes it."""
        made = self.kind(values, self.home)
        made.account_name = self.account
        made.webhook_place = listening(load_config())
        return made


def set_up(platform: str | None, account: str | None, *, check: bool, given: Sequence[str] = ()) -> int:
    """Ask for the settings, or take those `given` as KEY=VALUE; check and write them; the exit status."""
    if not given and not sys.stdin.isatty():
        raise click.ClickException(
            "setup asks questions and needs a terminal; without one, give the values:"
            f" `hermes gateway setup {platform or 'PLATFORM'} --set KEY=VALUE …`"
        )
    if platform is None and given:
        raise click.UsageError("--set needs a platform: `hermes gateway setup PLATFORM --set KEY=VALUE …`")
    if platform is None:
        known = known_platforms()
        click.echo(message(f"Platforms: {', '.join(known)}", sys.stdout))
        kind_of = click.Choice(known, case_sensitive=False)
        platform = str(click.prompt("Which platform?", type=kind_of, show_choices=False))
    if account is None and "/" in platform:  # the form in which status and doctor name it
        platform, _, account = platform.partition("/")
    kind, home = adapter_class(platform), get_hermes_home()
    target = _target(kind, account, home)
    if given:
        people, values = _read(target, given, environment(home))
    else:
        page = guide_page(f"platforms/{platform}.md")
        where = f" {page} shows the steps;" if page is not None else ""
        which = f", account {account}" if account is not None else ""
        click.echo(message(f"Setting up {kind.title}{which}.{where} Ctrl-C changes nothing.", sys.stdout))
        values = _ask(target, environment(home))
    if kind.logs_in and not given:
        values |= _with(target, values, lambda adapter: adapter.login(click.echo), LOGIN_SECONDS)
    _refuse_another(target, values, environment(home))
    if check:
        who = _with(target, values, lambda adapter: adapter.check(), 30)
        click.echo(f"✓ Logged in to {kind.title} as {who}.")
    if given:
        mine, others = people
    else:
        ask = partial(click.prompt, default="", show_default=False)
        mine = ask(wrapped("Your own user id there (full access; leave empty to set it later)"))
        others = ask(wrapped("Other user ids that may talk, separated by commas (empty: none)"))
    _write(target, values, home, mine.strip(), [one.strip() for one in others.split(",") if one.strip()])
    home_chat = "" if platform in ANSWERS_ONLY else "; send /sethome in the chat where handoffs should arrive"
    click.echo(f"Written. `hermes gateway` starts it{home_chat}.")
    if not mine.strip() and not any(one.startswith(f"{platform}:") for one in load_config().owner):
        click.echo("Write to it, and it sends you a code: `hermes pairing approve --owner CODE` makes you its owner.")
    return 0


def _target(kind: type[Adapter], account: str | None, home: Path) -> _Target:
    """The section for the settings of a platform or an account. ClickException when that is not clear."""
    from hermes.gateway.startup import account_home

    platform = kind.platform
    section = load_config().platforms.get(platform, {})
    accounts = section.get(ACCOUNTS)
    accounts = accounts if isinstance(accounts, dict) else {}
    if account is None and accounts:
        raise click.ClickException(
            f"{platform} has several accounts ({', '.join(map(str, accounts))}): say which one, or a new one:"
            f" `hermes gateway setup {platform} --account NAME`"
        )
    if account is None or (account == DEFAULT_ACCOUNT and not accounts):
        return _Target(kind, None, f"platforms.{platform}", home, section, "")
    if not ACCOUNT_NAME.fullmatch(account):
        raise click.ClickException(f"{account!r} is not a valid account name; use up to 32 of a-z, 0-9, _ and -")
    own = None if account == DEFAULT_ACCOUNT else account
    ending = variable_ending(own)
    for other in accounts:
        if other not in (account, DEFAULT_ACCOUNT) and own is not None and variable_ending(str(other)) == ending:
            raise click.ClickException(
                f"the variables of {account} and {other} would have one name: choose another name"
            )
    secrets = {one.name for one in kind.settings if one.secret}
    left_out = {*secrets, ACCOUNTS, *_OWN}  # keys of the other accounts
    common = {name: value for name, value in section.items() if name not in left_out}
    known = accounts.get(account)
    return _Target(
        kind, own, f"platforms.{platform}.{ACCOUNTS}.{account}",
        home if own is None else account_home(home, platform, own),
        {**(section if own is None else common), **(known if isinstance(known, dict) else {})}, ending,
        new=own is not None and known is None,
    )  # fmt: skip


def _refuse_another(target: _Target, values: dict[str, Any], variables: dict[str, str]) -> None:
    """ConfigError when these are the secrets of another account: each message would be answered twice."""
    config, platform = load_config(), target.platform
    section = config.platforms.get(platform)
    if section is None:
        return
    own, there = target.account or DEFAULT_ACCOUNT, section.get(ACCOUNTS)
    accounts = {**(there if isinstance(there, dict) else {DEFAULT_ACCOUNT: {}}), own: values}
    planned = config.changed(platforms={platform: {**section, ACCOUNTS: accounts}})
    check_accounts(planned, target.kind, f"{platform}/{own}", variables)


def _read(target: _Target, given: Sequence[str], variables: dict[str, str]) -> tuple[tuple[str, str], dict[str, Any]]:
    """The owner, the other people, and every setting: from KEY=VALUE, else its present value, else its default."""
    settings = {one.name: one for one in target.kind.settings}
    known = [*settings, _OWNER, PEOPLE]
    found: dict[str, Any] = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not sign or key not in known:
            wrong = f"unknown key {key!r}{suggestion(key, known)}" if sign else f"{key!r} is not KEY=VALUE"
            raise click.UsageError(f"--set: {wrong}; keys of {target.platform}: {', '.join(known)}")
        is_list = key in settings and settings[key].kind is list
        found[key] = [part.strip() for part in value.split(",") if part.strip()] if is_list else value
    people = str(found.pop(_OWNER, "")), str(found.pop(PEOPLE, ""))
    section = {**target.section, **found}
    name = target.platform if target.account is None else f"{target.platform}/{target.account}"
    values = {
        one.name: setting_value(one, section, variables, target.key, target.ending, name)
        for one in target.kind.settings
    }
    target.adapter(values).validate()
    return people, values


def _ask(target: _Target, variables: dict[str, str]) -> dict[str, Any]:
    """Ask for each setting. One that others can replace, or that the login gives, is optional and may be asked first."""
    values: dict[str, Any] = {}
    kind, section, ending = target.kind, target.section, target.ending
    choices = {setting.unless for setting in kind.settings} | {one.name for one in kind.settings if one.asked}
    for setting in sorted(kind.settings, key=lambda one: one.unless is not None):
        known = section.get(setting.name) or (variables.get(setting.variable + ending) if setting.variable else None)
        if kind.logs_in and setting.required and known is None and setting.secret:
            values[setting.name] = setting.default  # the login gives it
            continue
        needed = setting.required or (setting.unless is not None and not values.get(setting.unless))
        if not needed and (known is None or setting.unless is not None) and setting.name not in choices:
            values[setting.name] = setting.default
            continue
        values[setting.name] = _one(setting, known, optional=setting.name in choices)
    return values


def _one(setting: Setting, known: Any, *, optional: bool) -> Any:
    keep = " (Enter keeps the current value)" if known else " (Enter: none)" if optional else ""
    default = known if known is not None else "" if optional else setting.default
    shown = default is not None and not setting.secret
    answer = click.prompt(
        wrapped(f"{setting.help}{keep}"), default=default if default is not None else None, hide_input=setting.secret,
        show_default=shown, type=setting.kind if setting.kind in (int, float, bool) else str,
    )  # fmt: skip
    if setting.kind is list and isinstance(answer, str):
        return [one.strip() for one in answer.split(",") if one.strip()]
    return answer


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
    _keep_first(target)
    for setting in target.kind.settings:
        value = values[setting.name]
        if value in (setting.default, "") and not setting.required:
            continue
        if setting.secret:
            name = (setting.variable or f"{target.platform}_{setting.name}".upper()) + target.ending
            remember(home / ".env", name, str(value))
            value = "${" + name + "}"
        put_value(f"{target.key}.{setting.name}", value)
    put_value(f"{target.key}.enabled", True)
    if mine:
        make_owner(f"{target.platform}:{mine}")
    if others:
        allowed = [str(one) for one in target.section.get("allowed_users", [])]
        put_value(f"{target.key}.allowed_users", list(dict.fromkeys([*allowed, *others])))
    shared = load_config().platforms[target.platform]
    for name, empty in _OWN.items() if target.new else ():
        if name in shared and name not in shared[ACCOUNTS][target.account]:
            put_value(f"{target.key}.{name}", empty)


def _keep_first(target: _Target) -> None:
    """Make a platform without accounts the account `default`, which runs beside the new one."""
    section = load_config().platforms.get(target.platform, {})
    if target.account is not None and section and not isinstance(section.get(ACCOUNTS), dict):
        put_value(f"platforms.{target.platform}.{ACCOUNTS}.{DEFAULT_ACCOUNT}", {})
        click.echo(
            f"The one you have is the account `{DEFAULT_ACCOUNT}` from now on; it keeps its settings and conversations."
        )


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
