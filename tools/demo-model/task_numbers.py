"""Questions about numbers: arithmetic, comparing, sorting, little word problems."""

from random import Random

from item import Item
from sampling import between, chance, pick
from tables import NAMES, counted

DIGIT_PLACES = ["ones", "tens", "hundreds", "thousands"]

ARITHMETIC_QUESTIONS = [
    "What is {e}?",
    "What is {e}",
    "{e}",
    "{e} =",
    "{e} = ?",
    "Calculate {e}.",
    "Compute {e}.",
    "How much is {e}?",
    "Work out {e}.",
    "Can you work out {e}?",
    "Tell me {e}.",
    "Solve {e}",
    "what's {e}?",
    "Please calculate {e}.",
    "What does {e} equal?",
    "I need the result of {e}.",
    "Find {e}.",
]
COUNTABLE_THINGS = """
    apple book coin pencil ball shell stone plum stamp candle egg pear orange lemon key bottle
""".split()


def think_addition(a: int, b: int) -> str:
    """Column addition, digit by digit from the right."""
    digits_a, digits_b = str(a)[::-1], str(b)[::-1]
    carry = 0
    steps = [f"{a} + {b}"]
    count = max(len(digits_a), len(digits_b))
    for i in range(count):
        x = int(digits_a[i]) if i < len(digits_a) else 0
        y = int(digits_b[i]) if i < len(digits_b) else 0
        total = x + y + carry
        expression = f"{x} + {y}" + (f" + {carry}" if carry else "")
        written = f", write {total % 10}, carry 1" if total > 9 else f", write {total}"
        steps.append(f"{DIGIT_PLACES[i]}: {expression} = {total}{written}")
        carry = total // 10
    if carry:
        steps.append(f"{DIGIT_PLACES[count]}: write 1")
    steps.append(f"So the sum is {a + b}.")
    return "\n".join(steps)


def think_subtraction(a: int, b: int) -> str:
    """Column subtraction; a negative result is found the other way round."""
    if b > a:
        steps = think_subtraction(b, a).rsplit("\n", 1)[0]
        return (
            f"{b} is larger than {a}, so the result is negative.\n{steps}\n"
            f"So the difference is {a - b}."
        )
    digits_a, digits_b = str(a)[::-1], str(b)[::-1]
    borrow = 0
    steps = [f"{a} - {b}"]
    for i, digit in enumerate(digits_a):
        x = int(digit)
        y = int(digits_b[i]) if i < len(digits_b) else 0
        expression = f"{x} - {y}" + (f" - {borrow}" if borrow else "")
        rest = x - y - borrow
        if rest < 0:
            steps.append(f"{DIGIT_PLACES[i]}: {expression} needs a borrow, {rest + 10}, borrow 1")
            borrow = 1
        else:
            steps.append(f"{DIGIT_PLACES[i]}: {expression} = {rest}")
            borrow = 0
    steps.append(f"So the difference is {a - b}.")
    return "\n".join(steps)


def think_multiplication(a: int, b: int) -> str:
    """The table of 12 by heart; above it, tens and ones apart."""
    if a < b:
        a, b = b, a
    if a <= 12:
        return f"{a} x {b} is {b} groups of {a}, which is {a * b}."
    tens, ones = a // 10 * 10, a % 10
    return (
        f"{a} = {tens} + {ones}\n{tens} x {b} = {tens * b}\n{ones} x {b} = {ones * b}\n"
        f"{tens * b} + {ones * b} = {a * b}"
    )


def number(rng: Random) -> int:
    """A number of one, two or three digits; mostly two or three."""
    x = rng.random()
    if x < 0.1:
        return between(rng, 0, 9)
    if x < 0.6:
        return between(rng, 10, 99)
    return between(rng, 100, 999)


def arithmetic_question(
    rng: Random, a: int, b: int, sentences: list[str], expressions: list[str]
) -> str:
    """Sometimes a sentence of its own, mostly an expression in one of the usual questions."""
    if chance(rng, 0.12):
        return pick(rng, sentences).format(a=a, b=b)
    question = pick(rng, ARITHMETIC_QUESTIONS)
    return question.format(e=pick(rng, expressions).format(a=a, b=b))


