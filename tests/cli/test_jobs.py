"""submit, list, show, cancel, status."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from clitest import Answer
from farmtest import BOUND_S, WorkerProcess, eventually, run_to_end, spec, wait_until_running

from h3farm.worker.queue import RenderQueue, State

H3farm = Callable[..., Answer]
Start = Callable[..., WorkerProcess]
Process = Callable[..., "subprocess.Popen[str]"]


def test_submit_prints_the_id_and_nothing_else(queue: RenderQueue, h3farm: H3farm) -> None:
    answer = h3farm("submit", "a red fox", "--seconds", "2", "--seed", "7", "--no-audio")
    job = queue.list()[0]
    assert (answer.code, answer.out) == (0, f"{job.id}\n")
    assert (job.spec.prompt, job.spec.seed, job.spec.seconds_asked, job.spec.audio) == (
        "a red fox",
        7,
        2.0,
        False,
    )
    assert job.spec.model == "tiny"  # the only one there is
    assert "no worker is running" in answer.err


def test_options_win_over_the_file(queue: RenderQueue, h3farm: H3farm, tmp_path: Path) -> None:
    file = tmp_path / "ein Fuchs.json"
    file.write_text(json.dumps({"prompt": "from the file", "seconds": 3, "steps": 4}))
    assert h3farm("submit", "--spec", str(file), "--frames", "22", "--steps", "9").code == 0
    made = queue.list()[0].spec
    assert (made.prompt, made.frames, made.seconds_asked, made.steps) == (
        "from the file",
        22,
        None,
        9,
    )


def test_a_spec_comes_from_standard_input(queue: RenderQueue, start_h3farm: Process) -> None:
    process = start_h3farm("submit", "--spec", "-", "--json")
    out, _ = process.communicate(json.dumps({"prompt": "piped"}), timeout=BOUND_S)
    job = queue.list()[0]
    assert process.returncode == 0
    assert json.loads(out) == job.to_json()
    assert job.spec.prompt == "piped"


def test_a_priority_is_a_place_in_the_queue(queue: RenderQueue, h3farm: H3farm) -> None:
    h3farm("submit", "later")
    h3farm("submit", "soon", "--priority", "urgent")
    assert [job.spec.prompt for job in queue.list()] == ["soon", "later"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fox", "--steps", "0"], "steps must be a whole number from 1 to 200, got 0"),
        (["fox", "--steps", "many"], 'steps must be a whole number from 1 to 200, got "many"'),
        (["fox", "--model", "huge"], "model must be one of tiny, got 'huge'"),
        ([], "prompt is missing: a spec must have one"),
        (
            ["fox", "--frames", "22", "--seconds", "1"],
            "a spec must have frames or seconds, not both, got seconds 1.0",
        ),
    ],
)
def test_a_bad_spec_is_one_sentence_and_code_2(
    queue: RenderQueue, h3farm: H3farm, arguments: list[str], sentence: str
) -> None:
    assert h3farm("submit", *arguments) == Answer(2, "", f"h3farm: {sentence}\n")
    assert queue.list() == []


def test_a_bad_file_is_named(queue: RenderQueue, h3farm: H3farm, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{prompt}")
    answer = h3farm("submit", "--spec", str(file))
    assert answer.code == 2
    assert answer.err.startswith(f"h3farm: {file} is not JSON: ")
    file.write_bytes(b"\xff\xfe{")
    assert f"{file} is not JSON: " in h3farm("submit", "--spec", str(file)).err
    missing = tmp_path / "nope.json"
    answer = h3farm("submit", "--spec", str(missing))
    assert answer == Answer(1, "", f"h3farm: {missing}: No such file or directory\n")


def test_an_error_as_json_has_the_field(queue: RenderQueue, h3farm: H3farm) -> None:
    answer = h3farm("submit", "fox", "--width", "33", "--json")
    error = json.loads(answer.out)["error"]
    assert (error["kind"], error["field"]) == ("invalid_spec", "width")
    assert answer.err == f"h3farm: {error['message']}\n"


@pytest.mark.slow
def test_wait_ends_with_the_result(
    queue: RenderQueue, start_worker: Start, start_h3farm: Process
) -> None:
    start_worker()
    done = start_h3farm("submit", "render a fox", "--wait")
    failed = start_h3farm("submit", "fail", "--wait")
    out, _ = done.communicate(timeout=BOUND_S)
    job_id, video = out.splitlines()
    assert (done.returncode, video) == (0, queue.get(job_id).result["video"])
    _, err = failed.communicate(timeout=BOUND_S)
    assert failed.returncode == 1
    assert "failed: the canvas needs 30 GB, the machine has 16 (it was tried again with" in err
    assert "\nRender smaller" in err


@pytest.mark.slow
def test_wait_as_json_is_the_finished_job(
    queue: RenderQueue, start_worker: Start, start_h3farm: Process
) -> None:
    start_worker()
    process = start_h3farm("submit", "render", "--wait", "--json")
    out, _ = process.communicate(timeout=BOUND_S)
    job = json.loads(out)
    assert job == queue.get(job["id"]).to_json()
    assert job["state"] == "done"


@pytest.mark.slow
def test_ctrl_c_ends_the_waiting_and_not_the_job(
    queue: RenderQueue, start_worker: Start, start_h3farm: Process
) -> None:
    start_worker()
    process = start_h3farm("submit", "hold", "--wait")
    assert process.stdout is not None
    job_id = process.stdout.readline().strip()
    wait_until_running(queue, job_id)
    assert process.stderr is not None
    while "denoising" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130
    assert f"Job {job_id} goes on without you; `h3farm cancel {job_id}` ends it." in err
    assert "Traceback" not in err
    assert queue.get(job_id).state is State.RUNNING


@pytest.mark.slow
def test_cancel_stops_a_running_job(
    queue: RenderQueue, start_worker: Start, h3farm: H3farm
) -> None:
    start_worker()
    job = queue.submit(spec("hold"))
    wait_until_running(queue, job.id)
    assert h3farm("cancel", job.id) == Answer(0, f"{job.id} cancelled\n", "")


def test_cancel_of_what_is_over_says_so(queue: RenderQueue, h3farm: H3farm) -> None:
    job = queue.submit(spec())
    queue.records.move(job.id, State.RUNNING)
    queue.records.move(job.id, State.DONE)
    answer = h3farm("cancel", job.id)
    assert answer.code == 1
    assert answer.err == f"h3farm: Job {job.id} is done: it can no longer become cancelled.\n"


def test_one_job_that_is_over_does_not_save_the_others(queue: RenderQueue, h3farm: H3farm) -> None:
    done, waiting = queue.submit(spec()), queue.submit(spec())
    queue.records.move(done.id, State.RUNNING)
    queue.records.move(done.id, State.DONE)
    answer = h3farm("cancel", done.id, waiting.id)
    assert answer == Answer(1, f"{done.id} done\n{waiting.id} cancelled\n", "")


def test_a_wrong_id_among_others_cancels_nothing(queue: RenderQueue, h3farm: H3farm) -> None:
    waiting = queue.submit(spec())
    assert h3farm("cancel", waiting.id, "nope").code == 4
    assert queue.get(waiting.id).state is State.QUEUED


@pytest.mark.parametrize("command", ["show", "cancel"])
def test_an_unknown_job_is_code_4(queue: RenderQueue, h3farm: H3farm, command: str) -> None:
    answer = h3farm(command, "nope")
    assert answer.code == 4
    assert answer.err == "h3farm: There is no job 'nope': `h3farm list` shows those that exist.\n"


@pytest.mark.parametrize(
    "command", [["submit", "fox"], ["list"], ["show", "x"], ["cancel", "x"], ["status"]]
)
def test_without_a_farm_it_is_code_3(h3farm: H3farm, command: list[str]) -> None:
    answer = h3farm(*command)
    assert answer.code == 3
    assert "start it with `h3farm run`" in answer.err
    as_json = h3farm(*command, "--json")
    assert json.loads(as_json.out)["error"]["kind"] == "store_unavailable"


def test_an_empty_list_says_what_to_do(queue: RenderQueue, h3farm: H3farm) -> None:
    assert h3farm("list") == Answer(0, "No jobs yet: `h3farm submit` queues one.\n", "")
    assert h3farm("list", "--json") == Answer(0, "[]\n", "")


def test_the_list_fits_the_terminal(
    queue: RenderQueue, h3farm: H3farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide letters take two columns; what could move the cursor is not printed."""
    monkeypatch.setenv("COLUMNS", "60")
    queue.submit(spec("狐" * 100))
    queue.submit(spec("red\x1b[31m\nfox\t" + "x" * 100), priority="idle")
    lines = h3farm("list").out.splitlines()
    assert lines[1].endswith("…")
    assert all(len(line) + line.count("狐") <= 60 for line in lines)
    assert "red [31m fox xx" in lines[2]
    assert "queued (idle)" in lines[2]


