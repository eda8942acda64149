"""Where config.yaml lies, and reading it. YAML itself is loaded only when there is a file."""

from __future__ import annotations

import stat
from pathlib import Path

from hermes.config.keys import MOST_BYTES, Config
from hermes.errors import ConfigError
from hermes.home import get_hermes_home

_warned: set[str] = set()


def config_path() -> Path:
    """Where the file is looked for."""
    return get_hermes_home() / "config.yaml"


def load_config(path: Path | None = None) -> Config:
    """The configuration; all defaults when there is no file. ConfigError says what is wrong and where.

    Keys that nobody knows are ignored, with one warning (UserWarning) a process: another program's keys are no reason
    to keep people from their record.
    """
    path = config_path() if path is None else path
    text = read_text(path)
    if text is None:
        return Config()
    config = parse_config(text, path, ignore_unknown=True)
    unknown: dict[str, str] = config.__dict__.get("unknown_keys", {})
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        _warn_once(f"{next(iter(unknown.values()))}{more}; it is ignored")
    return config


def _warn_once(text: str) -> None:
    """A warning, once a process; what Python remembers of them is forgotten whenever a filter changes."""
    if text not in _warned:
        import warnings

        _warned.add(text)
        warnings.warn(text, stacklevel=3)


def parse_config(text: str, path: Path, *, ignore_unknown: bool = False) -> Config:
    """The configuration in a text (`path` is where it came from). With `ignore_unknown`, keys nobody knows are no error."""
    from hermes.config.reading import check_text

    config, problems = check_text(text, path)
    if ignore_unknown:
        problems = [] if all(one.unknown for one in problems) else problems
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
