"""A proxy between a command-line agent and the server which makes a tiny model take one scripted turn.

The demo checkpoint would not by itself call an agent's tools with sensible arguments. So the proxy uses what
the server offers to any client. The request that offers the wanted tool gets `tool_choice` naming it, and
the schema of that tool is narrowed to the wanted arguments, so that the grammar admits only those. Requests
that already carry a tool result get `tool_choice` none and a format that only one text fits, as a tiny model
might also end its turn at once. All get `temperature` 0, a small limit of new tokens, and no thinking.
Everything else passes through as it is: other fields, paths, headers, and the response byte for byte as it
streams. Every exchange is recorded.
"""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"}


# What the model says once it has the tool's result: a string in JSON.
ANSWER = "The number is 42."
ANSWER_FORMAT = {"type": "json_schema", "name": "answer", "schema": {"type": "string", "enum": [ANSWER]}}


def narrow(arguments):
    """The schema that only `arguments` fit."""
    properties = {name: {"type": "string", "enum": [value]} for name, value in arguments.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(arguments),
        "additionalProperties": False,
    }


def steer_chat(body, tool, arguments, tokens):
    """Steers a request to /v1/chat/completions; true if it already carries a tool result."""
    answered = any(message.get("role") == "tool" for message in body["messages"])
    for function in (t["function"] for t in body.get("tools") or []):
        if function["name"] == tool:
            function["parameters"] = narrow(arguments)
            body["tool_choice"] = {"type": "function", "function": {"name": tool}}
    if answered:
        body["tool_choice"] = "none"
        body["response_format"] = {"type": "json_schema", "json_schema": ANSWER_FORMAT}
    body |= {"temperature": 0, "max_tokens": tokens, "chat_template_kwargs": {"enable_thinking": False}}
    return answered


def steer_responses(body, tool, arguments, tokens):
    """Steers a request to /v1/responses; true if it already carries a tool result."""
    answered = any(item.get("type") == "function_call_output" for item in body["input"])
    for function in body.get("tools") or []:
        if function["type"] == "function" and function["name"] == tool:
            function["parameters"] = narrow(arguments)
            body["tool_choice"] = {"type": "function", "name": tool}
    if answered:
        body["tool_choice"] = "none"
        body["text"] = {"format": ANSWER_FORMAT}
    body |= {"temperature": 0, "max_output_tokens": tokens}
    body["reasoning"] = {**(body.get("reasoning") or {}), "effort": "none"}
    return answered


def steer_messages(body, tool, arguments, tokens):
    """Steers a request to /v1/messages; true if it already carries a tool result."""
    blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
    answered = any(block.get("type") == "tool_result" for block in blocks)
    for function in body.get("tools") or []:
        if function["name"] == tool:
            function["input_schema"] = narrow(arguments)
            body["tool_choice"] = {"type": "tool", "name": tool}
    if answered:
        body["tool_choice"] = {"type": "none"}
        body["output_config"] = {"format": ANSWER_FORMAT}
    body |= {"temperature": 0, "max_tokens": tokens, "thinking": {"type": "disabled"}}
    return answered


STEER = {
    "/v1/chat/completions": steer_chat,
    "/v1/responses": steer_responses,
    "/v1/messages": steer_messages,
}


class Exchange:
    """One request with its answer, as the agent saw it."""

    def __init__(self, path, body, answered):
        self.path = path
        self.body = body
        self.answered = answered
        self.status = None
        self.response = b""


class SteeringProxy:
    """Runs on a free port of 127.0.0.1 from `with` on; `exchanges` lists the steered requests in order."""

    def __init__(self, upstream, tool, arguments, tokens=64):
        self.upstream = urlsplit(upstream)
        self.tool = tool
        self.arguments = arguments
        self.tokens = tokens
        self.exchanges = []
        self.other_paths = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                proxy.forward(self)

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def forward(self, handler):
        """Sends the agent's request to the server, steered if it asks for a generation."""
        payload = read_body(handler)
        path = handler.path.split("?")[0]
        exchange = None
        if handler.command == "POST" and path in STEER:
            body = json.loads(payload)
            answered = STEER[path](body, self.tool, self.arguments, self.tokens)
            payload = json.dumps(body).encode()
            exchange = Exchange(path, body, answered)
            self.exchanges.append(exchange)
        else:
            self.other_paths.append(f"{handler.command} {path}")
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=300)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in HOP_BY_HOP}
        connection.request(handler.command, handler.path, payload, headers)
        response = connection.getresponse()
        handler.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                handler.send_header(name, value)
        handler.send_header("connection", "close")
        handler.close_connection = True
        handler.end_headers()
        if exchange:
            exchange.status = response.status
        while piece := response.read1(65536):
            if exchange:
                exchange.response += piece
            handler.wfile.write(piece)
            handler.wfile.flush()
        connection.close()


def read_body(handler):
    """The request's body, whether it has a length or comes in chunks."""
    if handler.headers.get("transfer-encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length") or 0))
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body
