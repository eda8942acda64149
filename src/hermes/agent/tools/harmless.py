"""Which commands are known to be harmless: one table of programs that only read, with the options under which they do.

The user is asked about any program, sub-command or option that is not in the table, about files that are written, and about
files outside the working folder that are read, except the system's own. Nothing here lists what is dangerous.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

# Program (and sub-command): its options, `-ab` letters, `-n:` letters with a value, `-#` for -20, `--long`; and about its
# other words: `names` (files of which only names and sizes are shown), `text` (no files), `none`, `one` (at most one file),
# `files` (no folders), `here` (the current folder is read), `tree` (so it is with -r), `list` (only with --list), `words`
# (options are whole words, as in find). Options that take a file, write one or start a program are left out.
_PROGRAMS: Final = {
    "cat tac rev": "-AbeEnstTuv --number --show-all --squeeze-blank",
    "nl": "-b:f:h:i:n:s:v:w:p",
    "head tail": "-n:c:qvfFsz -# --lines --bytes --quiet",
    "wc": "-lwcmL --lines --words --bytes --chars",
    "grep egrep fgrep": (
        "tree -A:B:C:m:e:nriovwxlLcsqhHEFPaIzZyTbU -# --include --exclude --exclude-dir --color --colour --count --recursive"
        " --ignore-case --line-number --files-with-matches --files-without-match --only-matching --invert-match --no-filename"
        " --word-regexp --max-count --context --after-context --before-context --extended-regexp --fixed-strings --quiet"
    ),
    "rg": (
        "here -A:B:C:m:e:g:t:T:j:M:r:d:nilcovwxsSFPUuaNHIp0q --glob --iglob --type --type-not --type-list --files"
        " --files-with-matches --files-without-match --ignore-case --smart-case --case-sensitive --line-number"
        " --no-line-number --no-heading --heading --hidden --no-ignore --count --count-matches --only-matching"
        " --fixed-strings --word-regexp --multiline --max-count --max-depth --context --color --column --json --sort --stats"
    ),
    "ls dir": (
        "names -1aAbBcCdfFgGhHiI:klLmnNopqQrRsStT:uUvw:xXZ --all --almost-all --color --human-readable --recursive --sort"
        " --time --reverse --directory --classify --group-directories-first --full-time --time-style --inode --size"
    ),
    "stat": "names -c:f:LtxF --format --printf --dereference --file-system",
    "file": "names -bikLhpN --brief --mime --mime-type --mime-encoding --dereference",
    "du": "names -abchd:kmsxLHPSl0t: --max-depth --human-readable --summarize --total --apparent-size --all --exclude",
    "df": "names -ahHiklmPTt:x: --human-readable --total --output --type --local",
    "tree": "names -adfpsughDFrtUCnxiL:I:P: --dirsfirst --noreport --du --prune --gitignore --filelimit",
    "find": (
        "names words -# -H -L -P -maxdepth -mindepth -depth -xdev -mount -name -iname -path -ipath -wholename -regex -iregex"
        " -regextype -lname -type -xtype -size -empty -perm -user -group -nouser -nogroup -uid -gid -links -inum -mtime"
        " -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -newermt -readable -writable -executable -true -false"
        " -prune -print -print0 -printf -ls -quit -not -a -and -o -or -daystart -follow -noleaf"
    ),
    "test [": "names words -a -b -c -d -e -f -g -h -k -L -n -o -p -r -s -S -u -w -x -z -eq -ne -lt -le -gt -ge -nt -ot -ef",
    "readlink realpath": "names -fenmszqLP --canonicalize --relative-to --relative-base --no-symlinks",
    "diff cmp comm": (
        "files -abBiwuyqscepltTEZ1234U:C:I:W:n:F:x: -# --unified --brief --side-by-side --color --ignore-all-space --width"
        " --ignore-space-change --ignore-blank-lines --ignore-case --suppress-common-lines --strip-trailing-cr --label"
    ),
    "sort": "-bdfghiMnrRVcCmsuzk:t: --numeric-sort --reverse --unique --key --field-separator --human-numeric-sort --check",
    "uniq": "one -cdDiuzf:s:w: --count --repeated --unique --ignore-case",
    "cut": "-b:c:d:f:nsz --delimiter --fields --characters --bytes --output-delimiter --complement --only-delimited",
    "paste join fold fmt expand unexpand column": "-d:sw:t:o:1:2:a:v:e:izbcnRLx -# --delimiters --serial --width --tabs",
    "tr": "text -cCdst --delete --squeeze-repeats --complement",
    "sed": "script -nErsuz --quiet --silent --regexp-extended",
    "awk gawk mawk": "script -F:v:",
    "jq": "script -cCMnrRsSeja --compact-output --raw-output --slurp --sort-keys --null-input --exit-status --raw-input",
    "md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum": "-btz --tag --binary --text",
    "od hexdump": "-A:abcCdeFhiIj:lLn:N:os:t:vw:x --format --read-bytes --skip-bytes --bytes --radix",
    "xxd": "one -abceg:il:c:o:s:u",
    "zcat bzcat xzcat zstdcat": "",
    "echo": "text -neE",
    "printf": "text format",
    "true false : pwd": "none -LP",
    "exit": "text",
    "basename dirname": "text -as:z --multiple --suffix --zero",
    "seq sleep expr": "text -w -s:f: --equal-width --separator --format",
    "date": "clock -uRId:r: --utc --universal --date --iso-8601 --rfc-3339 --rfc-email --reference",
    "whoami groups logname tty arch nproc uptime hostname users locale lscpu who": "none -apsfid --all --pretty --since --fqdn",
    "id uname cal": "text -asnrvmpioguGznbdHlqtTuy13j --all --kernel-name --machine --user --group",
    "free vmstat lsblk": "none -bkmghtwlafopS --human --total --all --fs",
    "ps": "process -efAalFHLMjTwyp:C:u:U:G:g:t: --forest --no-headers --sort --pid --user --ppid",
    "which type": "text -apPstf --all",
    "command -v|command -V": "text",
    "python --version|python3 --version|python -V|python3 -V|node --version|node -v|gcc --version|bash --version": "none",
    "git --version|docker --version|docker version|pip --version|pip3 --version|ruby --version|perl -v": "none",
    "java -version|pip list|pip3 list|docker ps|docker images": "none -aqln: --all --quiet --no-trunc --format --filter",
    "pip show|pip3 show|dpkg -l|dpkg -L|dpkg -s|dpkg --list": "text -f --files",
    "git status": "here -sbvuz --short --branch --porcelain --long --untracked-files --ignored --show-stash --ahead-behind",
    "git log|git show|git diff|git shortlog|git reflog show|git stash show|git rev-list": (
        "here -pusbwziarRcmgteMCDBWEFPn:S:G:U:L:l: -# --all --branches --tags --remotes --patch --no-patch"
        " --stat --numstat --shortstat --dirstat --summary --oneline --graph --decorate --no-decorate --name-only"
        " --name-status --since --until --after --before --author --committer --grep --all-match --invert-grep"
        " --follow --cached --staged --merge-base --merges --no-merges --first-parent --reverse --date --format --pretty"
        " --abbrev --abbrev-commit --no-abbrev-commit --color --no-color --color-words --word-diff --word-diff-regex"
        " --diff-filter --max-count --skip --topo-order --date-order --no-ext-diff --no-textconv --unified --raw --check"
        " --ignore-all-space --ignore-space-change --ignore-space-at-eol --ignore-blank-lines --function-context"
        " --minimal --patience --histogram --diff-algorithm --find-renames --find-copies --no-renames --relative --text"
        " --exit-code --quiet --pickaxe-all --count --left-right --cherry-pick --numbered --email --no-index --no-prefix"
    ),
    "git blame|git annotate": "here -L:wMCbcfnselpt --date --porcelain --line-porcelain --show-email --show-name --root",
    "git branch": (
        "list here -avr --all --remotes --list --show-current --verbose --sort --format --no-color --color --merged"
        " --no-merged --contains --no-contains --points-at --column"
    ),
    "git tag": "list here -ln: --list --sort --format --contains --merged --no-merged --points-at --column",
    "git remote": "none here -v --verbose",
    "git remote get-url|git symbolic-ref": "one here -q --short --quiet --all --push",
    "git stash list|git reflog|git worktree list": "none here -# -n: --date --oneline --porcelain --all --format --stat",
    "git rev-parse|git describe|git merge-base|git name-rev|git show-ref|git cat-file": (
        "here -qptse --abbrev-ref --short --show-toplevel --git-dir --is-inside-work-tree --show-prefix --show-cdup"
        " --absolute-git-dir --verify --quiet --all --tags --always --dirty --long --abbrev --exact-match --is-ancestor"
    ),
    "git ls-files|git ls-tree|git check-ignore|git count-objects": (
        "here -cdmoiskuvtrzlHn --cached --deleted --modified --others --stage --unmerged --exclude-standard --name-only"
        " --full-name --full-tree --long --verbose --error-unmatch --directory --human-readable --no-index"
    ),
    "git grep": (
        "here -nilLcwvEFGPehHpWoqIaA:B:C:m: -# --cached --count --ignore-case --line-number --files-with-matches"
        " --word-regexp --name-only --extended-regexp --fixed-strings --perl-regexp --untracked --max-depth --and --or --not"
        " --show-function --function-context --heading --break --color --no-color --column --only-matching --all-match"
    ),
}  # fmt: skip
_BUILTINS: Final = frozenset("cd echo printf true false : pwd exit test [ type command".split())
_BINARIES: Final = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin")
# What every user of a machine may read, and what holds no secret.
_SYSTEM: Final = tuple(
    f"/usr/{part}{name}" for part in ("", "local/") for name in ("bin", "sbin", "lib", "lib64", "include", "share")
) + ("/dev/null", "/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/uptime", "/proc/loadavg") + tuple(
    f"/etc/{name}" for name in ("os-release", "debian_version", "hosts", "hostname", "timezone", "services", "shells")
)  # fmt: skip
_SECRET_PART: Final = re.compile(r"\.[^.].*|private|secrets?|keyrings?|keychains|credentials?|shadow-?|sudoers.*", re.I)
_MOST_MATCHES: Final = 5_000
# Scripts of sed, awk and jq that only print; everything else in these languages needs a question.
_REGEX: Final = r"(?:[^/\\\n\[]|\\[^\n/]|\[\^?(?:\[:\w+:\]|[^\]\[/\n\\^])++\])*+"
_ADDRESS: Final = rf"(?:\d++|\$|/{_REGEX}/)"
_SED_COMMAND: Final = (  # unambiguous, without backtracking: the time grows with the script only
    rf"[ \t]*+(?:{_ADDRESS}(?:,[+~]?{_ADDRESS})?[ \t]*+)?(?:![ \t]*+)?(?:[pdq=]|s/{_REGEX}/{_REGEX}/[gpI\d]*+)?[ \t]*+"
)
_LONGEST_SCRIPT: Final = 2_000
_SCRIPTS: Final = {
    "sed": re.compile(rf"{_SED_COMMAND}(?:[;\n]{_SED_COMMAND})*"),
    "awk": re.compile(
        r"(?!.*\b(?:system|getline|extension|ENVIRON|PROCINFO|ARGV|ARGC|SYMTAB|FUNCTAB)\b)(?!.*print.*[|>])(?:[^@\\]|\\[^\n])*",
        re.S,
    ),
    "jq": re.compile(r"(?!.*(?:env|import|include|input_filename|modulemeta|get_search_list|\$__prog)).*", re.S | re.I),
}
# Settings of a repository's own that make git start a program, or look at another folder.
_GIT_PROGRAMS: Final = re.compile(
    r"(?:^|\])[ \t]*(?:fsmonitor|external|textconv|command|clean|smudge|process|program|sshcommand|hookspath|uploadpack"
    r"|promisor|vcs|worktree)\b|\[\s*include",
    re.I | re.M,
)
_GIT_LINK: Final = b"\0\0\xe0\0"  # the mode of a submodule in git's index


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the user is asked about a command. A lasting yes is for its program, for these very words
    (`exact`) or for the whole `line`."""

    reason: str
    exact: bool = False
    line: bool = False


