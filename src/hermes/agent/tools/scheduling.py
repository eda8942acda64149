"""The tool `cron`: jobs that ask an agent something at set times.

They are those of `hermes cron`; every change needs the user's confirmation.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from hermes.agent.tools.permission import Question, permit
from hermes.agent.tools.tool import Context, tool
from hermes.errors import InvalidInput, ToolError
from hermes.texts import one_line
from hermes.times import clock, next_time, own_timezone, zone_of

if TYPE_CHECKING:
    from hermes.store.gateway.cron import CronDB, Job

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
        secrets.token_hex(4), schedule, timezone, prompt, deliver=deliver, session_id=None, model=None,
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
