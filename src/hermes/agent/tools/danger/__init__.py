"""Which commands need confirmation: those that remove, overwrite, stop, or can't be analysed.

A command line is read like a shell reads it (shell.py), and every program in it is judged by name, options and, where
files could be overwritten, by what is on the disk (judge.py and its neighbours). Doubt counts as danger. This is a
seat belt against accidents, not a sandbox: a program that is started (a script, a Makefile) is not analysed.
"""

from __future__ import annotations

from pathlib import Path

from hermes.texts import one_line, shortened

__all__ = ["is_destructive"]


def is_destructive(command: str, cwd: Path) -> str | None:
    """Why this command needs confirmation before it runs in `cwd`, in half a line; None when it may run."""
    from hermes.agent.tools.danger.judge import Judge
    from hermes.agent.tools.danger.shell_words import Unparsable
    from hermes.agent.tools.danger.working_folders import WorkingFolders

    try:
        reason = Judge(WorkingFolders([Path(cwd)])).script(command)
        # a reason may quote the command: one line, not too long
        return None if reason is None else shortened(one_line(reason), 160)
    except Unparsable as error:
        return f"it can't be read as a command: {error}"
    except (OSError, ValueError, RecursionError) as error:
        return f"it can't be judged ({error.__class__.__name__})"
