"""The guide shows what the commands really print: its ```console blocks are run, and compared.

A page is one story: its blocks run in order, in a real shell, in one home and one folder of their own. A line that
begins with `$ ` is a command (`> ` continues it), what follows is its output, standard error included; `…` stands for
anything. A status other than 0 is shown as a last line: `(exit status 1)`.

A page may say, in comments anywhere in it, how it is run:

    <!-- seed: tests.support.seeds:guide -->    a function called with the home before the first command; it may return
                                                variables for the commands' environment, or a context manager that gives them
    <!-- width: 80 -->                          how wide the output is (80 unless said otherwise)

`python -m tests.support.guide --write [PAGE…]` puts in what the commands print now; without --write it only compares.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.support.program import environment
from tests.support.seeds import NOW

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SETTING = re.compile(r"<!-- (seed|width): (.*?) -->")


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the output the page shows for it."""

    command: str
    shown: str


def pages() -> list[Path]:
    """The pages of the guide that show commands, and the README."""
    return [path for path in (ROOT / "README.md", *sorted(GUIDE.glob("*.md"))) if _BLOCK.search(path.read_text())]


def steps(block: str) -> list[Step]:
    """The commands of a block, each with its output."""
    found: list[tuple[list[str], list[str]]] = []
    for text in block.splitlines():
        if text.startswith("$ "):
            found.append(([text[2:]], []))
        elif text.startswith("> ") and found and not found[-1][1]:
            found[-1][0].append(text[2:])
        elif found:
            found[-1][1].append(text)
        else:
            raise ValueError(f"a console block begins with a command, not with {text!r}")
    return [Step("\n".join(command), "\n".join(output)) for command, output in found]


def agrees(shown: str, got: str) -> bool:
    """Whether the output is what the page says; `…` stands for anything within a line."""
    want, have = shown.rstrip().split("\n"), got.rstrip().split("\n")
    return len(want) == len(have) and all(
        re.fullmatch(".*".join(map(re.escape, one.rstrip().split("…"))), other.rstrip())
        for one, other in zip(want, have, strict=True)
    )


class Story:
    """One run of a page: its home, its folder, its shell."""

    def __init__(self, text: str) -> None:
        self.settings = dict(_SETTING.findall(text))
        self._stack = ExitStack()

    def __enter__(self) -> Story:
        root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-guide-")))
        self.home, self.folder, programs = root / "home", root / "work", root / "bin"
        for one in (self.home, self.folder, programs):
            one.mkdir(mode=0o700)
        program = programs / "hermes"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hermes.cli.main "$@"\n')
        program.chmod(0o755)
        more: dict[str, str] = {}
        if "seed" in self.settings:
            module, _, name = self.settings["seed"].partition(":")
            made = getattr(import_module(module), name)(self.home)
            more = self._stack.enter_context(made) if hasattr(made, "__enter__") else made or {}
        self.variables = environment(self.home, width=int(self.settings.get("width", "80")))
        self.variables |= {"HERMES_NOW": str(NOW), "HOME": str(root), "TERM": "dumb", **more}
        self.variables["PATH"] = f"{programs}:{self.variables['PATH']}"
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: str) -> str:
        """The output of a command; an unexpected status is part of it."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
        text = done.stdout.decode(errors="replace").rstrip("\n").replace(str(self.home), "~/.hermes")
        return text if done.returncode == 0 else f"{text}\n(exit status {done.returncode})"


def played(text: str) -> Iterator[tuple[re.Match[str], list[tuple[Step, str]]]]:
    """Each block of a page with what its commands really print."""
    with Story(text) as story:
        for block in _BLOCK.finditer(text):
            yield block, [(step, story.run(step.command)) for step in steps(block[1])]


def differences(text: str) -> list[str]:
    """The places of a page that differ from what the program prints."""
    return [
        f"$ {step.command}\n--- the page says\n{step.shown}\n--- it prints\n{got}\n"
        for _, done in played(text)
        for step, got in done
        if not agrees(step.shown, got)
    ]


def rewritten(text: str) -> str:
    """The page with what the commands print now; output that agrees already stays as it is written."""
    out, at = "", 0
    for block, done in played(text):
        lines = []
        for step, got in done:
            lines.append("$ " + step.command.replace("\n", "\n> "))
            body = step.shown if agrees(step.shown, got) else got
            lines += [body] if body.strip() else []
        out += text[at : block.start(1)] + "\n".join(lines) + "\n"
        at = block.end(1)
    return out + text[at:]


def main(arguments: list[str]) -> int:
    """Compare the pages, or write them anew."""
    write = "--write" in arguments
    named = [Path(word) for word in arguments if not word.startswith("-")] or pages()
    wrong = 0
    for page in named:
        text = page.read_text()
        if write:
            new = rewritten(text)
            if new != text:
                page.write_text(new)
                print(f"{page.name}: written")
            continue
        found = differences(text)
        wrong += len(found)
        print("\n".join(found) or f"{page.name}: as it says")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
