"""Stoplight's prism (npm) between an adapter and a lab: an OpenAPI document of the vendor checks requests and answers.

with checked_by(document, lab.address, folder) as address: …   # the adapter's base URL

A request that breaks the document gets 422 and does not reach the lab; so does an answer of the lab (500).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.node import npm_program
from tests.support.ports import free_port
from tests.support.waiting import until

PACKAGE = "@stoplight/prism-cli@5.16.0"


@contextmanager
def checked_by(document: dict[str, Any], upstream: str, folder: Path) -> Iterator[str]:
    """The address of a proxy before `upstream` that lets through what the document allows."""
    described, output = folder / "openapi.json", folder / "prism.log"
    described.write_text(json.dumps(document))
    port = free_port()
    words = [*npm_program("prism", PACKAGE, "prism"), "proxy", str(described), upstream, "--errors"]
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            until(
                lambda: _answers(f"http://127.0.0.1:{port}/"),
                output.read_text,
                unless=lambda: process.poll() is not None,
            )
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        return bool(httpx.get(url, trust_env=False).status_code)
    except httpx.HTTPError:
        return False
