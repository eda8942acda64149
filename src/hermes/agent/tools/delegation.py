"""Work for other agents: `delegate` gives a sub-task to one now, `cron` makes jobs that one runs at set times.

A sub-agent works in a session of its own, a child of kind `subagent`: the record has every step, lists leave it out, and
its cost counts in the parent's total. Several calls run side by side, and an interrupt ends them all. It has the tools of its
parent except `delegate`, asks through its parent, and may touch the same files.

Jobs are those of `hermes cron`; every change needs the user's confirmation.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from hermes.agent.tools.permission import Question, permit
from hermes.agent.tools.tool import STOPPED, Context, Reported, report, tool
from hermes.errors import HermesError, InvalidInput, ToolError
from hermes.texts import counted, one_line, shortened_line, without_middle
from hermes.times import clock, next_time, own_timezone, zone_of

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.tools.permission import Answer
    from hermes.agent.turn import Event, TurnEnded
    from hermes.store.gateway.cron import CronDB, Job

NAME: Final = "delegate"
MOST_CHARS: Final = 40_000
DONE: Final = "subagent_done"  # the end reason of its session
_ALONE = "\n\n(You work on this on your own. Your last message goes back as the result: make it complete and short.)"


class _SubTask(Struct):
    task: Annotated[str, Meta(description="What to do, with all that is needed to do it.", min_length=1)]


def _run_delegate(context: Context, arguments: _SubTask) -> str:
    agent = _agent(context)
    session_id = agent.session_id
    try:
        text, calls, interrupted = _work(context, agent, arguments.task)
    finally:
        agent.close(patience=0.0)
        _end(context, agent)
    note = f"[sub-agent session {session_id}; {counted(calls, 'tool call')}]"
    if interrupted:
        return Reported(f"{text}\n[interrupted before it was done]\n{note}", outcome=STOPPED)
    return f"{without_middle(text, MOST_CHARS) or '(no answer)'}\n{note}"


def _agent(context: Context) -> Agent:
    from hermes.agent.conversations import new_session_id
    from hermes.agent.loop import Agent

    parent = context.db.get_session(context.session_id)
    model, tools = context.state.get("model"), context.state.get("tools")
    if parent is None or model is None or tools is None:
        raise ToolError("a sub-task can only be given in a conversation")
    here = copy_context()

    def asks_here(question: str) -> bool | Answer:  # its questions belong to this call, which the user sees
        return here.run(context.confirm, question)

    agent = Agent(
        context.db, context.config, model, session_id=new_session_id(), source=parent["source"],
        tools=[tool for name, tool in tools.items() if name != NAME], confirm=asks_here, user=context.user,
        home=context.home, cwd=context.cwd, user_id=parent["user_id"], parent_session_id=context.session_id,
        kind="subagent",
    )  # fmt: skip
    agent.titles = agent.recalls = False
    agent.context.root = context.root
    return agent


def _work(context: Context, agent: Agent, task: str) -> tuple[str, int, bool]:
    """Run the turn in its own thread, so that an interrupt of the parent reaches it at once."""
    from hermes.agent.turn import Done, Text, ToolFinished, ToolStarted, TurnEnded

    inbox: SimpleQueue[Event | TurnEnded] = SimpleQueue()
    turn = agent.turn(task + _ALONE)
    turn.start(inbox.put)
    steps: list[str] = []
    reply, calls, interrupted = "", 0, False
    while True:
        if context.cancelled():
            turn.interrupt()
        try:
            item = inbox.get(timeout=0.1)
        except Empty:
            continue
        if isinstance(item, TurnEnded):
            if item.error is not None:
                text = item.error if isinstance(item.error, HermesError) else type(item.error).__name__
                raise ToolError(f"the sub-agent failed: {text}")
            return reply, calls, interrupted
        if isinstance(item, Done):
            reply, interrupted = item.text, item.interrupted
        elif isinstance(item, ToolStarted):
            calls += 1
            steps.append(f"{item.name} {shortened_line(str(next(iter(item.arguments.values()), '')), 100)}")
            report("\n".join(steps))
        elif isinstance(item, ToolFinished) and not item.ok:
            report("\n".join([*steps, f"{item.name}: {item.outcome}"]))
        elif isinstance(item, Text) and item.text.strip():
            report("\n".join([*steps, "writing its answer…"]))


def _end(context: Context, agent: Agent) -> None:
    with suppress(HermesError):  # the result matters more than the end mark of the session
        if context.db.get_session(agent.session_id) is not None:
            context.db.end_session(agent.session_id, DONE)


delegate = tool(
    NAME,
    "Give a self-contained sub-task to an agent of its own and get its final answer. It has the same tools and none of"
    " this conversation: say all it needs to know. Several calls in one message run side by side; use it for"
    " independent research or work, not for a single step.",
    _SubTask,
    _run_delegate,
)


DECLINED: Final = "The user declined: nothing was changed. Do not try it another way; ask what they want instead."


class _JobChange(Struct):
    action: Literal["add", "list", "pause", "resume", "remove"]
    schedule: str = ""
    prompt: str = ""
    deliver: str = "none"
    timezone: str = ""
    job: str = ""


def _run_cron(context: Context, arguments: _JobChange) -> str:
    from hermes.store.gateway.cron import CronDB

    action = arguments.action
    store = CronDB(context.db)
    if action == "list":
        return json.dumps([_shown(job) for job in store.jobs()], ensure_ascii=False)
    try:
        return _add(context, store, arguments) if action == "add" else _change(context, store, action, arguments.job)
    except InvalidInput as error:
        raise ToolError(str(error)) from None


def _add(context: Context, store: CronDB, arguments: _JobChange) -> str:
    schedule, prompt, deliver = " ".join(arguments.schedule.split()), arguments.prompt, arguments.deliver
    if not schedule or not prompt.strip():
        raise ToolError("a job needs a schedule and a prompt")
    places = ["none", "file", *context.config.enabled_platforms]
    if deliver not in places:
        raise ToolError(f"deliver must be one of {', '.join(places)}, not {deliver!r}")
    if (why := context.config.why_answers_only(deliver)) is not None:
        raise ToolError(why)
    timezone = arguments.timezone or context.config.timezone or own_timezone()
    due = next_time(schedule, timezone, time.time())
    where = "" if deliver == "none" else f", and deliver the reply to {deliver}"
    question = f"Make a job that asks “{one_line(prompt)}” at {schedule} ({timezone}){where}?"
    permit(context, Question(question), DECLINED)
    job = store.add(
        secrets.token_hex(4), schedule, timezone, prompt, deliver=deliver, session_id=None, model=None, missed="once",
        next_at=due,
    )  # fmt: skip
    return json.dumps(_shown(job), ensure_ascii=False)


def _change(context: Context, store: CronDB, action: str, job_id: str) -> str:
    job = store.find(job_id)
    if job is None:
        raise ToolError("no job has this id; the action list shows them")
    question = f"{action.capitalize()} the job {job.id} “{one_line(job.prompt)}” ({job.schedule})?"
    permit(context, Question(question), DECLINED)
    if action == "pause":
        store.pause(job.id)
    elif action == "resume":
        store.resume(job.id, next_time(job.schedule, job.timezone, time.time()))
    else:
        store.remove(job.id)
    return f"{action}: job {job.id}"


def _shown(job: Job) -> dict[str, Any]:
    due = "paused" if job.paused_at is not None else clock(job.next_at, zone_of(job.timezone))
    return {
        "id": job.id, "schedule": job.schedule, "timezone": job.timezone, "prompt": job.prompt, "deliver": job.deliver,
        "next": due,
    }  # fmt: skip


cron = tool(
    "cron",
    "Jobs that ask an agent something at set times. add: schedule (minute hour day month weekday, as in '0 9 * * 1-5'),"
    " prompt (complete in itself: the run does not see this conversation), deliver (none, file, or a chat platform),"
    " timezone. list; pause, resume and remove a job by its id. The user is asked before anything changes.",
    _JobChange,
    _run_cron,
)
