"""`hermes doctor`: what is configured, reachable, wrong, and how to fix it, one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import click
import msgspec

from hermes.cli.common import json_option
from hermes.cli.shared import colourful, print_json
from hermes.cli.table import message_lines, screen_width
from hermes.texts import counted


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """What a check found."""

    name: str
    state: str  # "well", "remark" or "wrong"
    text: str
    hint: str = ""


Found = Iterator[DoctorFinding]


def well(name: str, text: str) -> DoctorFinding:
    """Everything is in order."""
    return DoctorFinding(name, "well", text)


def remark(name: str, text: str, hint: str) -> DoctorFinding:
    """A warning: it works, but should be looked at."""
    return DoctorFinding(name, "remark", text, hint)


def wrong(name: str, text: str, hint: str) -> DoctorFinding:
    """It keeps something from working."""
    return DoctorFinding(name, "wrong", text, hint)


_INDENT = 19  # cells before the text of a check: a mark, and names up to "extra encryption"
_MARKS = {"well": ("✓", "green"), "remark": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command(
    help="Run checks: what is configured, what can be reached, what is wrong and how to fix it. Changes nothing."
)
@json_option()
def command(as_json: bool) -> int:
    from hermes.cli.checks import examine

    findings: list[DoctorFinding] = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            _print(finding)
    bad = sum(finding.state == "wrong" for finding in findings)
    if as_json:
        print_json({"ok": not bad, "checks": msgspec.to_builtins(findings)})
    else:
        click.echo()
        click.echo(_summary(bad, sum(finding.state == "remark" for finding in findings)))
    return 1 if bad else 0


def _print(finding: DoctorFinding) -> None:
    mark, colour = _MARKS[finding.state]
    if colourful():
        mark = click.style(mark, fg=colour, bold=True)
    hint = f" → {finding.hint}" if finding.hint else ""
    text = _short(finding.text + hint)
    lines = message_lines(text, screen_width() - _INDENT) if sys.stdout.isatty() else [text]
    click.echo(f"{mark} {finding.name:<{_INDENT - 3}} {lines[0]}")
    for line in lines[1:]:
        click.echo(" " * _INDENT + line)


def _short(text: str) -> str:
    """Write the user's own folder as ~."""
    home = os.path.expanduser("~")
    return text.replace(f"{home}/", "~/") if len(home) > 1 else text


def _summary(bad: int, remarks: int) -> str:
    if not bad and not remarks:
        return "No problems found."
    parts = [counted(bad, "problem") + " (✗)"] if bad else []
    parts += [counted(remarks, "warning") + " (!)"] if remarks else []
    return ", ".join(parts) + "."
