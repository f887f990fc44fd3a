"""Questions about a list of words: sorting, reversing, copying, counting, picking one."""

from random import Random

from item import Item
from sampling import between, chance, pick
from tables import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COUNTRY_NAMES,
    DERIVED_WORDS,
    NAMES,
    OBJECTS,
    PLACES,
    WORD_NAMES,
)

ONSETS = """
    b br c ch d dr f fl g gr h j k l m n p pl pr qu r s sh st t tr v w z
""".split()
NUCLEI = "a e i o u ai ea oo ou".split()
CODAS = "b ck d ft g k l ll m n nd ng nt p r rd rk s st t x".split()
ORDINALS = "first second third fourth fifth sixth".split()


def invented_word(rng: Random) -> str:
    """A word that means nothing, so that copying must work letter by letter."""
    word = ""
    for _ in range(between(rng, 1, 3)):
        word += pick(rng, ONSETS) + pick(rng, NUCLEI)
    return word + (pick(rng, CODAS) if chance(rng, 0.6) else "")


def word_list(rng: Random, shortest: int = 2, longest: int = 7) -> list[str]:
    """Different words, most often from the table of words."""
    count = between(rng, shortest, longest)
    x = rng.random()
    if x < 0.62:
        return rng.sample(WORD_NAMES, count)
    if x < 0.72:
        return rng.sample(NAMES, count)
    if x < 0.76:
        return rng.sample(COUNTRY_NAMES, count)
    if x < 0.79:
        return rng.sample(CITIES, count)
    # A few more than needed are drawn, because equal ones are dropped.
    if x < 0.89:
        return list(dict.fromkeys(pick(rng, DERIVED_WORDS) for _ in range(count + 3)))[:count]
    return list(dict.fromkeys(invented_word(rng) for _ in range(count + 3)))[:count]


def joined_somehow(rng: Random, words: list[str]) -> str:
    """Mostly with commas; sometimes with spaces only, or with a final "and"."""
    if chance(rng, 0.85):
        return ", ".join(words)
    if chance(rng, 0.6):
        return " ".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def sentence(rng: Random) -> str:
    """A sentence of eleven or so words about an animal and an object."""
    verbs = ["saw", "found", "carried", "liked", "watched", "hid"]
    return (
        f"The {pick(rng, ADJECTIVES)} {pick(rng, ANIMALS)} {pick(rng, verbs)} "
        f"the {pick(rng, ADJECTIVES)} {pick(rng, OBJECTS)} near the {pick(rng, PLACES)}."
    )


def word_sort(rng: Random) -> Item:
    words = word_list(rng, 3, 6)
    ordered = sorted(words, key=str.lower)
    joined = joined_somehow(rng, words)
    questions = [
        "Sort: {j}",
        "Sort these words: {j}",
        "Sort these words alphabetically: {j}",
        "Put these words in alphabetical order: {j}",
        "Alphabetical order: {j}",
        "Sort this list: {j}",
        "Arrange in alphabetical order: {j}",
        "sort {j}",
        "Can you sort these alphabetically? {j}",
        "Order these words from A to Z: {j}",
    ]
    question = pick(rng, questions).format(j=joined)
    first_letters = ", ".join(f"{word[0].lower()} for {word}" for word in words)
    in_order = ", ".join(f"{word[0].lower()} {word}" for word in ordered)
    thinking = f"First letters: {first_letters}.\nIn order: {in_order}"
    answer = ", ".join(ordered)
    return Item("sort:" + ",".join(words), question, answer, thinking, answer)


def list_reverse(rng: Random) -> Item:
    if chance(rng, 0.25):
        words = [str(between(rng, 0, 99)) for _ in range(between(rng, 3, 6))]
    else:
        words = word_list(rng, 2, 7)
    backwards = words[::-1]
    questions = [
        "Reverse this list: {j}",
        "Reverse: {j}",
        "Reverse the order of these words: {j}",
        "Say these in reverse order: {j}",
        "Write this list backwards: {j}",
        "Put this list in reverse order: {j}",
    ]
    question = pick(rng, questions).format(j=joined_somehow(rng, words))
    thinking = (
        f"The last item is {backwards[0]}, so I start with {backwards[0]} "
        f"and end with {backwards[-1]}."
    )
    answer = ", ".join(backwards)
    return Item("rev:" + ",".join(words), question, answer, thinking, answer)


def copy(rng: Random) -> Item:
    x = rng.random()
    if x < 0.2:
        separator = pick(rng, [" ", ", "])
        lists = between(rng, 2, 5)
        text = separator.join(word for _ in range(lists) for word in word_list(rng, 3, 7))
    elif x < 0.5:
        text = " ".join(word_list(rng, 2, 9))
    elif chance(rng, 0.6):
        text = ", ".join(word_list(rng, 2, 8))
    else:
        text = sentence(rng)
    questions = [
        "Repeat after me: {s}",
        "Repeat: {s}",
        "Say: {s}",
        "Copy this text: {s}",
        "Write this again: {s}",
        "Echo: {s}",
        "Please repeat this exactly: {s}",
    ]
    question = pick(rng, questions).format(s=text)
    return Item("copy:" + text, question, text, "I only need to repeat the text.", text)


def count(rng: Random) -> Item:
    words = word_list(rng, 2, 9)
    questions = [
        "How many words are in this list: {j}",
        "Count the words: {j}",
        "How many items are in this list? {j}",
        "How many words are here: {j}",
        "Count the items: {j}",
    ]
    question = pick(rng, questions).format(j=", ".join(words))
    noun = "items" if "item" in question else "words"
    answer = f"There are {len(words)} {noun}."
    thinking = "\n".join(f"{i} {word}" for i, word in enumerate(words, start=1))
    return Item("count:" + ",".join(words), question, answer, thinking, str(len(words)))


def nth(rng: Random) -> Item:
    """The first, second ... or last word of a list."""
    words = word_list(rng, 3, 6)
    position = between(rng, 0, len(words))  # len(words) stands for "last"
    is_last = position == len(words)
    ordinal = "last" if is_last else ORDINALS[position]
    word = words[-1] if is_last else words[position]
    questions = [
        "What is the {o} word in this list: {j}?",
        "Which word is {o}: {j}?",
        "Give me the {o} item of this list: {j}",
        "{o} word of: {j}",
    ]
    joined = ", ".join(words)
    question = pick(rng, questions).format(o=ordinal, j=joined)
    noun = "item" if "item" in question else "word"
    thinking = f"The list is {joined}. The {ordinal} one is {word}."
    key = f"nth:{ordinal}:" + ",".join(words)
    return Item(key, question, f"The {ordinal} {noun} is {word}.", thinking, word)
