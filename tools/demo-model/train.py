#!/usr/bin/env python3
"""Trains the demo model from random weights.

    train.py --out RUN_FOLDER [--seconds N | --deadline N] ...

The defaults are those of the checkpoint in the repository. Progress is measured in time, not steps:
learning rate, quantisation and long rows follow the share of `--seconds` that has passed, so a run
ends when it should on any machine. Writes bf16-*.safetensors (input of convert.py), log.txt and
train.json. `--cpu` runs the same steps without CUDA, to try a change.
"""

import argparse
import json
import multiprocessing as mp
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from packing import TaskMix, feed_rows
from paths import TOKENIZER

# The shards are small enough to be copied one by one.
SHARD_BYTES = 15.3 * 2**20
REPORT_EVERY = 100
SAVE_SECONDS = 100
QUEUE_LENGTH = 48


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write to")
    add("--tokenizer", type=Path, default=TOKENIZER)
    add("--init", type=Path, help="folder with bf16-*.safetensors to start from")
    add("--seconds", type=float, default=412, help="training time after warming up")
    add("--deadline", type=float, help="instead: time from the start of the program")
    add("--max-steps", type=int, default=10**9)
    add("--tokens-per-step", type=int, default=65536)
    add("--row-length", type=int, default=1024)
    add("--long-row-length", type=int, default=4096)
    add("--long-from", type=float, default=0.8, help="progress from which rows alternate")
    add("--workers", type=int, default=12, help="processes that generate data")
    add("--muon-rate", type=float, default=0.018)
    add("--adam-rate", type=float, default=3e-3)
    add("--weight-decay", type=float, default=0.05, help="of the matrices that Muon trains")
    add("--warmup-steps", type=int, default=100)
    add("--decay-from", type=float, default=0.35, help="progress from which the rate falls")
    add("--quantize-from", type=float, default=0.75, help="progress from which weights are 4-bit")
    add("--mtp-weight", type=float, default=0.2, help="of the multi-token-prediction loss")
    add("--balance-weight", type=float, default=0.005, help="of the experts' balance loss")
    add("--prompt-weight", type=float, default=0.1, help="of a prompt's token in the loss")
    add("--task-mix", type=json.loads, help='JSON: {"task": weight} to ask more often')
    add("--task-mix-share", type=float, default=0.5, help="share of chats that the mix decides")
    add("--evaluation-chats", type=int, default=100, help="per task, after training; 0 for none")
    add("--seed", type=int, default=1)
    add("--cpu", action="store_true", help="without CUDA and torch.compile")
    return parser.parse_args()


def start_workers(args: argparse.Namespace) -> tuple[list[mp.Process], mp.Queue, mp.Queue]:
    """The processes that fill the queues of short and long rows; every third makes long ones."""
    short, long = mp.Queue(maxsize=QUEUE_LENGTH), mp.Queue(maxsize=QUEUE_LENGTH)
    mix = None
    if args.task_mix:
        weights = list(args.task_mix.values())
        mix = TaskMix(list(args.task_mix), weights, args.task_mix_share)
    workers = []
    for i in range(args.workers):
        target = (long, args.long_row_length, 4) if i % 3 == 0 else (short, args.row_length, 16)
        queue, length, rows_at_once = target
        arguments = (queue, args.tokenizer, args.seed * 1000 + i, length, rows_at_once)
        worker = mp.Process(
            target=feed_rows, args=(*arguments, args.prompt_weight, mix), daemon=True
        )
        worker.start()
        workers.append(worker)
    return workers, short, long


def main() -> None:
    args = parse_arguments()
    started = time.time()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "6")
    workers, short, long = start_workers(args)
    # Only now: the workers are forked and must not carry torch along.
    from trainer import Trainer

    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "log.txt", "a") as log:

        def say(*parts: Any) -> None:
            line = f"[{time.time() - started:6.1f}] " + " ".join(map(str, parts))
            print(line, flush=True)
            print(line, file=log, flush=True)

        trainer = Trainer(args, short, long, say)
        trainer.warm_up()
        train(args, trainer, say, started)
    for worker in workers:
        worker.kill()
    # The queues' feeder threads would keep a normal exit waiting for workers that are gone.
    sys.stdout.flush()
    os._exit(0)


def train(args: argparse.Namespace, trainer: Any, say: Any, started: float) -> None:
    """Steps until the time is up, with reports, saved weights and set-backs; then the scores."""
    begun = last_report = last_save = time.time()
    reported_tokens = 0
    seconds = args.deadline - (begun - started) if args.deadline else args.seconds
    say(f"training for {seconds:.0f} s")
    while True:
        progress = (time.time() - begun) / seconds
        if progress >= 1 or trainer.steps >= args.max_steps:
            break
        result = trainer.step(progress)
        if trainer.steps % REPORT_EVERY:
            continue
        now = time.time()
        rate = (trainer.tokens - reported_tokens) / (now - last_report) / 1e3
        say(f"{trainer.report(result, progress)} {rate:.0f}k tokens/s")
        last_report, reported_tokens = now, trainer.tokens
        if not args.cpu and trainer.keep_or_restore(float(result.next_token)):
            if time.time() - last_save > SAVE_SECONDS:
                trainer.save(SHARD_BYTES)
                last_save = time.time()
    took = time.time() - begun
    say(f"{trainer.steps} steps, {trainer.tokens / 1e6:.1f} M tokens in {took:.0f} s")
    trainer.save(SHARD_BYTES)
    if args.evaluation_chats:
        try:
            scores = trainer.evaluate(args.evaluation_chats)
        except Exception:  # the weights are saved; a failure here must not hide that
            say("scoring failed", traceback.format_exc())
            return
        options = {name: str(value) for name, value in vars(args).items()}
        record = dict(eval=scores, tokens=trainer.tokens, steps=trainer.steps, secs=took)
        (args.out / "train.json").write_text(json.dumps(record | {"args": options}))


if __name__ == "__main__":
    main()
