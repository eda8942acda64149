"""`hermes doctor`: what is configured, reachable, wrong, and how to fix it, one line each.

`checks_for` is the table: a name, a function that yields findings, and the hint for the errors it raises. A check changes
nothing, and waits a few seconds at most for another program or server. Wrong (✗) keeps something from working; a remark (!)
is a warning.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import click
import msgspec

from hermes.cli.options import json_option
from hermes.cli.output import colourful, message_lines, print_json, screen_width
from hermes.config import Config, load_config
from hermes.errors import HermesError, MissingExtra
from hermes.texts import counted, one_line


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report; without a name, that of the check."""

    name: str
    state: str  # "well", "remark" or "wrong"
    text: str
    hint: str = ""


Found = Iterator[DoctorFinding]


def well(text: str, name: str = "") -> DoctorFinding:
    """Everything is in order."""
    return DoctorFinding(name, "well", text)


def remark(text: str, hint: str, name: str = "") -> DoctorFinding:
    """A warning: it works, but should be looked at."""
    return DoctorFinding(name, "remark", text, hint)


def wrong(text: str, hint: str, name: str = "") -> DoctorFinding:
    """It keeps something from working."""
    return DoctorFinding(name, "wrong", text, hint)


class Check(NamedTuple):
    """A part of the report."""

    name: str
    run: Callable[[Config], Found]
    hint: str = "`hermes config edit` opens and checks it"  # where it raises an error


def checks_for(config: Config) -> list[Check]:
    """Every check of this home, in the order of the report."""
    from hermes.cli import checks, checks_online
    from hermes.gateway.settings import setup_command

    side = {task: getattr(config.auxiliary, task) for task in ("title", "summary", "compression")}
    tasks = [task for task, own in side.items() if own is not None and (own.model or own.base_url)]
    mend = (
        "hermes sessions repair" if config.store.url is None else "check store.url (hermes config show) and the server"
    )
    servers = [name for name in config.mcp_servers if not config.unset_in(f"mcp_servers.{name}")]
    return [
        Check("program", checks.program),
        Check("libraries", checks.libraries),
        Check("home", checks.home, "set HERMES_HOME to a folder of your own"),
        Check("config", checks.configuration, "`hermes config path` prints its path"),
        Check(".env", checks.env_file, "chmod 600 it, and save it as UTF-8"),
        Check("store", checks.store, mend),
        Check("model", partial(checks_online.model, task=None), "hermes model"),
        *(Check(f"auxiliary {task}", partial(checks_online.model, task=task), "hermes model") for task in tasks),
        Check("embedded model", checks.model_files),
        *(Check(f"MCP {name}", partial(checks_online.mcp_server, name=name)) for name in servers),
        Check("gateway", checks_online.gateway),
        *(
            Check(name, partial(checks_online.platform, name=name), setup_command(name))
            for name in config.enabled_platforms
        ),
        Check("webhooks", checks_online.webhooks),
        Check("API server", checks_online.api_server),
        Check("watch", checks.watch),
        Check("clients", checks.clients),
        Check("terminal", checks.terminal),
    ]


_INDENT = 19  # cells before the text of a check: a mark, and names up to "extra encryption"
_MARKS = {"well": ("✓", "green"), "remark": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command(
    help="Run checks: what is configured, what can be reached, what is wrong and how to fix it. Changes nothing."
)
@json_option()
def command(as_json: bool) -> int:
    findings: list[DoctorFinding] = []
    for finding in _examine():
        findings.append(finding)
        if not as_json:
            _print(finding)
    bad, remarks = (sum(finding.state == state for finding in findings) for state in ("wrong", "remark"))
    if as_json:
        print_json({"ok": not bad, "checks": msgspec.to_builtins(findings)})
    else:
        counts = (
            counted(bad, "problem") + " (✗)" if bad else "",
            counted(remarks, "warning") + " (!)" if remarks else "",
        )
        click.echo(f"\n{', '.join(filter(None, counts)) or 'No problems found'}.")
    return 1 if bad else 0


def _examine() -> Iterator[DoctorFinding]:
    """Every finding about this home, in order, each as soon as it is known; one cause has one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown key has a line of its own
            config = load_config()
    except HermesError:
        config = Config()  # the check of config.yaml reports what is wrong with it
    checks = checks_for(config)
    told: set[str] = set()
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        for answer in [pool.submit(_findings, check, config) for check in checks]:
            for one in answer.result():
                if one.state != "wrong" or one.text not in told:
                    yield one
                told.add(one.text)


def _findings(check: Check, config: Config) -> list[DoctorFinding]:
    """The findings of a check; its error is one more finding, so that it does not hide the others."""
    from hermes.store.redact import redact

    found: list[DoctorFinding] = []
    try:
        found.extend(check.run(config))
    except MissingExtra as error:
        found.append(wrong("its library is not installed", error.install))
    except HermesError as error:
        found.append(wrong(one_line(redact(str(error)))[:300], check.hint))
    except OSError as error:
        found.append(wrong(f"{error.filename or check.name} can't be reached ({error.strerror})", check.hint))
    except Exception as error:
        found.append(wrong(f"this check failed ({type(error).__name__}: {error})", "please report it"))
    return [replace(one, name=one.name or check.name) for one in found]


def _print(finding: DoctorFinding) -> None:
    mark, colour = _MARKS[finding.state]
    if colourful():
        mark = click.style(mark, fg=colour, bold=True)
    text = finding.text + (f" → {finding.hint}" if finding.hint else "")
    home = os.path.expanduser("~")
    text = text.replace(f"{home}/", "~/") if len(home) > 1 else text
    lines = message_lines(text, screen_width() - _INDENT) if sys.stdout.isatty() else [text]
    click.echo(f"{mark} {finding.name:<{_INDENT - 3}} " + f"\n{' ' * _INDENT}".join(lines))
