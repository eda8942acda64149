"""Discord's own OpenAPI document (as PyPI's discordopenapi has it), to hold every request of an adapter against.

The package is installed beside the project, not into it. Only the models that are needed are loaded: all of them take
seconds.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.environments import environment

REQUIREMENT = "discordopenapi==1.0.0"
# Sent by discord.py and taken by Discord, but not in its document.
UNDOCUMENTED = {
    ("create_thread", "use_nested_fields"),
    ("create_thread_request", "type"),
    ("message_edit_request_partial", "tts"),
}


class Operation(NamedTuple):
    """One thing the API can do: its name in the document, and what its path said."""

    name: str
    path: dict[str, str]
    query: frozenset[str]
    body: str | None


class Schema:
    """The document, loaded as far as it is asked for."""

    def __init__(self) -> None:
        programs = environment("discordopenapi", [REQUIREMENT], options=["--no-deps"], quick=True)
        (self._folder,) = programs.parent.glob("lib/python*/site-packages/openapi_client")
        self._operations = _operations(self._folder)
        _open_package(self._folder)

    def operation(self, method: str, path: str) -> Operation | None:
        """The operation of a request; None if the document has none."""
        for name, its_method, pattern, query, body in self._operations:
            if its_method == method and (found := pattern.fullmatch(path)):
                return Operation(name, found.groupdict(), query, body)
        return None

    def problems(self, operation: Operation, query: Mapping[str, str], body: Any) -> list[str]:
        """The errors in a request, by the document."""
        extra = {name for name in query if name not in operation.query and (operation.name, name) not in UNDOCUMENTED}
        found = [f"{operation.name}: no query parameter {name}" for name in sorted(extra)]
        if operation.body is None:
            return found + ([f"{operation.name}: takes no body"] if body is not None else [])
        if body is None:
            return [*found, f"{operation.name}: needs a body"]
        for one in body if isinstance(body, list) else [body]:
            found += [f"{operation.name}: {problem}" for problem in self.against(operation.body, one)]
        return found

    def against(self, model: str, thing: Any) -> list[str]:
        """The errors in a JSON object that should be a `model` ("message_create_request"), by the document."""
        if model == "application_command_update_request" and "options" in thing:
            # The generated class takes a text option for any other kind too, and then refuses it as ambiguous.
            found = [
                problem
                for one in thing["options"]
                for problem in self.against("application_command_string_option", one)
            ]
            found += [f"{model}: not a text option: {one}" for one in thing["options"] if one["type"] != 3]
            return found + self.against(model, {key: value for key, value in thing.items() if key != "options"})
        if model == "message_create_request" and thing.get("components"):  # the same with a row of buttons
            found = [f"{model}: not a row: {row}" for row in thing["components"] if row["type"] != 1]
            found += [
                problem
                for row in thing["components"]
                for one in row["components"]
                for problem in self.against("button_component_for_message_request", one)
            ]
            found += [f"{model}: more than 5 in a row" for row in thing["components"] if len(row["components"]) > 5]
            return found + self.against(model, {key: value for key, value in thing.items() if key != "components"})
        module = importlib.import_module(f"openapi_client.models.{model}")
        kind = getattr(module, "".join(word.capitalize() for word in model.split("_")))
        try:
            made = kind.from_json(json.dumps(_ids_as_text(thing)))
        except ValueError as error:
            return [f"{model}: {str(error)[:500]}"]
        made = getattr(made, "actual_instance", None) or made
        known = {field.alias or name for name, field in type(made).model_fields.items()}
        return [
            f"{model}: no field {name}" for name in thing if name not in known and (model, name) not in UNDOCUMENTED
        ]


def _ids_as_text(thing: Any) -> Any:
    """Discord takes ids as numbers too; its document knows texts only."""
    if isinstance(thing, list):
        return [_ids_as_text(one) for one in thing]
    if not isinstance(thing, dict):
        return thing
    return {
        key: str(value) if (key == "id" or key.endswith("_id")) and isinstance(value, int) else _ids_as_text(value)
        for key, value in thing.items()
    }


def _operations(folder: Path) -> list[tuple[str, str, re.Pattern[str], frozenset[str], str | None]]:
    """Every operation, out of the package's generated client."""
    made = []
    text = (folder / "api" / "default_api.py").read_text()
    for block in re.split(r"\n    def _(?=\w+_serialize\()", text)[1:]:
        name = block[: block.index("_serialize(")]
        block = block[: block.index("_request_auth=_request_auth")]
        method, path = re.search(r"method='(\w+)',\s+resource_path='([^']+)'", block).groups()  # type: ignore[union-attr]
        query = frozenset(re.findall(r"_query_params\.append\(\('(\w+)'", block))
        body = re.search(r"_body_params = (\w+)", block)
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/@]+)", re.escape(path)))
        made.append((name, method, pattern, query, body[1] if body else None))
    return made


def _open_package(folder: Path) -> None:
    """Let models be imported one by one: the package's own __init__ would load them all."""
    for name, place in (("openapi_client", folder), ("openapi_client.models", folder / "models")):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(place)]
            sys.modules[name] = package
