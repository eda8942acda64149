"""Click's complaints about wrong usage, in the words and the one line of this program's other errors.

A message that a command raised itself passes unchanged; click's own are recognised by their wording, since click keeps
the value that was wrong in the text only.
"""

from __future__ import annotations

import re

import click

_WRONG_TYPE = re.compile(r"(?P<value>.+) is not (?:a valid |in the range |one of )", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments? \((?P<words>.*)\)", re.DOTALL)
_PATH = re.compile(r"(?:File|Directory|Path) '(?P<path>.*)' (?P<what>does not exist|is a \w+|is not \w+)\.?", re.DOTALL)


def usage_text(error: click.UsageError) -> str:
    """One line about wrong usage."""
    if isinstance(error, click.NoSuchOption):
        hint = " or ".join(sorted(error.possibilities or ()))
        return f"unknown option {error.option_name}" + (f"; did you mean {hint}?" if hint else "")
    if isinstance(error, click.BadOptionUsage):
        takes_none = "not take a value" in error.message
        return f"{error.option_name} {'takes no value' if takes_none else 'needs a value'}"
    if isinstance(error, click.MissingParameter):
        choices = _choices(error.param)
        return f"{_called(error.param)} is missing" + (f": give {choices}" if choices else "")
    if isinstance(error, click.BadParameter):
        name = _called(error.param)
        return f"{name}: {_wrong_value(error)}" if name else error.message
    if extra := _EXTRA.fullmatch(error.message):
        return f"unexpected argument: {extra['words']}"
    return error.message


def _wrong_value(error: click.BadParameter) -> str:
    if path := _PATH.fullmatch(error.message):
        return f"{path['path']} {path['what']}"
    wrong = _WRONG_TYPE.match(error.message)
    expected = _expected(error.param)
    if wrong is None or expected is None:
        return error.message
    value = wrong["value"]
    return f"expected {expected}, got {value if value.startswith(chr(39)) else repr(value)}"


def _called(parameter: click.Parameter | None) -> str:
    """An option by its longest name, an argument by what `--help` calls it."""
    if parameter is None:
        return ""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    if isinstance(parameter.type, click.Choice):
        return str(parameter.name).upper()
    return parameter.human_readable_name.replace("...", "").rstrip("…")


def _expected(parameter: click.Parameter | None) -> str | None:
    kind = parameter.type if parameter is not None else None
    if choices := _choices(parameter):
        return choices
    if isinstance(kind, click.IntRange | click.FloatRange):
        number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        if kind.min is not None and kind.min_open:
            return f"{number} above {kind.min:g}"
        if kind.min is not None and kind.max is not None:
            return f"{number} from {kind.min} to {kind.max}"
        return f"{number} of {kind.min} or more" if kind.min is not None else f"{number} of {kind.max} or less"
    if kind in (click.INT, click.FLOAT):
        return "a whole number" if kind is click.INT else "a number"
    return None


def _choices(parameter: click.Parameter | None) -> str:
    if parameter is None or not isinstance(parameter.type, click.Choice):
        return ""
    names = [str(one) for one in parameter.type.choices]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
