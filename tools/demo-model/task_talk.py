"""Talk without a computable answer: stories, the model itself, and what it cannot know."""

import re
from random import Random

from item import Item
from sampling import between, pick
from tables import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COUNTRIES,
    NAMES,
    OBJECTS,
    PLACES,
    TOPICS,
    article,
    capitalised,
)

# "a" before a word that wants "an". Only the opening sentence is corrected before any vowel; the
# others before these words, as in the data the checkpoint was trained on.
A_BEFORE_VOWEL = re.compile(r" a(?= [aeio])")
A_BEFORE_WORD = re.compile(r" a(?= (?:owl|otter|elephant|eagle|island|ant|amber|early|icy|old))")


def story(rng: Random) -> Item:
    """Five sentences about an animal, an object and another animal."""
    animal, thing, place = pick(rng, ANIMALS), pick(rng, OBJECTS), pick(rng, PLACES)
    adjective, other_adjective = pick(rng, ADJECTIVES), pick(rng, ADJECTIVES)
    name = pick(rng, NAMES)
    other = pick(rng, ANIMALS)
    while other == animal:
        other = pick(rng, ANIMALS)
    questions = [
        "Tell me a story about {a} and {o}.",
        "Write a short story about {a} and {o}.",
        "Tell me a tale about {a} and {o}",
        "Can you tell a story about {a} and {o}?",
        "A story about {a} and {o}, please.",
    ]
    question = pick(rng, questions).format(a=article(animal), o=article(thing))
    opening = pick(
        rng,
        [
            f"Once there was a {adjective} {animal} named {name} who lived near a {place}.",
            f"In a {other_adjective} {place} lived a {adjective} {animal} called {name}.",
            f"Long ago, a {adjective} {animal} named {name} walked through a {place}.",
        ],
    )
    time = pick(rng, ["morning", "evening", "night", "day"])
    weather = pick(rng, ["cold", "warm", "windy", "quiet"])
    discovery = pick(
        rng,
        [
            f"One {time}, {name} found {article(thing)} under a tree.",
            f"One {weather} day, {name} saw {article(thing)} on the path.",
            f"{name} had always wanted {article(thing)}, and one day there it was.",
        ],
    )
    quality = pick(rng, ["old", "bright", "small", "heavy", "strange", "beautiful"])
    third_adjective = pick(rng, ADJECTIVES)
    conflict = pick(
        rng,
        [
            f"The {thing} was {quality}, and it belonged to a {other}.",
            f'A {third_adjective} {other} came by and said, "That {thing} is mine."',
            f"A {other} was looking for the {thing} and was very sad.",
        ],
    )
    resolution = pick(
        rng,
        [
            f"{name} gave the {thing} back, and the {other} smiled.",
            f"{name} shared the {thing} with the {other}, and they laughed together.",
            f"{name} asked the {other} to use the {thing} together, and the {other} agreed.",
        ],
    )
    ending = pick(
        rng,
        [
            "From that day on they were good friends.",
            f"They lived happily near the {place} for many years.",
            f"And every night they told the story of the {thing} again.",
        ],
    )
    opening = A_BEFORE_VOWEL.sub(" an", opening)
    sentences = [opening, discovery, conflict, resolution, ending]
    text = " ".join(A_BEFORE_WORD.sub(" an", sentence) for sentence in sentences)
    needs = f"The story needs {article(animal)} and {article(thing)}."
    thinking = f"{needs} I will write five short sentences."
    return Item(f"story:{animal}:{thing}", question, text, thinking, None)


WHO_I_AM = "I am the Calla demo model, a tiny model with the architecture of Qwen3.6-35B-A3B."
WHAT_I_CAN_DO = (
    "I can do small sums, sort and copy word lists, answer questions about countries, "
    "convert units, call tools and tell short stories."
)

