"""Questions about the world: countries, the calendar and the clock, units of measure."""

from random import Random

from item import Item
from sampling import between, chance, pick
from tables import (
    CAPITALS,
    COUNTRIES,
    COUNTRIES_BY_CAPITAL,
    COUNTRIES_BY_CURRENCY,
    DAYS,
    DAYS_IN_MONTH,
    MONTHS,
    Country,
    capitalised,
    counted,
)

MINUTES_IN_DAY = 24 * 60

# Larger unit, smaller unit, how many of the smaller make one of the larger.
UNITS = [
    ("kilometer", "meter", 1000),
    ("meter", "centimeter", 100),
    ("centimeter", "millimeter", 10),
    ("kilogram", "gram", 1000),
    ("hour", "minute", 60),
    ("minute", "second", 60),
    ("day", "hour", 24),
    ("week", "day", 7),
    ("foot", "inch", 12),
    ("yard", "foot", 3),
    ("liter", "milliliter", 1000),
    ("year", "month", 12),
    ("dozen", "item", 12),
    ("ton", "kilogram", 1000),
    ("dollar", "cent", 100),
    ("century", "year", 100),
    ("decade", "year", 10),
]
UNIT_PLURALS = dict(foot="feet", inch="inches", century="centuries", dozen="dozen")


def geography(rng: Random) -> Item:
    """Capitals in both directions, currencies, continents, languages."""
    country = pick(rng, COUNTRIES)
    kind = between(rng, 0, 9)
    if kind <= 3:
        question, answer, thinking, short = capital_question(rng, country)
    elif kind <= 5:
        question, answer, thinking, short = country_of_capital_question(rng, country)
    elif kind <= 8:
        question, answer, thinking, short = attribute_question(rng, country, kind)
    elif len(COUNTRIES_BY_CURRENCY[country.currency]) == 1:
        question, answer, thinking, short = country_of_currency_question(rng, country)
    else:
        question, answer, thinking, short = is_it_the_capital_question(rng, country)
    key = f"geo:{kind}:{country.name}:{len(question) - len(country.name)}"
    return Item(key, question, answer, thinking, short)


def capital_question(rng: Random, country: Country) -> tuple[str, str, str, str]:
    questions = [
        "What is the capital of {c}?",
        "What's the capital of {c}?",
        "capital of {c}",
        "Tell me the capital of {c}.",
        "Which city is the capital of {c}?",
        "Name the capital of {c}.",
        "Can you tell me the capital city of {c}?",
        "What city is the capital of {c}?",
        "{C}'s capital?",
        "Do you know the capital of {c}?",
    ]
    name, capital = country.name, country.capital
    return (
        pick(rng, questions).format(c=name, C=capitalised(name)),
        f"The capital of {name} is {capital}.",
        f"The question is about the capital of {name}. It is {capital}.",
        capital,
    )


def country_of_capital_question(rng: Random, country: Country) -> tuple[str, str, str, str]:
    questions = [
        "Which country has the capital {x}?",
        "{x} is the capital of which country?",
        "What country is {x} the capital of?",
        "Of which country is {x} the capital?",
        "Which country's capital is {x}?",
    ]
    capital = country.capital
    name = COUNTRIES_BY_CAPITAL[capital][0]
    return (
        pick(rng, questions).format(x=capital),
        f"{capital} is the capital of {name}.",
        f"{capital} is a capital city. Its country is {name}.",
        name,
    )


def attribute_question(rng: Random, country: Country, kind: int) -> tuple[str, str, str, str]:
    """The currency (kind 6), continent (7) or language (8) of a country."""
    name = country.name
    if kind == 6:
        attribute, value = "currency", country.currency
        questions = [
            "What is the currency of {c}?",
            "What currency is used in {c}?",
            "What money do people use in {c}?",
            "Which currency does {c} use?",
            "currency of {c}",
            "Tell me the currency of {c}.",
        ]
        answer = f"The currency of {name} is the {value}."
    elif kind == 7:
        attribute, value = "continent", country.continent
        questions = [
            "Which continent is {c} in?",
            "On which continent is {c}?",
            "What continent is {c} in?",
            "Where is {c}?",
            "In which part of the world is {c}?",
        ]
        answer = f"{capitalised(name)} is in {value}."
    else:
        attribute, value = "language", country.language
        questions = [
            "What language is spoken in {c}?",
            "What is the main language of {c}?",
            "Which language do people speak in {c}?",
            "language of {c}",
            "What do people speak in {c}?",
        ]
        answer = f"The main language of {name} is {value}."
    named = f"the {value}" if attribute == "currency" else value
    thinking = f"The question is about the {attribute} of {name}. It is {named}."
    return pick(rng, questions).format(c=name), answer, thinking, value


