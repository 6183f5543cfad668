"""What is looked at before a render begins, so that it does not fail hours later."""

from __future__ import annotations

import tempfile
from pathlib import Path

from h3farm.engine import costs
from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.durable import disk_errors
from h3farm.engine.errors import DiskFull, MemoryShort, OutOfMemory
from h3farm.engine.machine import Machine
from h3farm.engine.spec import RenderSpec

GB, MB = 1e9, 1e6
USABLE = 7 / 8  # of the memory: the system itself takes the rest


def check_memory(
    machine: Machine, networks: costs.Networks, spec: RenderSpec, text_rows: int
) -> str:
    """A line for the log; OutOfMemory when the largest phase needs more than the machine has in
    all, MemoryShort when only what is free now does not suffice.
    """
    phases = costs.memory_by_phase(networks, spec, text_rows)
    phase, needed = max(phases.items(), key=lambda item: item[1])
    available = machine.available_memory()
    total = machine.total_memory()
    sentence = f"this render needs {needed / GB:.1f} GB of memory in its largest phase ({phase}), "
    if total is not None and needed > total * USABLE:
        raise OutOfMemory(
            f"{sentence}and the machine has {total / GB:.1f} GB in all: choose a smaller canvas or "
            "fewer frames"
        )
    if available is not None and needed > available:
        raise MemoryShort(
            f"{sentence}and {available / GB:.1f} GB are free now: close other programs, or choose "
            "a smaller canvas or fewer frames",
            needed_bytes=needed,
        )
    return f"predicted peak of memory: {needed / GB:.2f} GB, in {phase}"


def check_outputs(outputs: Path) -> None:
    """Make the outputs folder; DiskError when nothing can be made in it."""
    with disk_errors(f"cannot write into {outputs}"):
        outputs.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".writable-", dir=outputs)).rmdir()


def check_disk(machine: Machine, spec: RenderSpec, *, work: Path, outputs: Path) -> None:
    """DiskFull when what is still to be written of work files and output has no room where it goes.

    Asked before every phase: others fill the disk too.
    """
    wanted: dict[int, tuple[int, int, Path]] = {}
    for folder, size in (
        (work, max(0, disk_for_work(spec) - _size_of(work))),
        (outputs, disk_for_output(spec)),
    ):
        with disk_errors(f"cannot look at {folder}"):
            device, free = machine.free_disk(folder)
        before = wanted.get(device, (0, free, folder))[0]
        wanted[device] = (before + size, free, folder)
    for needed, free, folder in wanted.values():
        if needed > free:
            raise DiskFull(
                f"this render needs {_size(needed)} of disk at {folder}, and {_size(free)} are free"
            )


def _size_of(folder: Path) -> int:
    """Bytes of the files in a folder; 0 when there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _size(count: int) -> str:
    return f"{count / GB:.2f} GB" if count >= GB / 10 else f"{count / MB:.1f} MB"
