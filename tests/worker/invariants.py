"""The invariants of the queue, asked of a farm at rest and of what was seen of it.

I1 one terminal state per job, reached once. I2 an acknowledged submit is always in exactly one of
waiting, running, paused, over, and on disk. I3 a file under its final name is whole. I4 never two
executions of one job at once. I5 an interruption repeats at most one step or one clip. I6 cancelled
stays cancelled. I7 the order of the others is untouched. I8 counts in history never go down.

Every function returns sentences, each with the invariant's name in front; an empty list is good.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h3farm.engine.geometry import samples_for
from h3farm.engine.media import Clip, Ffmpeg, verify_video
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import OVER, RenderJob, RenderQueue, State
from h3farm.worker.queue.records import as_text

STRAY_FILES = (".tmp",)


def assert_invariants(queue: RenderQueue, acknowledged: Collection[str] = ()) -> None:
    """All that can be asked of a farm whose worker is idle or dead, in one assertion."""
    assert problems_at_rest(queue, acknowledged) == []


def problems_at_rest(queue: RenderQueue, acknowledged: Collection[str] = ()) -> list[str]:
    """What is wrong with a farm whose worker is idle or dead and in which nothing runs.

    acknowledged: ids of which a client was told that they are queued.
    """
    jobs = {job.id: job for job in queue.list()}
    return [
        *(
            f"I2 {job_id}: acknowledged, and now unknown"
            for job_id in sorted(set(acknowledged) - jobs.keys())
        ),
        *_store_problems(queue, jobs),
        *_disk_problems(queue, jobs),
        *output_problems(queue.settings.outputs, jobs),
    ]


def _store_problems(queue: RenderQueue, jobs: Mapping[str, RenderJob]) -> list[str]:
    """RQ's lists and ours tell the same story."""
    found = []
    indexed = Counter(job_id for state in State for job_id, _ in queue.records.ids(state))
    listed = Counter(
        as_text(job_id) for job_id in queue.connection.lrange(queue.rq_queue.key, 0, -1)
    )
    begun = queue.rq_queue.started_job_registry.get_job_ids(cleanup=False)
    popped = queue.rq_queue.intermediate_queue.get_job_ids()
    found += [f"I2 {name}: is in {count} states" for name, count in indexed.items() if count != 1]
    found += [
        f"I2 {name}: stands {count} times in line" for name, count in listed.items() if count != 1
    ]
    found += [f"I2 {name}: in RQ's started registry, and nothing runs" for name in begun]
    found += [f"I2 {name}: in RQ's intermediate list, and nothing runs" for name in popped]
    found += [f"I2 {name}: in line, but not a job" for name in listed.keys() - jobs.keys()]
    for job in jobs.values():
        if (job.state is State.QUEUED) != (job.id in listed):
            found.append(
                f"I2 {job.id}: {job.state}, and {'' if job.id in listed else 'not '}in line"
            )
        if job.state in (State.RUNNING, State.INTERRUPTED):
            found.append(f"I2 {job.id}: {job.state}, and nothing runs")
        if job.over and not job.ended_at:
            found.append(f"I1 {job.id}: {job.state} without a time at which it ended")
        if (job.state is State.FAILED) != (job.error is not None):
            found.append(f"I1 {job.id}: {job.state} with the reason {job.error}")
        if (job.state is State.DONE) != (job.result is not None):
            found.append(f"I1 {job.id}: {job.state} with the result {job.result}")
    return found


def _disk_problems(queue: RenderQueue, jobs: Mapping[str, RenderJob]) -> list[str]:
    """Every job has its folder and every folder its job; both say the same."""
    found = []
    root = queue.settings.jobs
    folders = {path.name for path in root.iterdir() if path.is_dir()} if root.exists() else set()
    found += [f"I2 {name}: a folder without a job" for name in sorted(folders - jobs.keys())]
    for job in jobs.values():
        record = queue.folders.read(job.id)
        if record is None:
            found.append(f"I2 {job.id}: no record on disk")
        elif record["state"] != job.state:
            found.append(f"I2 {job.id}: {job.state}, on disk {record['state']}")
        elif RenderSpec.from_json(record["spec"]) != job.spec:
            found.append(f"I2 {job.id}: another spec on disk")
        found += [
            f"I3 {job.id}: {path.name} is left over"
            for path in queue.folder(job.id).glob("*")
            if path.name.endswith(STRAY_FILES)
        ]
        work = queue.folder(job.id) / "work"
        if job.state in (State.DONE, State.CANCELLED) and work.exists():
            found.append(f"I3 {job.id}: {job.state}, and its work files are still there")
    return found


