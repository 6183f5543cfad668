"""The function that RQ calls by its dotted name: clients need not have the worker's code."""

from contextvars import ContextVar
from typing import Any

from h3farm.worker.runner import Runner

# Set by the worker before it begins to work: the resident engine is not reachable through RQ.
RUNNER: ContextVar[Runner] = ContextVar("RUNNER")


def render(job_id: str) -> dict[str, Any]:
    """Render a job of the farm; its result as JSON. RuntimeError in any worker but the farm's."""
    runner = RUNNER.get(None)
    if runner is None:
        raise RuntimeError("renders are run by h3farm's own worker: start it with `h3farm run`")
    return runner.run(job_id)
