"""All turns of the server: those of one session one after the other, those of different sessions side by side.

Who comes while a turn of the same session is under way waits for it, in the order of coming; a long line is answered with
429. An agent stays for a little while after its turn, so that the next message finds it (and its background processes).
Where several servers share a store, a session is given back when its turn ends: the next message may come to another of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.model import Model
from hermes.agent.session_leases import source_of
from hermes.agent.tools.toolbox import FOR_EVERYONE
from hermes.agent.turn import Turn
from hermes.errors import HermesError
from hermes.serve.asks import Ask
from hermes.serve.places import SOURCE, Place, Places, home_of, user_of
from hermes.serve.problems import Problem
from hermes.serve.served_agent import ServedAgent
from hermes.serve.turn import Outcome, ServedTurn, Used, Words
from hermes.store.replaying import last_id, messages_after

if TYPE_CHECKING:
    from hermes.agent.tools.base import Tool
    from hermes.config import Config
    from hermes.store.db import SessionDB

LONGEST_LINE = 16  # requests that wait for one session
MOST_AT_ONCE = 200  # turns under way and waiting, of all sessions
LINGER = 10.0  # seconds an agent stays after its turn
WAIT = 600.0  # seconds in which a turn on another server comes to its end: callers wait no longer, either
PAUSE = 0.1  # seconds between two looks whether it has


@dataclass(slots=True, eq=False)
class _Line:
    """Those who want to talk in one session."""

    name: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # those who wait, and the one who talks
    agent: ServedAgent | None = None
    again: bool = False  # the words of the next turn stand in the record already
    leaving: asyncio.TimerHandle | None = None


class Turns:
    """Begins turns. Made and used on one event loop; `close` waits until everything is put away."""

    def __init__(self, db: SessionDB, config: Config, home: Path, tools: Callable[[], Awaitable[list[Tool]]]) -> None:
        self.places = Places(db, config, home)
        self._db, self._config, self._home = db, config, home
        self._tools = tools
        self._lines: dict[str, _Line] = {}
        self._running: set[ServedTurn] = set()
        self._chores: set[asyncio.Task[None]] = set()
        self._closed = False

    async def begin(self, ask: Ask, model: Model) -> ServedTurn:
        """Begin the turn a request asks for, as soon as its session is free."""
        if self._closed:
            raise Problem(503, "the server is stopping", code="stopping", retry_after=5)
        if sum(line.users for line in self._lines.values()) >= MOST_AT_ONCE:
            raise Problem(429, "the server is busy with many requests", code="rate_limit_exceeded", retry_after=2)
        tools = await self._tools()
        if ask.caller is not None:  # not the owner: nothing that reaches into the machine
            tools = [tool for tool in tools if tool.name in FOR_EVERYONE]
        names = [tool.name for tool in tools]
        line = await self._line_of(ask, model, names)
        if line is None:
            place = await asyncio.to_thread(self.places.find, ask, aside=True)
            session_id = await asyncio.to_thread(self.places.open, place, ask, model, names, Path.cwd())
            line = await self._enter(session_id)
            try:
                await asyncio.to_thread(self._agent, line, session_id, model, ask.caller)
            except BaseException:
                self._leave(line)
                raise
        return self._started(line, ask, tools)

    async def _line_of(self, ask: Ask, model: Model, names: Sequence[str]) -> _Line | None:
        """The session that goes on, with nobody else talking in it; None where a new one (or a branch) is to be made.

        Whoever names a session waits until it is free. Who was only recognised does not: a session that is in use has
        gone on since.
        """
        while True:
            place = await asyncio.to_thread(self.places.find, ask)
            if not place.goes_on:
                return None
            name = await asyncio.to_thread(self.places.chain, str(place.session_id))
            if ask.session_id is None and name in self._lines and self._lines[name].users:
                return None
            line = await self._enter(name)
            taken: bool | None = None
            end = asyncio.get_running_loop().time() + WAIT
            try:
                while True:
                    place = await asyncio.to_thread(self.places.find, ask)  # somebody may have talked there meanwhile
                    if not place.goes_on or await asyncio.to_thread(self.places.chain, str(place.session_id)) != name:
                        break
                    taken = await asyncio.to_thread(self._take, line, place, ask, model, names)
                    if taken or ask.session_id is None or asyncio.get_running_loop().time() > end:
                        break
                    if not await asyncio.to_thread(self._is_another_servers, str(place.session_id)):
                        break
                    taken = None
                    await asyncio.sleep(PAUSE)
            finally:
                if not taken:
                    self._leave(line)
            if taken:
                return line
            if taken is False:
                if ask.session_id is None:
                    return None
                raise Problem(
                    409, f"session {place.session_id} is open in another program; close it there first",
                    code="session_busy",
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------ lines

    async def _enter(self, name: str) -> _Line:
        """Be the one who talks in a session."""
        line = self._lines.setdefault(name, _Line(name))
        if line.users > LONGEST_LINE:
            raise Problem(429, "many requests wait for this session already", code="rate_limit_exceeded", retry_after=2)
        line.users += 1
        if line.leaving is not None:
            line.leaving.cancel()
            line.leaving = None
        try:
            await line.lock.acquire()
        except BaseException:
            line.users -= 1
            self._tidy(line)
            raise
        return line

    def _leave(self, line: _Line) -> None:
        """Let the next one talk."""
        line.users -= 1
        line.lock.release()
        self._tidy(line)

    def _tidy(self, line: _Line) -> None:
        if line.users or line.lock.locked():  # whoever is there will see to it
            return
        if line.agent is None:
            self._lines.pop(line.name, None)
        elif not self._closed:
            line.leaving = asyncio.get_running_loop().call_later(LINGER, self._see_off, line)

    def _see_off(self, line: _Line) -> None:
        """Nobody has come back: let the agent go, unless a process it started is still running."""
        line.leaving = None
        if line.agent is not None and line.agent.background_running():
            self._tidy(line)
            return
        chore = asyncio.create_task(self._dismiss(line))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _dismiss(self, line: _Line) -> None:
        async with line.lock:  # who comes now waits: two agents must not hold one session
            agent, line.agent = line.agent, None
            if agent is not None:
                await _in_daemon(agent.close)
        self._tidy(line)

    # ------------------------------------------------------------------------------------------ in threads

    def _take(self, line: _Line, place: Place, ask: Ask, model: Model, tools: Sequence[str]) -> bool:
        """Hold an existing session, then bring it up to what the caller knows; False while another program holds it.

        Another API server may keep it for what runs in its background: that does not keep us from answering.
        """
        session_id = str(place.session_id)
        agent = self._agent(line, session_id, model, ask.caller)
        if not agent.hold() and not self._is_another_servers(session_id):
            return False
        if agent.answering() is not None:
            return False
        line.again = place.asked
        self.places.open(place, ask, model, tools, agent.cwd)
        return True

    def _is_another_servers(self, session_id: str) -> bool:
        """Whether a session is held by an API server (or by nobody any more), on a store that several of them share."""
        if not self._db.is_shared:
            return False
        holder = self._db.session_holder(session_id)
        return holder is None or source_of(holder) == SOURCE

    def _give_back(self, line: _Line) -> None:
        """The turn is over: another server may have the next one."""
        agent = line.agent
        if agent is not None and self._db.is_shared and not agent.background_running():
            with suppress(HermesError):  # it runs out by itself
                agent.let_go()

    def _agent(self, line: _Line, session_id: str, model: Model, caller: str | None) -> ServedAgent:
        if line.agent is None:
            row = self._db.get_session(session_id)
            cwd = Path(row["cwd"]) if row is not None and row["cwd"] else Path.cwd()
            line.agent = ServedAgent(
                self._db, self._config, model, session_id=session_id, source=SOURCE, home=self._home,
                cwd=cwd if cwd.is_dir() else Path.cwd(),
            )  # fmt: skip
        line.again = False
        line.agent.model = model
        line.agent.session_id = session_id
        line.agent.context.user = user_of(caller)
        line.agent.context.home = home_of(self._home, caller)
        return line.agent

    def _started(self, line: _Line, ask: Ask, tools: Sequence[Tool]) -> ServedTurn:
        agent = line.agent
        assert agent is not None
        job = _Job(self._db, self.places, agent, ask, again=line.again)

        def over() -> None:
            self._running.discard(turn)
            self._leave(line)

        def begin() -> Turn:
            agent.equip(tools, ask.tools)
            return job.turn()

        def account(words: Words, error: BaseException | None) -> Outcome:
            try:
                return job.account(words, error)
            finally:
                self._give_back(line)  # before the caller hears that it is over, and asks the next server

        turn = ServedTurn(begin, account, over)
        turn.session_id = agent.session_id
        self._running.add(turn)
        turn.start()
        return turn

    # ------------------------------------------------------------------------------------------ the end

    async def close(self, seconds: float = 3.0) -> None:
        """Stop every turn, wait for what was said to be kept, and let all agents go."""
        self._closed = True
        turns = list(self._running)
        for turn in turns:
            turn.stop()
        if turns:
            await asyncio.wait([asyncio.ensure_future(turn.ended()) for turn in turns], timeout=seconds)
        for line in list(self._lines.values()):
            if line.leaving is not None:
                line.leaving.cancel()
        free = [line for line in self._lines.values() if not line.users and line.agent is not None]
        going = [*self._chores, *(asyncio.ensure_future(self._dismiss(line)) for line in free)]
        if going:
            await asyncio.wait(going, timeout=seconds)


async def _in_daemon(work: Callable[[], None]) -> None:
    """Do something slow (an agent's last title) in a thread that does not keep the program from ending."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        with suppress(Exception):  # a closed store: what is held there runs out by itself
            work()
        with suppress(RuntimeError):  # the program has ended
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="hermes-api-agent-goes", daemon=True).start()
    await done.wait()


