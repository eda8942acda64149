"""The entry point: `hermes …`. Finds the command, loads only its file, and turns every error into one line.

Exit statuses: 0 done, 1 not found or refused, 2 wrong usage, 130 interrupted; and when a model does not answer: 3 it is
unreachable, 4 it refuses the request, 5 it is busy or fails, 6 the conversation is too long for it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes import __version__
from hermes.cli import streams

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

COMPLETION = "_HERMES_COMPLETE"  # the variable by which a shell's script asks for completions
# name → module. The object in the module is called `command`, or by the command's name.
COMMANDS = {
    "chat": "hermes.cli.chat",
    "sessions": "hermes.cli.sessions",
    "why": "hermes.cli.sessions.searching",
    "search": "hermes.cli.model",
    "insights": "hermes.cli.insights",
    "gateway": "hermes.cli.gateway",
    "cron": "hermes.cli.cron",
    "batch": "hermes.cli.batch",
    "acp": "hermes.cli.serving",
    "mcp": "hermes.cli.serving",
    "web": "hermes.cli.serving",
    "pairing": "hermes.cli.gateway",
    "config": "hermes.cli.config",
    "model": "hermes.cli.model",
    "doctor": "hermes.cli.doctor",
    "completion": "hermes.cli.completion",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `hermes` with these arguments; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a letter that the encoding lacks is shown as ?
    debug = "--debug" in words or bool(os.environ.get("HERMES_DEBUG"))
    if "--debug" in words:
        words.remove("--debug")
    try:
        if words == ["--version"]:  # needs no library
            print(f"hermes {__version__}")
            return 0
        return _run(words)
    except BrokenPipeError:  # `… | head -1`
        streams.drop(1)
        return 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def script() -> None:
    """The entry point of the installed program."""
    streams.prepare()
    if (folder := _other_hermes()) is not None:
        streams.complain(
            f"Hermes Agent is installed in the same Python environment ({folder}), and both programs have modules of the same"
            " names; install one of them into an environment of its own (`python3 -m venv DIR`)"
        )
        sys.exit(1)
    _show_warnings_as_notes()
    status = streams.finish(main())
    gc.freeze()  # the interpreter's last garbage collection would delay the exit
    sys.exit(status)


def _other_hermes() -> str | None:
    """The folder of this environment where Hermes Agent is installed: our packages hide its modules, and it would break."""
    folders = (folder for folder in sys.path if folder.endswith("-packages") and os.path.isdir(folder))
    return next((one for one in folders if any(name.startswith("hermes_agent-") for name in os.listdir(one))), None)


def _show_warnings_as_notes() -> None:
    """Show the store's warnings (a replica, a newer program's file) as one line, without the place in our code."""
    import warnings

    warnings.simplefilter("always", UserWarning)
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if category is UserWarning:
            streams.complain(str(message), once=True)
        else:
            before(message, category, *rest, **more)

    warnings.showwarning = show


def _run(words: list[str]) -> int:
    """Run a command. (click's own `Command.main` would turn a closed pipe into status 1.)"""
    import click

    command = program()
    if shell := os.environ.get(COMPLETION):
        from hermes.cli.completion import answer

        return answer(command, shell)
    try:
        with command.make_context(streams.called(), words) as context:
            result = command.invoke(context)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        print("Cancelled; nothing was changed.", file=sys.stderr)
        return 1
    except click.UsageError as error:
        text = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # `hermes gateway` alone; click 8.1 does not raise it
            print(text)
            return 0
        hint = f" (try `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        streams.complain(f"{' '.join(text.split()).rstrip('.')}{hint}")
        return 2
    except click.ClickException as error:
        streams.complain(error.format_message())
        return error.exit_code


def _explain(error: Exception) -> int:
    """Print one line about an error; an unexpected exception is named as an internal error."""
    from hermes.errors import HermesError, exit_status

    if isinstance(error, HermesError):
        streams.complain(str(error), once=True)
        return exit_status(error)
    if isinstance(error, OSError):
        streams.complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
    else:
        streams.complain(f"internal error ({type(error).__name__}: {error}); run it again with --debug to see where")
    return 1


def program() -> click.Group:
    """The click command behind `hermes`."""
    import click

    from hermes.cli.options import LazyGroup

    class Program(LazyGroup):
        """`hermes`; arguments that begin with an option go to `chat`."""

        def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
            first = words[0] if words else None
            if first is None:
                words = words if context.resilient_parsing else ["chat"]  # resilient: a shell asks for completions
            elif first.startswith("-") and first not in ("--help", "-h", "--version"):
                words = ["chat", *words]
            return super().parse_args(context, words)

        def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
            """The options of `chat`, since they work here, then those of `hermes` itself and the commands."""
            chat = self.get_command(context, "chat")
            assert chat is not None
            records = [part for one in chat.params if (part := one.get_help_record(context)) is not None]
            with formatter.section("Talking"):
                formatter.write_dl([part for part in records if not part[0].startswith("-h")])
            super().format_options(context, formatter)

        def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
            found = super().shell_complete(context, incomplete)
            chat = self.get_command(context, "chat") if incomplete.startswith("-") else None
            return found + (chat.shell_complete(click.Context(chat, parent=context), incomplete) if chat else [])

    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

    @click.group(cls=Program, table=COMMANDS, context_settings=settings)
    @click.version_option(__version__, prog_name="hermes", message="%(prog)s %(version)s")
    def group(**_: Any) -> None:
        """Talk to an agent. Every conversation is kept and can be found and continued.

        \b
          hermes                         a new conversation
          hermes -c                      continue the latest one
          hermes -r                      choose one, continue it
          hermes -q "why is it slow?"    one answer
          hermes sessions search "disk"  what was said about it

        `--debug` before or after any command shows where an error came from.
        """

    return group


if __name__ == "__main__":
    script()
