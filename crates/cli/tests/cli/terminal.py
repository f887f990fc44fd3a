"""Runs a program on a pseudo-terminal and follows a script.

    terminal.py PROGRAM ARGUMENT... < steps.json

Steps are a JSON list: ["expect", TEXT] waits until TEXT was printed after what was matched last (escape
sequences left out), ["send", TEXT] types, ["signal", NAME] sends a signal, ["exit", STATUS] waits for the
end. Prints all that the program printed; exits with 1 if a step fails.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

TIMEOUT_SECONDS = 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


def main() -> int:
    steps = json.load(sys.stdin)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    raw = b""
    matched = 0  # Characters of the clean text that are behind us.
    ended = False

    def read(timeout: float) -> None:
        nonlocal raw, ended
        if not select.select([terminal], [], [], timeout)[0]:
            return
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side has closed.
            piece = b""
        ended = not piece
        raw += piece

    def clean() -> str:
        return ESCAPES.sub("", raw.decode(errors="replace"))

    def fail(step: list, why: str) -> int:
        print(raw.decode(errors="replace"))
        print(f"FAILED {step}: {why}; after: {clean()[matched:]!r}")
        if not ended:
            os.kill(pid, signal.SIGKILL)
        return 1

    for step in steps:
        action, value = step
        deadline = time.monotonic() + TIMEOUT_SECONDS
        if action == "expect":
            while (at := clean().find(value, matched)) < 0:
                if ended or time.monotonic() > deadline:
                    return fail(step, "it ended" if ended else "it did not come")
                read(0.1)
            matched = at + len(value)
        elif action == "send":
            os.write(terminal, value.encode())
        elif action == "signal":
            os.kill(pid, getattr(signal, value))
        elif action == "exit":
            while not ended:
                if time.monotonic() > deadline:
                    return fail(step, "it did not end")
                read(0.1)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != value:
                return fail(step, f"it ended with {status}")
    print(raw.decode(errors="replace"))
    return 0


sys.exit(main())
