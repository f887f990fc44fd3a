"""Turns generated chats into rows of token ids for training, with a weight for each token.

A row holds several chats one after another; positions start at 0 for each, and neither attention
nor the recurrent state may look across that border. The tail of a row is filled with end-of-text
tokens of weight 0.
"""

import os
import random
from multiprocessing.queues import Queue
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from generate import EVALUATION_TASKS, Document, draw_document
from item import last_user_position

# Prompts count a little in the loss; not at all in long chats, which would drown the replies.
LONG_CHAT = 500
# A row with fewer tokens than this share of its length waits for more chats.
FULL_ROW = 0.97
# How many of the last rows a chat is tried in.
OPEN_ROWS = 24


class EncodedChat(NamedTuple):
    """Token ids [n] int16 and loss weights [n] float16 of one chat."""

    ids: np.ndarray
    weights: np.ndarray


class Row(NamedTuple):
    """Arrays [length]: ids int16, loss weights float16, positions within the chat int16."""

    ids: np.ndarray
    weights: np.ndarray
    positions: np.ndarray


class TaskMix(NamedTuple):
    """A share of the chats whose task is drawn with weights of its own."""

    tasks: list[str]
    weights: list[float]
    share: float


class PackedRow:
    """Chats that share a row, and how many tokens they have together."""

    def __init__(self) -> None:
        self.length = 0
        self.chats: list[EncodedChat] = []

    def add(self, chat: EncodedChat) -> None:
        self.length += len(chat.ids)
        self.chats.append(chat)


class ChatEncoder:
    """Encodes chats and marks in them what the model has to write itself."""

    def __init__(self, tokenizer_file: Path) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self.end_of_text = self.tokenizer.token_to_id("<|endoftext|>")
        self.turn_start = self.tokenizer.token_to_id("<|im_start|>")
        self.turn_end = self.tokenizer.token_to_id("<|im_end|>")
        self.think = self.tokenizer.token_to_id("<think>")
        self.end_think = self.tokenizer.token_to_id("</think>")
        header = self.encode_text("assistant\n")
        if len(header) != 2:
            raise ValueError(f"{tokenizer_file}: 'assistant\\n' is {len(header)} tokens, not 2")
        self.assistant = header[0]
        self.two_newlines = self.encode_text("\n\n")[0]

    def encode_text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def reply_spans(self, ids: np.ndarray) -> list[tuple[int, int]]:
        """Start and end of what the model writes in each assistant's turn, end of turn included."""
        spans = []
        ends = np.flatnonzero(ids == self.turn_end)
        for start in np.flatnonzero(ids == self.turn_start):
            if ids[start + 1] != self.assistant:
                continue
            end = ends[np.searchsorted(ends, start)]
            first = start + 3  # <|im_start|>, "assistant", newline
            if ids[first] == self.think:
                # An empty block belongs to the prompt; of a full one only its opening does.
                is_empty = ids[first + 1] == self.two_newlines and ids[first + 2] == self.end_think
                first += 4 if is_empty else 2
            spans.append((int(first), int(end) + 1))
        return spans

    def encode_for_training(self, texts: list[str], prompt_weight: float) -> list[EncodedChat]:
        """Replies have weight 1, the rest `prompt_weight` (0 in long chats)."""
        chats = []
        for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=np.int16)
            rest = prompt_weight if len(ids) < LONG_CHAT else 0.0
            weights = np.full(len(ids), rest, dtype=np.float16)
            for start, end in self.reply_spans(ids):
                weights[start:end] = 1
            weights[0] = 0
            chats.append(EncodedChat(ids, weights))
        return chats

    def encode_for_scoring(self, document: Document) -> EncodedChat:
        """Only the replies to the last question have a weight."""
        ids = np.array(self.encode_text(document.text), dtype=np.int16)
        weights = np.zeros(len(ids), dtype=np.float16)
        asked = last_user_position(document.messages)
        replies = sum(1 for m in document.messages[asked:] if m.role == "assistant")
        for start, end in self.reply_spans(ids)[-replies:]:
            weights[start:end] = 1
        return EncodedChat(ids, weights)

    def fill_row(self, packed: PackedRow, length: int) -> Row:
        """The arrays of a row, padded to `length`."""
        row = Row(
            np.full(length, self.end_of_text, dtype=np.int16),
            np.zeros(length, dtype=np.float16),
            np.zeros(length, dtype=np.int16),
        )
        offset = 0
        for chat in packed.chats:
            end = offset + len(chat.ids)
            row.ids[offset:end] = chat.ids
            row.weights[offset:end] = chat.weights
            row.positions[offset:end] = np.arange(len(chat.ids))
            offset = end
        row.positions[offset:] = np.arange(length - offset)
        return row


def pack(chats: list[EncodedChat], length: int) -> list[PackedRow]:
    """Puts each chat into the first of the last rows with room; longer chats are left out."""
    rows: list[PackedRow] = []
    for chat in chats:
        if len(chat.ids) > length:
            continue
        for row in rows[-OPEN_ROWS:]:
            if row.length + len(chat.ids) <= length:
                row.add(chat)
                break
        else:
            rows.append(PackedRow())
            rows[-1].add(chat)
    return rows


def stack(rows: list[Row]) -> Row:
    """Rows as one Row of arrays [rows, length]."""
    return Row(*(np.stack(arrays) for arrays in zip(*rows, strict=True)))


def feed_rows(
    queue: "Queue[Row]",
    tokenizer_file: Path,
    seed: int,
    length: int,
    rows_at_once: int,
    prompt_weight: float,
    mix: TaskMix | None,
) -> None:
    """Generates, encodes and packs for ever; what a worker process runs."""
    os.nice(10)  # the process that feeds the accelerator comes first
    encoder = ChatEncoder(tokenizer_file)
    rng = Random(seed)

    def task() -> str | None:
        if mix and rng.random() < mix.share:
            return rng.choices(mix.tasks, mix.weights)[0]
        return None

    waiting: list[EncodedChat] = []
    while True:
        texts = [draw_document(rng, task=task()).text for _ in range(rows_at_once * 40)]
        packed = pack(waiting + encoder.encode_for_training(texts, prompt_weight), length)
        packed.sort(key=lambda row: -row.length)
        full = [row for row in packed if row.length > length * FULL_ROW]
        waiting = [chat for row in packed if row.length <= length * FULL_ROW for chat in row.chats]
        rows = [encoder.fill_row(row, length) for row in full]
        random.shuffle(rows)
        for start in range(0, len(rows), rows_at_once):
            queue.put(stack(rows[start : start + rows_at_once]))


class ScoredChat(NamedTuple):
    """A held-out chat with the task it is scored under."""

    task: str
    think: bool
    document: Document


def held_out_chats(count: int, seed: int = 12345) -> list[ScoredChat]:
    """`count` chats of each task (a quarter for the long ones), half of them with thinking."""
    rng = Random(seed)
    chats = []
    for task in EVALUATION_TASKS:
        of_task = count // 4 if task == "recall_long" else count
        for think in (False, True):
            for _ in range(of_task // 2):
                document = draw_document(rng, is_held_out=True, task=task, think=think)
                chats.append(ScoredChat(task, think, document))
    return chats
