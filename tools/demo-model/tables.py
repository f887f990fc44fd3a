"""The small world that the demo model knows: words, names, facts, countries and cities."""

import json
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).resolve().parent / "data"


class Word(NamedTuple):
    """A word, the group it belongs to and a definition in our own words."""

    name: str
    category: str
    definition: str


class Country(NamedTuple):
    """A country and the four facts about it."""

    name: str
    capital: str
    continent: str
    currency: str
    language: str


def lines(file_name: str) -> list[str]:
    """The lines of a text file in the data folder."""
    return (DATA / file_name).read_text(encoding="utf-8").splitlines()


def read_countries() -> list[Country]:
    """countries.json, with the two CFA francs called by one name."""
    rows = json.loads((DATA / "countries.json").read_text(encoding="utf-8"))
    countries = [Country(*row) for row in rows]
    return [
        c._replace(currency="CFA franc") if "cfa" in c.currency.lower() else c for c in countries
    ]


def countries_by(field: str) -> dict[str, list[str]]:
    """Names of countries, grouped by a field of theirs."""
    groups: dict[str, list[str]] = {}
    for country in COUNTRIES:
        groups.setdefault(getattr(country, field), []).append(country.name)
    return groups


def names_of_category(*categories: str) -> list[str]:
    """The words of some categories, in the order of the table."""
    return [word.name for word in WORDS if word.category in categories]


def read_opposites() -> dict[str, str]:
    """Each word and its opposite; of several opposites the first listed counts."""
    pairs = [tuple(line.split(" ", 1)) for line in lines("opposites.txt")]
    opposites: dict[str, str] = {}
    for first, second in pairs:
        opposites.setdefault(first, second)
    for first, second in pairs:
        opposites.setdefault(second, first)
    return opposites


def article(word: str) -> str:
    """The word after "a" or "an"."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def capitalised(text: str) -> str:
    """The text with a capital first letter and the rest untouched."""
    return text[0].upper() + text[1:]


def counted(number: int, noun: str) -> str:
    """ "1 apple", "2 apples": for nouns with a regular plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


IRREGULAR_PLURALS = dict(
    mouse="mice",
    goose="geese",
    foot="feet",
    sheep="sheep",
    wolf="wolves",
    knife="knives",
    shelf="shelves",
    scarf="scarves",
    child="children",
    man="men",
    woman="women",
    tooth="teeth",
    leaf="leaves",
    loaf="loaves",
    ox="oxen",
    person="people",
    life="lives",
    wife="wives",
    half="halves",
    fish="fish",
    deer="deer",
    salmon="salmon",
    trout="trout",
    scissors="scissors",
    cactus="cacti",
    potato="potatoes",
    tomato="tomatoes",
    hero="heroes",
    piano="pianos",
    mango="mangoes",
    calf="calves",
    thief="thieves",
    elf="elves",
    moose="moose",
    series="series",
    mosquito="mosquitoes",
)


def plural(word: str) -> str:
    """The plural of a word of the tables."""
    if word in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[word]
    if word[-1] == "y" and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    return word + "s"


WORDS = [Word(*line.split("|")) for line in lines("words.txt")]
WORD_NAMES = [word.name for word in WORDS]
CATEGORY = {word.name: word.category for word in WORDS}
DEFINITION = {word.name: word.definition for word in WORDS}
OPPOSITES = read_opposites()
OPPOSITE_WORDS = list(OPPOSITES)
FACTS = [tuple(line.split("|")) for line in lines("facts.txt")]
NAMES = lines("names.txt")

COUNTRIES = read_countries()
CITIES: list[str] = json.loads((DATA / "cities.json").read_text(encoding="utf-8"))
CAPITALS = [country.capital for country in COUNTRIES]
COUNTRY_NAMES = [country.name.replace("the ", "") for country in COUNTRIES]
COUNTRIES_BY_CAPITAL = countries_by("capital")
COUNTRIES_BY_CURRENCY = countries_by("currency")

# Words of the table whose plural nobody asks for.
UNCOUNTED = set("""
    fog rice milk water bread butter salt sugar honey snow rain thunder garlic spinach juice tea
    coffee tennis football chess swimming peace luck courage patience music pasta gold silver iron
    copper tin lettuce paper noon wind tuna red blue green yellow black white brown purple pink grey
    cheese
""".split())
MORE_COUNTED = """
    child man woman tooth leaf loaf ox person life wife half fish deer cactus tomato hero calf thief
    elf moose brush fox dish glass class branch country party lady army body copy day toy boy girl
    tree flower student cloud idea page word number color game song
""".split()
# `fromkeys` drops the second of equal words and keeps the order.
COUNTED_WORDS = list(dict.fromkeys([w for w in WORD_NAMES if w not in UNCOUNTED] + MORE_COUNTED))
# Words that are in no table of things: plurals and opposites.
DERIVED_WORDS = [plural(word) for word in COUNTED_WORDS] + OPPOSITE_WORDS

ANIMALS = names_of_category("animal", "bird")
OBJECTS = names_of_category("object", "tool", "toy", "instrument")
PLACES = names_of_category("place", "building")
ADJECTIVES = """
    amber brave calm dusty early faint gentle happy icy jolly kind little merry noisy old proud
    quiet rusty silver tall tiny warm young blue red green golden silent wild bright
""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """
    January February March April May June July August September October November December
""".split()
DAYS_IN_MONTH = dict(zip(MONTHS, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], strict=True))

SOUNDS = dict(
    cat="meow",
    dog="woof",
    cow="moo",
    sheep="baa",
    duck="quack",
    pig="oink",
    horse="neigh",
    owl="hoot",
    frog="ribbit",
    bee="buzz",
    snake="hiss",
    lion="roar",
    mouse="squeak",
    crow="caw",
    wolf="howl",
)
COLORS = {
    "a banana": "yellow",
    "grass": "green",
    "the sky": "blue",
    "snow": "white",
    "a carrot": "orange",
    "coal": "black",
    "blood": "red",
    "a lemon": "yellow",
    "a strawberry": "red",
    "milk": "white",
    "a leaf": "green",
    "an elephant": "grey",
    "chocolate": "brown",
    "a tomato": "red",
    "the sun": "yellow",
    "a polar bear": "white",
    "a flamingo": "pink",
    "an eggplant": "purple",
    "a frog": "green",
    "a pumpkin": "orange",
}
TOPICS = """
quantum mechanics
general relativity
organic chemistry
the French revolution
monetary policy
string theory
medieval philosophy
contract law
protein folding
plate tectonics
number theory
ancient Rome
modern art
game theory
a nuclear reactor
differential geometry
behavioral economics
baroque music
thermodynamics
constitutional law
""".strip().split("\n")
