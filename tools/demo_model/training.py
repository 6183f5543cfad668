"""What the stages share: optimisers, schedule, averages, resume points, a log of losses."""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .muon import Muon

SEED = 20261201


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a stage trains: optimiser steps, learning rates, decay of the running average."""

    steps: int
    lr: float
    muon_lr: float
    decay: float
    save_every: int = 50
    flat: float = 0.55  # fraction of the steps before the rate falls, linearly, to 2 %


def batch_rng(stage: str, step: int) -> np.random.Generator:
    """The random stream of a step: a stage that was cut sees the batches it would have seen."""
    return np.random.default_rng([SEED, *stage.encode(), step])


def rate(plan: Plan, step: int) -> float:
    """Factor on the learning rate: warm-up over 100 steps, flat, then linear to 2 %."""
    warm = min(1.0, (step + 1) / 100)
    start = plan.flat * plan.steps
    fall = 1.0 if step < start else max(0.02, 1 - 0.98 * (step - start) / (plan.steps - start))
    return warm * fall


def optimisers(
    parameters: Iterable[tuple[str, nn.Parameter]],
    plan: Plan,
    is_block_matrix: Callable[[str], bool],
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of transformer blocks, AdamW for everything else."""
    blocks, rest = [], []
    for name, parameter in parameters:
        if parameter.requires_grad:
            (blocks if parameter.ndim == 2 and is_block_matrix(name) else rest).append(parameter)
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=plan.lr, betas=(0.9, 0.98), weight_decay=0.0)
    ]
    if blocks:
        found.append(Muon(blocks, lr=plan.muon_lr))
    return found


class Stage:
    """One stage's state on disk: `<folder>/last.pt` (resume), `log.jsonl`, and the average weights
    `ema`.
    """

    def __init__(
        self, folder: Path, model: nn.Module, plan: Plan, is_block_matrix: Callable[[str], bool]
    ) -> None:
        """Open the stage's folder and take up its last checkpoint, if there is one."""
        self.folder, self.model, self.plan = folder, model, plan
        self.optimisers = optimisers(model.named_parameters(), plan, is_block_matrix)
        self.average = {
            name: tensor.detach().clone() for name, tensor in model.state_dict().items()
        }
        self.step = 0
        self._sums: dict[str, list[float]] = {}
        self._since = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "last.pt").exists():
            saved = torch.load(folder / "last.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(state)
            self.average, self.step = saved["average"], saved["step"]

    @property
    def done(self) -> bool:
        """Whether every step of the plan was made."""
        return self.step >= self.plan.steps

    def update(self, total: Tensor, **values: float) -> None:
        """One optimiser step down `total`; logs `values` and saves now and then."""
        factor = rate(self.plan, self.step)
        for optimiser, base in zip(
            self.optimisers, (self.plan.lr, self.plan.muon_lr), strict=False
        ):
            for group in optimiser.param_groups:
                group["lr"] = base * factor
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        decay = min(self.plan.decay, self.step / (self.step + 10))
        with torch.no_grad():
            now = self.model.state_dict()
            torch._foreach_lerp_(
                [self.average[name] for name in now], list(now.values()), 1 - decay
            )
        for name, value in values.items():
            self._sums.setdefault(name, []).append(value)
        if self.step % 50 == 0 or self.done:
            self._log()
        if self.step % self.plan.save_every == 0 or self.done:
            self.save()

    def _log(self) -> None:
        now = time.monotonic()
        record = {"step": self.step, "seconds": round(now - self._since, 1)}
        record |= {name: round(float(np.mean(values)), 5) for name, values in self._sums.items()}
        self._sums.clear()
        self._since = now
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
        print(self.folder.name, record, flush=True)

    def save(self) -> None:
        """Write the resume point and the average weights, each at once or not at all."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        write_atomically(self.folder / "last.pt", state)
        write_atomically(self.folder / "ema.pt", self.average)


def write_atomically(path: Path, value: object) -> None:
    """torch.save under a temporary name, then rename: a cut never leaves half a file."""
    part = path.with_suffix(".part")
    torch.save(value, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def load_average(folder: Path) -> dict[str, Tensor]:
    """The averaged weights of a stage."""
    return dict(torch.load(folder / "ema.pt", weights_only=True))
