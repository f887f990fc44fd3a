"""The tools that the model learns to call: names, parameters, requests, results.

A kind stands for many tools, since its name, description and parameter names vary from chat to
chat; the model has to read the specification. Further tools are invented on the spot.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from item import Call
from sampling import between, chance, pick
from tables import (
    ADJECTIVES,
    CAPITALS,
    CITIES,
    COUNTRIES,
    DAYS,
    NAMES,
    TOPICS,
    WORD_NAMES,
    capitalised,
)
from task_lists import sentence

Arguments = list[Any]


class Parameter(NamedTuple):
    """One parameter of a tool as its specification gives it."""

    name: str
    type: str
    description: str


class Tool(NamedTuple):
    """A tool as one chat sees it."""

    name: str
    description: str
    parameters: list[Parameter]

    def call(self, arguments: Arguments) -> Call:
        """A call with the arguments in the order of the parameters."""
        names = [parameter.name for parameter in self.parameters]
        return Call(self.name, list(zip(names, arguments, strict=True)))


class ParameterKind(NamedTuple):
    """The names and descriptions that a parameter may have."""

    names: list[str]
    type: str
    descriptions: list[str]


class ToolKind(NamedTuple):
    """A family of tools that do the same.

    `requests` and `reply` are templates: {0}, {1} ... are the arguments, and in `reply` the fields
    of the result go by their names.
    """

    names: list[str]
    descriptions: list[str]
    parameters: list[ParameterKind]
    requests: list[str]
    draw_arguments: Callable[[Random], Arguments]
    draw_result: Callable[[Random, Arguments], dict[str, Any]]
    reply: str

    def draw_tool(self, rng: Random) -> Tool:
        """One tool of the family."""
        return Tool(
            pick(rng, self.names),
            pick(rng, self.descriptions),
            [
                Parameter(pick(rng, p.names), p.type, pick(rng, p.descriptions))
                for p in self.parameters
            ],
        )

    def draw_request(self, rng: Random, arguments: Arguments) -> str:
        """What a user says who wants the tool called with these arguments."""
        return pick(rng, self.requests).format(*arguments)

    def draw_reply(self, rng: Random, arguments: Arguments) -> tuple[dict[str, Any], str]:
        """A result of the tool, and how the assistant reports it."""
        result = self.draw_result(rng, arguments)
        shown = {
            name: ", ".join(value) if isinstance(value, list) else value
            for name, value in result.items()
        }
        return result, self.reply.format(*arguments, **shown)


CURRENCY_CODES = ["USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "INR", "SEK", "KES"]
STOCK_SYMBOLS = """
    AAPL MSFT TSLA NVDA AMZN INTC ORCL IBM SAP SONY NOK AMD
