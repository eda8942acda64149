"""What programs do with the options they are given: one short rule each.

A rule gets the words behind the program's name and the place it would run in, and returns the reason to ask, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from hermes.agent.tools.danger.shell_words import ShellWord, Simple
from hermes.agent.tools.danger.working_folders import WorkingFolders
from hermes.agent.tools.danger.wrappers import split

Rule = Callable[[Sequence[ShellWord], WorkingFolders], "str | None"]

ALWAYS: Final[dict[str, str]] = {
    "rm": "rm removes files",
    "rmdir": "rmdir removes folders",
    "unlink": "unlink removes a file",
    "shred": "shred destroys files",
    "dd": "dd writes over files and disks",
    "mkfs": "mkfs erases a disk",
    "mke2fs": "mke2fs erases a disk",
    "mkswap": "mkswap erases a disk",
    "wipefs": "wipefs erases a disk",
    "fdisk": "fdisk changes a disk",
    "parted": "parted changes a disk",
    "install": "install writes over files",
    "truncate": "truncate cuts files",
    "pkill": "pkill ends processes",
    "killall": "killall ends processes",
    "shutdown": "shutdown stops the machine",
    "reboot": "reboot restarts the machine",
    "halt": "halt stops the machine",
    "poweroff": "poweroff stops the machine",
    "init": "init changes the state of the machine",
    "telinit": "telinit changes the state of the machine",
    "dropdb": "dropdb removes a database",
    "dropuser": "dropuser removes a database user",
    "sudo": "sudo runs it as another user",
    "doas": "doas runs it as another user",
    "su": "su runs it as another user",
    "pkexec": "pkexec runs it as another user",
    "runuser": "runuser runs it as another user",
    "run0": "run0 runs it as another user",
}


def _unclear(name: str) -> str:
    return f"what {name} would do can't be seen beforehand"


def _recursive(name: str) -> Rule:
    def rule(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
        options = split(words)
        if options.unclear:
            return _unclear(name)
        return f"{name} -R changes a whole tree" if options.has("-R", "--recursive") else None

    return rule


def _copying(name: str) -> Rule:
    def rule(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
        options = split(words, frozenset({"-t", "--target-directory", "-S", "--suffix"}))
        if options.unclear and any(word.leading and not word.quoted for word in options.operands[:1]):
            return _unclear(name)
        if options.exactly("-n", "--no-clobber") or (name == "ln" and not options.has("-f", "--force")):
            return None
        sources, target = options.operands, options.value("-t", "--target-directory")
        if target is None and name == "ln" and len(sources) == 1:
            target = ShellWord(".")
        elif target is None:
            if len(sources) < 2:
                return None if all(word.known and not word.glob for word in sources) else _unclear(name)
            *sources, target = sources
        if name == "mv" and not all(word.known for word in sources):  # in a loop, two of them may get one name
            return _unclear(name)
        as_file = options.has("-T", "--no-target-directory")
        lost = place.overwritten_in(target, sources, as_file=as_file)
        if name == "mv" and not lost:
            place.moved(target, sources, as_file=as_file)
        return f"{name} {lost}" if lost else None

    return rule


def _tee(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    options = split(words)
    if options.has("-a", "--append"):
        return None
    lost = next(filter(None, (place.overwritten(word) for word in options.operands)), None)
    return f"tee {lost}" if lost else None


def _sed(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    options = split(words, frozenset({"-e", "-f", "-l", "--expression", "--file", "--line-length"}))
    if options.has("-i", "-I", "--in-place"):
        return "sed -i changes files in place"
    return _unclear("sed") if options.unclear else None


def _perl(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    for word in words:
        if not word.text.startswith("-") or word.text in ("-", "--"):
            break
        for letter in word.text[1:]:
            if letter == "i":
                return "-i changes files in place"
            if letter in "eEIMmFVDCxXr-":  # these take what follows
                break
    return None


def _awk(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    value = split(words, frozenset({"-i", "--include", "-f", "-v", "-F"}), permuting=False).value("-i", "--include")
    return "-i inplace changes files in place" if value and value.text.startswith("inplace") else None


def _kill(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    first = words[0].text if words else ""
    return None if first in ("-l", "-L", "--list", "--table", "-0") else "kill ends processes"


def _fuser(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    return "fuser -k ends processes" if split(words).has("-k", "--kill") else None


_SYSTEMCTL_VALUES = frozenset({"-H", "-M", "-t", "-p", "-n", "-o", "-s", "--host", "--machine", "--type", "--state"})
_SYSTEMCTL_READS = frozenset({"status", "show", "cat", "help", "get-default", "show-environment"})


def _systemctl(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    options = split(words, _SYSTEMCTL_VALUES)
    if not options.operands:
        return None
    verb = options.operands[0].text
    if verb in _SYSTEMCTL_READS or verb.startswith(("list-", "is-")):
        return None
    return f"systemctl {verb} changes what runs on the machine"


def _service(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    return None if len(words) < 2 or words[1].text == "status" else "service changes what runs on the machine"


def _rsync(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    deletes = any(word.text.startswith(("--del", "--remove-s")) for word in words)
    return "rsync --delete removes files" if deletes else None


def _crontab(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
    options = split(words, frozenset({"-u"}))
    return "crontab replaces the scheduled jobs" if options.has("-r") or options.operands else None


def _output(name: str, values: str, *names: str) -> Rule:
    taking = frozenset({"-" + letter for letter in values} | set(names))

    def rule(words: Sequence[ShellWord], place: WorkingFolders) -> str | None:
        for given, value in split(words, taking).given:
            if given in names and value is not None and value.text != "-" and (lost := place.overwritten(value)):
                return f"{name} {lost}"
        return None

    return rule


RULES: Final[dict[str, Rule]] = {
    "chmod": _recursive("chmod"),
    "chown": _recursive("chown"),
    "chgrp": _recursive("chgrp"),
    "mv": _copying("mv"),
    "cp": _copying("cp"),
    "ln": _copying("ln"),
    "tee": _tee,
    "sed": _sed,
    "gsed": _sed,
    "perl": _perl,
    "ruby": _perl,
    "awk": _awk,
    "gawk": _awk,
    "kill": _kill,
    "fuser": _fuser,
    "systemctl": _systemctl,
    "service": _service,
    "rsync": _rsync,
    "crontab": _crontab,
    "curl": _output("curl", "oHdXuAebcFKmTwxyzECDPQrtUY", "-o", "--output"),
    "wget": _output("wget", "OoaeitTwQPUABDRIXl", "-O", "--output-document"),
    "sort": _output("sort", "okStT", "-o", "--output"),
}


# ----------------------------------------------------------------------------------------------------
# SQL on its way into a database: DROP, TRUNCATE and DELETE, in arguments, here-documents, files and pipes.

CLIENTS: Final = frozenset(
    "psql mysql mariadb sqlite3 sqlite duckdb sqlcmd sqlplus usql pgcli mycli litecli cockroach clickhouse"
    " clickhouse-client snowsql bq cqlsh mysqladmin".split()
)
_WORDS: Final = re.compile(r"\b(drop|truncate|delete)\b", re.I)
_SHELL: Final = re.compile(r"^\s*\.(shell|system)\b|\\!", re.M)  # the client's own command to start a program


def sql(name: str, words: Sequence[ShellWord], command: Simple | None, place: WorkingFolders) -> str | None:
    """Why this client's SQL needs confirmation."""
    texts = [word.text for word in words] + [word.text[2:] for word in words if word.text.startswith("-")]
    unseen = f"which SQL {name} would run can't be seen beforehand"
    if any(word.open and word.leading and _follows_command(words, at) for at, word in enumerate(words)):
        return unseen
    for at, word in enumerate(words):
        if (at and words[at - 1].text in ("-f", "--file", "-init", ".read")) or word.text.startswith("--file="):
            content = place.content(_behind_equals(word))
            if content is None:
                return unseen
            texts.append(content)
    if command is not None:
        for redirect in command.redirects:
            if redirect.body is not None:
                texts.append(redirect.body)
            elif redirect.operator == "<":
                content = place.content(redirect.target)
                if content is None:
                    return unseen
                texts.append(content)
        for upstream in command.upstream or ():
            if not _only_says(upstream):
                return unseen
            texts += [word.text for word in upstream.words]
            texts += [redirect.body or "" for redirect in upstream.redirects]
    return next(filter(None, (_verdict(name, text) for text in texts)), None)


def _verdict(name: str, text: str) -> str | None:
    found = _WORDS.search(text)
    if found:
        return f"{name} would run {found[1].upper()}"
    return f"{name} would start a program" if _SHELL.search(text) else None


def _follows_command(words: Sequence[ShellWord], at: int) -> bool:
    return at > 0 and words[at - 1].text in ("-c", "-e", "--command", "--execute", "-cmd", "-q", "--query")


def _behind_equals(word: ShellWord) -> ShellWord:
    return ShellWord(word.text.removeprefix("--file="), known=word.known, glob=word.glob, tilde=word.tilde)


def _only_says(command: Simple) -> bool:
    """Whether this command's output is known from its words."""
    name = command.words[0].text if command.words else ""
    if name in ("echo", "printf"):
        return not any(word.open for word in command.words)
    return name == "cat" and len(command.words) == 1 and any(r.body is not None for r in command.redirects)