@dataclass(slots=True)
class Place:
    """The place of a command: every folder it may run in, the working folder (None: there is none), this program's folder."""

    folders: list[Path]
    root: Path | None
    own: Path

    def doubt(self, word: str, *, names: bool = False) -> Doubt | None:
        """Why the user is asked before this file is read; None also for a word that can't be meant as a file."""
        for folder in self.folders:
            path = os.path.join(folder, word)
            real = Path(os.path.realpath(path))
            top = os.path.isabs(word) and (os.path.lexists(os.path.join(*real.parts[:2])) or word.startswith("/inet"))
            inside = os.path.isdir(folder) and real.is_relative_to(os.path.realpath(folder))
            if not os.path.lexists(path) and not top and (inside or os.path.isabs(word)):
                continue  # a pattern such as /api/users, or a file that does not exist
            if real.is_relative_to(self.own) or (self.own.is_relative_to(real) and not names):
                return Doubt(f"{word} belongs to Hermes itself, or holds its folder", exact=True)
            if self.root is not None and real.is_relative_to(self.root):
                continue
            if names and not any(_SECRET_PART.fullmatch(part) for part in (*real.parts[2:], *Path(path).parts[2:])):
                continue
            if names or real.is_relative_to(Path.home()) or not any(real.is_relative_to(known) for known in _SYSTEM):
                return Doubt(f"{word} is outside the working folder", exact=True)
        return None

    def program_doubt(self, name: str) -> Doubt | None:
        """Why a program may not be what its name says: files of the working folder can be replaced without a question."""
        found = shutil.which(name)
        if found is None or (os.path.isabs(found) and self.root is None):
            return None
        places = (os.path.abspath(found), os.path.realpath(found))
        if os.path.isabs(found) and not any(Path(one).is_relative_to(str(self.root)) for one in places):
            return None
        return Doubt(f"{name} is a file of the working folder", exact=True)

    def expanded(self, word: Word) -> Iterator[str]:
        """The texts that the shell makes of a word: itself, and the files that a pattern names."""
        yield word.text
        if word.glob:
            for folder in self.folders:
                yield from glob.iglob(word.text, root_dir=folder)

    def move(self, words: list[Word]) -> Doubt | None:
        """`cd`: from here on the command may be in that folder as well."""
        text = words[0].text if words else os.path.expanduser("~")
        if len(words) > 1 or text.startswith("-") or (words and words[0].glob) or len(self.folders) > 32:
            return Doubt("it is not clear which folder cd leads to")
        if "CDPATH" in os.environ and not text.startswith(("/", "./", "../")):
            return Doubt("CDPATH is set, so cd may lead anywhere")
        for folder in list(self.folders):
            path = os.path.join(folder, text)
            self.folders += [Path(os.path.normpath(path)), Path(os.path.realpath(path))]
        self.folders = list(dict.fromkeys(self.folders))
        return None