class _Job:
    """What one turn does to the record besides the agent's own work."""

    def __init__(self, db: SessionDB, places: Places, agent: ServedAgent, ask: Ask, *, again: bool) -> None:
        self._db, self._places, self._agent, self._ask, self._again = db, places, agent, ask, again
        self._session_id = agent.session_id
        self._before = 0
        self._thought = 0

    def turn(self) -> Turn:
        """The turn itself."""
        session_id = self._session_id
        self._before = last_id(self._db, session_id)
        self._thought = self._reasoning(session_id)
        content = self._ask.content
        if content is None or self._again:
            self._places.remember(self._ask, session_id, self._before, [])
            return self._agent.go_on()
        return self._agent.turn(content, keep=self._keep)

    def _keep(self, session_id: str, content: str | list[Any]) -> int:
        """Store what the user says, and that it waits for an answer: the same request again must not store it again."""
        message_id = self._db.append_message(session_id, "user", content)
        self._places.remember(self._ask, session_id, message_id, [])
        return message_id

    def account(self, words: Words, error: BaseException | None) -> Outcome:
        """What came of it, from the record; and the conversation is known from now on by what the caller saw of it."""
        session_id, handed = self._agent.session_id, self._agent.handed
        said = [row for row in messages_after(self._db, session_id, self._before) if row["role"] == "assistant"]
        last = last_id(self._db, session_id)
        if said:
            texts = dict.fromkeys((words.whole, words.shown))
            replies = [{"role": "assistant", "content": text, "tool_calls": handed} for text in texts]
            self._places.remember(self._ask, session_id, last, replies)
        thought = self._thought if session_id == self._session_id else 0  # a compressed one counts from zero
        sent = (
            "input_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
        )  # callers count the cache as part of the input
        used = Used(
            sum(row[name] or 0 for row in said for name in sent), sum(row["output_tokens"] or 0 for row in said),
            sum(row["cache_read_tokens"] or 0 for row in said), max(0, self._reasoning(session_id) - thought),
        )  # fmt: skip
        reason = said[-1]["finish_reason"] if said else None
        if handed:
            reason = "tool_calls"
        elif reason not in ("length", "content_filter"):
            reason = "stop"
        return Outcome(session_id, words.whole, handed, reason, used, last, error)

    def _reasoning(self, session_id: str) -> int:
        row = self._db.get_session(session_id)
        return int(row["reasoning_tokens"] or 0) if row is not None else 0
