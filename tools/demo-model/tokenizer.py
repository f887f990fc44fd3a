#!/usr/bin/env python3
"""Trains the demo model's tokenizer on generated text and writes tokenizer.json.

    tokenizer.py OUT.json

Byte-level BPE with the same splitting rule, normalisation and special tokens as the tokenizer of
Qwen3.6, and a vocabulary of 4096. The tokenizer of the demo checkpoint was made this way; training
one again changes every id, so the checkpoint, goldens and tests need theirs.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from generate import draw_document
from tables import (
    CAPITALS,
    CITIES,
    COUNTRIES,
    COUNTRY_NAMES,
    DERIVED_WORDS,
    NAMES,
    WORD_NAMES,
)

VOCABULARY_SIZE = 4096
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Tokens of their own that stay visible in decoded text.
MARKUP_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
TRAINING_DOCUMENTS = 40_000
CHECKED_DOCUMENTS = 3_000
SEED = 99


def training_text(rng: Random) -> Iterator[str]:
    """The words of the tables several times over, then generated chats without their markup."""
    words = WORD_NAMES + DERIVED_WORDS + NAMES + COUNTRY_NAMES + CAPITALS
    words += [country.currency for country in COUNTRIES]
    words += [country.language for country in COUNTRIES]
    words += CITIES
    for word in words:
        for _ in range(12):
            yield f" {word} {word.lower()}"
        for _ in range(4):
            yield f"{word}\n{word.lower()}"
    markup = re.compile("|".join(map(re.escape, SPECIAL_TOKENS + MARKUP_TOKENS)))
    for _ in range(TRAINING_DOCUMENTS):
        yield markup.sub("\n", draw_document(rng).text)


def train(rng: Random) -> Tokenizer:
    """A tokenizer of exactly VOCABULARY_SIZE tokens, the added ones last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    added = len(SPECIAL_TOKENS) + len(MARKUP_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(training_text(rng), trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS]
    )
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE:
        raise RuntimeError(f"{tokenizer.get_vocab_size()} tokens, expected {VOCABULARY_SIZE}")
    return tokenizer


def check(tokenizer: Tokenizer, rng: Random) -> None:
    """Prints the average lengths; raises when a chat does not survive encoding and decoding."""
    texts = [draw_document(rng).text for _ in range(CHECKED_DOCUMENTS)]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        if tokenizer.decode(encoding.ids, skip_special_tokens=False) != text:
            raise RuntimeError(f"decoding does not give back {text!r}")
    tokens = sum(len(encoding.ids) for encoding in encodings)
    characters = sum(map(len, texts))
    print(f"{tokens / len(texts):.1f} tokens a chat, {characters / tokens:.2f} characters a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the tokenizer.json to write")
    args = parser.parse_args()
    rng = Random(SEED)
    tokenizer = train(rng)
    tokenizer.save(str(args.out))
    check(tokenizer, rng)


if __name__ == "__main__":
    main()