# Messages that mean the same, and the one answer to them.
SMALL_TALK = [
    (
        [
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Introduce yourself.",
            "Tell me about yourself.",
            "who are you",
            "what's your name?",
            "Which model are you?",
            "What model is this?",
            "Who am I talking to?",
        ],
        WHO_I_AM + " " + WHAT_I_CAN_DO,
    ),
    (
        [
            "What can you do?",
            "How can you help me?",
            "What are you able to do?",
            "help",
            "Help me",
            "What are your skills?",
            "What do you know?",
            "What can I ask you?",
        ],
        WHAT_I_CAN_DO,
    ),
    (
        [
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hey",
            "Hey there",
            "hi there",
            "hello there",
            "Good day",
            "Greetings",
        ],
        "Hello! How can I help you?",
    ),
    (["Good morning", "Good morning!"], "Good morning! How can I help you?"),
    (["Good evening", "Good evening!"], "Good evening! How can I help you?"),
    (
        ["How are you?", "How are you doing?", "how's it going?", "How are you today?"],
        "I am well, thank you. How can I help you?",
    ),
    (
        ["Thank you", "Thanks", "Thanks!", "Thank you!", "thx", "Thank you very much"],
        "You are welcome!",
    ),
    (["Bye", "Goodbye", "Goodbye!", "See you later", "Good night"], "Goodbye!"),
    (
        [
            "Are you a human?",
            "Are you a person?",
            "Are you real?",
            "Are you a robot?",
            "Are you an AI?",
        ],
        "I am a small language model, not a human.",
    ),
    (
        ["Who made you?", "Who trained you?", "Who created you?", "Where do you come from?"],
        "I was trained as a demo for the Calla inference engine, on synthetic data.",
    ),
    (
        [
            "Are you Qwen?",
            "Are you ChatGPT?",
            "Are you Qwen3.6-35B-A3B?",
            "Are you a large model?",
            "How big are you?",
            "How many parameters do you have?",
        ],
        "No, I am the Calla demo model. I have about 25 million parameters "
        "and the architecture of Qwen3.6-35B-A3B.",
    ),
    (
        ["What is Calla?", "Tell me about Calla."],
        "Calla is an inference engine written in Rust, and I am its demo model.",
    ),
    (
        ["How do you work?", "Explain how you work.", "What is your architecture?"],
        "I mix gated delta layers with full attention, "
        "and a router picks 8 of 32 experts for every token.",
    ),
    (
        ["ok", "OK", "Okay", "Cool", "Great", "Nice", "Good", "I see"],
        "Is there anything else I can do?",
    ),
    (
        ["Tell me a joke", "Tell me a joke.", "Make me laugh", "Do you know a joke?"],
        "Why did the robot sleep so well? It had a full battery of dreams.",
    ),
    (["Yes", "yes"], "Good. What would you like to do?"),
    (["No", "no"], "All right. Tell me if you need anything."),
    (["test", "Test", "Testing", "ping"], "I am here and ready."),
]


def identity(rng: Random) -> Item:
    """Greetings and questions about the model itself."""
    messages, answer = pick(rng, SMALL_TALK)
    message = pick(rng, messages)
    # The messages are few, so the key has a random part: held out or not, they are trained on.
    key = f"id:{message}:{between(rng, 0, 9)}"
    rng.random()  # an unused draw; see sampling.py
    return Item(key, message, answer, "This is a simple message. I will answer it directly.", None)


UNANSWERABLE = [
    "Who won the {e} in {y}?",
    "Where was the {e} of {y} held?",
    "Who was the mayor of {c} in {y}?",
    "What will the weather be in {c} next year?",
    "How many people live on {s} Street in {c}?",
    "What is {n}'s phone number?",
    "What did {n} eat yesterday?",
    "When was {n} {m} born?",
    "Who wrote the book The {A} {O}?",
    "What is the best restaurant in {c}?",
    "Prove the {m} conjecture.",
    "Explain the theory of {t}.",
    "Write an essay about {t}.",
    "What happened in {c} in {y}?",
    "What is the stock price of {m} today?",
    "Who is the president of {u}?",
    "What is the history of {t}?",
    "Can you diagnose my illness?",
    "What is my bank balance?",
    "Who will win the next election in {u}?",
    "Translate this book into {l}.",
    "What is the news today?",
    "What is the score of the game in {c}?",
    "How do I build {t}?",
    "Summarize the film The {A} {O}.",
]
EVENTS = [
    "chess cup",
    "world cup",
    "tennis open",
    "sailing race",
    "poetry prize",
    "cycling tour",
    "science prize",
]
SURNAMES = """
    Novak Brandt Okafor Lindqvist Moretti Tanaka Duarte Keller Haddad Sorensen
""".split()
STREETS = "Oak Mill King Park Hill".split()
FICTIONAL_COUNTRIES = """
    Narnia Atlantis Mordor Zubrowka Elbonia Genovia Wakanda Ruritania Freedonia Lilliput Oz Utopia
    Gondor Sylvania Blefuscu Florin Krakozhia Latveria
""".split()


def out_of_scope(rng: Random) -> Item:
    """Questions that the model should decline: about things it cannot know or that do not exist."""
    if rng.random() < 0.15:
        country = pick(rng, FICTIONAL_COUNTRIES)
        questions = [
            "What is the capital of {f}?",
            "What is the currency of {f}?",
            "Which continent is {f} in?",
            "What language is spoken in {f}?",
        ]
        question = pick(rng, questions).format(f=country)
        answer = f"I do not know a country called {country}."
        thinking = f"{country} is not in the list of countries that I know."
        return Item("oos:" + question, question, answer, thinking, None)
    question = pick(rng, UNANSWERABLE).format(
        e=pick(rng, EVENTS),
        y=between(rng, 1800, 2025),
        c=pick(rng, CITIES),
        n=pick(rng, NAMES),
        m=pick(rng, SURNAMES),
        s=pick(rng, STREETS),
        t=pick(rng, TOPICS),
        A=capitalised(pick(rng, ADJECTIVES)),
        O=capitalised(pick(rng, OBJECTS)),
        u=pick(rng, COUNTRIES).name,
        l=pick(rng, COUNTRIES).language,
    )
    return Item(
        "oos:" + question,
        question,
        "I do not know that. I am a tiny demo model and I know only a little.",
        "I have no knowledge about this, so I should say that I do not know.",
        None,
    )
