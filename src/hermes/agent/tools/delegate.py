"""The delegate tool: a sub-task for an agent of its own, whose last message is the result.

The sub-agent works in a session of its own, a child of kind `subagent`: the record has every step, lists leave it out, and
its cost counts in the parent's total. Several calls run side by side, and an interrupt ends them all. It has the tools of its
parent except this one, asks through its parent, and may touch the same files.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from hermes.agent.tools.tool import STOPPED, Context, Reported, Tool, parameters, report, text_argument
from hermes.errors import HermesError, ToolError
from hermes.texts import counted, shortened_line, without_middle

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.tools.permission import Answer
    from hermes.agent.turn import Event, TurnEnded

NAME: Final = "delegate"
MOST_CHARS: Final = 40_000
DONE: Final = "subagent_done"  # the end reason of its session
_ALONE = "\n\n(You work on this on your own. Your last message goes back as the result: make it complete and short.)"


def _run(context: Context, arguments: dict[str, Any]) -> str:
    task = text_argument(arguments, "task")
    agent = _agent(context)
    session_id = agent.session_id
    try:
        text, calls, interrupted = _work(context, agent, task)
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


delegate = Tool(
    name=NAME,
    description=(
        "Give a self-contained sub-task to an agent of its own and get its final answer. It has the same tools and none of"
        " this conversation: say all it needs to know. Several calls in one message run side by side; use it for"
        " independent research or work, not for a single step."
    ),
    parameters=parameters("task", task="What to do, with all that is needed to do it."),
    run=_run,
)
