"""Questions about words: spelling, upper and lower case, opposites, plurals, meanings, facts."""

from random import Random

from item import Item
from sampling import between, chance, pick
from tables import (
    CATEGORY,
    COLORS,
    COUNTED_WORDS,
    DEFINITION,
    DERIVED_WORDS,
    FACTS,
    NAMES,
    OPPOSITE_WORDS,
    OPPOSITES,
    SOUNDS,
    WORD_NAMES,
    article,
    capitalised,
    names_of_category,
    plural,
)
from task_lists import invented_word


def case(rng: Random) -> Item:
    """One to three words in upper, lower or title case."""

    def some_word() -> str:
        if chance(rng, 0.75):
            return pick(rng, WORD_NAMES)
        return pick(rng, DERIVED_WORDS) if chance(rng, 0.6) else invented_word(rng)

    text = " ".join(some_word() for _ in range(pick(rng, [1, 1, 2, 3])))
    kind = between(rng, 0, 2)
    if chance(rng, 0.2) and kind == 0:
        text = pick(rng, NAMES).lower()
    if kind == 0:
        questions = [
            "Write {s} in upper case",
            "Write {s} in uppercase.",
            "Convert to upper case: {s}",
            "Make this upper case: {s}",
            "{s} in capital letters",
            "Uppercase: {s}",
            "Write '{s}' in capitals.",
        ]
        question = pick(rng, questions).format(s=text)
        answer = text.upper()
        thinking = "Every letter becomes a capital letter."
    elif kind == 1:
        given = text.upper() if chance(rng, 0.7) else text.title()
        questions = [
            "Write {s} in lower case",
            "Write {s} in lowercase.",
            "Convert to lower case: {s}",
            "Make this lower case: {s}",
            "Lowercase: {s}",
        ]
        question = pick(rng, questions).format(s=given)
        answer = text.lower()
        thinking = "Every letter becomes a small letter."
    else:
        questions = [
            "Capitalize each word: {s}",
            "Write this in title case: {s}",
            "Title case: {s}",
            "Make the first letter of each word a capital: {s}",
        ]
        question = pick(rng, questions).format(s=text)
        answer = text.title()
        thinking = "The first letter of each word becomes a capital letter."
    return Item(f"case:{kind}:{text}:{len(question) % 4}", question, answer, thinking, answer)


def spelling(rng: Random) -> Item:
    """Spell a word, count its letters, name its first or last letter, or turn it round."""
    x = rng.random()
    if x < 0.6:
        word = pick(rng, WORD_NAMES)
    elif x < 0.7:
        word = pick(rng, NAMES)
    elif x < 0.8:
        word = pick(rng, DERIVED_WORDS)
    else:
        word = invented_word(rng)
    kind = between(rng, 0, 4)
    spelled = "-".join(word.lower())
    if kind <= 1:
        questions = [
            "How do you spell {w}?",
            "Spell {w}",
            "Spell the word {w}.",
            "Can you spell {w}?",
            "Spell: {w}",
            "Spell out {w}.",
        ]
        question = pick(rng, questions).format(w=word)
        answer = spelled
        thinking = "I write the letters one by one."
    elif kind == 2:
        questions = [
            "How many letters are in {w}?",
            "How many letters does {w} have?",
            "Count the letters in {w}.",
            "How many letters are in the word {w}?",
            "Number of letters in {w}?",
        ]
        question = pick(rng, questions).format(w=word)
        answer = f"{word} has {len(word)} letters."
        numbered = " ".join(f"{i}{letter}" for i, letter in enumerate(word.lower(), start=1))
        thinking = f"{spelled}\n{numbered}"
    elif kind == 3:
        is_last = between(rng, 0, 1)
        ordinal, verb = ("last", "end") if is_last else ("first", "start")
        questions = [
            "What is the {o} letter of {w}?",
            "Which letter does {w} {v} with?",
            "What letter does the word {w} {v} with?",
        ]
        question = pick(rng, questions).format(w=word, o=ordinal, v=verb)
        answer = f"The {ordinal} letter of {word} is {word[-1 if is_last else 0].lower()}."
        thinking = spelled
    else:
        questions = [
            "Spell {w} backwards",
            "Write {w} backwards.",
            "Reverse the letters of {w}.",
            "What is {w} spelled backwards?",
        ]
        question = pick(rng, questions).format(w=word)
        answer = word.lower()[::-1]
        thinking = f"{spelled}\n{'-'.join(answer)}"
    key = f"spell:{kind}:{word}:{len(question) - len(word)}"
    return Item(key, question, answer, thinking, None)


def vocabulary(rng: Random) -> Item:
    """Opposites, plurals, groups and definitions of words."""
    kind = between(rng, 0, 9)
    if kind <= 1:
        return opposite(rng)
    if kind <= 3:
        return plural_of(rng)
    if kind <= 5:
        return category_of(rng)
    if kind <= 8:
        return definition_of(rng)
    return odd_one_in(rng)


