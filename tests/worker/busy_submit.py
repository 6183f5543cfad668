"""Submits one batch after the other to a farm and prints the id of each that is acknowledged."""

import sys
from pathlib import Path

from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import RenderQueue, Settings


def main() -> None:
    home, first = sys.argv[1:]
    settings = Settings(home=Path(home), outputs=Path(home, "outputs"), models=())
    with RenderQueue(settings) as queue:
        for number in range(int(first), 10**9):
            given = {"model": "tiny", "width": 64, "height": 96, "frames": 22, "seed": number}
            specs = [RenderSpec.from_json({"prompt": str(each)} | given) for each in range(20)]
            sys.stdout.write(queue.submit_many(specs, key=str(number)).id + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
