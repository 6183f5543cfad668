"""A job as a value: in JSON and back."""

import json
from dataclasses import fields

from farmtest import spec

from h3farm.engine.progress import Progress
from h3farm.worker.queue import Priority, RenderJob, State

FULL = RenderJob(
    id="1130-1842-3f2a",
    state=State.RUNNING,
    priority=Priority.IDLE,
    position=3,
    waits="behind 3 others",
    order="500000000001.5",
    created_at="2026-12-01T05:00:00.000Z",
    started_at="2026-12-01T05:01:00.000Z",
    ended_at="2026-12-01T05:02:00.000Z",
    progress=Progress(phase="denoise", step=3, steps=20),
    result={"folder": "/o"},
    error={"sentence": "no", "kind": "k", "remedy": "r"},
    attempts=2,
    crashes=1,
    execution="abc",
    wish="yield",
    not_before="2026-12-02T05:00:00.000Z",
    window="22:00-07:00",
    start_over=True,
    paused_until="2026-12-03T05:00:00.000Z",
    place="denoise 3 of 20",
    crash_places=["denoise 2 of 20"],
    interruptions=[{"at": "t", "place": "denoise 2 of 20", "reason": "pause", "resumed_at": None}],
    batch="b",
    batch_index=4,
    key="k",
    same_as="1130-1842-0000",
    rung="fewer threads",
    retries=["smaller tiles"],
    hold={"kind": "disk", "sentence": "full", "since": "2026-12-01T05:00:00.000Z"},
    spec=spec(),
)


def test_every_field_survives_json() -> None:
    plain = RenderJob(
        id="x", state=State.QUEUED, priority=Priority.NORMAL, created_at="t", spec=spec()
    )
    same = [
        each.name
        for each in fields(RenderJob)
        if getattr(FULL, each.name) == getattr(plain, each.name)
    ]
    assert same == ["spec"]  # a field that is added must be given a value above
    assert RenderJob.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


def test_a_durable_record_keeps_what_means_something_after_a_restart() -> None:
    gone = FULL.to_json().keys() - FULL.durable().keys()
    assert gone == {"position", "waits", "progress"}


def test_a_record_of_an_older_version_gets_defaults_and_a_newer_one_is_read() -> None:
    least = {
        "id": "x",
        "state": "queued",
        "priority": "normal",
        "created_at": "t",
        "spec": spec().to_json(),
    }
    job = RenderJob.from_json(least | {"cancel_requested": False, "of_the_future": 1})
    assert (job.window, job.crash_places, job.execution) == (None, [], None)
