"""What a batch would be, said before anything is queued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.spec import RenderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job that would be queued; `same_as`: the job that has made its video already."""

    spec: RenderSpec
    same_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The exact jobs of a batch, and what they take. `draw_seed`: None when nothing was drawn.

    left_out: equal specs that would be queued once only. output_bytes: of all its outputs, at most;
    work_bytes: beside them while the largest job runs. warnings: sentences.
    """

    name: str
    jobs: Sequence[PlannedJob]
    left_out: int
    draw_seed: int | None = None
    output_bytes: int
    work_bytes: int
    warnings: Sequence[str]

    @property
    def rendered(self) -> list[RenderSpec]:
        """What there is to render."""
        return [job.spec for job in self.jobs if job.same_as is None]

    @property
    def frames(self) -> int:
        """Frames that there are to render."""
        return sum(spec.frames for spec in self.rendered)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "name": self.name,
            "jobs": [{"spec": job.spec.to_json(), "same_as": job.same_as} for job in self.jobs],
            "count": len(self.jobs),
            "to_render": len(self.rendered),
            "left_out": self.left_out,
            "frames": self.frames,
            "draw_seed": self.draw_seed,
            "output_bytes": self.output_bytes,
            "work_bytes": self.work_bytes,
            "warnings": list(self.warnings),
        }


def make_plan(
    *,
    name: str,
    jobs: Sequence[PlannedJob],
    left_out: int,
    draw_seed: int | None,
    warnings: Sequence[str] = (),
) -> Plan:
    """The plan for these jobs; `warnings` go before those of the specs."""
    specs = [job.spec for job in jobs if job.same_as is None]
    return Plan(
        name=name,
        jobs=jobs,
        left_out=left_out,
        draw_seed=draw_seed,
        output_bytes=sum(map(disk_for_output, specs)),
        work_bytes=max(map(disk_for_work, specs), default=0),
        warnings=[*warnings, *_warnings(specs)],
    )


def _warnings(specs: Sequence[RenderSpec]) -> list[str]:
    """What the specs themselves warn of, each sentence once."""
    counts = Counter(sentence for spec in specs for sentence in spec.warnings())
    return [
        sentence if len(specs) == 1 else f"{count} of {len(specs)} jobs: {sentence}"
        for sentence, count in counts.items()
    ]