def opposite(rng: Random) -> Item:
    word = pick(rng, OPPOSITE_WORDS)
    other = OPPOSITES[word]
    questions = [
        "What is the opposite of {w}?",
        "opposite of {w}",
        "What's the opposite of {w}?",
        "Give me the opposite of {w}.",
        "Name the opposite of {w}.",
        "Which word means the opposite of {w}?",
        "Antonym of {w}?",
    ]
    question = pick(rng, questions).format(w=word)
    thinking = f"The word is {word}. Its opposite is {other}."
    key = f"opp:{word}:{len(question) - len(word)}"
    return Item(key, question, f"The opposite of {word} is {other}.", thinking, other)


def plural_of(rng: Random) -> Item:
    word = pick(rng, COUNTED_WORDS)
    many = plural(word)
    questions = [
        "What is the plural of {w}?",
        "plural of {w}",
        "What's the plural of {w}?",
        "Give me the plural of {w}.",
        "How do you write the plural of {w}?",
        "One {w}, two what?",
    ]
    question = pick(rng, questions).format(w=word)
    thinking = f"The word is {word}. More than one is {many}."
    key = f"plur:{word}:{len(question) - len(word)}"
    return Item(key, question, f"The plural of {word} is {many}.", thinking, many)


def category_of(rng: Random) -> Item:
    word = pick(rng, WORD_NAMES)
    category = CATEGORY[word]
    questions = [
        "What kind of thing is {a}?",
        "What category does {w} belong to?",
        "What type of thing is {a}?",
        "{w} is a kind of what?",
        "In which group does {w} belong?",
    ]
    question = pick(rng, questions).format(w=word, a=article(word))
    answer = f"The word {word} belongs to the group {category}."
    thinking = f"The word is {word}. It is {article(category)}."
    return Item(f"cat:{word}:{len(question) - len(word)}", question, answer, thinking, category)


def definition_of(rng: Random) -> Item:
    word = pick(rng, WORD_NAMES)
    questions = [
        "What is {a}?",
        "Define {w}.",
        "What does {w} mean?",
        "What does the word {w} mean?",
        "Explain the word {w}.",
        "Tell me what {a} is.",
        "Give a definition of {w}.",
        "define {w}",
    ]
    with_article = word if word == "scissors" else article(word)
    question = pick(rng, questions).format(w=word, a=with_article)
    answer = f"{capitalised(word)}: {DEFINITION[word]}."
    thinking = f"The word is {word}. It belongs to the group {CATEGORY[word]}."
    return Item(f"def:{word}:{len(question) - len(word)}", question, answer, thinking, None)


def odd_one_in(rng: Random) -> Item:
    """Which of four words belongs to a group, when the others do not."""
    groups = ("animal", "fruit", "color", "tool", "vegetable", "vehicle", "clothing", "job")
    word = rng.sample(names_of_category(*groups), 1)[0]
    category = CATEGORY[word]
    offered: list[str] = []
    while len(offered) < 3:
        other = pick(rng, WORD_NAMES)
        if CATEGORY[other] != category and other not in offered:
            offered.append(other)
    offered.insert(between(rng, 0, 3), word)
    questions = ["Which of these is {c}: {j}?", "Which one is {c}: {j}?", "Find the {k}: {j}"]
    question = pick(rng, questions).format(c=article(category), k=category, j=", ".join(offered))
    answer = f"{capitalised(word)} is {article(category)}."
    thinking = ", ".join(f"{other} is {CATEGORY[other]}" for other in offered) + "."
    return Item("which:" + ",".join(offered), question, answer, thinking, word)


def common_fact(rng: Random) -> Item:
    """A fact from the table, the sound of an animal or the colour of a thing."""
    x = rng.random()
    if x < 0.7:
        question, answer = pick(rng, FACTS)
        variant = between(rng, 0, 5)
        lowered = question[0].lower() + question[1:]
        asked = question
        if variant == 3:
            asked = question.rstrip("?")
        elif variant == 4:
            asked = lowered
        elif variant == 5:
            asked = "Can you tell me: " + lowered
        key = f"fact:{question}:{variant // 2 if variant > 2 else 0}"
        return Item(key, asked, answer, "This is a common fact that I know.", None)
    if x < 0.82:
        animal, sound = pick(rng, list(SOUNDS.items()))
        questions = [
            "What does {a} say?",
            "What sound does {a} make?",
            "Which sound does {a} make?",
        ]
        question = pick(rng, questions).format(a=article(animal))
        answer = f"{capitalised(article(animal))} says {sound}."
        thinking = f"The animal is {animal}. Its sound is {sound}."
        return Item("fact:" + question, question, answer, thinking, sound)
    thing, color = pick(rng, list(COLORS.items()))
    questions = [
        "What color is {k}?",
        "Which color is {k}?",
        "What is the color of {k}?",
        "What colour is {k}?",
    ]
    question = pick(rng, questions).format(k=thing)
    answer = f"{capitalised(thing)} is {color}."
    return Item("fact:" + question, question, answer, f"The color of {thing} is {color}.", color)