@dataclass(frozen=True, slots=True)
class _Options:
    """A row of the table."""

    flags: frozenset[str]
    values: frozenset[str]
    words: frozenset[str]
    marks: frozenset[str]


@cache
def _table() -> dict[str, _Options]:
    made = {}
    for names, row in _PROGRAMS.items():
        parts = row.split()
        whole = "words" in parts
        letters = "" if whole else "".join(part[1:] for part in parts if re.fullmatch(r"-[^-#].*", part))
        values = frozenset(re.findall(r"(.):", letters))
        options = _Options(
            frozenset(letters) - values - {":"}, values,
            frozenset(part for part in parts if part.startswith("--" if not whole else "-")),
            frozenset(part for part in parts if not part.startswith("-") or part == "-#"),
        )  # fmt: skip
        several = names.split("|") if "|" in names or names.startswith(("git ", "command ")) else names.split()
        made.update(dict.fromkeys(several, options))
    return made


def why_ask(command: SimpleCommand, place: Place) -> Doubt | None:
    """Why the user has to be asked before this command runs; None when it is known to be harmless."""
    words = command.words
    for word in command.writes:
        if word.text != "/dev/null":
            return Doubt(f"it writes to {word.text}", line=True)
    for word in command.reads:
        if doubt := place.doubt(word.text):
            return doubt
    name = words[0].text
    if os.path.dirname(name) in _BINARIES:
        name = os.path.basename(name)
    elif name not in _BUILTINS and (doubt := place.program_doubt(name)):
        return doubt
    if name == "cd":
        return place.move(words[1:])
    rest = words[1:]
    if name == "git":
        rest = _after_git_options(rest, place)
    for depth in (2, 1, 0):
        key = " ".join([name, *(word.text for word in rest[:depth])])
        if (options := _table().get(key)) is not None and len(rest) >= depth:
            return _check(key, options, rest[depth:], place)
    known = name in ("git", "docker", "pip")
    about = f"{name} {rest[0].text}" if known and rest and rest[0].text.isidentifier() else name
    return Doubt(f"{about} is not known to only read")


