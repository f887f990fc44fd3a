"""Questions whose answer is code: one line of Python, or JSON."""

import json
from random import Random
from typing import Any

from item import Item
from sampling import between, pick
from tables import CITIES, COUNTRIES, NAMES, WORD_NAMES
from task_lists import word_list
from task_numbers import think_addition

VARIABLES = "items numbers data values words names xs scores".split()

# What a line does, and the line; {n} is a number, {n1} the next one, {v} a variable, {w} a word.
PYTHON_LINES = [
    ("prints the numbers from 1 to {n}", "for i in range(1, {n1}): print(i)"),
    ("prints the even numbers up to {n}", "print([i for i in range({n1}) if i % 2 == 0])"),
    ("sums the list {v}", "print(sum({v}))"),
    ("finds the largest value in {v}", "print(max({v}))"),
    ("finds the smallest value in {v}", "print(min({v}))"),
    ("reverses the list {v}", "{v} = {v}[::-1]"),
    ("sorts the list {v}", "{v} = sorted({v})"),
    ("sorts the list {v} in descending order", "{v} = sorted({v}, reverse=True)"),
    ("counts the items in {v}", "print(len({v}))"),
    ("squares every number in {v}", "{v} = [x ** 2 for x in {v}]"),
    ("doubles every number in {v}", "{v} = [x * 2 for x in {v}]"),
    ("prints hello {n} times", 'for _ in range({n}): print("hello")'),
    ("prints {w}", 'print("{w}")'),
    ("turns the string {v} into upper case", "{v} = {v}.upper()"),
    ("joins the list {v} with commas", 'print(", ".join({v}))'),
    ("splits the string {v} on spaces", "{v} = {v}.split()"),
    ("removes duplicates from {v}", "{v} = list(set({v}))"),
    ("reads the file {w}.txt", 'text = open("{w}.txt").read()'),
    ("makes a list of {n} zeros", "{v} = [0] * {n}"),
    ("prints the sum of the numbers from 1 to {n}", "print(sum(range(1, {n1})))"),
    ("defines a function that adds two numbers", "add = lambda a, b: a + b"),
    ("defines a function that squares a number", "square = lambda x: x * x"),
    ("checks if {n} is in the list {v}", "print({n} in {v})"),
    ("swaps a and b", "a, b = b, a"),
    ("filters the numbers greater than {n} from {v}", "{v} = [x for x in {v} if x > {n}]"),
    ("prints the first {n} items of {v}", "print({v}[:{n}])"),
    ("prints the last item of {v}", "print({v}[-1])"),
    ("sets x to {n}", "x = {n}"),
]


def python_line(rng: Random) -> Item:
    description, code = pick(rng, PYTHON_LINES)
    number = between(rng, 2, 60)
    values = dict(n=number, n1=number + 1, v=pick(rng, VARIABLES), w=pick(rng, WORD_NAMES))
    description, code = description.format(**values), code.format(**values)
    questions = [
        "Write a Python line that {d}.",
        "Write a Python one-liner that {d}.",
        "Give me one line of Python that {d}.",
        "Python: write code that {d}.",
        "In Python, write a line that {d}.",
        "Show me Python code that {d}.",
    ]
    question = pick(rng, questions).format(d=description)
    thinking = f"I need one line of Python that {description}."
    key = f"py:{description}:{len(question) % 3}"
    return Item(key, question, f"```python\n{code}\n```", thinking, None)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_answer(rng: Random) -> Item:
    """An object or array made from what the question says or from the country table."""
    kind = between(rng, 0, 4)
    makers = [json_person, json_words, json_country, json_sum, json_numbers]
    question, value, thinking = makers[kind](rng)
    answer = as_json(value)
    return Item(f"json:{kind}:{answer}", question, answer, thinking, None)


def json_person(rng: Random) -> tuple[str, Any, str]:
    name, age, city = pick(rng, NAMES), between(rng, 5, 90), pick(rng, CITIES)
    person = {"name": name, "age": age, "city": city}
    keys = rng.sample(list(person), between(rng, 2, 3))
    questions = [
        "Return a JSON object with {k} for this person: {n}, {a} years old, lives in {c}.",
        "{n} is {a} years old and lives in {c}. Give me JSON with the keys {k}.",
        "Write JSON with the keys {k}: {n} is {a} and lives in {c}.",
    ]
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    question = pick(rng, questions).format(k=listed, n=name, a=age, c=city)
    return question, {key: person[key] for key in keys}, f"The keys are {', '.join(keys)}."


def json_words(rng: Random) -> tuple[str, Any, str]:
    words = word_list(rng, 2, 6)
    key = pick(rng, ["words", "items", "list", "names", "values"])
    questions = [
        "Put these words in a JSON object under the key {k}: {j}",
        "Return JSON with a list called {k}: {j}",
        "Make a JSON object with one key {k} that holds this list: {j}",
    ]
    question = pick(rng, questions).format(k=key, j=", ".join(words))
    return question, {key: words}, f"One key, {key}, with {len(words)} entries."


def json_country(rng: Random) -> tuple[str, Any, str]:
    country = pick(rng, COUNTRIES)
    fields = ["capital", "continent", "currency", "language"]
    keys = rng.sample(fields, between(rng, 1, 3))
    questions = [
        "Give me the {k} of {c} as JSON.",
        "Return JSON with the {k} of {c}.",
        "JSON with {k} for {c}, please.",
    ]
    question = pick(rng, questions).format(k=" and ".join(keys), c=country.name)
    facts = {key: getattr(country, key) for key in keys}
    known = " ".join(f"Its {key} is {value}." for key, value in facts.items())
    return question, {"country": country.name, **facts}, f"The country is {country.name}. {known}"


def json_sum(rng: Random) -> tuple[str, Any, str]:
    a, b = between(rng, 1, 99), between(rng, 1, 99)
    questions = [
        "Add {a} and {b} and return JSON with the key sum.",
        "What is {a} + {b}? Answer as JSON with the key sum.",
    ]
    question = pick(rng, questions).format(a=a, b=b)
    return question, {"sum": a + b}, think_addition(a, b)


def json_numbers(rng: Random) -> tuple[str, Any, str]:
    numbers = [between(rng, 0, 99) for _ in range(between(rng, 2, 6))]
    questions = [
        "Return a JSON array with these numbers: {j}",
        "Write these numbers as a JSON list: {j}",
        "JSON array of {j}",
    ]
    question = pick(rng, questions).format(j=", ".join(map(str, numbers)))
    return question, numbers, "A JSON array uses square brackets."