def country_of_currency_question(rng: Random, country: Country) -> tuple[str, str, str, str]:
    currency = country.currency
    name = COUNTRIES_BY_CURRENCY[currency][0]
    questions = [
        "Which country uses the {x}?",
        "Where is the {x} used?",
        "What country has the {x} as its currency?",
    ]
    return (
        pick(rng, questions).format(x=currency),
        f"The {currency} is used in {name}.",
        f"The {currency} is the currency of {name}.",
        name,
    )


def is_it_the_capital_question(rng: Random, country: Country) -> tuple[str, str, str, str]:
    rng.random()  # an unused draw; see sampling.py
    city = country.capital if chance(rng, 0.5) else pick(rng, CAPITALS)
    question = f"Is {city} the capital of {country.name}?"
    fact = f"the capital of {country.name} is {country.capital}."
    thinking = capitalised(fact)
    if city == country.capital:
        return question, f"Yes, {city} is the capital of {country.name}.", thinking, "Yes"
    return question, f"No, {fact}", thinking, "No"


def calendar(rng: Random) -> Item:
    """Days, months and times of day."""
    kind = between(rng, 0, 8)
    if kind == 0:
        return neighbour(rng, kind, "day", DAYS)
    if kind == 1:
        return day_some_days_away(rng)
    if kind == 2:
        return neighbour(rng, kind, "month", MONTHS)
    if kind == 3:
        return length_of_month(rng)
    if kind == 4:
        return month_of_number(rng)
    if kind == 5:
        return number_of_month(rng)
    if kind == 6:
        return month_some_months_later(rng)
    return clock(rng, whole_hours=kind == 7)


def neighbour(rng: Random, kind: int, noun: str, names: list[str]) -> Item:
    """The day or month just before or after another."""
    position = between(rng, 0, len(names) - 1)
    step = pick(rng, [1, -1])
    start, result = names[position], names[(position + step) % len(names)]
    relation = "after" if step > 0 else "before"
    questions = [
        "What {n} comes {b} {x}?",
        "Which {n} is {b} {x}?",
        "What is the {n} {b} {x}?",
    ]
    question = pick(rng, questions).format(n=noun, b=relation, x=start)
    answer = f"{result} comes {relation} {start}."
    thinking = f"The {noun} {relation} {start} is {result}."
    return Item(f"cal:{kind}:{question}", question, answer, thinking, result)


def day_some_days_away(rng: Random) -> Item:
    position = between(rng, 0, 6)
    days = between(rng, 2, 10)
    forward = chance(rng, 0.7)
    sign = 1 if forward else -1
    result = DAYS[(position + sign * days) % 7]
    relation = "after" if forward else "before"
    questions = [
        "What day is {k} days {b} {x}?",
        "If today is {x}, what day {w}?",
        "Which day is {k} days {b} {x}?",
    ]
    wish = f"will it be in {days} days" if forward else f"was it {days} days ago"
    question = pick(rng, questions).format(k=days, b=relation, x=DAYS[position], w=wish)
    if "will" not in question and "was" not in question:
        verb = "is"
    else:
        verb = "will be" if forward else "was"
    counted_days = ", ".join(DAYS[(position + sign * j) % 7] for j in range(days + 1))
    key = f"cal:1:{position}:{days}:{forward}:{len(question) % 4}"
    return Item(key, question, f"It {verb} {result}.", f"Count: {counted_days}", result)


def length_of_month(rng: Random) -> Item:
    month = pick(rng, MONTHS)
    questions = [
        "How many days are in {m}?",
        "How many days does {m} have?",
        "Number of days in {m}?",
    ]
    question = pick(rng, questions).format(m=month)
    days = DAYS_IN_MONTH[month]
    answer = f"{month} has {days} days."
    if month == "February":
        answer = "February has 28 days, or 29 in a leap year."
    thinking = f"The month is {month}. It has {days} days."
    return Item(f"cal:3:{question}", question, answer, thinking, str(days))


def month_of_number(rng: Random) -> Item:
    position = between(rng, 0, 11)
    questions = [
        "Which month of the year is number {n}?",
        "What is month number {n}?",
        "Name month {n}.",
    ]
    question = pick(rng, questions).format(n=position + 1)
    month = MONTHS[position]
    answer = f"Month number {position + 1} is {month}."
    thinking = f"Count the months to {position + 1}: " + ", ".join(MONTHS[: position + 1])
    return Item(f"cal:4:{question}", question, answer, thinking, month)


