"""Following the jobs live, over the store's channel."""

import time
from types import TracebackType
from typing import Self

import redis

from h3farm.worker.queue.errors import StoreUnavailable
from h3farm.worker.queue.job import JobEvent
from h3farm.worker.queue.records import EVENTS


class Watch:
    """An iterator of events: from the moment it is made, until it is closed.

    Yields None whenever `timeout_s` pass without an event, so that one who follows can look at
    other things too. StoreUnavailable when the connection breaks: make a new one, then read the
    jobs again, since events were missed. Use it as a context manager, or call `close`.
    """

    def __init__(self, connection: redis.Redis, timeout_s: float, store_name: str) -> None:
        """Subscribes; StoreUnavailable when the store does not answer."""
        self._timeout_s = timeout_s
        self._store_name = store_name
        self._pubsub = connection.pubsub()  # type: ignore[no-untyped-call]
        try:
            self._pubsub.subscribe(EVENTS)
            # The answer to the subscription: nothing that happens after it is missed.
            self._pubsub.get_message(timeout=timeout_s)
        except redis.RedisError as error:
            self.close()
            raise self._lost(error) from error

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> JobEvent | None:
        """The next event, or None when the time is up."""
        deadline = time.monotonic() + self._timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self._pubsub.get_message(timeout=left)
            except redis.RedisError as error:
                raise self._lost(error) from error
            if message is not None and message["type"] == "message":
                return JobEvent.from_message(message["data"])
        return None

    def close(self) -> None:
        """End the subscription."""
        self._pubsub.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _lost(self, error: redis.RedisError) -> StoreUnavailable:
        return StoreUnavailable(f"The farm's store at {self._store_name} was lost: {error}.")