""".split()
FILE_ENDINGS = ["txt", "md", "json", "csv", "log", "py", "rs"]
ROOMS = [
    "kitchen",
    "bedroom",
    "bathroom",
    "hall",
    "garage",
    "office",
    "garden",
    "attic",
    "living room",
]
SYLLABLES = ["ka", "lo", "mi", "ren", "tu", "sa", "ve", "dor", "ni", "pe"]


def time_of_day(rng: Random) -> str:
    return f"{between(rng, 0, 23):02d}:{between(rng, 0, 11) * 5:02d}"


def file_path(rng: Random) -> str:
    folder = pick(rng, ["", "docs/", "src/", "data/", "/tmp/", "notes/"])
    return f"{folder}{pick(rng, WORD_NAMES)}.{pick(rng, FILE_ENDINGS)}"


def adjective_and_word(rng: Random) -> str:
    return f"{pick(rng, ADJECTIVES)} {pick(rng, WORD_NAMES)}"


def title(rng: Random) -> str:
    return f"{pick(rng, ADJECTIVES).title()} {pick(rng, WORD_NAMES).title()}"


def arithmetic_expression(rng: Random) -> str:
    forms = ["{a} * {b}", "{a} + {b} * {c}", "({a} + {b}) * {c}", "{a} / {b}", "{a} - {b}"]
    return pick(rng, forms).format(
        a=between(rng, 100, 9999), b=between(rng, 2, 999), c=between(rng, 2, 99)
    )


def search_query(rng: Random) -> str:
    if chance(rng, 0.4):
        return pick(rng, TOPICS)
    subject = adjective_and_word(rng)
    city = pick(rng, CITIES)
    return f"{subject} {pick(rng, ['in ' + city, 'price', 'recipe', 'history', 'for sale'])}"


def email_arguments(rng: Random) -> Arguments:
    domains = ["example.com", "mail.test", "calla.dev"]
    recipient = f"{pick(rng, NAMES).lower()}@{pick(rng, domains)}"
    subject = capitalised(pick(rng, WORD_NAMES)) if chance(rng, 0.5) else adjective_and_word(rng)
    if chance(rng, 0.6):
        return [recipient, subject, sentence(rng)]
    times = ["on " + pick(rng, DAYS), "at " + time_of_day(rng), "soon"]
    return [recipient, subject, f"See you {pick(rng, times)}."]


def event_arguments(rng: Random) -> Arguments:
    kinds = ["lunch with ", "meeting with ", "call with ", "tennis with ", "dinner with "]
    return [pick(rng, kinds) + pick(rng, NAMES), pick(rng, DAYS), time_of_day(rng)]


def translation_arguments(rng: Random) -> Arguments:
    text = pick(rng, WORD_NAMES) if chance(rng, 0.5) else f"the {adjective_and_word(rng)}"
    return [text, pick(rng, COUNTRIES).language]


def translated_word(rng: Random) -> str:
    return "".join(pick(rng, SYLLABLES) for _ in range(between(rng, 2, 4)))


def folder_path(rng: Random) -> str:
    return pick(rng, ["/home/", "/tmp/", "./", "/var/", "docs/", "src/"]) + pick(rng, WORD_NAMES)


def file_names(rng: Random) -> list[str]:
    count = between(rng, 2, 4)
    return [f"{pick(rng, WORD_NAMES)}.{pick(rng, FILE_ENDINGS)}" for _ in range(count)]


def note_text(rng: Random) -> str:
    if chance(rng, 0.5):
        return sentence(rng)
    return f"buy {pick(rng, WORD_NAMES)} and {pick(rng, WORD_NAMES)}"


def number_range(rng: Random) -> Arguments:
    low = between(rng, 0, 50)
    return [low, low + between(rng, 3, 900)]


def shell_command(rng: Random) -> str:
    commands = [
        "ls -la",
        "git status",
        "cargo test",
        "cargo build --release",
        "pwd",
        "whoami",
        "df -h",
        "uname -a",
        f"python3 {pick(rng, WORD_NAMES)}.py",
        f"cat {file_path(rng)}",
        f"rm {file_path(rng)}",
        f"mkdir {pick(rng, WORD_NAMES)}",
        f"grep {pick(rng, WORD_NAMES)} {file_path(rng)}",
    ]
    return pick(rng, commands)


def shell_output(rng: Random) -> str:
    outputs = [
        "ok",
        "done",
        "clean",
        f"/home/{pick(rng, WORD_NAMES)}",
        "all tests passed",
        f"{pick(rng, WORD_NAMES)} {pick(rng, WORD_NAMES)}",
    ]
    return pick(rng, outputs)


TOOL_KINDS = [
    ToolKind(
        names=["get_weather", "weather", "fetch_weather", "weather_lookup", "current_weather"],
        descriptions=[
            "Get the current weather for a city.",
            "Look up the weather in a city.",
            "Returns the weather.",
        ],
        parameters=[
            ParameterKind(
                ["city", "location", "place"], "string", ["The city name", "Name of the city"]
            )
        ],
        requests=[
            "What is the weather in {0}?",
            "How is the weather in {0}?",
            "What's the weather like in {0} today?",
            "Is it warm in {0}?",
            "weather in {0}",
            "Tell me the weather in {0}.",
        ],
        draw_arguments=lambda rng: [pick(rng, CITIES if chance(rng, 0.6) else CAPITALS)],
        draw_result=lambda rng, _: {
            "temperature": between(rng, -10, 38),
            "condition": pick(rng, ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"]),
        },
        reply="It is {temperature} degrees and {condition} in {0}.",
    ),
    ToolKind(
        names=["get_time", "current_time", "time_in_city", "clock"],
        descriptions=["Get the local time in a city.", "Returns the current time for a city."],
        parameters=[ParameterKind(["city", "location"], "string", ["The city name", "City"])],
        requests=[
            "What time is it in {0}?",
            "What is the time in {0}?",
            "Tell me the time in {0}.",
            "current time in {0}",
        ],
        draw_arguments=lambda rng: [pick(rng, CITIES)],
        draw_result=lambda rng, _: {"time": time_of_day(rng)},
        reply="It is {time} in {0}.",
    ),
    ToolKind(
        names=["convert_currency", "currency_converter", "exchange", "fx_convert"],
        descriptions=[
            "Convert an amount of money between currencies.",
            "Currency conversion.",
        ],
        parameters=[
            ParameterKind(["amount", "value"], "number", ["The amount"]),
            ParameterKind(["from", "from_currency", "source"], "string", ["Source currency code"]),
            ParameterKind(["to", "to_currency", "target"], "string", ["Target currency code"]),
        ],
        requests=[
            "Convert {0} {1} to {2}.",
            "How much is {0} {1} in {2}?",
            "What is {0} {1} in {2}?",
            "Change {0} {1} into {2}, please.",
        ],
        draw_arguments=lambda rng: [between(rng, 1, 500), *rng.sample(CURRENCY_CODES, 2)],
        draw_result=lambda rng, _: {"result": round(rng.random() * 900 + 1, 2)},
        reply="{0} {1} is {result} {2}.",
    ),
    ToolKind(
        names=["calculator", "calculate", "evaluate", "math_eval"],
        descriptions=["Evaluate an arithmetic expression.", "A calculator."],
        parameters=[
            ParameterKind(["expression", "expr", "input"], "string", ["The expression to evaluate"])
        ],
        requests=[
            "Use the calculator for {0}.",
            "Calculate {0} with the tool.",
            "Work out {0} with the calculator.",
            "What is {0}? Use the calculator.",
        ],
        draw_arguments=lambda rng: [arithmetic_expression(rng)],
        draw_result=lambda rng, _: {"result": between(rng, 10, 99999)},
        reply="The result is {result}.",
    ),
    ToolKind(
        names=["web_search", "search", "search_web", "lookup"],
        descriptions=["Search the web.", "Find pages about a topic."],
        parameters=[ParameterKind(["query", "q", "text"], "string", ["The search query"])],
        requests=[
            "Search the web for {0}.",
            "Search for {0}.",
            "Look up {0} online.",
            "Find information about {0}.",
        ],
        draw_arguments=lambda rng: [search_query(rng)],
        draw_result=lambda rng, _: {"results": between(rng, 2, 90), "top": title(rng)},
        reply="I found {results} results. The top one is {top}.",
    ),
    ToolKind(
        names=["send_email", "email", "mail_send"],
        descriptions=["Send an email.", "Send a message by email."],
        parameters=[
            ParameterKind(["to", "recipient"], "string", ["Recipient"]),
            ParameterKind(["subject", "title"], "string", ["Subject line"]),
            ParameterKind(["body", "text", "message"], "string", ["Body of the email"]),
        ],
        requests=[
            "Send an email to {0} with the subject {1} and the text: {2}",
            "Email {0}, subject {1}, body: {2}",
            "Write an email to {0}. Subject: {1}. Text: {2}",
        ],
        draw_arguments=email_arguments,
        draw_result=lambda rng, _: {"status": "sent"},
        reply="The email to {0} was sent.",
    ),
    ToolKind(
        names=["set_alarm", "create_alarm", "alarm"],
        descriptions=["Set an alarm.", "Create an alarm at a time."],
        parameters=[ParameterKind(["time", "at"], "string", ["Time as HH:MM"])],
        requests=[
            "Set an alarm for {0}.",
            "Wake me up at {0}.",
            "Please set an alarm at {0}.",
            "I need an alarm at {0}.",
        ],
        draw_arguments=lambda rng: [time_of_day(rng)],
        draw_result=lambda rng, arguments: {"status": "ok", "time": arguments[0]},
        reply="The alarm is set for {0}.",
    ),
    ToolKind(
        names=["set_timer", "start_timer", "timer"],
        descriptions=["Start a timer.", "Start a countdown timer."],
        parameters=[
            ParameterKind(["minutes", "duration", "length"], "integer", ["Length in minutes"])
        ],
        requests=[
            "Set a timer for {0} minutes.",
            "Start a {0} minute timer.",
            "Timer for {0} minutes please.",
        ],
        draw_arguments=lambda rng: [between(rng, 2, 90)],
        draw_result=lambda rng, arguments: {"status": "started", "minutes": arguments[0]},
        reply="The timer is running for {0} minutes.",
    ),
    ToolKind(
        names=["add_event", "create_event", "calendar_add"],
        descriptions=["Add an event to the calendar.", "Create a calendar entry."],
        parameters=[
            ParameterKind(["title", "name", "event"], "string", ["Title of the event"]),
            ParameterKind(["day", "date"], "string", ["Day of the event"]),
            ParameterKind(["time", "start"], "string", ["Start time as HH:MM"]),
        ],
        requests=[
            "Add {0} to my calendar on {1} at {2}.",
            "Create an event called {0} on {1} at {2}.",
            "Put {0} in my calendar for {1}, {2}.",
        ],
        draw_arguments=event_arguments,
        draw_result=lambda rng, _: {"status": "created"},
        reply="I added {0} on {1} at {2}.",
    ),
    ToolKind(
        names=["translate", "translate_text", "translator"],
        descriptions=["Translate text into another language.", "Translation of short texts."],
        parameters=[
            ParameterKind(["text", "input"], "string", ["Text to translate"]),
            ParameterKind(["language", "target_language", "to"], "string", ["Target language"]),
        ],
        requests=[
            "Translate {0} into {1}.",
            "How do you say {0} in {1}?",
            "What is {0} in {1}?",
        ],
        draw_arguments=translation_arguments,
        draw_result=lambda rng, _: {"translation": translated_word(rng)},
        reply="In {1} it is {translation}.",
    ),
    ToolKind(
        names=["play_music", "play_song", "music_player"],
        descriptions=["Play music.", "Play a song by title."],
        parameters=[ParameterKind(["song", "title", "track"], "string", ["Title of the song"])],
        requests=[
            "Play {0}.",
            "Play the song {0}.",
            "I want to hear {0}.",
            "Put on {0}, please.",
        ],
        draw_arguments=lambda rng: [title(rng)],
        draw_result=lambda rng, arguments: {"status": "playing", "song": arguments[0]},
        reply="Now playing {0}.",
    ),
    ToolKind(
        names=["set_light", "control_light", "lights", "switch_light"],
        descriptions=["Switch a light on or off.", "Control the lights in a room."],
        parameters=[
            ParameterKind(["room", "location"], "string", ["Room"]),
            ParameterKind(["state", "status"], "string", ["on or off"]),
        ],
        requests=[
            "Turn {1} the light in the {0}.",
            "Switch {1} the {0} light.",
            "Lights {1} in the {0}.",
            "Please turn {1} the {0} light.",
        ],
        draw_arguments=lambda rng: [pick(rng, ROOMS), pick(rng, ["on", "off"])],
        draw_result=lambda rng, arguments: {"room": arguments[0], "state": arguments[1]},
        reply="The light in the {0} is {1}.",
    ),
    ToolKind(
        names=["set_temperature", "thermostat", "set_thermostat"],
        descriptions=["Set the room temperature.", "Control the thermostat."],
        parameters=[
            ParameterKind(["degrees", "temperature", "value"], "integer", ["Degrees Celsius"])
        ],
        requests=[
            "Set the temperature to {0} degrees.",
            "Make it {0} degrees in here.",
            "Set the thermostat to {0}.",
        ],
        draw_arguments=lambda rng: [between(rng, 14, 28)],
        draw_result=lambda rng, arguments: {"target": arguments[0]},
        reply="The temperature is set to {0} degrees.",
    ),
    ToolKind(
        names=["get_stock_price", "stock_price", "quote"],
        descriptions=["Get the price of a stock.", "Look up a stock quote."],
        parameters=[ParameterKind(["symbol", "ticker"], "string", ["Ticker symbol"])],
        requests=[
            "What is the stock price of {0}?",
            "How much is {0} trading at?",
            "Price of {0} stock?",
            "Get me a quote for {0}.",
        ],
        draw_arguments=lambda rng: [pick(rng, STOCK_SYMBOLS)],
        draw_result=lambda rng, _: {"price": round(rng.random() * 800 + 5, 2)},
        reply="{0} is at {price}.",
    ),
    ToolKind(
        names=["read_file", "open_file", "file_read", "cat"],
        descriptions=["Read a file.", "Return the text of a file."],
        parameters=[ParameterKind(["path", "file", "filename"], "string", ["Path of the file"])],
        requests=[
            "Read the file {0}.",
            "What is in {0}?",
            "Show me {0}.",
            "Open {0} and tell me what it says.",
        ],
        draw_arguments=lambda rng: [file_path(rng)],
        draw_result=lambda rng, _: {"content": sentence(rng)},
        reply="The file {0} says: {content}",
    ),
    ToolKind(
        names=["list_files", "list_directory", "ls"],
        descriptions=["List the files in a folder.", "Show the contents of a directory."],
        parameters=[ParameterKind(["path", "directory", "folder"], "string", ["Folder path"])],
        requests=[
            "List the files in {0}.",
            "What files are in {0}?",
            "Show the contents of {0}.",
        ],
        draw_arguments=lambda rng: [folder_path(rng)],
        draw_result=lambda rng, _: {"files": file_names(rng)},
        reply="The files in {0} are {files}.",
    ),
    ToolKind(
        names=["write_note", "save_note", "add_note", "remember"],
        descriptions=["Save a note.", "Write down a short note."],
        parameters=[ParameterKind(["text", "note", "content"], "string", ["Text of the note"])],
        requests=[
            "Write a note: {0}",
            "Save this note: {0}",
            "Note down: {0}",
            "Make a note that says: {0}",
        ],
        draw_arguments=lambda rng: [note_text(rng)],
        draw_result=lambda rng, _: {"status": "saved"},
        reply="The note is saved.",
    ),
    ToolKind(
        names=["get_contact", "find_contact", "phone_book"],
        descriptions=["Look up a contact.", "Find the phone number of a person."],
        parameters=[ParameterKind(["name", "person"], "string", ["Name of the person"])],
        requests=[
            "What is the phone number of {0}?",
            "Find {0} in my contacts.",
            "What is {0}'s number?",
            "Look up {0}'s phone number.",
        ],
        draw_arguments=lambda rng: [pick(rng, NAMES)],
        draw_result=lambda rng, _: {"phone": f"555-{between(rng, 1000, 9999)}"},
        reply="The phone number of {0} is {phone}.",
    ),
    ToolKind(
        names=["get_distance", "distance", "route_length"],
        descriptions=["Get the distance between two cities.", "Distance in kilometers."],
        parameters=[
            ParameterKind(["from", "origin", "start"], "string", ["Start city"]),
            ParameterKind(["to", "destination", "end"], "string", ["End city"]),
        ],
        requests=[
            "How far is it from {0} to {1}?",
            "What is the distance between {0} and {1}?",
            "Distance from {0} to {1}?",
        ],
        draw_arguments=lambda rng: rng.sample(CITIES, 2),
        draw_result=lambda rng, _: {"kilometers": between(rng, 20, 15000)},
        reply="It is {kilometers} kilometers from {0} to {1}.",
    ),
    ToolKind(
        names=["random_number", "roll", "get_random"],
        descriptions=["Draw a random number.", "Random integer in a range."],
        parameters=[
            ParameterKind(["min", "low"], "integer", ["Smallest value"]),
            ParameterKind(["max", "high"], "integer", ["Largest value"]),
        ],
        requests=[
            "Give me a random number between {0} and {1}.",
            "Pick a number from {0} to {1}.",
            "Draw a random number between {0} and {1}.",
        ],
        draw_arguments=number_range,
        draw_result=lambda rng, arguments: {"number": between(rng, *arguments)},
        reply="The random number is {number}.",
    ),
    ToolKind(
        names=["run_command", "shell", "bash", "execute"],
        descriptions=["Run a shell command.", "Execute a command in the terminal."],
        parameters=[ParameterKind(["command", "cmd"], "string", ["The command line"])],
        requests=[
            "Run {0}",
            "Run the command {0}",
            "Execute: {0}",
            "In the terminal, run {0}",
        ],
        draw_arguments=lambda rng: [shell_command(rng)],
        draw_result=lambda rng, _: {"output": shell_output(rng), "exit_code": 0},
        reply="The command printed: {output}",
    ),
    ToolKind(
        names=["order_status", "track_order", "get_order"],
        descriptions=["Get the status of an order.", "Track a parcel."],
        parameters=[ParameterKind(["order_id", "id", "number"], "string", ["The order number"])],
        requests=[
            "Where is my order {0}?",
            "What is the status of order {0}?",
            "Track order {0}.",
        ],
        draw_arguments=lambda rng: [
            pick(rng, ["A", "B", "X", "K"]) + str(between(rng, 1000, 99999))
        ],
        draw_result=lambda rng, _: {
            "status": pick(rng, ["shipped", "delivered", "delayed", "packed", "on the way"])
        },
        reply="Order {0} is {status}.",
    ),
]

INVENTED_VERBS = """
    get set find make open close check start stop update delete create list show add count
