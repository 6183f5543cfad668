"""Record what a mixed batch takes on the tiny model: tests/engine/recorded/batch.jsonl.

A line a render: its spec's numbers, its prompt's tokens, the seconds of its units, the peak of the
engine's memory, and the bytes on the disk: of the work folder while assembling, and of the output.
tests/engine/test_calibration.py replays it.
"""

import json
import random
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from h3farm.engine.measurements import Measurements
from h3farm.engine.progress import Progress
from h3farm.engine.render import Engine
from h3farm.engine.spec import RenderSpec

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/golden/tiny-h3"
RECORD = ROOT / "tests/engine/recorded/batch.jsonl"
RENDERS = 80
CANVASES = ((64, 64), (96, 64), (128, 96), (192, 128), (256, 160), (320, 192), (384, 256))


def drawn(chance: random.Random) -> dict[str, object]:
    """The numbers of one render of the batch."""
    width, height = chance.choice(CANVASES)
    return {
        "prompt": "a fox in the snow, " * chance.choice((1, 1, 3, 20)),
        "width": width,
        "height": height,
        "frames": 17 * chance.choice((1, 1, 2, 3, 5)) + 5,
        "steps": chance.choice((2, 4, 8, 20)),
        "audio": chance.random() < 0.8,
        "keep_frames": chance.random() < 0.2,
        "keep_latents": chance.random() < 0.2,
        "seed": chance.randrange(1000),
    }


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Render and record."""
    chance = random.Random(7)  # noqa: S311 - a batch, not a secret
    RECORD.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, RECORD.open("w") as record:
        folder, work = Path(name), Path(name) / "work"
        measurements = Measurements(folder / "measurements.jsonl")
        engine = Engine(measurements=measurements)
        for place in range(RENDERS):
            fields = drawn(chance)
            spec = RenderSpec.from_json(fields | {"model": "tiny"})
            before = len(measurements.read())
            work_bytes = 0

            def look(progress: Progress) -> None:
                nonlocal work_bytes
                if progress.phase == "assemble":
                    work_bytes = max(work_bytes, size_of(work))

            result = engine.render(
                spec, model=MODEL, outputs=folder / "outputs", work=work, on_progress=look
            )
            sidecar = json.loads(result.sidecar.read_text(encoding="utf-8"))
            units = {
                unit: [m.seconds for m in group]
                for unit, group in groupby(measurements.read()[before:], key=lambda m: m.unit)
            }
            line = {
                "spec": fields,
                "tokens": sidecar["resolved"]["prompt_tokens"],
                "units": units,
                "peak_bytes": result.peak_bytes,
                "work_bytes": work_bytes,
                "output_bytes": size_of(result.folder),
            }
            record.write(json.dumps(line) + "\n")
            print(place, fields["width"], fields["frames"], sum(map(sum, units.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
