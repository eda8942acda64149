"""Runs in a tmux pane in place of a forked program: passes keys and output between the pane and that program's terminal.

    python -I -S relay.py socket     # the socket brings the other end of the program's terminal, and how the program ends

It has the size of the pane, ends when the program does and as the program did; when the pane is closed, so is the terminal.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty


def main() -> None:
    """Relay until the program has ended."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(sys.argv[1])
        _, (terminal, ended), _, _ = socket.recv_fds(channel, 1, 2)
    tty.setraw(0)

    def resized(*_: object) -> None:
        now, before = (fcntl.ioctl(one, termios.TIOCGWINSZ, b"\0" * 8) for one in (0, terminal))
        if now[:4] != before[:4]:  # rows and columns
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, now)

    signal.signal(signal.SIGWINCH, resized)
    resized()
    reads = [0, terminal, ended]
    while ended in reads:
        ready = select.select(reads, [], [])[0]
        if 0 in ready and not _passed(0, terminal):
            reads.remove(0)
        if terminal in ready and not _passed(terminal, 1):
            reads.remove(terminal)
        if ended in ready:
            reads.remove(ended)
    while select.select([terminal], [], [], 0)[0] and _passed(terminal, 1):
        pass
    told = os.read(ended, 16)
    status = struct.unpack("=i", told)[0] if told else signal.SIGKILL
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _passed(source: int, target: int) -> bool:
    """Pass on what there is; False at its end."""
    try:
        data = os.read(source, 65_536)
    except OSError:  # a terminal whose other end is closed
        return False
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]
    return bool(data)


if __name__ == "__main__":
    main()
