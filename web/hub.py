"""Live state: one thread watches the queue, every open page gets what is newest.

A stream carries no history. It says which jobs changed (the page then fetches their part again) and
how far the running one is; a slow page skips moments, it never falls behind. A page that connects,
for the first time or again, is told to fetch everything.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from h3farm.web.errors import TooManyStreamsError
from h3farm.worker.queue import JobEvent, StoreUnavailable

MAX_STREAMS = 24  # of the 32 threads that serve requests; the others answer
COMMENT_EVERY_S = 15.0  # also how long a closed tab holds its stream
SHORTEST_GAP_S = 0.2  # between two messages of one stream: a tiny model reports hundreds a second
REMEMBERED_CHANGES = 1000

logger = logging.getLogger(__name__)

Watch = Callable[[], AbstractContextManager[Iterator[JobEvent | None]]]
Message = dict[str, Any]


class Hub:
    """Fans the queue's events out to streams.

    watch: begins to follow the queue (see h3farm.worker.queue.Watch); StoreUnavailable, at once or
    later, means trying again after `retry_s`. describe: what a page is told of a progress event.
    """

    def __init__(
        self, watch: Watch, describe: Callable[[JobEvent], Message], *, retry_s: float = 1.0
    ) -> None:
        """Nothing is watched before the first stream."""
        self._watch = watch
        self._describe = describe
        self._retry_s = retry_s
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._version = 0
        self._everything = 0  # the version at which all pages had to fetch everything
        self._changes: dict[str, int] = {}  # job -> version of its last change of state
        self._progress: tuple[int, Message] = (0, {})
        self._streams = 0
        self._reachable = True
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End every stream and the thread."""
        self._closed.set()
        with self._news:
            self._news.notify_all()

    def join(self, timeout_s: float) -> bool:
        """After `close`, wait for the thread; whether it ended in time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def stream(self) -> Iterator[str]:
        """A new stream of server-sent events; TooManyStreamsError when there are enough."""
        with self._news:
            if self._streams >= MAX_STREAMS:
                raise TooManyStreamsError("Too many pages are open; this one asks again by itself.")
            self._streams += 1
            self._start()
        return _Stream(self._messages(), self._leave)

    def _leave(self) -> None:
        with self._news:
            self._streams -= 1

    def _start(self) -> None:
        """Watch from the first stream on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="hub", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                with self._watch() as events:
                    # From here on nothing is missed; what happened before, pages must look up.
                    self._everything_changed()
                    self._reachable = True
                    for event in events:
                        if self._closed.is_set():
                            return
                        if event is not None:
                            self.publish(event)
            except StoreUnavailable as error:
                self._away(error)
                self._closed.wait(self._retry_s)

    def _away(self, error: StoreUnavailable) -> None:
        if self._reachable:
            logger.warning("No live state: %s", error)
            self._reachable = False
            self._everything_changed()

    def _everything_changed(self) -> None:
        with self._news:
            self._version += 1
            self._everything = self._version
            self._changes.clear()
            self._news.notify_all()

    def publish(self, event: JobEvent) -> None:
        """Tell every stream."""
        if event.kind == "state" and len(self._changes) >= REMEMBERED_CHANGES:
            self._everything_changed()
        with self._news:
            self._version += 1
            if event.kind == "state":
                self._changes[event.job_id] = self._version
            else:
                self._progress = (self._version, self._describe(event))
            self._news.notify_all()

    def _messages(self) -> Iterator[str]:
        with self._news:
            seen = self._version  # before the page is told to fetch: nothing falls in between
        yield "retry: 2000\n\n" + _event("changed", {"jobs": None})
        while not self._closed.is_set():
            with self._news:
                self._news.wait_for(partial(self._news_after, seen), COMMENT_EVERY_S)
                messages, seen = self._since(seen), self._version
            if self._closed.is_set():
                return
            yield "".join(messages) or ": still here\n\n"
            self._closed.wait(SHORTEST_GAP_S)

    def _news_after(self, seen: int) -> bool:
        return self._closed.is_set() or self._version > seen

    def _since(self, seen: int) -> list[str]:
        messages = []
        if self._everything > seen:
            messages.append(_event("changed", {"jobs": None}))
        elif jobs := [job for job, version in self._changes.items() if version > seen]:
            messages.append(_event("changed", {"jobs": jobs}))
        if self._progress[0] > seen:
            messages.append(_event("progress", self._progress[1]))
        return messages


class _Stream(Iterator[str]):
    """An iterator that gives its place back when the server closes it, even before the first item.

    A generator that was never started runs no `finally`.
    """

    def __init__(self, messages: Iterator[str], leave: Callable[[], None]) -> None:
        self._messages = messages
        self._leave: Callable[[], None] | None = leave

    def __next__(self) -> str:
        return next(self._messages)

    def close(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


def _event(name: str, data: Message) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
