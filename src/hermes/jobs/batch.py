"""Runs a batch: each line is a session of the source `batch`, several at a time, each run once.

Two places know which lines are done: the file of results, and the record. The id of a line's session is made of the
batch's name and the line itself, so a batch resumed after a crash finds its earlier sessions: a reply in the record is
written to the results without asking again, and a question without a complete reply is continued.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.loop import Agent
from hermes.agent.turn import Done, Stop
from hermes.errors import ConfigError, Fenced, HermesError, InvalidInput, StoreError
from hermes.store.api.session_db import Transactions

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.agent.tools.permission import Answer
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config
    from hermes.jobs.batch_files import BatchQuestion, LinePlace, Lines, Results
    from hermes.store.api.session_db import SessionDB

SOURCE = "batch"
ENDED = "batch_done"  # the end_reason of a line's session
_LOOK = 0.2  # seconds between two looks at the clock
_STOPPING = 15.0  # seconds that interrupted turns have to store their text


class BatchAgent(Agent):
    """Answers one line. Titles never use a paid model."""

    titles = recalls = False


@dataclass(slots=True)
class BatchProgress:
    """The progress of a batch."""

    total: int
    done: int = 0  # lines, with those of earlier processes
    failed: int = 0
    cost: float = 0.0  # US dollars, as far as prices are known; with those of earlier processes
    unpriced: int = 0  # replies of unknown price
    fresh: int = 0  # finished by this process, well or not
    began: float = 0.0  # by the monotonic clock

    def rate(self) -> float:
        """Lines a second in this process."""
        return self.fresh / max(1e-6, time.monotonic() - self.began)

    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None before the first line is done."""
        return (self.total - self.done - self.failed) / self.rate() if self.fresh else None


@dataclass(slots=True)
class Finished:
    """The result of one line; `error` None: `text` is the reply. Neither: it was interrupted."""

    place: LinePlace
    session_id: str
    question: BatchQuestion | None = None
    text: str | None = None
    error: BaseException | None = None
    cost: float | None = None
    model: str = ""
    finish_reason: str = "stop"
    usage: tuple[int, int] = (0, 0)  # tokens in and out


class Stopped(HermesError):
    """The batch ended before its last line; `--resume` does the rest."""


