"""Scores held-out chats by teacher forcing: is every token of the reply the model's own choice?

That equals greedy decoding giving exactly the reference, at the cost of one forward pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from network import Batch, Network, Parameters, logits, rms_norm
from packing import ChatEncoder, EncodedChat, Row, ScoredChat, pack, stack


class Scores(NamedTuple):
    """Shares of what is right.

    `by_task` has chats whose whole reply is right (with "+think" after the task for those with
    thinking), `mtp` the drafts for the token after the next that equal the trunk's own choice, and
    `tokens` the reply tokens.
    """

    by_task: dict[str, float]
    mtp: float
    tokens: float


@torch.no_grad()
def score(
    network: Network,
    weights: Parameters,
    encoder: ChatEncoder,
    chats: list[ScoredChat],
    encoded: list[EncodedChat],
    row_length: int,
    rows_at_once: int,
    to_device: Callable[[Row], Batch],
) -> Scores:
    """Scores `chats`, whose encodings are `encoded`; `network.rows` must be `rows_at_once`."""
    packed = pack(encoded, row_length)
    rows = [encoder.fill_row(row, row_length) for row in packed]
    rows += [rows[0]] * ((-len(rows)) % rows_at_once)
    position_of = {id(chat.ids): i for i, chat in enumerate(encoded)}
    is_right = [False] * len(encoded)
    right_tokens = all_tokens = right_drafts = all_drafts = 0
    for start in range(0, len(rows), rows_at_once):
        stacked = stack(rows[start : start + rows_at_once])
        batch = to_device(stacked)
        choices, drafts = greedy_choices(network, weights, batch, rows_at_once)
        ids = batch.ids.view(rows_at_once, row_length).cpu().numpy()
        matches = choices[:, :-1] == ids[:, 1:]
        counted = stacked.weights.astype(np.float32) > 0
        drafted = counted[:, 2:] & counted[:, 1:-1]
        right_drafts += int(((drafts[:, :-2] == choices[:, 1:-1]) & drafted).sum())
        all_drafts += int(drafted.sum())
        for row, in_row in zip(packed[start : start + rows_at_once], matches, strict=False):
            offset = 0
            for chat in row.chats:
                length = len(chat.ids)
                tokens = in_row[offset : offset + length - 1][chat.weights[1:] > 0]
                is_right[position_of[id(chat.ids)]] = bool(tokens.all())
                right_tokens += int(tokens.sum())
                all_tokens += len(tokens)
                offset += length
    by_task: dict[str, list[bool]] = {}
    for chat, right in zip(chats, is_right, strict=True):
        by_task.setdefault(chat.task + ("+think" if chat.think else ""), []).append(right)
    return Scores(
        {task: sum(results) / len(results) for task, results in by_task.items()},
        right_drafts / max(1, all_drafts),
        right_tokens / all_tokens,
    )


def greedy_choices(
    network: Network, weights: Parameters, batch: Batch, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """The most likely next token, and the draft for the one after it, at each place [rows, T]."""
    x, _, _, stacks = network.trunk(weights, batch)
    final = rms_norm(x, weights["final_norm"])
    draft, _ = network.mtp_hidden(weights, stacks, final, batch)
    draft = rms_norm(draft, weights["mtp_norm"])

    def choose(hidden: torch.Tensor) -> np.ndarray:
        # Row by row: the logits of a whole batch would take gigabytes.
        by_row = hidden.view(rows, -1, hidden.shape[-1])
        chosen = [logits(row, weights["head"]).argmax(-1) for row in by_row]
        return torch.stack(chosen).cpu().numpy()

    return choose(final), choose(draft)
