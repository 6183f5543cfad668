"""Finding what has been rendered already: equal specs are equal work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue.intake import Intake
from h3farm.worker.queue.job import RenderJob, stamp
from h3farm.worker.queue.reading import Reading
from h3farm.worker.queue.states import State


def distinct(specs: Sequence[RenderSpec]) -> list[RenderSpec]:
    """The specs without those that are equal to an earlier one."""
    return list({spec.hash: spec for spec in specs}.values())


class Same(Reading, Intake):
    """The part of the queue that knows finished work."""

    def same(self, specs: Sequence[RenderSpec]) -> list[RenderJob | None]:
        """For each spec the newest job that is done with it and whose video is still there."""
        found = self.same_done([spec.hash for spec in specs])
        jobs = {job.id: job for job in self.records.get_many({each for each in found if each})}
        return [
            job if (job := jobs.get(job_id or "")) and _made(job, spec) else None
            for spec, job_id in zip(specs, found, strict=True)
        ]

    def known(self, jobs: Sequence[RenderJob]) -> list[RenderJob]:
        """The jobs, those done at once of which another job has made the video."""
        others = self.same([job.spec for job in jobs])
        now = stamp(self._clock())
        return [
            replace(job, state=State.DONE, ended_at=now, result=other.result, same_as=other.id)
            if other
            else job
            for job, other in zip(jobs, others, strict=True)
        ]


def _made(job: RenderJob, spec: RenderSpec) -> bool:
    """Whether a job is done with this spec, and what it made has not been removed."""
    video = (job.result or {}).get("video")
    return job.spec.hash == spec.hash and bool(video) and Path(str(video)).is_file()