class Batch:
    """One run of the remaining lines."""

    def __init__(
        self,
        db: SessionDB,
        config: Config,
        model: Model,
        lines: Lines,
        results: Results,
        run: str,
        *,
        parallel: int = 8,
        tools: Sequence[Tool] = (),
        confirm: Callable[[str], bool | Answer] = lambda question: False,
        one_model: bool = False,
    ) -> None:
        """`run` is the prefix of the session ids; `one_model`: this model answers, whichever model a line names."""
        self._db, self._config, self._model, self._lines, self._results = db, config, model, lines, results
        self._run, self._parallel, self._tools, self._confirm = run, parallel, list(tools), confirm
        self._one_model = one_model
        self._cwd = Path.cwd()
        self._stop = threading.Event()
        self._working: dict[str, Stop] = {}
        self._over: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._same: tuple[str, int] = ("", 0)  # the last failure, and how often in a row there was no other outcome
        self.progress = BatchProgress(len(lines.good))

    # ------------------------------------------------------------------------------------------ the run

    def session_id(self, place: LinePlace) -> str:
        """The session of a line."""
        return f"{self._run}_{place.digest}"

    def run(self, tell: Callable[[BatchProgress], None]) -> None:
        """Run the remaining lines; `tell` is called now and then. Stopped says why it ended before the last line."""
        progress = self.progress
        left = []
        for place in self._lines.good:
            session_id = self.session_id(place)
            if session_id in self._results.done:
                progress.done += 1
                price = self._account(session_id)[0]
                progress.cost += price or 0.0
                progress.unpriced += price is None
            else:
                left.append(place)
        progress.began = time.monotonic()
        waiting = iter(left)
        upcoming = next(waiting, None)
        why: Stopped | None = None
        try:
            while upcoming is not None or self._working:
                while upcoming is not None and why is None and len(self._working) < self._parallel:
                    self._start(upcoming)
                    upcoming = next(waiting, None)
                if why is not None and not self._working:
                    break
                tell(progress)
                try:
                    finished = self._over.get(timeout=_LOOK)
                except queue.Empty:
                    continue
                self._working.pop(finished.session_id, None)
                why = why or self._keep(finished)
        finally:
            self._interrupt()
        if why is not None and upcoming is not None:
            raise why

    def _start(self, place: LinePlace) -> None:
        session_id = self.session_id(place)
        question = self._lines.read(place)
        self._working[session_id] = stop = Stop()
        threading.Thread(
            target=self._work,
            args=(Finished(place, session_id, question), question, stop),
            name="hermes-batch-line",
            daemon=True,
        ).start()

    def _keep(self, finished: Finished) -> Stopped | None:
        """Write a result; returns why the batch can't continue, or None."""
        progress, error = self.progress, finished.error
        if isinstance(error, StoreError | ConfigError | OSError) and not isinstance(error, Fenced):
            raise error  # every other line would fail as well
        if error is None and finished.text is None:
            return None
        progress.fresh += 1
        if error is not None and not isinstance(error, HermesError):
            error = HermesError(f"internal error ({type(error).__name__}: {error})")
        finished.error = error
        row = openai_row(finished) if finished.question and finished.question.is_openai else plain_row(finished)
        self._results.append(finished.session_id, row)
        if error is None:
            progress.done += 1
            progress.cost += finished.cost or 0.0
            progress.unpriced += finished.cost is None
            self._same = ("", 0)
            return None
        progress.failed += 1
        text = str(error)
        self._same = (text, self._same[1] + 1 if text == self._same[0] else 1)
        if self._same[1] >= max(10, 2 * self._parallel):
            return Stopped(f"the last {self._same[1]} lines failed for the same reason: {text}")
        return None

    def _interrupt(self) -> None:
        """End the running turns; their text so far is stored, and the next run continues them."""
        self._stop.set()
        end = time.monotonic() + _STOPPING
        for stop in self._working.values():
            stop.want()
        while self._working and time.monotonic() < end:
            try:
                finished = self._over.get(timeout=_LOOK)
            except queue.Empty:
                continue
            self._working.pop(finished.session_id, None)
            if finished.error is None and finished.text is not None:
                self._keep(finished)

    # ------------------------------------------------------------------------------------------ one line, in its thread

    def _work(self, finished: Finished, question: BatchQuestion, stop: Stop) -> None:
        try:
            self._answer(finished, question, stop)
        except BaseException as error:  # any error must reach the run
            finished.error = error
        self._over.put(finished)

    def _answer(self, finished: Finished, question: BatchQuestion, stop: Stop) -> None:
        model = self._model_for(question)
        agent = BatchAgent(
            self._db, self._config, model, session_id=finished.session_id, source=SOURCE, tools=self._tools,
            confirm=self._confirm, cwd=self._cwd,
        )  # fmt: skip
        try:
            if stop.wanted or not agent.wait_for_turn(lambda who: None, self._stop.wait):
                return
            done = self._turn(agent, finished.session_id, question, model, stop)
            if done is None or done.interrupted:
                return
            self._db.end_session(agent.session_id, ENDED)
            finished.cost, *usage = self._account(finished.session_id)
            finished.usage = (usage[0], usage[1])
            finished.model, finished.finish_reason = self._spoken_by(agent.session_id, model)
            finished.text = done.text
        finally:
            agent.close(patience=0)

    def _turn(
        self, agent: BatchAgent, session_id: str, question: BatchQuestion, model: Model, stop: Stop
    ) -> Done | None:
        """Send the messages that the session lacks, and get the reply: from the record if it is complete there."""
        before = question.messages[:-1]
        if question.system is not None:
            about = {"kind": model.kind, "provider": model.provider, "base_url": model.base_url}
            self._db.create_session(
                session_id, SOURCE, model=model.name, system_prompt=question.system, cwd=str(self._cwd),
                model_config={key: value for key, value in about.items() if value is not None},
            )  # fmt: skip
        elif before:
            self._db.create_session(session_id, SOURCE, model=model.name, cwd=str(self._cwd))
        stored = self._db.get_messages(session_id)
        for message in before[len(stored) :]:
            kept = {name: message.get(name) for name in ("role", "content", "tool_calls", "tool_call_id")}
            Transactions(self._db).store_message(session_id, kept)
        if len(stored) > len(before):
            turn = agent.resume(stored[len(before)]["id"])
        else:
            turn = agent.turn(question.messages[-1]["content"])
        last: Done | None = None
        for event in stop.bind(turn):
            if isinstance(event, Done):
                last = event
        return last

    def _model_for(self, question: BatchQuestion) -> Model:
        if question.model is None or self._one_model or question.model == self._model.name:
            return self._model
        from hermes.agent.models.choice import named_model

        return named_model(question.model, self._model)

    def _account(self, session_id: str) -> tuple[float | None, int, int]:
        """A line's cost, with the tokens that went in and out, over all sessions it was compressed into."""
        price: float | None = None
        sent = received = 0
        for one in self._db.get_compression_lineage(session_id) or [session_id]:
            row = self._db.get_session(one)
            if row is None:
                continue
            if row["estimated_cost_usd"] is not None:
                price = (price or 0.0) + float(row["estimated_cost_usd"])
            sent += (row["input_tokens"] or 0) + (row["cache_read_tokens"] or 0) + (row["cache_write_tokens"] or 0)
            received += int(row["output_tokens"] or 0)
        return price, sent, received

    def _spoken_by(self, session_id: str, model: Model) -> tuple[str, str]:
        """The model of the last reply, and its finish reason."""
        rows = [row for row in self._db.get_messages(session_id) if row["role"] == "assistant"]
        row: Mapping[str, Any] = rows[-1] if rows else {}
        reason = row.get("finish_reason")
        return str(row.get("model") or model.name), reason if reason in ("length", "content_filter") else "stop"


