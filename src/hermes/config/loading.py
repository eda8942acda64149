"""Where config.yaml lies, and reading it. YAML itself is loaded only when there is a file."""

from __future__ import annotations

import stat
from pathlib import Path

from hermes.config.keys import MOST_BYTES, Config
from hermes.errors import ConfigError
from hermes.home import get_hermes_home


def config_path() -> Path:
    """Where the file is looked for."""
    return get_hermes_home() / "config.yaml"


def load_config(path: Path | None = None) -> Config:
    """The configuration; all defaults when there is no file. ConfigError says what is wrong and where."""
    path = config_path() if path is None else path
    text = read_text(path)
    return Config() if text is None else parse_config(text, path)


def parse_config(text: str, path: Path) -> Config:
    """The configuration in a text (`path` is where it came from)."""
    from hermes.config.reading import check_text

    config, problems = check_text(text, path)
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
