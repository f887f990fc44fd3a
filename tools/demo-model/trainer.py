"""One training run: weights, optimisers, the step, what is kept in case the loss explodes."""

import argparse
import json
import math
import multiprocessing as mp
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_names import from_hugging_face, to_hugging_face
from muon import Muon
from network import (
    HIDDEN_MATRICES,
    Batch,
    Losses,
    Network,
    Stages,
    effective_weights,
    initial_parameters,
)
from packing import ChatEncoder, Row, held_out_chats
from scoring import score

# Set-back: as many skipped steps, or as large a rise of the loss, between two reports.
MOST_SKIPPED, LARGEST_RISE = 20, 0.7
SETBACK_FACTOR = 0.6

# Parameters that AdamW trains at half its rate: matrices that read the residual stream.
HALF_RATE = ("head", "in_b", "in_a", "router", "shared_gate")
ADAM_WEIGHT_DECAY = dict(embed=0.02, head=0.02, router=0.02)


class Trainer:
    """Holds the state of a run; `step` does one update."""

    def __init__(
        self, args: argparse.Namespace, short: mp.Queue, long: mp.Queue, say: Callable[..., None]
    ) -> None:
        self.args, self.say = args, say
        self.queues = {args.row_length: short, args.long_row_length: long}
        self.left_over: dict[int, list[Row]] = {length: [] for length in self.queues}
        self.device = "cpu" if args.cpu else "cuda"
        self.dtype = torch.float32 if args.cpu else torch.bfloat16
        self.network = Network(packed_attention=not args.cpu, bf16_products=not args.cpu)
        torch._dynamo.config.recompile_limit = 64
        self.parameters = initial_parameters(self.device, args.seed)
        if args.init:
            self.load_weights()
        self.adam_names = [name for name in self.parameters if name not in HIDDEN_MATRICES]
        self.adam = torch.optim.AdamW(
            [self.adam_group(name) for name in self.adam_names],
            betas=(0.9, 0.97),
            eps=1e-10,
            fused=not args.cpu,
        )
        self.muon = Muon(self.parameters, args.weight_decay, self.dtype)
        self.steps = self.tokens = 0
        self.rate_factor = 1.0
        self.skipped = torch.zeros((), device=self.device)
        self.kept: tuple[dict[str, Tensor], dict[str, Tensor], float] | None = None

    def load_weights(self) -> None:
        tensors: dict[str, Tensor] = {}
        for shard in sorted(self.args.init.glob("bf16-*.safetensors")):
            tensors |= load_file(shard)
        for name, value in from_hugging_face(tensors).items():
            self.parameters[name].data.copy_(value)
        self.say("weights from", self.args.init)

    def adam_group(self, name: str) -> dict[str, Any]:
        rate = self.args.adam_rate * (0.5 if name in HALF_RATE else 1.0)
        decay = ADAM_WEIGHT_DECAY.get(name, 0.0)
        return dict(params=[self.parameters[name]], lr=rate, base=rate, weight_decay=decay)

    def to_device(self, row: Row) -> Batch:
        """Rows [B, T] as one long row on the device, with the offsets of the chats."""
        flat = Row(*(np.ascontiguousarray(values.reshape(1, -1)) for values in row))
        starts = np.append(np.flatnonzero(flat.positions == 0), flat.positions.size)
        # A power of two, so that the attention kernel is not built for every length.
        longest = 1 << (int(np.diff(starts).max()) - 1).bit_length()

        def move(values: np.ndarray, dtype: torch.dtype) -> Tensor:
            tensor = torch.from_numpy(values)
            if self.device == "cuda":
                tensor = tensor.pin_memory()
            return tensor.to(self.device, dtype, non_blocking=True)

        return Batch(
            move(flat.ids, torch.long),
            move(flat.weights, torch.float32),
            move(flat.positions, torch.long),
            move(starts.astype(np.int32), torch.int32),
            longest,
        )

    def next_batch(self, length: int) -> Batch:
        """Rows of `length` from the workers, tokens_per_step tokens together."""
        wanted = self.args.tokens_per_step // length
        left_over = self.left_over[length]
        taken: list[Row] = []
        count = 0
        while count < wanted:
            rows = left_over.pop() if left_over else self.queues[length].get()
            if count + len(rows.ids) > wanted:
                fitting = wanted - count
                left_over.append(Row(*(values[fitting:] for values in rows)))
                rows = Row(*(values[:fitting] for values in rows))
            taken.append(rows)
            count += len(rows.ids)
        self.network.rows = wanted
        return self.to_device(Row(*(np.concatenate(v) for v in zip(*taken, strict=True))))

    def learning_rate_factor(self, progress: float) -> float:
        """Constant, then linear down to 1 %; in the first steps rising from zero."""
        factor = 1.0
        if progress >= self.args.decay_from:
            factor = max(0.01, (1 - progress) / (1 - self.args.decay_from))
        return factor * min(1, (self.steps + 1) / self.args.warmup_steps) * self.rate_factor

    def step(self, progress: float, length: int | None = None) -> Losses:
        """One update; `length` overrides the schedule of row lengths."""
        args = self.args
        if length is None:
            is_long = progress >= args.long_from and self.steps % 2
            length = args.long_row_length if is_long else args.row_length
        factor = self.learning_rate_factor(progress)
        batch = self.next_batch(length)
        is_quantized = progress >= args.quantize_from
        weights = effective_weights(self.parameters, is_quantized, self.dtype)
        losses = self.network.loss(weights, batch, args.mtp_weight, args.balance_weight)
        losses.total.backward()
        self.drop_broken_gradients(losses.next_token.detach())
        adam_parameters = [self.parameters[name] for name in self.adam_names]
        torch.nn.utils.clip_grad_norm_(adam_parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * factor
        self.adam.step()
        momentum = min(0.95, 0.85 + 0.1 * self.steps / 300)
        self.muon.step(args.muon_rate * factor, momentum)
        self.clear_gradients()
        self.tokens += batch.ids.numel()
        self.steps += 1
        return Losses(*(part.detach() for part in losses[:4]), losses.loads)

    @torch.no_grad()
    def drop_broken_gradients(self, loss: Tensor) -> None:
        """Zeroes the gradients of a batch that has a non-finite one, on the device, without a sync.

        Such a batch must reach neither the weights nor the moments.
        """
        gradients = [parameter.grad for parameter in self.parameters.values()]
        norms = torch.stack(torch._foreach_norm(gradients))
        is_finite = torch.isfinite(norms).all() & torch.isfinite(loss)
        for gradient in gradients:
            gradient.copy_(torch.where(is_finite, gradient, torch.zeros_like(gradient)))
        self.skipped.add_((~is_finite).float())

    def clear_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def copy_of_parameters(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def restore_parameters(self, saved: dict[str, Tensor]) -> None:
        for name, value in saved.items():
            self.parameters[name].copy_(value)

    def warm_up(self) -> None:
        """Compiles everything with real steps, then puts the start back.

        When the compiler fails on the recurrence, or at all, that part runs uncompiled.
        """
        start = self.copy_of_parameters()
        short, long = self.args.row_length, self.args.long_row_length
        lengths = [short] if self.args.cpu else [short, long, short]
        attempts = (
            [Stages]
            if self.args.cpu
            else [
                Stages.compiled,
                lambda: Stages.compiled(with_recurrence=False),
                Stages,
            ]
        )
        for number, make_stages in enumerate(attempts):
            self.network.stages = make_stages()
            try:
                for length in lengths:
                    loss = float(self.step(0.0, length).next_token)
                    self.say(f"warm-up, rows of {length}: loss {loss:.3f}")
                break
            except Exception as error:
                if number == len(attempts) - 1:
                    raise
                self.say("compiling failed, trying with less:", repr(error)[-1500:])
                self.clear_gradients()
                torch._dynamo.reset()
        self.restore_parameters(start)
        self.adam.state.clear()
        for value in self.muon.momentum.values():
            value.zero_()
        self.skipped.zero_()
        self.steps = self.tokens = 0

    def report(self, losses: Losses, progress: float) -> str:
        loads = torch.stack(losses.loads)
        return (
            f"step {self.steps} progress {progress:.3f} loss {float(losses.next_token):.4f} "
            f"mtp {float(losses.mtp):.4f} balance {float(losses.balance):.3f} "
            f"load {float(loads.min()):.3f}-{float(loads.max()):.3f} "
            f"tokens {self.tokens / 1e6:.1f}M"
        )

    def keep_or_restore(self, loss: float) -> bool:
        """Keeps a copy while all is well (True); goes back to it with a lower rate when not."""
        skipped = int(self.skipped)
        self.skipped.zero_()
        if skipped:
            self.say("skipped steps since the last report:", skipped)
        has_risen = self.kept is not None and loss > self.kept[2] + LARGEST_RISE
        is_worse = skipped >= MOST_SKIPPED or (math.isfinite(loss) and has_risen)
        if not is_worse and math.isfinite(loss):
            momentum = {name: value.clone() for name, value in self.muon.momentum.items()}
            self.kept = (self.copy_of_parameters(), momentum, loss)
            return True
        if is_worse and self.kept is not None:
            self.rate_factor *= SETBACK_FACTOR
            self.say(f"set back at step {self.steps}, rate factor {self.rate_factor:.2f}")
            self.restore_parameters(self.kept[0])
            for name, value in self.kept[1].items():
                self.muon.momentum[name].copy_(value)
            self.adam.state.clear()
        return False

    def save(self, shard_bytes: float) -> None:
        """The weights as bf16-N.safetensors under Hugging Face's names; A_log stays float32."""
        shards: list[dict[str, Tensor]] = [{}]
        size = 0
        for name, value in to_hugging_face(self.parameters).items():
            dtype = torch.float32 if name.endswith("A_log") else torch.bfloat16
            value = value.to(dtype).cpu()
            if size + value.nbytes > shard_bytes:
                shards.append({})
                size = 0
            shards[-1][name] = value.contiguous()
            size += value.nbytes
        for number, shard in enumerate(shards):
            path = self.args.out / f"bf16-{number}.safetensors"
            scratch = path.with_suffix(".tmp")
            save_file(shard, scratch)
            scratch.replace(path)
        self.say("saved", len(shards), "shards")

    def evaluate(self, chats_per_task: int) -> dict[str, dict[str, Any]]:
        """Scores of the bf16 and of the 4-bit weights, under the keys bf16 and q4."""
        encoder = ChatEncoder(self.args.tokenizer)
        length = self.args.long_row_length
        chats, encoded = [], []
        for chat in held_out_chats(chats_per_task):
            encoding = encoder.encode_for_scoring(chat.document)
            if len(encoding.ids) <= length:
                chats.append(chat)
                encoded.append(encoding)
        rows = self.args.tokens_per_step // length
        self.network.rows = rows
        result = {}
        for name, is_quantized in (("bf16", False), ("q4", True)):
            with torch.no_grad():
                weights = effective_weights(self.parameters, is_quantized, self.dtype)
            scores = score(
                self.network, weights, encoder, chats, encoded, length, rows, self.to_device
            )
            mean = sum(scores.by_task.values()) / len(scores.by_task)
            self.say(f"{name}: mean {mean:.4f}", json.dumps(scores.by_task))
            result[name] = dict(em=scores.by_task, mtp=scores.mtp, tok=scores.tokens)
        return result
