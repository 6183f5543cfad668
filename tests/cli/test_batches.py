"""submit with many jobs at once, and batch."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from clitest import Answer
from farmtest import BOUND_S, WorkerProcess, spec

from h3farm.worker.queue import RenderQueue, State

H3farm = Callable[..., Answer]
Start = Callable[..., WorkerProcess]
Process = Callable[..., "subprocess.Popen[str]"]


def queued(queue: RenderQueue) -> list[tuple[str, int, int]]:
    return [(job.spec.prompt, job.spec.steps, job.spec.seed) for job in queue.list()]


def test_a_file_of_prompts_is_a_batch(queue: RenderQueue, h3farm: H3farm, tmp_path: Path) -> None:
    file = tmp_path / "night.txt"
    file.write_text("a {red|grey} fox\n\n# later\nhare\n", encoding="utf-8")
    answer = h3farm("submit", "--prompts", str(file), "--seeds", "1,2", "--name", "night {jobs}")
    batch = queue.batches()[0]
    assert (answer.code, answer.out) == (0, f"{batch.id}\n")
    assert f"night 6: 0 of 6 done, 6 queued: `h3farm batch show {batch.id}`" in answer.err
    assert queued(queue) == [
        (prompt, 20, seed) for prompt in ("a red fox", "a grey fox", "hare") for seed in (1, 2)
    ]


def test_prompts_come_from_standard_input(queue: RenderQueue, start_h3farm: Process) -> None:
    process = start_h3farm("submit", "--prompts", "-", "--json")
    out, _ = process.communicate("a fox\na hare\n", timeout=BOUND_S)
    assert json.loads(out) == queue.batches()[0].to_json()
    assert [job.spec.prompt for job in queue.list()] == ["a fox", "a hare"]


def test_options_are_defaults_and_vary_wins(
    queue: RenderQueue, h3farm: H3farm, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("prompt,seed\nfox,1\n", encoding="utf-8")
    lines = tmp_path / "b.jsonl"
    lines.write_text('{"prompt": "hare", "seed": 2}\n', encoding="utf-8")
    files = ("--csv", str(file), "--jsonl", str(lines))
    assert h3farm("submit", *files, "--steps", "5", "--vary", "width=64,96").code == 0
    assert queued(queue) == [("fox", 5, 1), ("fox", 5, 1), ("hare", 5, 2), ("hare", 5, 2)]


def test_a_lone_prompt_is_a_template_only_when_asked(queue: RenderQueue, h3farm: H3farm) -> None:
    h3farm("submit", "a {red|grey} fox")
    assert [job.spec.prompt for job in queue.list()] == ["a {red|grey} fox"]
    h3farm("submit", "a {red|grey} fox", "--expand", "all")
    assert [job.spec.prompt for job in queue.list()][1:] == ["a red fox", "a grey fox"]
    h3farm("submit", "{a|b|c|d}", "--expand", "2")
    assert len(queue.list()) == 5


def test_wordlists_are_in_the_farms_folder(queue: RenderQueue, h3farm: H3farm) -> None:
    folder = queue.settings.home / "wordlists"
    folder.mkdir()
    (folder / "place.txt").write_text("snow\nsand\n", encoding="utf-8")
    h3farm("submit", "a fox in __place__", "--expand", "all")
    assert [job.spec.prompt for job in queue.list()] == ["a fox in snow", "a fox in sand"]


def test_a_plan_queues_nothing_and_its_draw_seed_queues_exactly_it(
    queue: RenderQueue, h3farm: H3farm
) -> None:
    options = ("submit", "{a|b|c|d|e} fox", "--expand", "3", "--count", "2")
    plan = json.loads(h3farm(*options, "--plan", "--json").out)
    assert queue.list() == []
    assert (plan["count"], plan["to_render"], plan["frames"]) == (6, 6, 6 * 124)
    h3farm(*options, "--draw-seed", str(plan["draw_seed"]))
    assert [job.spec.to_json() for job in queue.list()] == [job["spec"] for job in plan["jobs"]]


def test_a_plan_says_what_it_takes(queue: RenderQueue, h3farm: H3farm) -> None:
    answer = h3farm("submit", "fox", "--vary", "frames=22,56", "--dry-run", "--seed", "3")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[1].split() == ["1", "864x480", "22", "20", "3", "fox"]
    assert "jobs        2 to render" in lines
    assert "frames      78 (3.2 s of video)" in lines
    assert any(line.startswith("disk        at most ") for line in lines)
    assert "1 of 2 jobs: 22 frames (0.9 s) are shorter than the 4 to 15 seconds" in answer.err
    assert answer.err.endswith("Nothing has been queued.\n")


def test_a_plan_of_one_prompt_takes_it_word_for_word(queue: RenderQueue, h3farm: H3farm) -> None:
    plan = json.loads(h3farm("submit", "{a} fox", "--plan", "--json").out)
    assert [job["spec"]["prompt"] for job in plan["jobs"]] == ["{a} fox"]


def test_every_fault_of_a_file_is_a_line_and_nothing_is_queued(
    queue: RenderQueue, h3farm: H3farm, tmp_path: Path
) -> None:
    file = tmp_path / "films.csv"
    file.write_text("prompt,steps\nfox,0\nhare,9\nowl,many\n", encoding="utf-8")
    answer = h3farm("submit", "--csv", str(file))
    allowed = "steps must be a whole number from 1 to 200, got"
    assert answer == Answer(
        2, "", f'h3farm: {file} line 2: {allowed} 0\nh3farm: {file} line 4: {allowed} "many"\n'
    )
    error = json.loads(h3farm("submit", "--csv", str(file), "--json").out)["error"]
    assert error["kind"] == "invalid_batch"
    assert [(each["field"], each["given"]) for each in error["faults"]] == [
        ("steps", 0),
        ("steps", "many"),
    ]
    assert queue.list() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fox", "--vary", "steps"], "vary: steps must be like steps=10,20 or steps=10..50..20"),
        (["fox", "--vary", "steps=1", "--vary", "steps=2"], "vary: steps is varied twice"),
        (["fox", "--vary", "prompt=1"], "vary must be a numeric field: width, height"),
        (["fox", "--count", "many"], 'count must be a whole number from 1 to 10000, got "many"'),
        (["fox", "--expand", "some"], "expand must be all, none or a whole number"),
        (["fox", "--name", "{day}"], "name has {day} in it: known are {date}, {time}, {jobs}"),
        (["--name", "x"], "prompt is missing: a spec must have one"),
        (["fox", "--prompts", "x"], "a prompt is given and a file of prompts too"),
        (["fox", "--count", "20000"], "count must be a whole number from 1 to 10000, got 20000"),
        (["{a|b}", "--count", "9999"], "the batch would have 19 998 jobs, and at most 10000 go"),
        (["__x__", "--expand", "all"], "prompt: there is no wordlist x in"),
        (["fox", "--model", "huge", "--count", "2"], "model must be one of tiny, got 'huge'"),
    ],
)
def test_a_wrong_batch_is_a_sentence_and_code_2(
    queue: RenderQueue, h3farm: H3farm, arguments: list[str], sentence: str
) -> None:
    answer = h3farm("submit", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert f"h3farm: {sentence}" in answer.err
    assert queue.list() == []


def test_a_missing_file_is_told(queue: RenderQueue, h3farm: H3farm, tmp_path: Path) -> None:
    answer = h3farm("submit", "--csv", str(tmp_path / "nope.csv"))
    assert answer == Answer(1, "", f"h3farm: {tmp_path}/nope.csv: No such file or directory\n")


def test_a_key_answers_with_the_first(queue: RenderQueue, h3farm: H3farm) -> None:
    batch = ("submit", "fox", "--count", "3", "--key", "k")
    assert h3farm(*batch).out == h3farm(*batch).out
    one = ("submit", "fox", "--key", "one")
    assert h3farm(*one).out == h3farm(*one).out
    assert len(queue.list()) == 4


def test_what_is_done_already_is_said(queue: RenderQueue, h3farm: H3farm) -> None:
    done = queue.submit(spec("fox", seed=1))
    video = queue.settings.home / "video.mp4"
    video.touch()
    queue.connection.lrem(queue.rq_queue.key, 0, done.id)
    queue.records.move(done.id, State.RUNNING)
    queue.records.move(done.id, State.DONE, ended_at=done.created_at, result={"video": str(video)})
    answer = h3farm("submit", "fox", "--seed", "1")
    assert f"note: same as job {done.id}, so it is done; --again renders it" in answer.err
    assert queue.list()[-1].state is State.DONE
    plan = h3farm("submit", "fox", "--seeds", "1..2", "--plan").out
    assert f"same as {done.id}" in plan
    assert "jobs        1 to render, 1 done already\n" in plan
    h3farm("submit", "fox", "--seed", "1", "--again")
    assert queue.list()[-1].state is State.QUEUED


def test_batches_are_listed_and_shown(queue: RenderQueue, h3farm: H3farm) -> None:
    assert h3farm("batch", "list").out == (
        "No batches yet: `h3farm submit --prompts FILE` queues one.\n"
    )
    h3farm("submit", "fox", "--count", "2", "--name", "foxes")
    batch = queue.batches()[0]
    assert "0 of 2 done, 2 queued  foxes" in h3farm("batch", "list").out
    assert json.loads(h3farm("batch", "list", "--json").out) == [batch.to_json()]
    shown = h3farm("batch", "show", "foxes")
    assert "jobs        0 of 2 done, 2 queued\n" in shown.out
    assert f"{batch.id}-001  queued  next" in shown.out
    as_json = json.loads(h3farm("batch", "show", batch.id, "--json").out)
    assert [job["id"] for job in as_json["of"]] == queue.batch_job_ids(batch.id)


def test_an_unknown_batch_is_code_4(queue: RenderQueue, h3farm: H3farm) -> None:
    answer = h3farm("batch", "show", "nope", "--json")
    assert answer.code == 4
    assert json.loads(answer.out)["error"]["kind"] == "unknown_batch"


@pytest.mark.slow
def test_wait_follows_a_batch_to_its_end(
    queue: RenderQueue, start_worker: Start, start_h3farm: Process
) -> None:
    start_worker()
    process = start_h3farm("submit", "render a fox", "--count", "2", "--wait")
    out, err = process.communicate(timeout=BOUND_S)
    batch = queue.batches()[0]
    assert (process.returncode, out) == (0, f"{batch.id}\n")
    assert err.endswith("2 of 2 done\n")


def test_a_batch_is_controlled_by_its_name(queue: RenderQueue, h3farm: H3farm) -> None:
    h3farm("submit", "fox", "--count", "2", "--name", "foxes")
    batch = queue.batches()[0]
    start = f"{batch.id} foxes: 0 of 2 done, 2"
    assert h3farm("batch", "pause", "foxes", "--until", "+8h").out == f"{start} paused\n"
    assert h3farm("batch", "resume", "foxes").out == f"{start} queued\n"
    assert h3farm("batch", "cancel", "foxes").out == f"{start} cancelled\n"
    answer = h3farm("batch", "retry", "foxes", "--failed", "--json")
    assert json.loads(answer.out)["counts"] == {"cancelled": 2}
    for action in ("pause", "resume", "cancel", "retry"):
        assert h3farm("batch", action, "nope").code == 4
    answer = h3farm("batch", "pause", "foxes", "--until", "soon")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("h3farm: until is 'soon': it must be 22:00")


def test_a_submit_may_be_for_later(queue: RenderQueue, h3farm: H3farm) -> None:
    assert h3farm("submit", "fox", "--not-before", "+8h").code == 0
    assert h3farm("submit", "fox", "--count", "2", "--not-before", "+8h").code == 0
    assert [job.state for job in queue.list()] == [State.SCHEDULED] * 3
    h3farm("submit", "owl", "--window", "00:00-23:59")
    assert "00:00-23:59" in [job.window for job in queue.list()]
    for option in ("--not-before", "--window"):
        answer = h3farm("submit", "fox", option, "soon")
        assert (answer.code, answer.out) == (2, "")
        field = option[2:].replace("-", "_")
        assert answer.err.startswith(f"h3farm: {field} is 'soon': it must be ")
    assert len(queue.list()) == 4
