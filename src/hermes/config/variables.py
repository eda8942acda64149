"""`${VAR}` and `${VAR:-default}`: filled in from the environment and from `<home>/.env`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hermes.errors import ConfigError
from hermes.home import get_hermes_home

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}\n\r]*))?\}")
_HIDDEN = re.compile("\\$\ue07b[^\ue07b]*?\ue07d")  # `${…}` with its signs out of YAML's sight
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=[ \t]*(.*)")
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')\s*(?:#.*)?""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def hidden(text: str) -> str:
    """The text with each `${…}` in signs that mean nothing to YAML, so that it may stand inside {brackets} unquoted.

    Every other character stays where it is: lines, columns and offsets are the same.
    """
    if "${" not in text:
        return text
    return VARIABLE.sub(lambda found: "$" + "".join(_aside(sign) for sign in found[0][1:]), text)


def _aside(sign: str) -> str:
    return chr(0xE000 + ord(sign)) if sign < "\x7f" and sign not in "\n\r" else sign


def unhidden(text: str) -> str:
    """The opposite."""
    if "$\ue07b" not in text:
        return text
    return _HIDDEN.sub(
        lambda found: "".join(chr(ord(s) - 0xE000) if s >= "\ue000" and s < "\ue080" else s for s in found[0]), text
    )


def environment(home: Path | None = None) -> dict[str, str]:
    """The process's variables, and beneath them those of `<home>/.env`."""
    return {**read_env((get_hermes_home() if home is None else home) / ".env"), **os.environ}


def read_env(path: Path) -> dict[str, str]:
    """The variables of a .env file: `NAME=value` lines, with or without `export` and quotes; none when there is no file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); fix its permissions or move it away") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8 or move it away") from None
    values: dict[str, str] = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found:
            values[found[1]] = _value(found[2].strip())
    return values


def _value(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        inner = quoted[1][1:-1]
        if text[0] == '"':
            return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner)
        return inner
    return re.split(r"\s#", text, maxsplit=1)[0].strip() if not text.startswith("#") else ""


def expanded(text: str, variables: dict[str, str]) -> str | None:
    """The text with its variables filled in; None when that leaves nothing (`${NAME:-}`)."""
    if "${" not in text:
        return text
    filled = VARIABLE.sub(lambda found: variables.get(found[1]) or found[2] or "", text)
    return filled if filled or not VARIABLE.fullmatch(text) else None


def unset_in(text: str, variables: dict[str, str]) -> list[str]:
    """The variables a value asks for that have neither a value nor a default. An empty value is none."""
    if "${" not in text:
        return []
    return [match[1] for match in VARIABLE.finditer(text) if match[2] is None and not variables.get(match[1])]