""".split()
INVENTED_PARAMETERS = [
    "name",
    "id",
    "value",
    "level",
    "key",
    "color",
    "size",
    "mode",
    "target",
    "code",
    "label",
    "amount",
]
INTEGER_PARAMETERS = ("id", "value", "level", "size", "code", "amount")


class InventedUse(NamedTuple):
    """A made-up tool together with one use of it."""

    tool: Tool
    request: str
    arguments: Arguments
    result: dict[str, Any]
    reply: str


def invent_tool(rng: Random) -> InventedUse:
    """A tool like `open_lantern` that no other chat need have, so that names cannot be learnt."""
    verb, thing = pick(rng, INVENTED_VERBS), pick(rng, WORD_NAMES)
    name = f"{verb}_{thing}" if chance(rng, 0.8) else verb + capitalised(thing)
    count = between(rng, 1, 2)
    parameters = [
        Parameter(p, "integer" if p in INTEGER_PARAMETERS else "string", f"The {p}")
        for p in rng.sample(INVENTED_PARAMETERS, count)
    ]
    arguments = [
        between(rng, 0, 999) if p.type == "integer" else pick(rng, WORD_NAMES) for p in parameters
    ]
    requests = [
        "Use {f} with {a}.",
        "Call {f} with {a}.",
        "{V} the {o} with {a}.",
        "Please {v} the {o}, {a}.",
    ]
    settings = zip(parameters, arguments, strict=True)
    request = pick(rng, requests).format(
        f=name,
        v=verb,
        V=capitalised(verb),
        o=thing,
        a=" and ".join(f"{parameter.name} {value}" for parameter, value in settings),
    )
    results: list[dict[str, Any]] = [
        {"status": "ok"},
        {"result": between(rng, 0, 999)},
        {"status": "done"},
        {"error": "not found"},
    ]
    result = pick(rng, results)
    reply = "The tool reports: " + ", ".join(f"{k} {v}" for k, v in result.items()) + "."
    tool = Tool(name, f"{capitalised(verb)} the {thing}.", parameters)
    return InventedUse(tool, request, arguments, result, reply)


def specification(rng: Random, tool: Tool) -> dict[str, Any]:
    """The tool as a JSON schema; descriptions and the list `required` may be missing."""
    described = chance(rng, 0.75)
    properties = {}
    for parameter in tool.parameters:
        properties[parameter.name] = {"type": parameter.type}
        if described:
            properties[parameter.name]["description"] = parameter.description
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if not chance(rng, 0.1):
        schema["required"] = [parameter.name for parameter in tool.parameters]
    function = {"name": tool.name, "description": tool.description, "parameters": schema}
    return {"type": "function", "function": function}