def addition(rng: Random) -> Item:
    a, b = number(rng), number(rng)
    question = arithmetic_question(
        rng,
        a,
        b,
        [
            "Add {a} and {b}.",
            "What is the sum of {a} and {b}?",
            "What do you get if you add {b} to {a}?",
            "Sum {a} and {b}.",
        ],
        ["{a} + {b}", "{a} + {b}", "{a}+{b}", "{a} plus {b}"],
    )
    answer = f"{a} + {b} = {a + b}"
    return Item(f"add:{a}:{b}", question, answer, think_addition(a, b), str(a + b))


def subtraction(rng: Random) -> Item:
    a, b = number(rng), number(rng)
    if b > a and chance(rng, 0.85):
        a, b = b, a
    difference = (
        "What is the difference between {a} and {b}?" if a >= b else "Subtract {b} from {a}."
    )
    question = arithmetic_question(
        rng,
        a,
        b,
        ["Subtract {b} from {a}.", difference, "Take {b} away from {a}."],
        ["{a} - {b}", "{a} - {b}", "{a}-{b}", "{a} minus {b}"],
    )
    answer = f"{a} - {b} = {a - b}"
    return Item(f"sub:{a}:{b}", question, answer, think_subtraction(a, b), str(a - b))


def multiplication(rng: Random) -> Item:
    if chance(rng, 0.6):
        a, b = between(rng, 0, 12), between(rng, 0, 12)
    else:
        a, b = between(rng, 13, 99), between(rng, 2, 9)
        if chance(rng, 0.5):
            a, b = b, a
    question = arithmetic_question(
        rng,
        a,
        b,
        ["Multiply {a} by {b}.", "What is the product of {a} and {b}?"],
        ["{a} x {b}", "{a} * {b}", "{a}*{b}", "{a} times {b}", "{a} × {b}"],
    )
    # Small products are too few to hold numbers out, so phrasings are held out instead.
    phrasing = len(question) % 3 if a < 13 and b < 13 else 0
    answer = f"{a} x {b} = {a * b}"
    key = f"mul:{a}:{b}:{phrasing}"
    return Item(key, question, answer, think_multiplication(a, b), str(a * b))


def division(rng: Random) -> Item:
    b, quotient = between(rng, 1, 12), between(rng, 0, 12)
    a = b * quotient
    if chance(rng, 0.12):
        question = f"Divide {a} by {b}."
    else:
        forms = ["{a} / {b}", "{a}/{b}", "{a} divided by {b}", "{a} ÷ {b}"]
        template = pick(rng, ARITHMETIC_QUESTIONS)
        question = template.format(e=pick(rng, forms).format(a=a, b=b))
    answer = f"{a} / {b} = {quotient}"
    thinking = f"{b} x {quotient} = {a}, so {a} / {b} = {quotient}."
    return Item(f"div:{a}:{b}:{len(question) % 5}", question, answer, thinking, str(quotient))


def addition_of_three(rng: Random) -> Item:
    numbers = [between(rng, 1, 20) for _ in range(3)]
    expression = " + ".join(map(str, numbers))
    first_two, total = numbers[0] + numbers[1], sum(numbers)
    return Item(
        "add3:" + expression,
        pick(rng, ARITHMETIC_QUESTIONS).format(e=expression),
        f"{expression} = {total}",
        f"{numbers[0]} + {numbers[1]} = {first_two}\n{first_two} + {numbers[2]} = {total}",
        str(total),
    )


