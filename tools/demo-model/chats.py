"""Chats without tools: questions in a row, and facts about the user to be remembered."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from item import Message
from sampling import between, chance, held_out, pick
from tables import (
    ANIMALS,
    CITIES,
    COUNTRIES,
    DAYS,
    NAMES,
    WORD_NAMES,
    article,
    capitalised,
    names_of_category,
)
from tasks import draw_item, with_noise

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are Calla, a tiny demo model.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "You are a helpful and precise assistant.",
    "Be polite and short.",
    "You are an assistant in a terminal.",
    "Help the user.",
    "You are a careful assistant. Answer the question.",
    "You answer questions for children.",
    "Today is {d}.",
    "The user is called {n}.",
    "You are a demo of a Rust inference engine.",
]
ANSWER_ONLY_PROMPTS = [
    "Answer with only the result.",
    "Reply with the answer only.",
    "Give only the answer, no sentence.",
    "Only output the result.",
]


def user(content: str) -> Message:
    return Message("user", content)


def assistant(content: str, thinking: str) -> Message:
    return Message("assistant", content, thinking)


def system_message(rng: Random) -> Message:
    prompt = pick(rng, SYSTEM_PROMPTS).format(d=pick(rng, DAYS), n=pick(rng, NAMES))
    return Message("system", prompt)


def question_chat(rng: Random, is_held_out: bool, task: str | None = None) -> list[Message]:
    """One or more questions with their answers; the last one is of `task` and of the wanted split.

    Some chats ask for bare results through the system prompt, and some go on about a country by
    pronoun.
    """
    x = rng.random()
    messages: list[Message] = []
    if is_held_out:
        turns = 1 if chance(rng, 0.7) else 2
    else:
        turns = 1 if x < 0.62 else 2 if x < 0.8 else 3 if x < 0.93 else 5
    y = rng.random()
    answer_only = y < 0.07
    if answer_only:
        messages = [Message("system", pick(rng, ANSWER_ONLY_PROMPTS))]
    elif y < 0.35:
        messages = [system_message(rng)]
    name = ""
    for turn in range(turns):
        is_last = turn == turns - 1
        while True:
            name, item = draw_item(rng, task if is_last else None, is_held_out and is_last)
            if not answer_only or item.short:
                break
            if task and is_last:
                # This task has no bare result to give: start over as an ordinary chat.
                answer_only = False
                messages = []
                break
        messages.append(user(with_noise(rng, item.question, name)))
        messages.append(assistant(item.short if answer_only else item.answer, item.thinking))
    if not is_held_out and not answer_only and name == "geo" and chance(rng, 0.25):
        messages += pronoun_follow_up(rng)
    return messages


def pronoun_follow_up(rng: Random) -> list[Message]:
    """A question about a country and a second one that says "its" or "there"."""
    country = pick(rng, COUNTRIES)
    name = country.name
    capital = f"The capital of {name} is {country.capital}."
    first_question, first_answer = pick(
        rng,
        [
            (f"What is the capital of {name}?", capital),
            (f"Which continent is {name} in?", f"{capitalised(name)} is in {country.continent}."),
        ],
    )
    follow_ups = [
        (
            pick(
                rng,
                [
                    "And its currency?",
                    "What is its currency?",
                    "What currency do they use there?",
                ],
            ),
            f"The currency of {name} is the {country.currency}.",
            f"They ask about {name}. The currency is the {country.currency}.",
        ),
        (
            pick(rng, ["What language do they speak there?", "And the language?"]),
            f"The main language of {name} is {country.language}.",
            f"They ask about {name}. The language is {country.language}.",
        ),
        (
            pick(rng, ["And its capital?", "What is its capital?"]),
            capital,
            f"They ask about {name}. The capital is {country.capital}.",
        ),
    ]
    question, answer, thinking = pick(rng, follow_ups)
    return [
        user(first_question),
        assistant(first_answer, ""),
        user(question),
        assistant(answer, thinking),
    ]


class PersonalFact(NamedTuple):
    """Something that a user says about themselves and later asks for; {v} is its value."""

    name: str
    statements: list[str]
    acknowledgements: list[str]
    questions: list[str]
    answer: str
    draw_value: Callable[[Random], Any]


FAVOURITE_COLORS = names_of_category("color") + ["orange", "silver", "gold"]
FOODS = names_of_category("food", "fruit", "vegetable")
JOBS = names_of_category("job")

PERSONAL_FACTS = [
    PersonalFact(
        "name",
        [
            "My name is {v}.",
            "Hi, I am {v}.",
            "I'm called {v}.",
            "Hello, my name is {v}.",
            "Please call me {v}.",
        ],
        ["Nice to meet you, {v}!"],
        [
            "What is my name?",
            "What's my name?",
            "Do you remember my name?",
            "Who am I?",
            "What am I called?",
        ],
        "Your name is {v}.",
        lambda rng: pick(rng, NAMES),
    ),
    PersonalFact(
        "color",
        ["My favorite color is {v}.", "I like the color {v} best."],
        ["I will remember that your favorite color is {v}."],
        [
            "What is my favorite color?",
            "Which color do I like best?",
            "Do you remember my favorite color?",
        ],
        "Your favorite color is {v}.",
        lambda rng: pick(rng, FAVOURITE_COLORS),
    ),
    PersonalFact(
        "city",
        ["I live in {v}.", "My home is in {v}.", "I come from {v}."],
        ["I will remember that you live in {v}."],
        ["Where do I live?", "Which city do I live in?", "What is my city?"],
        "You live in {v}.",
        lambda rng: pick(rng, CITIES),
    ),
    PersonalFact(
        "pet",
        ["I have a pet {v}.", "My pet is {a}."],
        ["I will remember that your pet is {a}."],
        ["What pet do I have?", "What is my pet?", "Which animal do I have?"],
        "Your pet is {a}.",
        lambda rng: pick(rng, ANIMALS),
    ),
    PersonalFact(
        "age",
        ["I am {v} years old.", "My age is {v}."],
        ["I will remember that you are {v} years old."],
        ["How old am I?", "What is my age?"],
        "You are {v} years old.",
        lambda rng: between(rng, 5, 95),
    ),
    PersonalFact(
        "number",
        [
            "My lucky number is {v}.",
            "Remember the number {v}.",
            "Keep the number {v} in mind.",
        ],
        ["I will remember the number {v}."],
        [
            "What was my number?",
            "Which number did I tell you?",
            "What number should you remember?",
        ],
        "The number is {v}.",
        lambda rng: between(rng, 1, 9999),
    ),
    PersonalFact(
        "food",
        ["My favorite food is {v}.", "I love to eat {v}."],
        ["I will remember that you like {v}."],
        ["What is my favorite food?", "What do I love to eat?", "Which food do I like?"],
        "You like {v}.",
        lambda rng: pick(rng, FOODS),
    ),
    PersonalFact(
        "job",
        ["I work as {a}.", "My job is {v}."],
        ["I will remember that your job is {v}."],
        ["What is my job?", "What do I work as?"],
        "Your job is {v}.",
        lambda rng: pick(rng, JOBS),
    ),
    PersonalFact(
        "word",
        ["The secret word is {v}.", "Remember the word {v}.", "The password is {v}."],
        ["I will remember the word {v}."],
        [
            "What is the secret word?",
            "What was the word?",
            "Which word did I tell you?",
            "What is the password?",
        ],
        "The word is {v}.",
        lambda rng: pick(rng, WORD_NAMES),
    ),
]


def other_question(rng: Random) -> list[Message]:
    """A question about something else, to put distance between a fact and its recall."""
    _, item = draw_item(rng, None, False)
    return [user(with_noise(rng, item.question)), assistant(item.answer, item.thinking)]


def memory_chat(rng: Random, is_held_out: bool) -> list[Message]:
    """The user states one to three facts, perhaps asks other things, and asks for the facts."""
    while True:
        facts = rng.sample(PERSONAL_FACTS, pick(rng, [1, 1, 2, 3]))
        values = [fact.draw_value(rng) for fact in facts]
        asked = between(rng, 0, len(facts) - 1)
        # The random part makes that the same question can be in training and held out.
        key = f"mem:{facts[asked].name}:{values[asked]}:{between(rng, 0, 20)}"
        if held_out(key) == is_held_out:
            break

    def fill(template: str, value: Any) -> str:
        return template.format(v=value, a=article(str(value)))

    messages: list[Message] = []
    for fact, value in zip(facts, values, strict=True):
        messages.append(user(fill(pick(rng, fact.statements), value)))
        acknowledgement = fill(pick(rng, fact.acknowledgements), value)
        messages.append(assistant(acknowledgement, "The user tells me something to remember."))
        if chance(rng, 0.3):
            messages += other_question(rng)
    for _ in range(pick(rng, [0, 0, 1, 2])):
        messages += other_question(rng)
    order = [asked]
    if not chance(rng, 0.7):
        order = [i for i in range(len(facts)) if i != asked] + [asked]
    for i in order:
        answer = fill(facts[i].answer, values[i])
        messages.append(user(pick(rng, facts[i].questions)))
        messages.append(assistant(answer, f"The user told me this earlier. {answer}"))
    if chance(rng, 0.2):
        messages.insert(0, system_message(rng))
    return messages
