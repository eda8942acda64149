"""The options of a program's words, parsed like GNU programs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.agent.tools.danger.shell_words import Word


@dataclass(slots=True)
class Options:
    """`-x`, `--long` and their values apart from the operands."""

    given: list[tuple[str, Word | None]] = field(default_factory=list)
    operands: list[Word] = field(default_factory=list)
    unclear: bool = False  # an expansion stands where an option could stand

    def has(self, *names: str) -> bool:
        """Whether one of these is given; a long name also by its beginning, as programs accept it."""
        return any(_means(given, name) for given, _ in self.given for name in names)

    def exactly(self, *names: str) -> bool:
        """Whether one of these is given in full."""
        return any(given in names for given, _ in self.given)

    def value(self, *names: str) -> Word | None:
        """The value of the last of these options."""
        return next(
            (value for given, value in reversed(self.given) if value and any(_means(given, n) for n in names)), None
        )


def _means(given: str, name: str) -> bool:
    if name.startswith("--"):
        return len(given) > 2 and name.startswith(given)
    return given == name


def split(words: Sequence[Word], values: frozenset[str] = frozenset(), *, permuting: bool = True) -> Options:
    """Options and operands; `values` are the options that take one. Without `permuting` options end at an operand."""
    found = Options()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        text = word.text
        if word.leading and not word.quoted:
            found.unclear = True
        if text == "--" and word.known:
            found.operands += rest
            break
        if word.leading or not text.startswith("-") or text == "-":
            found.operands.append(word)
            if not permuting:
                found.operands += rest
                break
        elif text.startswith("--"):
            name, equals, value = text.partition("=")
            if equals:
                found.given.append((name, _part(word, value)))
            else:
                found.given.append((name, rest.pop(0) if name in values and rest else None))
        else:
            _cluster(found, word, values, rest)
    return found


def _cluster(found: Options, word: Word, values: frozenset[str], rest: list[Word]) -> None:
    """`-xvf file`: letters up to the one that takes a value."""
    for at in range(1, len(word.text)):
        name = "-" + word.text[at]
        if name in values:
            attached = word.text[at + 1 :]
            found.given.append((name, _part(word, attached) if attached else rest.pop(0) if rest else None))
            return
        found.given.append((name, None))


def _part(word: Word, text: str) -> Word:
    return Word(text, known=word.known, open=word.open, glob=word.glob, quoted=word.quoted)