def sidecars(outputs: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The output folders under their final names, with their sidecars ({} when unreadable)."""
    found = []
    for folder in sorted(outputs.glob("*/*")) if outputs.exists() else []:
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        try:
            sidecar = json.loads((folder / "render.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            sidecar = {}
        found.append((folder, sidecar))
    return found


def output_problems(outputs: Path, jobs: Mapping[str, RenderJob]) -> list[str]:
    """Each job that is done has exactly one output, whole, or is the same as one that has; nobody
    else has one.
    """
    found = []
    owners: Counter[str] = Counter()
    for folder, sidecar in sidecars(outputs):
        owner = str(sidecar.get("job_id"))
        owners[owner] += 1
        job = jobs.get(owner)
        if job is None or job.state is not State.DONE:
            found.append(f"I3 {folder.name}: output of {owner}, which is {job and job.state}")
        elif sidecar["spec"] != job.spec.to_json():
            found.append(f"I3 {folder.name}: the sidecar has another spec than job {owner}")
        elif wrong := _damage(folder, job.spec):
            found.append(f"I3 {folder.name}: {wrong}")
        elif job.result is None or Path(job.result["folder"]) != folder:
            found.append(f"I3 {folder.name}: job {owner} names another folder")
    found += [f"I1 {job_id}: has {n} outputs" for job_id, n in owners.items() if n > 1]
    done = [job for job in jobs.values() if job.state is State.DONE]
    found += [
        f"I3 {job.id}: same as {job.same_as}, and has another result"
        for job in done
        if job.same_as in jobs and job.result != jobs[job.same_as].result
    ]
    real = (job for job in done if job.result and not job.same_as)
    found += [
        f"I3 {job.id}: done, and its output is not there"
        for job in real
        if (job.result or {}).get("sidecar") and not owners[job.id]
    ]
    if outputs.exists():
        found += [f"I3 {path.name}: a half-made output" for path in outputs.glob("*/.*.partial")]
    return found


def _damage(folder: Path, spec: RenderSpec) -> str:
    """What is wrong with an output; reads the video to its last frame."""
    missing = [n for n in ("video.mp4", "poster.jpg", "log.txt") if not (folder / n).is_file()]
    if missing:
        return f"lacks {', '.join(missing)}"
    clip = Clip(
        width=spec.width,
        height=spec.height,
        frames=spec.frames,
        samples=samples_for(spec.frames) if spec.audio else None,
        comment=json.dumps(spec.to_json(), ensure_ascii=False),
    )
    try:
        verify_video(Ffmpeg(), folder / "video.mp4", clip)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a file is the finding
        return str(error)
    return ""


def life_problems(states: Iterable[tuple[str, str]]) -> list[str]:
    """I1 and I6, of (job id, state) in the order in which they were announced.

    A failed job may be queued again by a person's wish, which shows as `queued` after `failed`.
    """
    found = []
    last: dict[str, str] = {}
    for job_id, state in states:
        before = last.get(job_id)
        if before in (State.DONE, State.CANCELLED) or (
            before == State.FAILED and state != State.QUEUED
        ):
            name = "I6" if before == State.CANCELLED else "I1"
            found.append(f"{name} {job_id}: {state} after {before}")
        last[job_id] = state
    return found


def order_problems(
    before: Sequence[str], after: Sequence[str], touched: Collection[str]
) -> list[str]:
    """I7: those that stood in line and still do, and that nobody touched, keep their order."""
    kept = set(before) & set(after) - set(touched)
    old, new = [i for i in before if i in kept], [i for i in after if i in kept]
    return [] if old == new else [f"I7 the order {old} became {new}"]


def history_problems(counts: Iterable[Mapping[str, int]]) -> list[str]:
    """I8: nothing that is over leaves the history; for runs in which nobody requeues a failure."""
    found = []
    highest = 0
    for row in counts:
        over = sum(row[state] for state in OVER)
        if over < highest:
            found.append(f"I8 {highest} jobs were over, then {over}")
        highest = max(highest, over)
    return found


@dataclass(frozen=True, slots=True)
class Work:
    """A unit of finished work as an execution reported it: a denoise step or a decoded clip."""

    job_id: str
    execution: str
    phase: str
    step: int


def repetition_problems(work: Iterable[Work], excused: Collection[str] = ()) -> list[str]:
    """I5: an execution begins at most one step or clip before where the one before it stopped.

    excused: jobs whose resume points were damaged on purpose.
    """
    found = []
    reached: dict[tuple[str, str], tuple[str, int]] = {}
    for unit in work:
        key = (unit.job_id, unit.phase)
        execution, step = reached.get(key, (unit.execution, 0))
        if unit.execution != execution and unit.step < step and unit.job_id not in excused:
            found.append(f"I5 {unit.job_id}: {unit.phase} {unit.step} again, {step} was finished")
        reached[key] = (unit.execution, unit.step)
    return found
