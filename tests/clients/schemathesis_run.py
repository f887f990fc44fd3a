"""schemathesis over /openapi.json: no 5xx, and every response has a status, a type and a shape that are described."""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

from harness import URL, Suite, expect, wait_idle

suite = Suite("schemathesis")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
EXAMPLES = os.environ.get("CALLA_SCHEMATHESIS_EXAMPLES", "30")


def run(phases):
    """Runs some of its phases with a fixed seed; the last lines of its report."""
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    command = [program, "run", f"{URL}/openapi.json", "--phases", phases, "--checks", ",".join(CHECKS)]
    command += ["--max-examples", EXAMPLES, "--seed", "1", "--request-timeout", "60", "--workers", "2"]
    command += ["--suppress-health-check", "all", "--warnings", "off", "--no-color"]
    hooks = pathlib.Path(__file__).parent
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(hooks)}
    work = pathlib.Path(os.environ.get("TMPDIR", "/tmp"))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=work, timeout=1500)
    report = re.sub(r"\n{2,}", "\n", done.stdout)
    expect(done.returncode == 0, f"{report[-4000:]} {done.stderr[-1000:]}")
    wait_idle(30)
    tested = re.search(r"Tested: +(\d+)", report)
    generated = re.search(r"(\d+) generated", report)
    expect(tested and generated, report[-1000:])
    return f"{tested.group(1)} operations, {generated.group(1)} requests"


@suite.case
def described():
    """Each endpoint that clients need is described."""
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=10) as response:
        paths = set(json.load(response)["paths"])
    wanted = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/v1/messages"}
    wanted |= {"/v1/messages/count_tokens", "/tokenize", "/detokenize", "/health", "/metrics"}
    expect(wanted <= paths, f"not described: {wanted - paths}")
    return f"{len(paths)} paths"


@suite.case
def examples_and_coverage():
    return run("examples,coverage")


@suite.case
def fuzzing():
    return run("fuzzing")


if __name__ == "__main__":
    suite.main()
