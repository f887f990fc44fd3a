"""What the Python client tests share: the server's address, one line per case, waiting for /health."""

import json
import os
import sys
import time
import traceback
import urllib.request

URL = os.environ.get("CALLA_URL", "http://127.0.0.1:8080")
# A second server, started with --api-key; cases that need it are skipped without it.
KEYED_URL = os.environ.get("CALLA_KEYED_URL")
KEY = os.environ.get("CALLA_KEY", "")
# End-of-turn tokens of the demo checkpoint (demo/config.json). A logit_bias of -100 on them keeps it talking.
END_TOKENS = {"4087": -100, "4089": -100}

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city"}},
        "required": ["city"],
    },
}
WEATHER_QUESTION = "What is the weather in Paris?"
WEATHER_RESULT = json.dumps({"temperature": 21, "condition": "sunny"})


class Skipped(Exception):
    """Raised by a case that cannot run, with the reason."""


class Suite:
    """Collects cases; `main` runs them, prints a line for each, and exits with 1 if one failed."""

    def __init__(self, name):
        self.name = name
        self.cases = []

    def case(self, function):
        """Decorator: the function's name is the case's; what it returns is printed as detail."""
        self.cases.append(function)
        return function

    def main(self):
        only = sys.argv[1:]
        failed = False
        for function in self.cases:
            label = f"{self.name}/{function.__name__}"
            if only and not any(word in label for word in only):
                continue
            try:
                detail = function()
                print(f"ok {label}: {detail}" if detail else f"ok {label}", flush=True)
            except Skipped as reason:
                print(f"skipped: {label}: {reason}", flush=True)
            except Exception as error:  # any failure of a case is its result
                failed = True
                traceback.print_exc()
                text = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"FAIL {label}: {text[:600]}", flush=True)
        sys.exit(1 if failed else 0)


def expect(condition, message):
    """Fails the case with `message` unless `condition` holds (an assert that -O cannot remove)."""
    if not condition:
        raise AssertionError(message)


def keyed():
    """Address of the server that wants a key."""
    if not KEYED_URL:
        raise Skipped("no server with a key (CALLA_KEYED_URL)")
    return KEYED_URL


def raises(kind, function):
    """Runs `function`, which must raise `kind`; returns the exception."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def health():
    """The server's /health as a dictionary."""
    with urllib.request.urlopen(f"{URL}/health", timeout=5) as response:
        return json.load(response)


def wait_idle(seconds):
    """Waits until no request is running or waiting; returns the seconds that it took."""
    start = time.monotonic()
    while True:
        status = health()
        took = time.monotonic() - start
        if status["running"] == 0 and status["waiting"] == 0:
            return took
        expect(took < seconds, f"still busy after {seconds} s: {status}")
        time.sleep(0.02)


def unique_text(words):
    """Text of `words` words that no other case sends, so that no cached prefix is met by chance."""
    seed = f"{os.getpid()}-{time.monotonic_ns()}"
    return f"Note {seed}. " + " ".join(f"word{i % 7}" for i in range(words))