def test_the_list_says_how_many_more_there_are(queue: RenderQueue, h3farm: H3farm) -> None:
    for number in range(3):
        queue.cancel(queue.submit(spec(str(number))).id)
    answer = h3farm("list", "--limit", "1")
    assert len(answer.out.splitlines()) == 3
    assert answer.out.endswith("(2 earlier ones: --limit 3 shows them)\n")
    assert h3farm("list", "--state", "done").out == "No such jobs.\n"
    assert len(json.loads(h3farm("list", "--state", "cancelled", "--json").out)) == 3


@pytest.mark.slow
def test_show_tells_why_a_job_failed_and_what_to_do(
    queue: RenderQueue, start_worker: Start, h3farm: H3farm
) -> None:
    start_worker()
    job = run_to_end(queue, queue.submit(spec("fail")).id)
    lines = dict(line.split(maxsplit=1) for line in h3farm("show", job.id).out.splitlines())
    assert lines["state"] == "failed"
    assert lines["reason"] == (
        "the canvas needs 30 GB, the machine has 16 (it was tried again with one network at a time)"
    )
    assert lines["changed"] == "one network at a time (after a failure)"
    assert lines["what"].startswith("to do ")
    assert lines["log"] == str(queue.log(job.id))
    shown = json.loads(h3farm("show", job.id, "--json").out)
    assert shown == job.to_json() | {"log": str(queue.log(job.id))}


