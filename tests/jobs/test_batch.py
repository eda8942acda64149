"""`hermes batch`: run as a process, with a model server whose every word the test decides."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chat.server import Call, Gate
from tests.jobs.conftest import AnsweringServer
from tests.support.program import Result, ended, in_terminal, run, start
from tests.support.wire import Wire, error

Look = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written(tmp_path, *({"prompt": f"question {n}"} for n in range(6)))


def written(folder: Path, *lines: Any, name: str = "prompts.jsonl") -> Path:
    file = folder / name
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def batch(prompts: Path, home: Path, *words: object, **more: Any) -> Result:
    return run("batch", prompts, "--out", prompts.parent / "out.jsonl", *words, home=home, **more)


def rows(prompts: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (prompts.parent / "out.jsonl").read_text().splitlines()]


def sessions(db: Any) -> list[list[tuple[str, Any]]]:
    listed = db.list_sessions_rich(limit=100, source="batch")
    return sorted([(one["role"], one["content"]) for one in db.get_messages(row["id"])] for row in listed)


def conversation(prompt: str) -> list[tuple[str, str]]:
    return [("user", prompt), ("assistant", f"re: {prompt}")]


# ── a whole run ──


def test_commands_follow_the_rules_and_yes_to(server: AnsweringServer, home: Path, tmp_path: Path) -> None:
    prompts = written(tmp_path, {"prompt": "make it"})
    for words, made in (((), False), (("--yes-to", "git push"), False), (("--yes-to", "touch"), True)):
        server.special["make it"] = [Call("terminal", command=f"touch {tmp_path}/made")]
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        assert batch(prompts, home, *words).status == 0
        told = server.requests[-1]["messages"][-1]["content"]
        assert ("no one can be asked here" in told) is not made and (tmp_path / "made").exists() is made


def test_each_line_is_a_session_and_gets_a_result(
    server: AnsweringServer, home: Path, prompts: Path, look: Look
) -> None:
    done = batch(prompts, home)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("6 of 6 lines done")
    by_line = {row["line"]: row for row in rows(prompts)}
    assert [by_line[n]["reply"] for n in range(1, 7)] == [f"re: question {n}" for n in range(6)]
    assert (by_line[1]["input_tokens"], by_line[1]["output_tokens"], by_line[1]["model"]) == (11, 7, "test-model")
    assert look(sessions) == [conversation(f"question {n}") for n in range(6)]
    row = look(lambda db: db.get_session(by_line[1]["session_id"]))
    assert (row["source"], row["end_reason"], row["title"]) == ("batch", "batch_done", None)
    assert server.tasks == []  # nobody paid for a title


@pytest.mark.parametrize("folder", ["there/", "new"])
def test_a_folder_gets_a_file_of_results(server: AnsweringServer, home: Path, prompts: Path, folder: str) -> None:
    out = prompts.parent / folder
    if folder.endswith("/"):
        out.mkdir()
    done = run("batch", prompts, "--out", f"{prompts.parent}/{folder}", "--workers", "2", home=home)
    assert (done.status, done.err) == (0, "")
    assert done.out.rstrip().endswith(str(out / "results.jsonl"))
    assert len((out / "results.jsonl").read_text().splitlines()) == 6


def test_the_results_are_in_the_order_of_the_prompts_on_request(
    server: AnsweringServer, home: Path, prompts: Path
) -> None:
    first = Gate()
    server.special["question 0"] = [first, "late"]
    running = start("batch", prompts, "--out", prompts.parent / "out.jsonl", "--parallel", 2, home=home)
    wait_for_rows(prompts, 5, running)
    first.open.set()
    assert ended(running) == 0
    assert [row["line"] for row in rows(prompts)] == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in prompts.parent.iterdir() if path.name.startswith(".out")] == []


def test_prompts_come_through_a_pipe(server: AnsweringServer, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run("batch", "-", "--out", out, home=home, input='"one"\n"two"')
    assert done.status == 0 and server.asked() == ["one", "two"]


def test_the_progress_on_a_terminal_shows_rate_and_cost(server: AnsweringServer, home: Path, prompts: Path) -> None:
    status, seen = in_terminal("batch", prompts, "--out", prompts.parent / "o.jsonl", "--parallel", 1, home=home)
    assert status == 0
    assert "/6 · " in seen and "/s · $" in seen and "6 of 6 lines done" in seen


# ── what a line may be ──


def test_bad_lines_are_named_by_number_and_the_rest_is_done(
    server: AnsweringServer, home: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, '"good"', "{torn", "[1]", {"text": "x"}, {"prompt": 3}, {"prompt": " "}, {"messages": []})
    with file.open("ab") as stream:
        stream.write(b'"caf\xe9"\n"the last')
        stream.write(b'"\n')
    done = batch(file, home)
    assert done.status == 1
    assert [line.split(":")[1] for line in done.err.splitlines()] == [f" line {n}" for n in range(2, 9)]
    assert server.asked() == ["good", "the last"]
    assert "2 of 2 lines done, 7 bad lines" in done.out


def test_a_conversation_is_stored_before_its_last_message_is_answered(
    server: AnsweringServer, home: Path, tmp_path: Path, look: Look
) -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "and now?"},
    ]
    file = written(tmp_path, {"messages": said})
    assert batch(file, home).status == 0
    assert look(sessions) == [[("user", "hello"), ("assistant", "hi"), *conversation("and now?")]]
    (body,) = server.requests
    assert body["messages"] == said
    counts = look(lambda db: [row["token_count"] for row in db.get_messages(db.list_sessions_rich(limit=1)[0]["id"])])
    assert len(counts) == 4 and all(counts)


def test_openai_requests_get_openai_responses(server: AnsweringServer, home: Path, tmp_path: Path) -> None:
    def request(name: str, text: str, **more: Any) -> dict[str, Any]:
        body = {"model": "other-model", "messages": [{"role": "user", "content": text}], "temperature": 0}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}

    file = written(
        tmp_path,
        request("a", "one"),
        request("b", "two"),
        request("a", "three"),
        request("c", "x", url="/v1/embeddings"),
    )
    done = batch(file, home)
    assert done.status == 1
    assert "line 3: custom_id 'a' is the one of line 1" in done.err and "line 4: " in done.err
    assert "ignored: temperature" in done.err
    first, second = rows(file)
    assert (first["custom_id"], second["custom_id"], first["error"]) == ("a", "b", None)
    assert first["response"]["status_code"] == 200
    body = first["response"]["body"]
    assert body["choices"][0]["message"]["content"] == "re: one" and body["model"] == "other-model"
    assert body["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert {body["model"] for body in server.requests} == {"other-model"}
    again = batch(file, home, "--resume", "--model", "test-model")
    assert again.out.startswith("2 of 2 lines done") and len(server.requests) == 2


def test_the_model_of_the_command_line_answers_every_line(server: AnsweringServer, home: Path, tmp_path: Path) -> None:
    file = written(tmp_path, {"prompt": "a", "model": "x"}, {"prompt": "b"})
    assert batch(file, home, "--model", "mine").status == 0
    assert {body["model"] for body in server.requests} == {"mine"}


# ── stopping and going on ──


def wait_for_rows(prompts: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until the file of results has so many lines; the process ends by itself if it never does."""
    out = prompts.parent / "out.jsonl"
    while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < count):
        time.sleep(0.01)


