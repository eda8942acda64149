"""The agent: one turn from the user's message to the end of the reply.

A turn is a series of events for a display. Each message is stored as soon as it exists: the user's
message before the model is called, each reply when it is complete (its pieces are in a draft until then), each tool's
result when the tool ends. So the process may die at any line, and the next one continues from the store.

A process that was suspended for so long that another continued its session stores nothing more: the turn ends with
Fenced (turn_session.py), and the pieces it had received stay in the draft.

A reply whose stream breaks off is requested again from its beginning: a Restarted event reports it, the pieces start
over, and the whole reply is stored once. If no retry succeeds, the received pieces are stored as an interrupted reply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.leases import SessionLease
from hermes.agent.models.model import Message, Model, Reply, has_price
from hermes.agent.models.model import load as load_prices
from hermes.agent.models.transport import most_tries, pause
from hermes.agent.prompt import SystemPrompt, instruction_files
from hermes.agent.room import Room
from hermes.agent.tool_calls import INTERRUPTED, Result, read_call, run_calls
from hermes.agent.tools.permission import NO_USER
from hermes.agent.tools.tool import Context, Tool
from hermes.agent.turn import Done, EmptyReply, Event, Events, Notice, Restarted, Retrying, Stop, Text, Thought, Turn
from hermes.agent.turn_session import Also, Content, Keep, TurnSession
from hermes.errors import (
    ContextTooLong,
    Fenced,
    HermesError,
    InvalidInput,
    ModelError,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
    SessionBusy,
    StoreError,
)
from hermes.home import get_hermes_home
from hermes.store.records.sessions import MODEL_ERROR, RECALLED
from hermes.store.transcripts.drafts import Draft

if TYPE_CHECKING:
    from hermes.agent.recall import Recalled
    from hermes.agent.tools.permission import Answer
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

ROUNDS = 40
_LOOK = 0.2  # seconds between two checks whether another process still runs a turn
_SHORT_WAIT = 5  # such checks before the user sees a message
_CONCLUDE = (
    f"You have used your tools {ROUNDS} times in a row, which is the limit for one turn. Answer now, without tools:"
    " say what you found, what is done and what is left to do."
)


class Agent:
    """Runs turns in one session, one at a time; `interrupt` may be called from any thread."""

    titles = True  # whether new sessions are given a title
    titles_by_model = True  # whether a model writes it; otherwise it is made from the words of the first exchange
    system: str | None = None  # the system prompt of a new session; None: the usual one
    recall_key: str | None = None  # the value of state_meta that keeps `/recall off`; None: it is not kept
    private = True  # whether only the user reads the answers
    recalls = True  # whether earlier conversations are searched for passages about a message
    gathers = (
        False  # whether only `lease.release`, called by the entry point, releases the turn; cheaper with many sessions
    )
    first_wait = 1.0  # seconds before the first retry of a failed call; doubled each time

    def __init__(
        self,
        db: SessionDB,
        config: Config,
        model: Model,
        *,
        session_id: str,
        source: str = "cli",
        tools: Iterable[Tool] = (),
        confirm: Callable[[str], bool | Answer] = lambda question: NO_USER,  # the rules decide alone
        user: User | None = None,
        home: Path | None = None,
        cwd: Path | None = None,
        user_id: str | None = None,
        parent_session_id: str | None = None,
        kind: str | None = None,
    ) -> None:
        """`user` is the user whose sessions may be seen; `context.user` may be changed between turns.

        `user_id` (None: that user's), `parent_session_id` and `kind` are the columns of the session's row if the first turn
        has to create it.
        """
        self.db = db
        self.config = config
        self.model = model
        self.tools = {tool.name: tool for tool in tools}
        self.expected_tools: Callable[[], list[Tool]] = list  # the tools that its first turn will have
        self.confirm = confirm  # asks the user; may be changed between turns
        self._one_question = threading.Lock()
        self._cancel = threading.Event()
        self._busy = threading.Lock()
        self.recalled: Recalled | None = None  # what the last turn recalled
        self._titling: threading.Thread | None = None
        self._titled = False
        self._prompt = SystemPrompt(self)
        self.shared = False  # whether several people use this conversation; for the prompt of a new session
        self.context = Context(
            db=db, config=config, session_id=session_id, home=home or get_hermes_home(), cwd=cwd or Path.cwd(),
            confirm=self._ask_user, cancelled=lambda: self._cancel.is_set(), user=user, root=cwd or Path.cwd(),
        )  # fmt: skip
        if user_id is None and user is not None:
            user_id = user[1]
        self.lease = SessionLease(db, source=source)
        self._session = TurnSession(
            self.context, source, self.lease, user_id=user_id, parent_session_id=parent_session_id, kind=kind
        )
        self.room = Room(self, self._session, lambda: self._cancel.is_set())

    # ------------------------------------------------------------------------------------------ for the doors

    @property
    def session_id(self) -> str:
        """The current session; another one after a compression (the event Followed reports it)."""
        return self.context.session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self.context.session_id = session_id

    @property
    def cwd(self) -> Path:
        """The directory in which the tools work."""
        return self.context.cwd

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""
        return self._busy.locked()

    def background_running(self) -> int:
        """How many background processes of this conversation still run."""
        from hermes.agent.tools.terminal import running

        return running(self.context)

    def turn(self, content: Content, *, keep: Keep | None = None, with_reply: Also | None = None) -> Turn:
        """Send a message and get the reply as events; the last is Done. ModelError when the model does not answer.

        The message (text, or a list of OpenAI content parts) is stored before anything else happens, regardless
        of the reply. `keep(session_id, content, also)`, if given, stores it and returns its id; it calls `also` in its
        transaction. `with_reply` is called in the transaction that stores the complete reply.
        """
        return self._begin(self._answered(content, keep, with_reply))

    def _answered(self, content: Content, keep: Keep | None, with_reply: Also | None) -> Events:
        yield from self._enter_and_store(content, keep)
        yield from self._answer(with_reply)

    def _enter_and_store(self, content: Content, keep: Keep | None) -> Iterator[Event]:
        """Enter the session and store the user's message."""
        session = self._session
        if (yield from session.enter(self.model, self._prompt.new, later=True)):
            yield Notice("The last reply was cut off by a crash; the part that had arrived was stored.")
        if (renewed := self._prompt.read_again(session.prompt or "")) is not None:
            session.change_prompt(renewed[0])
            yield Notice(renewed[1])
        try:
            session.append_user(content, keep)
        except (Fenced, SessionBusy) as error:  # another process used the session meanwhile
            if keep is not None and isinstance(error, Fenced):
                raise  # and may have stored this message as well
            yield from session.enter(self.model, self._prompt.new)
            session.append_user(content, keep)
        yield from session.pending_events()

    def record_only(self, content: Content, *, keep: Keep | None = None) -> Turn:
        """Store a message as `turn` does, without an answer: the next turn reads it."""
        return self._begin(self._recorded(content, keep))

    def _recorded(self, content: Content, keep: Keep | None) -> Events:
        yield from self._enter_and_store(content, keep)
        yield Done("")

    def resume(self, message_id: int | None = None) -> Turn:
        """Continue a turn that a killed process left: answer the user's last message, if it has no complete reply yet.

        A reply that was cut off starts over; a tool that was running is not run again, its result is reported as lost.
        If the complete reply is stored, there is only Done with its text. InvalidInput when there is no message.
        `message_id` is the message to answer: if another process has continued the conversation after it,
        there is only Done, with the reply it got or a note about that.
        """
        return self._begin(self._resumed(message_id))

    def _resumed(self, message_id: int | None) -> Events:
        reply = self._session.answered(message_id)
        if reply is not None:
            yield Done(reply)
            return
        if (yield from self._session.enter(self.model, self._prompt.new)):
            yield Restarted("a crash cut the reply off; it starts over")
        self._session.rewind_partial()
        yield from self._answer()

    def retry(self) -> Turn:
        """Undo the last reply and answer the last message again. InvalidInput when there is none."""
        return self._begin(self._retried())

    def _retried(self) -> Events:
        if self.db.get_session(self.session_id) is None:
            raise InvalidInput("there is nothing to answer again: this conversation has no messages yet")
        yield from self._session.enter(self.model, self._prompt.new)
        if not self._session.undo_reply():
            raise InvalidInput("there is nothing to answer again: this conversation has no message from you")
        yield from self._answer()

    def _begin(self, events: Events) -> Turn:
        """A turn with a cancel flag of its own, which `interrupt` sets from now on."""
        cancel = threading.Event()
        if not self.busy:
            self._cancel = cancel

        def alone() -> Events:
            with self._underway(cancel):
                yield from events

        return Turn(alone(), cancel)

    def interrupt(self) -> None:
        """End the turn that runs, or that exists and has not begun; received text is stored."""
        self._cancel.set()

    @contextmanager
    def at_work(self, stop: Stop | None = None) -> Iterator[Callable[[], bool]]:
        """In this block, work that is not a turn can be interrupted like one; gives the function that reports an interrupt."""
        cancel = threading.Event()
        with self._underway(cancel):
            yield lambda: cancel.is_set() or (stop is not None and stop.wanted)

    def hold(self) -> bool:
        """Make the session live before its first turn (it must exist); False while another process holds it."""
        return self.lease.open(self.session_id)

    def answering(self, *, later: bool = False) -> str | None:
        """Take the session before a turn begins; returns None, or the source of the process that answers there (`cli` …).

        Released when the turn is over, or with `lease.release`. A turn that begins while another runs ends with SessionBusy.
        `later`: the turn takes it, with the user's message.
        """
        try:
            self._session.take_turn(later=later)
        except SessionBusy as error:
            return error.source
        return None

    def wait_for_turn(self, waiting: Callable[[str], None], pause: Callable[[float], object]) -> bool:
        """Wait until no other process answers in the session; `waiting` is called once with that one's source.

        It is not called for a short wait: a process releases its lease a moment after its turn.
        `pause(seconds)` waits between two checks; when it returns a true value, the wait ends with False.
        """
        checks = 0
        while (who := self.answering(later=True)) is not None:
            checks += 1
            if checks == _SHORT_WAIT:
                waiting(who)
            if pause(_LOOK):
                return False
        return True

    def close(self, *, patience: float = 10.0) -> None:
        """Close everything: background processes and connections of the tools, and the session.

        `patience` is how long to wait for a title in progress; a process that keeps running need not wait.
        """
        self._cancel.set()
        if self._titling is None and self.titles and not self._titled:  # no exchange was completed
            from hermes.agent.titler import start_titling

            self._titling = start_titling(self.db, self.session_id, None)
        if self._titling is not None and patience > 0:
            self._titling.join(patience)
        for thing in list(self.context.state.values()):
            stop = getattr(thing, "close", None)
            if callable(stop):
                stop()
        self.lease.release()

    @contextmanager
    def _underway(self, cancel: threading.Event) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise InvalidInput("a turn is running in this conversation; wait for it or interrupt it")
        try:
            self._cancel = cancel
            yield
        finally:
            if not self.gathers:
                self.lease.end_turn()
            self._busy.release()

    @property
    def is_owners(self) -> bool:
        """Whether only the owner of this machine, who may see its files, talks here."""
        return self.context.user is None and not self.shared

    def instruction_files(self) -> list[Path]:
        """The project instructions (AGENTS.md …) that are part of this conversation's system prompt."""
        if self.system is not None or not self.is_owners or self.context.root is None:
            return []
        return instruction_files(self.context.home, self.context.root)

    # ------------------------------------------------------------------------------------------ answering

    def _answer(self, with_reply: Also | None = None) -> Iterator[Event]:
        """Rounds of model calls and tool calls, until there is a reply without tool calls."""
        if has_price(self.model):
            load_prices()
        self.room.begin_turn()
        if hasattr(self.model, "unread") and (unread := self.model.unread(self._session.messages())):
            yield Notice(unread)
        yield from self._recall()
        for number in range(ROUNDS + 1):
            concluding = number == ROUNDS
            if concluding:
                yield Notice(f"Limit of {ROUNDS} tool rounds in one turn reached; asking the model for a conclusion…")
            reply = yield from self._ask(with_reply, concluding=concluding)
            calls = reply.tool_calls and not concluding
            if calls:
                yield from self._run_tools(reply)
            yield from self._session.pending_events()
            if not calls or self._cancel.is_set():
                break
        if reply.finish_reason in ("length", "content_filter"):
            why = "the limit for one reply" if reply.finish_reason == "length" else "the endpoint's content filter"
            yield Notice(f"The reply ends here because of {why}.")
        elif not calls and not (reply.content or "").strip() and not self._cancel.is_set():
            yield EmptyReply()
        if not self._cancel.is_set():
            self._title()
        yield Done(reply.content or "", interrupted=self._cancel.is_set())

    def _recall(self) -> Iterator[Event]:
        """Give the model what earlier conversations say about the user's message; a failed search does not stop the answer."""
        session, self.recalled = self._session, None
        session.recalled = ""
        wanted = self.recalls and self.private and self.config.memory.recall != "off"
        if not wanted or self.model.kind == "extractive":  # this model searches itself
            return
        from hermes.agent.recall import ids_of, recall

        with suppress(StoreError):
            found = recall(
                self.db,
                session.question(),
                current=self.session_id,
                visible_to=self.context.user,
                window=lambda: self.model.context_length or None,
            )
            if found is None:
                return
            with self.lease.fenced():
                self.db.record_event(self.session_id, RECALLED, ids_of(found.passages))
            session.recalled, self.recalled = found.prompt_text, found
            yield found

    def _ask(self, with_reply: Also | None, *, concluding: bool) -> Generator[Event, None, Reply]:
        """One complete reply, stored. Retries where that may help, compresses where the context is full."""
        session, model = self._session, self.model
        draft = session.draft(model)
        tries = 0
        heard: list[str] = []  # the text shown of this try, or of the last try with text
        try:
            while True:
                if (yield from self.room.make()):
                    draft = self._moved(draft)
                messages = yield from self.room.messages()
                try:
                    reply = yield from self._listen(messages, draft, heard, concluding)
                    return session.append_reply(reply, model, heard, with_reply)
                except ContextTooLong as error:
                    if (yield from self.room.shrink(messages, error)):
                        draft = self._moved(draft)
                except ModelRefused as error:
                    self.room.leave_out_pictures(messages, error)
                except (RateLimited, ModelUnreachable) as error:
                    tries += 1
                    wait = pause(tries, error, first=self.first_wait, heard=bool(heard))
                    if wait is None:
                        raise
                    try_ = f"{tries + 1} of {most_tries(error, heard=bool(heard))}"
                    if heard:
                        yield Restarted(f"{error} (the reply starts over in {wait:.0f} s, try {try_})", wait, try_)
                    else:
                        yield Retrying(f"{error} (retrying in {wait:.0f} s, try {try_})", wait, try_)
                    if self._cancel.wait(wait):
                        return session.append_reply(Reply(finish_reason="interrupted"), model, heard)
                    draft.restart()
        except Fenced:
            raise  # another process continues this session
        except BaseException as error:  # also when the display is gone, or Ctrl-C: text that was shown is stored
            if heard and not (isinstance(error, StoreError) and error.maybe_stored):
                session.append_reply(Reply(finish_reason="interrupted"), model, heard)
            if isinstance(error, ModelError):
                self._note_failure(error)
            raise
        finally:
            # Text that could not be stored now stays in the draft for the next turn, which checks whether it was stored.
            draft.close(keep=bool(heard))

    def _note_failure(self, error: ModelError) -> None:
        """Record why there was no answer. A failure to record it must not hide the error itself."""
        with suppress(HermesError), self.lease.fenced():
            self.db.record_event(self.session_id, MODEL_ERROR, str(error))

    def _listen(
        self, messages: list[Message], draft: Draft, heard: list[str], concluding: bool
    ) -> Generator[Event, None, Reply]:
        """Request a reply once, and report its pieces as they arrive."""
        if self._cancel.is_set():  # interrupted just before
            return Reply(finish_reason="interrupted")
        schemas = self.room.schemas()
        if concluding:
            messages, schemas = [*messages, {"role": "user", "content": _CONCLUDE}], []
        model = self.model
        if hasattr(model, "speaking_in"):  # it quotes the history, as far as this user may see it
            model = model.speaking_in(self.session_id, self.context.user, private=self.private)
        reply: Reply | None = None
        begun, restarted = False, bool(heard)
        for item in model.stream(messages, schemas, cancelled=self._cancel.is_set):
            if isinstance(item, Reply):
                reply = item
                continue
            if item.thought:
                yield Thought(item.thought)
            if item.text:
                if not begun:
                    heard.clear()
                    begun = True
                heard.append(item.text)
                draft.write(item.text)
                yield Text(item.text, restarted=restarted)
                restarted = False
        if reply is None:
            if not self._cancel.is_set():
                raise ModelUnreachable(f"{self.model.name} ended without a reply")
            reply = Reply(finish_reason="interrupted")
        if concluding:
            reply.tool_calls = []  # their results would never come
        return reply

    def _run_tools(self, reply: Reply) -> Iterator[Event]:
        calls = [read_call(raw, self.tools) for raw in reply.tool_calls]
        if self._cancel.is_set():
            for call in calls:
                self._session.append_result(Result(call, INTERRUPTED, False, 0.0))
            return
        self.context.state["model"] = self.model  # session_search summarises with it
        yield from run_calls(calls, self.tools, self.context, self._session.append_result, stop=self._cancel.set)

    def _ask_user(self, question: str) -> bool | Answer:
        """Ask the user one question at a time, although tools run in parallel."""
        with self._one_question:
            return not self._cancel.is_set() and self.confirm(question)

    def _title(self) -> None:
        """Have the session titled in the background after its first exchange; the titler does so once per session."""
        if self._titled or not self.titles:
            return
        self._titled = True
        from hermes.agent.models.choice import auxiliary_model
        from hermes.agent.titler import start_titling

        model = auxiliary_model(self.config, "title", self.model) if self.titles_by_model else None
        self._titling = start_titling(self.db, self.session_id, model)

    def _moved(self, draft: Draft) -> Draft:
        """The draft for the session the conversation continues in."""
        draft.close(keep=False)
        return self._session.draft(self.model)