def test_show_tells_where_a_job_stood_and_what_was_changed(
    queue: RenderQueue, h3farm: H3farm
) -> None:
    job = queue.submit(spec())
    queue.records.move(job.id, State.RUNNING, place="denoise 12 of 20", rung="fewer threads")
    out = h3farm("show", job.id).out
    assert "reached     denoise 12 of 20\n" in out
    assert "changed     fewer threads (as such jobs needed it before)\n" in out


@pytest.mark.slow
def test_show_tells_where_the_video_is(
    queue: RenderQueue, start_worker: Start, h3farm: H3farm
) -> None:
    start_worker()
    job = run_to_end(queue, queue.submit(spec("render")).id)
    assert f"video       {job.result['video']}\n" in h3farm("show", job.id).out


@pytest.mark.slow
def test_status_tells_of_the_worker(
    queue: RenderQueue, start_worker: Start, h3farm: H3farm
) -> None:
    assert "worker      not running\n" in h3farm("status").out
    worker = start_worker()
    eventually(lambda: "worker      idle\n" in h3farm("status").out)
    status = json.loads(h3farm("status", "--json").out)
    assert status["worker"]["pid"] == worker.process.pid
    assert status["dashboard"] == "http://127.0.0.1:8642/"
    assert status["models"] == ["tiny"]


def test_status_says_what_was_saved(queue: RenderQueue, h3farm: H3farm) -> None:
    assert "saved" not in h3farm("status").out
    queue.records.add_saved({"opens": 39, "bytes": 39 * 16_000_000_000})
    line = "saved       39 readings of a text encoder, 624 GB of weights\n"
    assert line in h3farm("status").out
    saved = json.loads(h3farm("status", "--json").out)["saved"]
    assert saved == {"opens": 39, "bytes": 624_000_000_000}


def test_status_says_what_held_jobs_wait_for(queue: RenderQueue, h3farm: H3farm) -> None:
    job = queue.submit(spec())
    queue.records.move(job.id, State.RUNNING)
    hold = {"kind": "disk", "sentence": "disk full: 2 GB are needed", "since": job.created_at}
    queue.records.move(job.id, State.PAUSED, hold=hold)
    answer = h3farm("status").out
    assert f"held        {job.id}: disk full: 2 GB are needed; it goes on by itself\n" in answer
    held = json.loads(h3farm("status", "--json").out)["held"]
    assert held == {job.id: "disk full: 2 GB are needed"}
    assert "waits for   disk full: 2 GB are needed\n" in h3farm("show", job.id).out


def test_a_reader_that_has_seen_enough_is_no_error(
    queue: RenderQueue, start_h3farm: Process
) -> None:
    queue.submit(spec("x" * 10000))
    process = start_h3farm("list", "--json")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, err) == (0, "")


def test_retry_queues_what_failed(queue: RenderQueue, h3farm: H3farm) -> None:
    failed, waiting = queue.submit(spec()), queue.submit(spec())
    queue.connection.lrem(queue.rq_queue.key, 0, failed.id)
    queue.records.move(failed.id, State.RUNNING)
    error = {"sentence": "x", "kind": "x", "remedy": ""}
    queue.records.move(failed.id, State.FAILED, ended_at=failed.created_at, error=error)
    assert h3farm("retry", failed.id, "nope").code == 4
    assert queue.get(failed.id).state is State.FAILED
    assert h3farm("retry", failed.id) == Answer(0, f"{failed.id} queued\n", "")
    answer = h3farm("retry", waiting.id)
    assert answer.code == 1
    sentence = f"Job {waiting.id} is queued: only a job that failed can be tried again."
    assert answer.err == f"h3farm: {sentence}\n"