def test_killed_and_resumed_it_does_what_is_left_and_nothing_twice(
    server: AnsweringServer, home: Path, prompts: Path, look: Look
) -> None:
    held = Gate()
    server.special["question 3"] = ["half a re", held, "never seen"]
    running = start("batch", prompts, "--out", prompts.parent / "out.jsonl", "--parallel", 2, home=home)
    assert held.reached.wait(60)
    wait_for_rows(prompts, 5, running)
    running.kill()
    ended(running)
    held.open.set()
    before = rows(prompts)
    assert sorted(row["line"] for row in before) == [1, 2, 3, 5, 6]
    done = batch(prompts, home, "--resume")
    assert (done.status, done.out.split(",")[0]) == (0, "6 of 6 lines done"), done.err
    assert [row for row in rows(prompts) if row in before] == sorted(before, key=lambda row: row["line"])
    assert server.asked() == sorted([*(f"question {n}" for n in range(6)), "question 3"])  # its reply was not whole
    assert look(sessions) == [conversation(f"question {n}") for n in range(6)]
    assert batch(prompts, home, "--resume").status == 0
    assert len(server.requests) == 7 and len(rows(prompts)) == 6


def test_a_reply_that_only_the_record_has_is_not_asked_for_again(
    server: AnsweringServer, home: Path, prompts: Path
) -> None:
    batch(prompts, home)
    out = prompts.parent / "out.jsonl"
    whole = out.read_bytes()
    out.write_bytes(whole[:-20])  # killed while the last line was written
    assert batch(prompts, home, "--resume").status == 0
    assert out.read_bytes() == whole
    out.unlink()  # killed before the first one was
    assert batch(prompts, home, "--resume").status == 0
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert len(server.requests) == 6


