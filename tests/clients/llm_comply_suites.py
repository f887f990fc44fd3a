"""The conformance package llm-comply: all of its checks for the three dialects that are served.

Two kinds of its verdicts are not counted as failures, and each is checked to be what it is said to be:

- its image cases expect 200; the models of this family are served as text models, and an image is refused
  with 400 and a message that says so;
- it does not know the events `response.reasoning_text.delta` and `.done`, under which OpenAI's own clients
  expect the thinking of a response (its own names for them are those of an earlier draft).
"""

import json
import pathlib
import subprocess
import sys

from harness import URL, Suite, expect

suite = Suite("llm-comply")
# It skips its reasoning cases unless the model's name is one that is known to reason.
DIALECTS = {"openai-chat": "gpt-5", "open-responses": "gpt-5", "anthropic": "claude-sonnet-4-5"}
IMAGE_CASES = {"chat-image-input", "image-input", "anth-image-input"}
IGNORED = "unknown SSE event type: response.reasoning_text."


def verdicts(dialect):
    """Runs one dialect; its list of results."""
    program = pathlib.Path(sys.executable).parent / "llm-comply"
    arguments = ["--base-url", f"{URL}/v1", "--api-key", "none", "--json", "--verbose"]
    arguments += ["--format", dialect, "--model", DIALECTS[dialect], "--ignore", IGNORED, "--timeout", "120"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=900)
    expect(done.stdout.startswith("{"), f"{done.stdout[-1000:]} {done.stderr[-1000:]}")
    return json.loads(done.stdout)["results"]


def check(dialect):
    """Every case of a dialect passes, but for the image."""
    results = verdicts(dialect)
    problems, passed = [], 0
    for result in results:
        errors = result.get("errors", [])
        if result["id"] in IMAGE_CASES:
            expect("HTTP 400 (expected [200])" in errors, f"{result}")
            print(f"skipped: llm-comply/{dialect}/{result['id']}: images are refused (400), by design")
        elif result["status"] == "passed":
            passed += 1
            for warning in result.get("warnings", []):
                print(f"note {result['id']}: {warning}")
        else:
            problems.append(f"{result['id']} {result['status']}: {errors[:4]}")
    expect(not problems, "; ".join(problems))
    return f"{passed} of {len(results)} cases"


@suite.case
def openai_chat():
    return check("openai-chat")


@suite.case
def open_responses():
    return check("open-responses")


@suite.case
def anthropic():
    return check("anthropic")


if __name__ == "__main__":
    suite.main()
