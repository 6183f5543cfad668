"""What holds for the whole farm: pausing and resuming it, its nightly window."""

from dataclasses import replace
from datetime import datetime

from h3farm.worker.queue.core import QueueCore, store_errors
from h3farm.worker.queue.farm_state import FarmRecord, FarmState
from h3farm.worker.queue.job import stamp
from h3farm.worker.queue.schedule import Window


class FarmControl(QueueCore):
    """The part of the queue that knows whether jobs may run at all."""

    @property
    def farm_record(self) -> FarmRecord:
        """The farm's state in store and file."""
        return FarmRecord(self.connection, self.settings.state / "farm.json")

    def farm(self) -> FarmState:
        """The farm's state; see `closed` there."""
        with store_errors(self.settings):
            return self.farm_record.read()

    def pause_farm(
        self,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        finish_current: bool = False,
        free_memory: bool = False,
    ) -> FarmState:
        """Pause everything, over restarts too, until `resume_farm` or the moment `until`.

        The job that runs stops within a second and waits in front, to start over; with
        finish_current it is finished first. reason: a clause that goes on from "paused because".
        free_memory: the worker closes its model.
        """
        with store_errors(self.settings):
            return self.farm_record.change(
                lambda state: replace(
                    state,
                    paused=True,
                    reason=reason,
                    paused_at=stamp(self._clock()),
                    paused_until=stamp(until) if until else None,
                    finish_current=finish_current,
                    free_memory=free_memory,
                )
            )

    def resume_farm(self) -> FarmState:
        """Let the farm go on; its window stays."""
        with store_errors(self.settings):
            return self.farm_record.change(lambda state: FarmState(window=state.window))

    def set_farm_window(self, window: str | None) -> FarmState:
        """Run jobs only inside of this nightly window; None: at any time. BadSchedule."""
        text = str(Window.parse(window)) if window is not None else None
        with store_errors(self.settings):
            return self.farm_record.change(lambda state: replace(state, window=text))

    def closed(self) -> str | None:
        """Why no job may be begun now, a clause; None when one may."""
        return self.farm().closed(self._clock())
