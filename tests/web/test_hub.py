"""Live state: what streams carry, how many there are, and that they end."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

import pytest
from flask.testing import FlaskClient

from h3farm.engine.progress import Progress
from h3farm.engine.spec import RenderSpec
from h3farm.web.app import describe
from h3farm.web.errors import TooManyStreamsError
from h3farm.web.farm import EXTENSION
from h3farm.web.hub import MAX_STREAMS, REMEMBERED_CHANGES, Hub
from h3farm.worker.queue import JobEvent, RenderQueue, State, StoreUnavailable

EVERYTHING = ("changed", {"jobs": None})


def event(job: str, kind: str = "state", step: int = 0) -> JobEvent:
    progress = Progress(phase="denoise", step=step, steps=20) if kind == "progress" else None
    return JobEvent(job_id=job, kind=kind, state=State.RUNNING, progress=progress, at="")


class Source:
    """A queue's events by hand: put an event, None for a pause, or an error."""

    def __init__(self) -> None:
        self.events: Queue[JobEvent | StoreUnavailable | None] = Queue()
        self.there = threading.Event()
        self.there.set()

    @contextmanager
    def watch(self) -> Iterator[Iterator[JobEvent | None]]:
        assert self.there.wait(10)
        yield self._events()

    def _events(self) -> Iterator[JobEvent | None]:
        while True:
            item = self.events.get()
            if isinstance(item, StoreUnavailable):
                raise item
            yield item


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def hub(source: Source) -> Iterator[Hub]:
    hub = Hub(source.watch, describe, retry_s=0.01)
    yield hub
    hub.close()
    source.events.put(None)
    assert hub.join(10)


def parsed(text: str) -> list[tuple[str, dict[str, object]]]:
    """The events of what a stream sent."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def following(hub: Hub) -> None:
    """Wait until the first watch has begun, which tells every stream to fetch everything."""
    with hub._news:
        assert hub._news.wait_for(lambda: hub._everything, 10)


def opened(hub: Hub) -> Iterator[str]:
    """A stream whose first message, about everything, has been read."""
    stream = hub.stream()
    following(hub)
    assert parsed(next(stream)) == [EVERYTHING]
    return stream


def test_a_new_stream_says_to_fetch_everything(hub: Hub) -> None:
    opened(hub).close()


def test_a_change_names_its_job(hub: Hub, source: Source) -> None:
    stream = opened(hub)
    source.events.put(event("a"))
    assert parsed(next(stream)) == [("changed", {"jobs": ["a"]})]
    stream.close()


def test_a_slow_page_gets_the_newest_and_nothing_twice(hub: Hub) -> None:
    stream = opened(hub)
    for step in range(500):
        hub.publish(event("a", "progress", step % 20))
        hub.publish(event("ab"[step % 2]))
    changed, progress = parsed(next(stream))
    assert changed == ("changed", {"jobs": ["a", "b"]})
    assert progress[1]["doing"] == "Denoising, step 20 of 20"
    hub.publish(event("c"))
    assert parsed(next(stream)) == [("changed", {"jobs": ["c"]})]
    stream.close()


def test_memory_is_bounded_however_many_jobs_there_are(hub: Hub) -> None:
    stream = opened(hub)
    for number in range(REMEMBERED_CHANGES + 1):
        hub.publish(event(str(number)))
    assert parsed(next(stream)) == [EVERYTHING]
    stream.close()


def test_a_store_that_goes_and_comes_back_makes_pages_look_again(hub: Hub, source: Source) -> None:
    stream = opened(hub)
    source.there.clear()
    source.events.put(StoreUnavailable("gone"))
    assert parsed(next(stream)) == [EVERYTHING]
    source.there.set()
    assert parsed(next(stream)) == [EVERYTHING]
    stream.close()


def test_there_are_only_so_many_streams(hub: Hub) -> None:
    streams = [hub.stream() for _ in range(MAX_STREAMS)]
    with pytest.raises(TooManyStreamsError):
        hub.stream()
    streams[0].close()  # never read: it must still give its place back
    streams[0].close()
    streams[0] = hub.stream()
    with pytest.raises(TooManyStreamsError):
        hub.stream()
    for stream in streams:
        stream.close()


def test_streams_end_when_the_hub_closes(hub: Hub) -> None:
    stream = opened(hub)
    threading.Timer(0.05, hub.close).start()
    assert list(stream) == []


def test_a_stream_over_http_follows_the_queue(client: FlaskClient, queue: RenderQueue) -> None:
    """Through a real store: the record changes, the stream says so."""
    hub = client.application.extensions[EXTENSION].hub
    hub.stream().close()  # the first one starts the watch
    following(hub)
    answer = client.get("/api/events", buffered=False)
    assert answer.mimetype == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-store"
    messages = (parsed(chunk.decode()) for chunk in answer.iter_encoded())
    assert next(messages) == [EVERYTHING]
    job = queue.submit(RenderSpec.from_json({"prompt": "x", "model": "tiny-h3"}))
    assert next(messages) == [("changed", {"jobs": [job.id]})]
    answer.close()


def test_the_page_that_comes_too_many_gets_a_503(client: FlaskClient) -> None:
    answers = [client.get("/api/events", buffered=False) for _ in range(MAX_STREAMS)]
    refused = client.get("/api/events")
    assert refused.status_code == 503
    assert refused.get_json()["error"]["kind"] == "too_many_streams"
    for answer in answers:
        answer.close()
    last = client.get("/api/events", buffered=False)
    assert last.status_code == 200
    last.close()
