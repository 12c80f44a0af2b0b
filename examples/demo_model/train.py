"""Train the demo model from nothing, on pictures drawn as it goes: `python examples/demo_model/train.py --out FOLDER`.

Phases and steps are fixed, so the run is a function of the seed. A killed run goes on from `--state`.
About 80 minutes on two cores (one trains, one draws) of a CPU with AVX512-BF16 or AMX.
"""

import argparse
import math
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from batches import Batch, make_batch
from checkpoint import new_model, save
from fast_forward import FastForward
from losses import Heads, saying_loss, seeing_loss
from muon import Muon
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    steps: int
    size: int  # pictures in a batch
    muon: float  # learning rates at the start of the phase
    adam: float
    fall_from: float = 0.0  # the rates fall linearly from this part of the phase on ...
    fall_to: float = 1.0  # ... to this factor
    small: bool = False
    plain: bool = False
    speak: bool = False
    busy: bool = False  # more pictures of several things
    frozen: bool = False  # the tower rests
    warm: int = 40


PHASES = [
    Phase("shapes", 600, 64, 0.02, 2e-3, small=True, plain=True),
    Phase("see", 2200, 48, 0.02, 2e-3, fall_from=0.3, fall_to=0.15),
    Phase("listen", 200, 48, 0.012, 1.5e-3, speak=True, frozen=True),
    Phase("speak", 1700, 40, 0.01, 1.2e-3, fall_from=0.1, fall_to=0.02, speak=True, busy=True),
]


def draw_batches(
    queue: multiprocessing.Queue, tokenizer: PreTrainedTokenizerFast, seed: int, phase: Phase, first: int
) -> None:
    torch.set_num_threads(1)
    for step in range(first, phase.steps):
        rng = Random(f"{seed}/{phase.name}/{step}")
        queue.put(make_batch(tokenizer, rng, phase.size, phase.small, phase.plain, phase.speak, phase.busy))


class Training:
    def __init__(self, seed: int, state: Path, compiled: bool = True):
        self.seed, self.state = seed, state
        self.model, self.tokenizer = new_model(seed)
        self.heads = Heads(self.model.config.text_config.hidden_size)
        self.forward = FastForward(self.model, compiled=compiled)
        self.phase, self.step, self.averages = 0, 0, {}
        self._new_optimizers()
        if state.exists():
            self._load()

    def run(self) -> None:
        while self.phase < len(PHASES):
            self._run_phase(PHASES[self.phase])
            self.phase, self.step = self.phase + 1, 0
            self._new_optimizers()
            self.keep()

    def keep(self) -> None:
        parts = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "phase": self.phase,
            "step": self.step,
        }
        torch.save({**parts, "optimizers": [o.state_dict() for o in self.optimizers]}, self.state.with_suffix(".new"))
        os.replace(self.state.with_suffix(".new"), self.state)

    def _load(self) -> None:
        parts = torch.load(self.state)
        self.model.load_state_dict(parts["model"])
        self.heads.load_state_dict(parts["heads"])
        self.phase, self.step = parts["phase"], parts["step"]
        for optimizer, saved in zip(self.optimizers, parts["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _new_optimizers(self) -> None:
        matrices, rest = [], list(self.heads.parameters())
        for name, weight in self.model.named_parameters():
            inner = weight.ndim == 2 and not any(part in name for part in ("embed", "merger"))
            (matrices if inner else rest).append(weight)
        self.optimizers = [
            Muon(matrices, 0.0),
            torch.optim.AdamW(rest, 0.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
        ]

    def _run_phase(self, phase: Phase) -> None:
        queue: multiprocessing.Queue = multiprocessing.Queue(16)
        arguments = (queue, self.tokenizer, self.seed, phase, self.step)
        drawer = multiprocessing.Process(target=draw_batches, args=arguments, daemon=True)
        drawer.start()
        began, first = time.perf_counter(), self.step
        while self.step < phase.steps:
            self._train(phase, queue.get())
            self.step += 1
            if self.step % 50 == 0:
                speed = (self.step - first) / (time.perf_counter() - began)
                scores = " ".join(f"{name} {value:.3f}" for name, value in self.averages.items())
                print(f"{phase.name} {self.step}/{phase.steps} {speed:.2f} step/s | {scores}", flush=True)
            if self.step % 200 == 0:
                self.keep()
        drawer.join()

    def _train(self, phase: Phase, batch: Batch) -> None:
        self._set_rates(phase)
        tokens, deep = self.forward.look(torch.from_numpy(batch.patches).float(), batch.grid, phase.frozen)
        loss, scores = seeing_loss(self.heads, tokens, batch)
        parts = {"see": loss.item()}
        if phase.speak:
            said, answers = saying_loss(self.forward, tokens, deep, batch)
            loss, scores = said + 0.5 * loss, scores | answers
            parts["say"] = said.item()
        self._update(loss)
        for name, value in (parts | scores).items():
            if not math.isnan(value):
                self.averages[name] = 0.97 * self.averages.get(name, value) + 0.03 * value

    def _update(self, loss: Tensor) -> None:
        weights = [w for o in self.optimizers for g in o.param_groups for w in g["params"]]
        for weight in weights:
            weight.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_([w for w in weights if w.grad is not None], 1.0)
        for optimizer in self.optimizers:
            optimizer.step()

    def _set_rates(self, phase: Phase) -> None:
        done = self.step / phase.steps
        fall = max(0.0, (done - phase.fall_from) / (1 - phase.fall_from))
        factor = min(1.0, (self.step + 1) / phase.warm) * (1 - (1 - phase.fall_to) * fall)
        for optimizer, rate in zip(self.optimizers, (phase.muon, phase.adam), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-checkpoint"))
    parser.add_argument(
        "--state", type=Path, default=Path("demo-state.pt"), help="kept every 200 steps; an existing one is continued"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--eager", action="store_true", help="do not compile the decoder blocks (needs no C++ compiler; slower)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    training = Training(arguments.seed, arguments.state, not arguments.eager)
    training.run()
    save(training.model, training.tokenizer, arguments.out)


if __name__ == "__main__":
    main()