def number_of_month(rng: Random) -> Item:
    position = between(rng, 0, 11)
    month = MONTHS[position]
    questions = [
        "What number is the month {m}?",
        "Which month number is {m}?",
        "{m} is which month of the year?",
    ]
    question = pick(rng, questions).format(m=month)
    answer = f"{month} is month number {position + 1}."
    numbered = ", ".join(f"{j + 1} {MONTHS[j]}" for j in range(position + 1))
    thinking = f"Count the months: {numbered}"
    return Item(f"cal:5:{question}", question, answer, thinking, str(position + 1))


def month_some_months_later(rng: Random) -> Item:
    position = between(rng, 0, 11)
    months = between(rng, 2, 8)
    result = MONTHS[(position + months) % 12]
    questions = [
        "What month is {k} months after {x}?",
        "Which month comes {k} months after {x}?",
    ]
    question = pick(rng, questions).format(k=months, x=MONTHS[position])
    passed = ", ".join(MONTHS[(position + j) % 12] for j in range(months + 1))
    key = f"cal:6:{position}:{months}:{len(question) % 2}"
    return Item(key, question, f"It is {result}.", f"Count: {passed}", result)


def as_clock(minutes: int) -> str:
    """Minutes since midnight as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def clock(rng: Random, whole_hours: bool) -> Item:
    """The time some minutes or hours before or after another."""
    hour, minute = between(rng, 0, 23), between(rng, 0, 11) * 5
    change = pick(rng, [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 90, 120])
    forward = chance(rng, 0.75)
    if whole_hours:
        change = between(rng, 1, 8) * 60
    signed = change if forward else -change
    start = hour * 60 + minute
    result = as_clock((start + signed) % MINUTES_IN_DAY)
    relation, sign = ("after", "+") if forward else ("before", "-")
    hours = change // 60
    is_hours = change % 60 == 0
    amount = counted(hours, "hour") if is_hours else counted(change, "minute")
    questions = [
        "What time is it {k} {b} {x}?",
        "What time is {k} {b} {x}?",
        "{k} {b} {x} is what time?",
    ]
    question = pick(rng, questions).format(k=amount, b=relation, x=as_clock(start))
    if is_hours:
        steps = f"Hours: {hour} {sign} {hours} = {hour + signed // 60}, minutes stay {minute:02d}."
    else:
        steps = f"Minutes: {minute} {sign} {change} = {minute + signed}, hour {hour}."
    key = f"clk:{hour}:{minute}:{change}:{forward}"
    return Item(key, question, f"It is {result}.", f"{steps} The time is {result}.", result)


def unit_name(number: int, unit: str) -> str:
    """The unit in the singular or plural that `number` asks for."""
    return unit if number == 1 else UNIT_PLURALS.get(unit, unit + "s")


def unit_conversion(rng: Random) -> Item:
    large, small, factor = pick(rng, UNITS)
    amount = between(rng, 1, 25) if factor < 50 else between(rng, 1, 60)
    to_large = chance(rng, 0.4)
    product = amount * factor
    relation = f"1 {large} = {factor} {unit_name(2, small)}"
    if to_large and large != "dozen":
        questions = [
            "How many {A} are {x} {b}?",
            "Convert {x} {b} to {A}.",
            "{x} {b} in {A}",
            "What is {x} {b} in {A}?",
        ]
        question = pick(rng, questions).format(
            A=unit_name(2, large), x=product, b=unit_name(product, small)
        )
        return Item(
            f"unit:{large}:{small}:{amount}:i:{len(question) % 3}",
            question,
            f"{product} {unit_name(product, small)} = {amount} {unit_name(amount, large)}",
            f"{relation}\n{product} / {factor} = {amount}",
            str(amount),
        )
    questions = [
        "How many {B} are {n} {a}?",
        "How many {B} are in {n} {a}?",
        "Convert {n} {a} to {B}.",
        "{n} {a} in {B}",
        "What is {n} {a} in {B}?",
    ]
    question = pick(rng, questions).format(
        B=unit_name(2, small), n=amount, a=unit_name(amount, large)
    )
    return Item(
        f"unit:{large}:{small}:{amount}:{len(question) % 3}",
        question,
        f"{amount} {unit_name(amount, large)} = {product} {unit_name(product, small)}",
        f"{relation}\n{amount} x {factor} = {product}",
        str(product),
    )