def _after_git_options(words: list[Word], place: Place) -> list[Word]:
    """The words from git's sub-command on; none where an option before it is not known."""
    if [word.text for word in words[:1]] == ["--no-pager"]:
        return _after_git_options(words[1:], place)
    if len(words) > 1 and words[0].text == "-C" and not words[1].glob:
        place.folders += [Path(os.path.realpath(os.path.join(one, words[1].text))) for one in place.folders]
        return _after_git_options(words[2:], place)
    return words


def _check(key: str, options: _Options, words: list[Word], place: Place) -> Doubt | None:
    marks = options.marks
    texts: list[str] = []
    for word in words:
        found = list(itertools.islice(place.expanded(word), _MOST_MATCHES))
        odd = len(found) == _MOST_MATCHES or (
            not word.text.startswith("-") and any(text.startswith("-") for text in found)
        )
        if word.glob and (odd or re.search(r"(?:^|/)\.[^/]*[*?]", word.text)):  # .* is .. as well
            return Doubt(f"{key} {word.text} can be anything")
        texts += found
    read = _operands(options, texts)
    if isinstance(read, str):
        return Doubt(f"{key} {read} is not known to only read")
    operands, listing = read
    most = 0 if "none" in marks or ("list" in marks and not listing) else 1 if "one" in marks else len(operands)
    if len(operands) > most:
        return Doubt(f"{key} {operands[most]} is not known to only read")
    if "clock" in marks and not all(one.startswith("+") for one in operands):
        return Doubt("date may set the clock")
    if "format" in marks and operands and re.search(r"%[-+ #'0-9.*]*[hljztLq]*n", operands[0]):
        return Doubt("printf %n sets a variable")
    if "process" in marks and not all(re.fullmatch(r"a?u?x?|[\d,]+", one) for one in operands):
        return Doubt("ps may show secrets of other programs")
    if "script" in marks:
        language = _SCRIPTS["awk" if key.endswith("awk") else key]
        scripts = operands[: 1 if key == "sed" else None]  # for the others, an option's value may precede the script
        if not scripts or not all(len(one) < _LONGEST_SCRIPT and language.fullmatch(one) for one in scripts):
            return Doubt(f"the {key} script may do more than print", exact=True)
    if key.startswith("git ") and (doubt := _git_doubt(place)):
        return doubt
    return None if "text" in marks else _file_doubt(key, marks, texts, place)


