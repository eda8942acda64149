"""Shell completion of sessions, sources, models and configuration keys. Commands and options are click's.

Each completer is given to a parameter as its `shell_complete`. The store is read once, by one short query, and never
created. Nothing here may fail loudly: the user is typing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    from hermes.store.records.rows import SessionRow

Candidate = tuple[str, str]  # what would be inserted, and what it is
Completer = Callable[["click.Context", "click.Parameter", str], "list[CompletionItem]"]
FILES: Candidate = (":files", "")  # the shell completes file names itself
RECENT = 200


def candidates(words: list[str], partial: str) -> list[Candidate]:
    """The candidates after these words (those after `hermes`), beginning with `partial`."""
    from click.shell_completion import ShellComplete

    from hermes.cli.main import program

    before = [word for word in words if word != "--debug"]
    option = partial[: partial.index("=") + 1] if partial.startswith("--") and "=" in partial else ""
    try:
        found = ShellComplete(program(), {}, "hermes", "").get_completions(before, partial)
    except Exception:  # an incomplete line, a broken config, a locked store: there is nothing to offer
        return []
    if any(item.type in ("file", "dir") for item in found):
        return [FILES] if not option else []
    return list(dict.fromkeys((option + item.value, item.help or "") for item in found))


def _completer(offer: Callable[[click.Context, str], list[Candidate]], *, first: bool = False) -> Completer:
    """A completer of the results of `offer`; `first`: only for the first of several words."""

    def complete(context: click.Context, parameter: click.Parameter, partial: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if first and parameter.nargs < 0 and context.params.get(parameter.name or ""):
            return []
        found, low = offer(context, partial), partial.lower()
        return [CompletionItem(value, help=about) for value, about in found if value.lower().startswith(low)]

    return complete


def complete_files(context: click.Context, parameter: click.Parameter, partial: str) -> list[CompletionItem]:
    """The shell's own completion of file names."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(partial, type="file")]


def _sessions(context: click.Context, partial: str) -> list[Candidate]:
    """Ids when an id is begun; programs after @; else titles, and the ids of sessions without one."""
    if partial.startswith("@"):
        from hermes.interop.other_programs import names

        return [(f"@{name}", "") for name in names()]
    if re.match(r"\d", partial):
        by_title = {str(row["id"]): _about(row) for row in _recent()}
        with _record() as db:
            ids = sorted(db.session_ids_with_prefix(partial, 50)) if db is not None else []
        found = [(session_id, by_title.get(session_id, "")) for session_id in ids]
        return found + [(str(row["title"]), "") for row in _recent() if row.get("title")]
    named = [(str(row["title"]), str(row["id"])) for row in _recent() if row.get("title")]
    return named + [(str(row["id"]), _about(row)) for row in _recent() if not row.get("title")][:20]


def _trashed(context: click.Context, partial: str) -> list[Candidate]:
    """The sessions `restore` can restore."""
    with _record() as db:
        rows = db.list_trash() if db is not None else []
    return [(str(row["id"]), _about(row)) for row in rows]


def _jobs(context: click.Context, partial: str) -> list[Candidate]:
    """Scheduled jobs, with their prompts."""
    from hermes.store.coordination.cron import CronDB

    with _record() as db:
        jobs = CronDB(db).jobs() if db is not None else []
    return [(job.id, " ".join(job.prompt.split())[:60]) for job in jobs]


def _models(context: click.Context, partial: str) -> list[Candidate]:
    """Names of models seen lately, configured, or built in."""
    from hermes.config import load_config

    config = load_config()
    named = [
        config.model.default,
        *(getattr(config.auxiliary, task, None) for task in ("title", "summary", "compression")),
    ]
    names = [item if isinstance(item, str) else getattr(item, "model", None) for item in named]
    names += [row.get("model") for row in _recent()]
    return [(name, "") for name in dict.fromkeys([*filter(None, names), "embedded", "extractive"])]


def _keys(context: click.Context, partial: str) -> list[Candidate]:
    """Every key, also those below names that are in the file (mcp_servers.NAME.url)."""
    from hermes.config import load_config
    from hermes.config.settings_schema import every_key

    found = every_key()
    try:
        for name in load_config().mcp_servers:
            label = f'"{name}"' if "." in name else name
            found += [f"mcp_servers.{label}.{part}" for part in ("command", "args", "env", "url", "headers")]
    except Exception:  # the file is invalid: the keys are still known
        pass
    return [(key, "") for key in found]


def _values(context: click.Context, partial: str) -> list[Candidate]:
    """The values of a key, if only a few are allowed."""
    from typing import Literal, get_args, get_origin

    from hermes.config.settings_schema import members, type_at

    key = str(context.params["key"])
    (kind, *_) = members(type_at(key.split(".")))
    if get_origin(kind) is Literal:
        return [(choice, "") for choice in get_args(kind)]
    if key == "model.default" or (key.startswith("auxiliary.") and key.endswith(".model")):
        return _models(context, partial)
    return [("true", ""), ("false", "")] if kind is bool else []


def _sources(context: click.Context, partial: str) -> list[Candidate]:
    return [(source, "") for source in dict.fromkeys(str(row["source"]) for row in _recent())]


def _installable(context: click.Context, partial: str) -> list[Candidate]:
    from hermes.agent.models.files import MODELS

    return [(name, known.about) for name, known in MODELS.items()]


complete_session = _completer(_sessions, first=True)
complete_sessions = _completer(_sessions)
complete_trashed = _completer(_trashed)
complete_source = _completer(_sources)
complete_model = _completer(_models)
complete_job = _completer(_jobs)
complete_installable = _completer(_installable)
complete_key = _completer(_keys)
complete_value = _completer(_values)

# ------------------------------------------------------------------------------------------------ the record

_rows: list[SessionRow] | None = None


def _recent() -> list[SessionRow]:
    global _rows
    if _rows is None:
        _rows = []
        with _record() as db:
            if db is not None:
                _rows = db.list_sessions_rich(limit=RECENT, order_by_last_active=True, automated=False)
    return _rows


def _record() -> Any:
    """The store, for reading; None (in a `with`) when there is none yet."""
    from contextlib import nullcontext

    from hermes.config import load_config
    from hermes.store.api.configured import open_existing

    return open_existing(load_config()) or nullcontext(None)


def _about(row: SessionRow) -> str:
    return " ".join(str(row.get("title") or row.get("preview") or "").split())[:60]
