"""The table of tasks, and how a question is drawn from it."""

from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import NamedTuple

import task_code
import task_lists
import task_numbers
import task_talk
import task_words
import task_world
from item import Item
from sampling import chance, held_out, pick


class Task(NamedTuple):
    """A kind of question, and how often it is asked compared with the others."""

    make: Callable[[Random], Item]
    weight: int


TASKS: dict[str, Task] = dict(
    add=Task(task_numbers.addition, 14),
    sub=Task(task_numbers.subtraction, 12),
    mul=Task(task_numbers.multiplication, 5),
    div=Task(task_numbers.division, 4),
    add3=Task(task_numbers.addition_of_three, 4),
    word_problem=Task(task_numbers.word_problem, 5),
    compare=Task(task_numbers.comparison, 3),
    sort=Task(task_lists.word_sort, 15),
    nsort=Task(task_numbers.number_sort, 6),
    reverse=Task(task_lists.list_reverse, 10),
    copy=Task(task_lists.copy, 10),
    count=Task(task_lists.count, 4),
    nth=Task(task_lists.nth, 5),
    case=Task(task_words.case, 10),
    spell=Task(task_words.spelling, 17),
    geo=Task(task_world.geography, 16),
    calendar=Task(task_world.calendar, 11),
    unit=Task(task_world.unit_conversion, 6),
    words=Task(task_words.vocabulary, 15),
    fact=Task(task_words.common_fact, 4),
    python=Task(task_code.python_line, 3),
    json=Task(task_code.json_answer, 9),
    story=Task(task_talk.story, 2),
    identity=Task(task_talk.identity, 2),
    oos=Task(task_talk.out_of_scope, 2),
)
TASK_NAMES = list(TASKS)
CUMULATIVE_WEIGHTS = list(accumulate(task.weight for task in TASKS.values()))

# Questions that keep their meaning when they are written without capitals.
CASE_DOES_NOT_MATTER = {
    "add",
    "sub",
    "mul",
    "div",
    "geo",
    "words",
    "fact",
    "unit",
    "calendar",
    "word_problem",
    "compare",
    "story",
    "identity",
}


def draw_item(rng: Random, task: str | None, is_held_out: bool) -> tuple[str, Item]:
    """The name of a task (drawn when None) and a question of it from one side of the split."""
    while True:
        name = task or rng.choices(TASK_NAMES, cum_weights=CUMULATIVE_WEIGHTS)[0]
        item = TASKS[name].make(rng)
        if held_out(item.key) == is_held_out:
            return name, item


def with_noise(rng: Random, question: str, task: str | None = None) -> str:
    """The question as hurried or polite people may write it; most often unchanged."""
    if task in CASE_DOES_NOT_MATTER and chance(rng, 0.08):
        question = question.lower()
    x = rng.random()
    if x < 0.7:
        return question
    if x < 0.76:
        # Not when the second letter is a capital too: that is a name or an acronym.
        if question[1:2].isupper():
            return question
        return question[0].lower() + question[1:]
    if x < 0.82 and question[-1] in ".?":
        return question[:-1]
    if x < 0.86:
        greetings = ["Please answer: ", "Question: ", "Hey, ", "Hi! ", "Quick question: "]
        return pick(rng, greetings) + question
    if x < 0.90 and question[-1] in ".?!":
        return question + pick(rng, [" Thanks!", " Thank you.", " Please."])
    return question