def _file_doubt(key: str, marks: frozenset[str], texts: list[str], place: Place) -> Doubt | None:
    here = "here" in marks or ("tree" in marks and any(re.match(r"-\w*r|--recursive", text) for text in texts))
    for text in ["."] * here + texts:
        value = text.partition("=")[2] if text.startswith("--") else text
        if value and (doubt := place.doubt(value, names="names" in marks)):
            return doubt
        if "files" in marks and any(
            os.path.isdir(folder / value) for folder in place.folders if not value.startswith("-")
        ):
            return Doubt(f"{key} {value} may follow links in that folder")
    return None


def _operands(options: _Options, texts: list[str]) -> tuple[list[str], bool] | str:
    """The words that are no options, and whether one of the options asks for a list; or the option that is not known."""
    operands: list[str] = []
    listing = ended = value_next = False
    for text in texts:
        is_value, value_next = value_next and not text.startswith("-"), False
        if is_value:  # with a - it may be an option, where the value is optional
            pass
        elif text == "--" and not ended:
            ended = True
        elif not text.startswith("-") or text == "-":
            operands.append(text)
        elif ended:
            return text  # it may be an option after all: `rg -e -- --pre=…`
        elif text.partition("=")[0] in options.words:
            listing = listing or text.partition("=")[0] in ("--list", "--contains", "--points-at", "--merged")
        elif "-#" in options.marks and re.fullmatch(r"-\d+[kMG]?", text):
            pass
        elif "words" in options.marks or text.startswith("--"):
            return text
        else:
            listing = listing or text == "-l"
            for at, letter in enumerate(text[1:], 2):
                if letter in options.values:
                    value_next = at == len(text)
                    break
                if letter not in options.flags:
                    return text
    return operands, listing


