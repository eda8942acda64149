"""Telegram's own description of its Bot API, as aiogram's sources carry it, and a check of requests and objects by it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.environments import installed, missing

AIOGRAM = "3.31.0"  # describes Bot API 10.3
_LENGTH = re.compile(r"\b(\d+)-(\d+) characters")
_PLAIN = {"Integer": int, "String": str, "Boolean": bool, "True": bool}


def _install(folder: Path) -> None:
    """Fetch aiogram's source archive and keep the one file we want of it."""
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "aiogram"]
    command = [sys.executable, "-m", "pip", *words, f"aiogram=={AIOGRAM}", "--dest", "."]
    outcome = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if outcome.returncode != 0:
        missing(f"the Bot API schema in aiogram's sources can't be had: {outcome.stderr[-300:]}")
    archive = folder / f"aiogram-{AIOGRAM}.tar.gz"
    with tarfile.open(archive) as opened:
        member = opened.extractfile(f"aiogram-{AIOGRAM}/.butcher/schema/schema.json")
        assert member is not None
        (folder / "schema.json").write_bytes(member.read())
    archive.unlink()


@cache
def load() -> Schema:
    """The schema; the test that asks for it is skipped where it can't be had."""
    folder = installed(f"telegram-schema-{AIOGRAM}", _install, quick=True)
    return Schema(json.loads((folder / "schema.json").read_text()))


class Schema:
    """The types of requests and responses. Every check returns the errors, in words."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._known: dict[str, dict[str, dict[str, Any]]] = {
            child["name"]: {field["name"]: field for field in child["annotations"]}
            for part in whole["items"]
            for child in part["children"]
        }

    def request(self, method: str, given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """The parameters of a form-encoded request as values, and what is wrong with them."""
        fields = self._known.get(method)
        if fields is None or method[0].isupper():
            return {}, [f"there is no method {method}"]
        values = {name: self._value(fields[name]["type"], text) for name, text in given.items() if name in fields}
        return values, self._fields(method, fields, {**given, **values})

    def thing(self, kind: str, value: Any, where: str = "") -> list[str]:
        """The errors in a value that should be of this kind."""
        where = where or kind
        if kind.startswith("Array of "):
            if not isinstance(value, list):
                return [f"{where}: {value!r} is no array"]
            inner = kind.removeprefix("Array of ").replace(", ", " or ").replace(" and ", " or ")
            return [wrong for i, one in enumerate(value) for wrong in self.thing(inner, one, f"{where}[{i}]")]
        if " or " in kind:
            found = [self.thing(one, value, where) for one in kind.split(" or ")]
            return [] if any(not wrong for wrong in found) else [f"{where}: {value!r} is none of {kind}"]
        if kind in _PLAIN:
            right = isinstance(value, _PLAIN[kind]) and (kind != "Integer" or not isinstance(value, bool))
            return [] if right and (kind != "True" or value is True) else [f"{where}: {value!r} is no {kind}"]
        if kind == "Float":
            return [] if isinstance(value, (int, float)) else [f"{where}: {value!r} is no number"]
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no {kind}"]
        fields = self._known[kind]
        return self._fields(where, fields, value) if fields else []  # without fields: one of several kinds

    def _fields(self, where: str, fields: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> list[str]:
        wrong = [f"{where}: no {name} is known" for name in given if name not in fields]
        wrong += [
            f"{where}: {name} is missing" for name, one in fields.items() if one["required"] and name not in given
        ]
        for name, value in given.items():
            if name in fields:
                wrong += self.thing(fields[name]["type"], value, f"{where}.{name}")
                span = _LENGTH.search(fields[name]["description"])
                if span and isinstance(value, str) and not int(span[1]) <= _units(value) <= int(span[2]):
                    wrong.append(f"{where}.{name}: {_units(value)} characters, allowed are {span[0]}")
        return wrong

    def _value(self, kind: str, text: str) -> Any:
        if kind == "String":
            return text
        if "String" in kind.split(" or "):
            return int(text) if re.fullmatch(r"-?\d+", text) else text
        try:
            return json.loads(text)
        except ValueError:
            return text


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
