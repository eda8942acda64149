"""An SDK for Python as a program for tests; see commands.cjs for the protocol."""

import asyncio
import json
import sys
import threading

OUT = sys.stdout
sys.stdout = sys.stderr  # what an SDK prints is no answer


def _write(line):
    print(json.dumps(line), file=OUT, flush=True)


def tell(event, data):
    _write({"event": event, "data": data})


async def _main(commands):
    lines, loop = asyncio.Queue(), asyncio.get_running_loop()

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    tell("ready", None)
    while (line := await lines.get()) is not None:
        item = json.loads(line)
        try:
            answer = {"value": await commands[item["name"]](**item["args"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _write({"id": item["id"], **answer})


def answer(*commands):
    """Run coroutine functions by their names until stdin ends."""
    asyncio.run(_main({one.__name__: one for one in commands}))