def _git_doubt(place: Place) -> Doubt | None:
    """Why git may start a program that the repository chooses: its settings name one, or it is no ordinary clone."""
    for folder in place.folders:
        tops = (
            one for one in (folder, *folder.parents) if any(os.path.lexists(one / name) for name in (".git", "HEAD"))
        )
        if (top := next(tops, None)) is None:
            continue
        data = common = top / ".git"
        try:
            if data.is_file():  # a linked working tree
                data = common = top / data.read_text().removeprefix("gitdir:").strip()
                common = data / (data / "commondir").read_text().strip() if (data / "commondir").exists() else data
            texts = [(common / "config").read_text(), *(one.read_text() for one in data.glob("config.worktree"))]
            indexes = [one.read_bytes() for one in (*data.glob("index"), *data.glob("sharedindex.*"))]
        except (OSError, UnicodeError):
            return Doubt("the repository's settings can't be read")
        if any(_GIT_LINK in index for index in indexes):
            return Doubt("the repository has submodules, whose settings may start a program")
        if (common / "hooks" / "post-index-change").exists() or any(_GIT_PROGRAMS.search(text) for text in texts):
            return Doubt("the repository's settings may start a program")
        if Path.home().is_relative_to(top):
            return Doubt(f"the repository of {top} is outside the working folder")
    return None


_PIECES: Final = re.compile(
    r"(?P<blank>[ \t]+)|(?P<joined>\\\n)|(?P<operator>&&|\|\||;(?![;&])|\|(?![&|])|\n)"
    r"|(?P<copied>[12]?>&[12](?=[ \t\n;|&]|\Z))|(?P<redirect>[12]?>>?(?![>|&(])|<(?![<>&(]))"
    r"|'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\$`]|\\[\s\S]|\$(?=[\" |)]))*)\"|\\(?P<escaped>[^\n])"
    r"|(?P<sign>#)|(?P<plain>[\w./:@%+,=^!-]+)|(?P<literal>\[(?=[ \t])|\](?=[ \t\n;|&]|\Z)|\{[\w/-]*\})"
    r"|(?P<glob>[*?])|(?P<tilde>~)"
)
_ESCAPED: Final = re.compile(r'\\([$`"\\\n])')
_RESERVED: Final = frozenset(
    "! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while".split()
)