# ------------------------------------------------------------------------------------------------ results


def plain_row(finished: Finished) -> dict[str, Any]:
    """A result in our own shape."""
    row: dict[str, Any] = {"line": finished.place.number}
    if finished.question is not None and finished.question.id is not None:
        row["id"] = finished.question.id
    row["session_id"] = finished.session_id
    if finished.error is not None:
        return {**row, "error": str(finished.error)}
    sent, received = finished.usage
    return {
        **row, "reply": finished.text, "finish_reason": finished.finish_reason, "model": finished.model,
        "input_tokens": sent, "output_tokens": received, "cost_usd": finished.cost,
    }  # fmt: skip


def openai_row(finished: Finished) -> dict[str, Any]:
    """A result as OpenAI's batch files have it; its `id` is the session's."""
    name = finished.question.id if finished.question is not None else None
    head = {"id": finished.session_id, "custom_id": name}
    if finished.error is not None:
        code = "invalid_request" if isinstance(finished.error, InvalidInput) else "model_error"
        return {**head, "response": None, "error": {"code": code, "message": str(finished.error)}}
    sent, received = finished.usage
    body = {
        "id": f"chatcmpl-{finished.session_id}", "object": "chat.completion", "created": int(time.time()),
        "model": finished.model,
        "choices": [
            {
                "index": 0, "message": {"role": "assistant", "content": finished.text, "refusal": None},
                "logprobs": None, "finish_reason": finished.finish_reason,
            }
        ],
        "usage": {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received},
    }  # fmt: skip
    response = {"status_code": 200, "request_id": finished.session_id, "body": body}
    return {**head, "response": response, "error": None}