def word_problem(rng: Random) -> Item:
    """Somebody has things and gets, loses, packs or pools them."""
    name, thing = pick(rng, NAMES), pick(rng, COUNTABLE_THINGS)
    a, b = between(rng, 2, 60), between(rng, 2, 40)
    kind = between(rng, 0, 3)
    if kind == 0:
        verb = pick(rng, ["buys", "gets", "finds", "receives"])
        question = (
            f"{name} has {a} {thing}s and {verb} {b} more. How many {thing}s does {name} have now?"
        )
        result = a + b
        answer = f"{name} has {counted(result, thing)} now."
        thinking = f"{name} starts with {a} and gets {b} more.\n{a} + {b} = {result}"
    elif kind == 1:
        if b >= a:
            a, b = b + 1, a
        verb = pick(rng, ["loses", "sells", "gives away"])
        ending = pick(rng, ["are left", f"does {name} have now"])
        question = f"{name} has {a} {thing}s and {verb} {b}. How many {thing}s {ending}?"
        result = a - b
        answer = f"{name} has {counted(result, thing)} {'left' if 'left' in question else 'now'}."
        thinking = f"{name} starts with {a} and {b} go away.\n{a} - {b} = {result}"
    elif kind == 2:
        a, b = between(rng, 2, 10), between(rng, 2, 10)
        question = (
            f"{name} has {a} boxes with {b} {thing}s in each box. "
            f"How many {thing}s are there in total?"
        )
        result = a * b
        answer = f"There are {counted(result, thing)} in total."
        thinking = f"There are {a} boxes of {b}.\n{a} x {b} = {result}"
    else:
        other = pick(rng, NAMES)
        while other == name:
            other = pick(rng, NAMES)
        question = (
            f"{name} has {a} {thing}s and {other} has {b} {thing}s. "
            f"How many {thing}s do they have together?"
        )
        result = a + b
        answer = f"Together they have {result} {thing}s."
        thinking = f"Add both amounts.\n{a} + {b} = {result}"
    return Item(f"wp:{a}:{b}:{kind}:{thing}", question, answer, thinking, str(result))


def comparison(rng: Random) -> Item:
    """Which of two numbers is larger or smaller; whether a number is even."""
    kind = between(rng, 0, 2)
    a, b = between(rng, 1, 999), between(rng, 1, 999)
    if chance(rng, 0.5):
        a, b = between(rng, 1, 99), between(rng, 1, 99)
    if a == b:
        b = a + 1
    if kind == 0:
        word = pick(rng, ["larger", "bigger", "greater"])
        questions = [
            "Which is {w}, {a} or {b}?",
            "Which number is {w}: {a} or {b}?",
            "Is {a} or {b} {w}?",
        ]
        question = pick(rng, questions).format(w=word, a=a, b=b)
        key, best, other, relation = f"cmp:{a}:{b}:l", max(a, b), min(a, b), "larger"
    elif kind == 1:
        questions = [
            "Which is smaller, {a} or {b}?",
            "Which number is smaller: {a} or {b}?",
            "Is {a} or {b} smaller?",
        ]
        question = pick(rng, questions).format(a=a, b=b)
        key, best, other, relation = f"cmp:{a}:{b}:s", min(a, b), max(a, b), "smaller"
    else:
        questions = [
            "Is {a} even or odd?",
            "Is {a} odd or even?",
            "Is the number {a} even or odd?",
        ]
        question = pick(rng, questions).format(a=a)
        parity = "even" if a % 2 == 0 else "odd"
        thinking = f"The last digit of {a} is {a % 10}, which is {parity}."
        return Item(f"odd:{a}", question, f"{a} is {parity}.", thinking, parity)
    answer = f"{best} is {relation} than {other}."
    return Item(key, question, answer, f"Compare {a} and {b}. {best} is {relation}.", str(best))


def number_sort(rng: Random) -> Item:
    count = between(rng, 3, 6)
    numbers = rng.sample(range(1, 100), count)
    descending = chance(rng, 0.3)
    ordered = sorted(numbers, reverse=descending)
    joined = ", ".join(map(str, numbers))
    questions = (
        [
            "Sort from largest to smallest: {j}",
            "Sort these numbers in descending order: {j}",
            "Order from high to low: {j}",
        ]
        if descending
        else [
            "Sort: {j}",
            "Sort these numbers: {j}",
            "Put these numbers in order: {j}",
            "Sort from smallest to largest: {j}",
            "Sort in ascending order: {j}",
            "sort {j}",
        ]
    )
    question = pick(rng, questions).format(j=joined)
    answer = ", ".join(map(str, ordered))
    extreme = "largest" if descending else "smallest"
    rest = ", then ".join(map(str, ordered[1:]))
    thinking = f"The {extreme} is {ordered[0]}, then {rest}."
    return Item(f"nsort:{joined}:{descending}", question, answer, thinking, answer)
