"""Submits to a farm and kills itself in front of a named step, or right behind it.

Arguments: home folder, "one" or "many", the step, "before" or "after".
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import RenderQueue, Settings, batch_submission
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.manifests import Manifests

PLACES: dict[str, tuple[Any, str]] = {
    "reserve": (JobFolders, "reserve"),
    "prepare": (JobFolders, "prepare"),
    "sync": (batch_submission, "sync_many"),
    "manifest": (Manifests, "prepare"),
    "store": (RenderQueue, "take_in"),
    "accept the batch": (Manifests, "accept"),
    "accept": (JobFolders, "accept"),
}


def plant(step: str, when: str) -> None:
    """Put the kill where it belongs."""
    owner, name = PLACES[step]
    original = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> Any:
        if when == "after":
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, killed)


def main() -> None:
    home, number, step, when = sys.argv[1:]
    settings = Settings(home=Path(home), outputs=Path(home, "outputs"), models=())
    specs = [
        RenderSpec.from_json({"prompt": str(each), "model": "tiny", "seed": 1}) for each in range(5)
    ]
    plant(step, when)
    with RenderQueue(settings) as queue:
        if number == "one":
            queue.submit(specs[0], key="the key")
        else:
            queue.submit_many(specs, key="the key")


if __name__ == "__main__":
    main()