def test_results_are_not_overwritten_without_resume(server: AnsweringServer, home: Path, prompts: Path) -> None:
    batch(prompts, home)
    before = rows(prompts)
    done = batch(prompts, home)
    assert done.status == 1 and "has results already: --resume" in done.err
    assert rows(prompts) == before and len(server.requests) == 6


def test_a_file_that_is_no_batch_result_is_left_alone(server: AnsweringServer, home: Path, prompts: Path) -> None:
    out = prompts.parent / "out.jsonl"
    out.write_text('{"my": "notes"}\n')
    done = batch(prompts, home, "--resume")
    assert done.status == 1 and "line 1 of" in done.err and out.read_text() == '{"my": "notes"}\n'
    done = run("batch", prompts, "--out", prompts, home=home)
    assert done.status == 2 and "file of prompts" in done.err


def test_two_processes_do_not_write_one_file(server: AnsweringServer, home: Path, prompts: Path) -> None:
    held = Gate()
    server.special["question 0"] = [held, "now"]
    running = start("batch", prompts, "--out", prompts.parent / "out.jsonl", home=home)
    assert held.reached.wait(60)
    second = batch(prompts, home, "--resume")
    assert second.status == 1 and "another process writes" in second.err
    held.open.set()
    assert ended(running) == 0 and len(server.requests) == 6


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_resume_takes_it_up(
    server: AnsweringServer, home: Path, prompts: Path, look: Look, number: int, status: int
) -> None:
    held = Gate()
    server.special["question 0"] = ["half", held]
    running = start("batch", prompts, "--out", prompts.parent / "out.jsonl", "--parallel", 1, home=home)
    assert held.reached.wait(60)
    running.send_signal(number)
    out, err = running.communicate(timeout=120)
    held.open.set()
    assert running.returncode == status
    assert "0 of 6 lines done, 6 left" in out and "--resume" in err
    assert batch(prompts, home, "--resume").status == 0
    assert look(sessions) == [conversation(f"question {n}") for n in range(6)]


# ── failures and money ──


def test_a_line_that_failed_is_a_result_and_is_asked_again_on_resume(home: Path, prompts: Path, look: Look) -> None:
    with Wire([error(400, "this one is not allowed")]) as wire:
        (home / "config.yaml").write_text(f"model: {{default: m, base_url: '{wire.base_url}', api_key: x}}\n")
        done = batch(written(prompts.parent, '"a"'), home)
        assert done.status == 1 and "1 failed" in done.out
        (row,) = rows(prompts)
        assert "this one is not allowed" in row["error"]
    with AnsweringServer() as server:
        (home / "config.yaml").write_text(server.config())
        assert batch(prompts, home, "--resume").status == 0
    (row,) = rows(prompts)
    assert row["reply"] == "re: a"
    assert look(sessions) == [conversation("a")]


def test_a_run_that_can_only_fail_stops(home: Path, tmp_path: Path) -> None:
    with Wire([error(401, "wrong key")] * 60) as wire:
        (home / "config.yaml").write_text(f"model: {{default: m, base_url: '{wire.base_url}', api_key: x}}\n")
        done = batch(written(tmp_path, *(f'"{n}"' for n in range(50))), home, "--parallel", 2)
    assert done.status == 1
    assert "lines failed for the same reason" in done.err and "left" in done.out


def priced(server: AnsweringServer, home: Path) -> dict[str, str]:
    """The server under an address whose prices are known; the variables that lead there."""
    (home / "config.yaml").write_text(
        "model: {default: gpt-4o-mini, base_url: 'http://lab.openai.azure.com/v1', api_key: x}\n"
    )
    return {"HTTP_PROXY": server.base_url.removesuffix("/v1"), "NO_PROXY": ""}


def test_the_cost_of_all_runs_is_told(server: AnsweringServer, home: Path, tmp_path: Path) -> None:
    file = written(tmp_path, *(f'"{n}"' for n in range(3)))
    env, one = priced(server, home), 11 * 0.15e-6 + 7 * 0.6e-6
    done = batch(file, home, env=env)
    assert done.status == 0 and rows(file)[0]["cost_usd"] == pytest.approx(one)
    assert f"${one * 3:.4f}" in done.out and f"${one * 3:.4f}" in batch(file, home, "--resume", env=env).out
