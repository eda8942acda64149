"""Finds config.yaml and reads it. YAML itself is loaded only when there is a file."""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Collection
from pathlib import Path

from hermes.config.settings_schema import MOST_BYTES, Config
from hermes.errors import ConfigError
from hermes.home import get_hermes_home


def config_path() -> Path:
    """The path of the file."""
    return get_hermes_home() / "config.yaml"


RECORD = ("store", "sessions", "privacy", "timezone")  # the parts of the configuration that reading the record needs
# … and talking in the terminal
TALK = (*RECORD, "model", "auxiliary", "compression", "display", "memory", "mcp_servers", "terminal", "permissions")


def load_config(path: Path | None = None, *, needs: Collection[str] | None = None) -> Config:
    """The configuration; all defaults when there is no file. ConfigError says what is wrong and where.

    `needs` are the parts that the caller uses (None: all): a wrong value elsewhere is a warning. Unknown keys are
    ignored, with one warning (UserWarning): another program's keys are no reason to keep people from their record.
    """
    path = config_path() if path is None else path
    text = read_text(path)
    if text is None:
        return Config()
    config = parse_config(text, path, ignore_unknown=True, needs=needs)
    unknown: dict[str, str] = config.__dict__.get("unknown_keys", {})
    if unknown and not _is_shared(config, path.parent):
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        warnings.warn(f"{next(iter(unknown.values()))} (ignored{more})", stacklevel=2)
    for wrong in config.__dict__.get("unused_problems", ()):
        warnings.warn(f"{wrong}; not needed here", stacklevel=2)
    return config


def _is_shared(config: Config, home: Path) -> bool:
    """Whether another program keeps its settings in this file as well: it has state.db, and our record is store.path."""
    return config.store.path is not None and (home / "state.db").exists()


def parse_config(
    text: str, path: Path, *, ignore_unknown: bool = False, needs: Collection[str] | None = None
) -> Config:
    """The configuration in a text (`path` is where it came from). With `ignore_unknown`, unknown keys are no error.

    With `needs`, neither is a wrong value in other parts: the default is used there.
    """
    from hermes.config.reading import check_text

    config, problems = check_text(text, path)
    if needs is not None:
        unused = [
            one for one in problems
            if not one.unknown and one.section in Config.__struct_fields__ and one.section not in needs
        ]  # fmt: skip
        config.__dict__["unused_problems"] = tuple(f"{path} {one}" for one in unused)
        problems = [one for one in problems if one not in unused]
    if ignore_unknown:
        problems = [one for one in problems if not one.unknown]  # the error names only what must be corrected
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{path} {problems[0]}{more}")
    return config


def read_text(path: Path) -> str | None:
    """The text of the file; None when there is none."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise ConfigError(f"{path} is a folder; config.yaml must be a file: move it away")
        if not stat.S_ISREG(kind):
            raise ConfigError(f"{path} is not an ordinary file; move it away")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{path} is larger than a configuration may be (1 MB); move it away")
        return content.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); fix its permissions or move it away") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path} line {line}: this is not UTF-8 text; save the file as UTF-8") from None


# ----------------------------------------------------------------------------------------------------
# `${VAR}` and `${VAR:-default}`: filled in from the environment and from `<home>/.env`.

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}\n\r]*))?\}")
_USER_INFO = re.compile(r"://(?:\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}\n\r]*)?\}|[^/?#\s$]|\$(?!\{))*@")
_IN_QUERY = re.compile(rf"(?<=password=){VARIABLE.pattern}(?=&|#|\Z)", re.I)
_FIT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")  # may be in a URL's password unencoded
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
    """Undo `hidden`."""
    if "$\ue07b" not in text:
        return text
    return _HIDDEN.sub(
        lambda found: "".join(chr(ord(s) - 0xE000) if s >= "\ue000" and s < "\ue080" else s for s in found[0]), text
    )


def environment(home: Path | None = None) -> dict[str, str]:
    """The process's variables, then those of `<home>/.env`."""
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
    """The text with its variables filled in; None when that leaves nothing (`${NAME:-}`).

    As the user or the password of a URL a value is percent-encoded, unless it is already.
    """
    if "${" not in text:
        return text

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1]) or found[2] or ""

    def user_info(found: re.Match[str]) -> str:
        return VARIABLE.sub(lambda one: _encoded(value(one), found[0][3 : one.start()]), found[0])

    text = _USER_INFO.sub(user_info, text)
    if "://" in text:
        text = _IN_QUERY.sub(lambda found: _encoded(value(found), "?:").replace("&", "%26").replace("+", "%2B"), text)
    filled = VARIABLE.sub(value, text)
    return filled if filled or not VARIABLE.fullmatch(text) else None


def _encoded(value: str, before: str) -> str:
    """A variable's value as a part of `user:password`; `before` is the text in front of it."""
    from urllib.parse import quote

    safe = "" if ":" in VARIABLE.sub("", before) else ":"  # one variable may hold both
    return value if _FIT.fullmatch(value.replace(safe, "")) else quote(value, safe=safe)


def unset_in(text: str, variables: dict[str, str]) -> list[str]:
    """The variables in a value that have neither a value nor a default. An empty value counts as none."""
    if "${" not in text:
        return []
    return [match[1] for match in VARIABLE.finditer(text) if match[2] is None and not variables.get(match[1])]