class NotUnderstood(ValueError):
    """The line contains more than simple commands; the text says what."""


@dataclass(slots=True)
class Word:
    """A word after its quotes were removed. `glob`: it has a `*` or `?` outside of them."""

    text: str = ""
    glob: bool = False
    quoted: str = ""  # the part that stood in quotes, or after a backslash


@dataclass(slots=True)
class SimpleCommand:
    """A program and its arguments, and the files it is redirected from and to."""

    words: list[Word] = field(default_factory=list)
    reads: list[Word] = field(default_factory=list)
    writes: list[Word] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


def read_command_line(line: str) -> list[SimpleCommand]:
    """The simple commands of a line, in their order; NotUnderstood when it contains anything else."""
    if any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in line):
        raise NotUnderstood("it has a character in it that is no text")
    reader = _Reader()
    at = 0
    while at < len(line):
        found = _PIECES.match(line, at)
        if found is None:
            raise NotUnderstood(f"it uses {line[at]}" if line[at].isprintable() else "it has a control character in it")
        at = found.end()
        if found.lastgroup == "sign" and reader.word is None:  # a comment, up to the end of the line
            at = line.find("\n", at) if "\n" in line[at:] else len(line)
        else:
            reader.take(str(found.lastgroup), found[0], found[str(found.lastgroup)], line[at : at + 1])
    reader.end_command("\n")
    if reader.awaits:
        raise NotUnderstood(f"it ends with {reader.awaits}")
    return reader.commands


class _Reader:
    """Joins pieces to words, and words to commands."""

    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.word: Word | None = None
        self.awaits = ""  # the operator that needs a command behind it
        self._command = SimpleCommand()
        self._into: list[Word] | None = None  # where the next word goes: a redirection's file

    def take(self, kind: str, whole: str, text: str, following: str) -> None:
        if kind == "blank":
            self._end_word()
        elif kind == "operator":
            self.end_command(whole)
        elif kind in ("copied", "redirect"):
            if self.word is not None and whole[0].isdigit():
                raise NotUnderstood(f"it uses {whole} inside a word")  # the digit belongs to the word
            self._end_word()
            if self._into is not None:
                raise NotUnderstood(f"it uses {whole} without a file")
            if kind == "redirect":
                self._into = self._command.reads if whole == "<" else self._command.writes
        elif kind != "joined":
            self._add(kind, text, following)

    def _add(self, kind: str, text: str, following: str) -> None:
        if kind == "tilde" and self.word is None and following in ("", "/", *" \t\n;|&<>"):
            text, kind = os.path.expanduser("~"), "single"
        elif kind == "tilde" and (self.word is None or self.word.text[-1:] in ("", "=", ":")):
            raise NotUnderstood("it uses ~")
        word = self.word = self.word or Word()
        if kind == "double":
            text = _ESCAPED.sub(lambda found: found[1].strip("\n"), text)
        word.text += text
        if kind in ("single", "double", "escaped"):
            word.quoted += text
        word.glob = word.glob or kind == "glob"

    def _end_word(self) -> None:
        word, self.word = self.word, None
        if word is None:
            return
        if word.glob and re.search(r"[*?\[\\]", word.quoted):
            raise NotUnderstood("it uses * beside quotes")
        if self._into is not None:
            if word.glob:
                raise NotUnderstood("it uses * in the name of a redirection's file")
            self._into.append(word)
            self._into = None
            return
        if not self._command.words and (word.glob or word.text in _RESERVED):
            raise NotUnderstood(f"it uses {word.text}")
        self._command.words.append(word)

    def end_command(self, operator: str) -> None:
        self._end_word()
        if self._into is not None:
            raise NotUnderstood("it uses a redirection without a file")
        command, self._command = self._command, SimpleCommand()
        if command.words:
            self.commands.append(command)
            self.awaits = operator if operator in ("&&", "||", "|") else ""
        elif operator != "\n" or command.reads or command.writes:
            raise NotUnderstood("it has a part without a program")
