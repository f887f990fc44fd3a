"""Claude Code, Codex and OpenCode, as npm installs them: one scripted turn each, with a tool call.

Each agent runs in a folder of its own, with settings that allow nothing but reading, and without any other
network address than the steering proxy's (see steering_proxy.py). The model is made to call the agent's tool
for reading the file a.txt, and then to say one text. It counts that the agent ran the tool, sent the file's text
back, and ended with that text.
"""

import json
import os
import pathlib
import platform
import subprocess
import tempfile

from harness import URL, Skipped, Suite, expect
from steering_proxy import ANSWER, SteeringProxy

suite = Suite("cli-agents")
MODULES = pathlib.Path(os.environ.get("CALLA_NODE_MODULES", pathlib.Path(__file__).parent / "node_modules"))
FILE_TEXT = "the number is 42"
PROMPT = "Read the file a.txt and say the number in it."
SECONDS = 240


def node_machine():
    """npm's names of this system and processor."""
    system = {"Linux": "linux", "Darwin": "darwin"}.get(platform.system())
    machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine())
    if not system or not machine:
        raise Skipped(f"no build of the agents for {platform.system()} on {platform.machine()}")
    return system, machine


def binary(*patterns):
    """The first program under node_modules that matches one of `patterns` and starts."""
    for pattern in patterns:
        for path in sorted(MODULES.glob(pattern)):
            if subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0:
                return path
    raise Skipped(f"not installed: {patterns[0]} under {MODULES}")


class Folder:
    """A scratch folder of one agent: a home, and a work folder with the file a.txt.

    Not under /tmp, where Codex refuses to keep its home.
    """

    def __enter__(self):
        base = pathlib.Path(__file__).resolve().parents[2] / "target"
        base.mkdir(exist_ok=True)
        self.temporary = tempfile.TemporaryDirectory(prefix="cli-agent-", dir=base)
        self.root = pathlib.Path(self.temporary.name)
        self.work = self.root / "work"
        self.work.mkdir()
        (self.root / "home").mkdir()
        (self.work / "a.txt").write_text(f"{FILE_TEXT}\n")
        return self

    def __exit__(self, *_):
        self.temporary.cleanup()

    def run(self, command, env):
        """Runs an agent in the work folder with only `env` as its environment; its JSON lines."""
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.root / "home"), "NO_COLOR": "1"}
        done = subprocess.run(
            command,
            cwd=self.work,
            env={**base, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        tail = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        expect(done.returncode == 0, f"exit status {done.returncode}: {tail}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(proxy, result, text):
    """The agent asked, got a call, sent the file's text back, and got the answer; returns a summary."""
    statuses = [exchange.status for exchange in proxy.exchanges]
    expect(statuses == [200, 200], f"statuses {statuses}")
    first, second = proxy.exchanges
    expect(not first.answered and second.answered, "the second request carries no tool result")
    expect(FILE_TEXT in result, f"the tool answered {result!r}")
    expect(FILE_TEXT in json.dumps(second.body), "the tool's result was not sent back")
    expect(text.strip() == json.dumps(ANSWER), f"final text {text!r}")
    return f"2 requests to {first.path}, tool result {FILE_TEXT!r}, final text {text.strip()!r:.60}"


@suite.case
def claude_code():
    system, machine = node_machine()
    program = binary(f"@anthropic-ai/claude-code-{system}-{machine}/claude")
    with Folder() as folder, SteeringProxy(URL, "Read", {"file_path": str(folder.work / "a.txt")}) as proxy:
        lines = folder.run(
            [
                program,
                *("-p", PROMPT),
                "--bare",
                *("--model", "claude-sonnet-4-5"),
                *("--system-prompt", "You are a helpful assistant."),
                *("--tools", "Read"),
                *("--output-format", "stream-json"),
                "--verbose",
            ],
            {
                "ANTHROPIC_BASE_URL": proxy.url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            },
        )
    blocks = [b for e in lines if e["type"] in ("assistant", "user") for b in e["message"]["content"]]
    kinds = [block["type"] for block in blocks]
    expect(kinds == ["tool_use", "tool_result", "text"], f"{kinds}")
    expect(lines[-1]["type"] == "result" and lines[-1]["subtype"] == "success", f"{lines[-1]}")
    return check(proxy, blocks[1]["content"], blocks[2]["text"])


CODEX_CONFIG = """
model = "demo"
model_provider = "calla"
model_context_window = 32768
model_instructions_file = "{root}/instructions.md"
web_search = "disabled"
include_permissions_instructions = false
include_environment_context = false
[analytics]
enabled = false
[features]
goals = false
[agents]
enabled = false
[skills]
include_instructions = false
[skills.bundled]
enabled = false
[model_providers.calla]
name = "calla"
base_url = "{url}/v1"
wire_api = "responses"
"""


@suite.case
def codex():
    system, machine = node_machine()
    program = binary(f"@openai/codex-{system}-{machine}/vendor/*/bin/codex")
    with Folder() as folder, SteeringProxy(URL, "exec_command", {"cmd": "cat a.txt"}) as proxy:
        home = folder.root / "codex"
        home.mkdir()
        (folder.root / "instructions.md").write_text("You are a helpful assistant.")
        (home / "config.toml").write_text(CODEX_CONFIG.format(root=folder.root, url=proxy.url))
        lines = folder.run(
            [program, "exec", "--skip-git-repo-check", "--sandbox", "read-only", "--json", PROMPT],
            {"CODEX_HOME": str(home)},
        )
    expect(lines[-1]["type"] == "turn.completed", f"{lines[-1]}")
    done = [line["item"] for line in lines if line["type"] == "item.completed"]
    commands = [item for item in done if item["type"] == "command_execution"]
    texts = [item["text"] for item in done if item["type"] == "agent_message"]
    expect(len(commands) == 1 and commands[0]["exit_code"] == 0 and texts, f"{done}")
    return check(proxy, commands[0]["aggregated_output"], texts[-1])


@suite.case
def opencode():
    system, machine = node_machine()
    name = f"opencode-{system}-{machine}"
    program = binary(f"{name}/bin/opencode", f"{name}-baseline/bin/opencode")
    with Folder() as folder, SteeringProxy(URL, "read", {"filePath": str(folder.work / "a.txt")}) as proxy:
        config = {
            "autoupdate": False,
            "share": "disabled",
            "model": "calla/demo",
            "small_model": "calla/demo",
            "agent": {
                "build": {"prompt": "You are a helpful assistant.", "tools": {"*": False, "read": True}},
                "title": {"disable": True},
            },
            "permission": {"read": "allow", "bash": "deny", "edit": "deny", "external_directory": "deny"},
            "provider": {
                "calla": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": f"{proxy.url}/v1", "apiKey": "none"},
                    "models": {"demo": {"tool_call": True, "limit": {"context": 32768, "output": 256}}},
                }
            },
        }
        lines = folder.run(
            [program, "run", "--format", "json", PROMPT],
            {
                "OPENCODE_CONFIG_CONTENT": json.dumps(config),
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                # It would fetch its plugin library from npm into its home; the turn does not need it.
                "npm_config_offline": "true",
            },
        )
    parts = [line["part"] for line in lines]
    tools = [part["state"] for part in parts if part["type"] == "tool"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    expect(len(tools) == 1 and tools[0]["status"] == "completed" and texts, f"{parts}")
    return check(proxy, tools[0]["output"], texts[-1])


if __name__ == "__main__":
    suite.main()
