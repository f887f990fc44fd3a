"""Chats about a list of facts in the prompt: the model has to find the right line of many."""

from random import Random
from typing import Any, NamedTuple

from chats import assistant, user
from item import Message
from sampling import between, chance, held_out, pick
from tables import ADJECTIVES, CITIES, NAMES, OBJECTS, PLACES, WORD_NAMES

# How many lines a list has, before it is varied by up to 30 %.
LIST_LENGTHS = [4, 5, 6, 8, 8, 10, 12, 15, 20, 30, 40, 60, 90, 130, 180, 240]
MOST_TRIES = 400


class FactList(NamedTuple):
    """Keys with a value each, how a line says so, and how one asks; {k} and {v} are the two."""

    keys: list[str]
    values: list[Any]
    line: str
    questions: list[str]
    answer: str

    def fill(self, template: str, position: int) -> str:
        return template.format(k=self.keys[position], v=self.values[position])


def different_in_random_order(rng: Random, count: int, words: list[str]) -> list[str]:
    """Up to `count` different pairs of an adjective and one of `words`.

    The order before shuffling is a set's, so it depends on PYTHONHASHSEED.
    """
    keys = list({f"{pick(rng, ADJECTIVES)} {pick(rng, words)}" for _ in range(count)})
    rng.shuffle(keys)
    return keys


def codes(rng: Random, count: int) -> FactList:
    keys = different_in_random_order(rng, count, WORD_NAMES)
    values = [between(rng, 100, 9999) for _ in keys]
    noun = pick(rng, ["code", "number", "price", "score"])
    line = pick(
        rng,
        [
            f"The {noun} for the {{k}} is {{v}}.",
            "{k}: {v}",
            "- {k} = {v}",
            f"The {{k}} has the {noun} {{v}}.",
        ],
    )
    questions = [
        f"What is the {noun} for the {{k}}?",
        f"What is the {noun} of the {{k}}?",
        f"Tell me the {noun} for the {{k}}.",
        "{k}?",
    ]
    return FactList(keys, values, line, questions, f"The {noun} for the {{k}} is {{v}}.")


def homes(rng: Random, count: int) -> FactList:
    keys = rng.sample(NAMES, min(count, len(NAMES)))
    values = [pick(rng, CITIES) for _ in keys]
    line = pick(rng, ["{k} lives in {v}.", "{k}: {v}", "{k} is from {v}."])
    questions = [
        "Where does {k} live?",
        "Which city belongs to {k}?",
        "What is the city of {k}?",
    ]
    return FactList(keys, values, line, questions, "{k} lives in {v}.")


def places(rng: Random, count: int) -> FactList:
    keys = different_in_random_order(rng, count, OBJECTS)
    values = [pick(rng, PLACES) for _ in keys]
    line = pick(rng, ["The {k} is in the {v}.", "{k} -> {v}", "We keep the {k} in the {v}."])
    questions = [
        "Where is the {k}?",
        "Where can I find the {k}?",
        "In which place is the {k}?",
    ]
    return FactList(keys, values, line, questions, "The {k} is in the {v}.")


def labels(rng: Random, count: int) -> FactList:
    things = ["server", "room", "box", "user", "page", "task", "line", "locker"]
    keys = [f"{pick(rng, things)} {i}" for i in rng.sample(range(1, 999), count)]
    values = [f"{pick(rng, ADJECTIVES)} {pick(rng, WORD_NAMES)}" for _ in keys]
    line = pick(rng, ["{k}: {v}", "The word for {k} is {v}.", "{k} has the label {v}."])
    questions = [
        "What is the word for {k}?",
        "Which label does {k} have?",
        "{k}?",
        "What belongs to {k}?",
    ]
    return FactList(keys, values, line, questions, "The word for {k} is {v}.")


def recall_chat(rng: Random, is_held_out: bool, length: int | None = None) -> list[Message]:
    """A list of about `length` lines and one or more questions about it."""
    make = [codes, homes, places, labels][between(rng, 0, 3)]
    length = length or pick(rng, LIST_LENGTHS)
    length = int(length * (0.7 + 0.6 * rng.random()))
    facts = make(rng, length)
    if len(facts.keys) < 2:
        return recall_chat(rng, is_held_out)
    text = "\n".join(facts.fill(facts.line, i) for i in range(len(facts.keys)))
    if chance(rng, 0.3) and facts.line.endswith("."):
        text = text.replace("\n", " ")

    wanted = 1 if is_held_out else between(rng, 3, 12)
    asked: list[int] = []
    tries = 0
    while len(asked) < wanted and tries < MOST_TRIES:
        i = between(rng, 0, len(facts.keys) - 1)
        tries += 1
        key = f"rec:{facts.keys[i]}:{facts.values[i]}"
        if held_out(key) == is_held_out and i not in asked:
            asked.append(i)
    if not asked:
        return recall_chat(rng, is_held_out, length)

    introductions = [
        "Remember these facts:",
        "Here is a list:",
        "Read this list:",
        "Facts:",
        "Notes:",
        "Here are my notes.",
    ]
    notes = pick(rng, introductions) + "\n" + text
    # The list stands in the system prompt, in a message of its own, or before the first question.
    messages: list[Message] = []
    before_question = ""
    x = rng.random()
    if x < 0.25:
        messages = [Message("system", notes)]
    elif x < 0.5:
        messages = [user(notes), assistant("I have read the list.", "I will read the list.")]
    else:
        before_question = notes + "\n\n"
    for i in asked:
        question = facts.fill(pick(rng, facts.questions), i)
        messages.append(user(before_question + question))
        thinking = f"In the list: {facts.fill(facts.line, i)}"
        messages.append(assistant(facts.fill(facts.answer, i), thinking))
        before_question = ""
    return messages
