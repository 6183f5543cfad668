"""What is looked at before a render begins, so that it does not fail hours later."""

from __future__ import annotations

import tempfile
from pathlib import Path

from h3farm.engine import costs
from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.durable import disk_errors
from h3farm.engine.errors import DiskError, OutOfMemory
from h3farm.engine.machine import Machine
from h3farm.engine.spec import RenderSpec

GB, MB = 1e9, 1e6


def check_memory(
    machine: Machine, networks: costs.Networks, spec: RenderSpec, text_rows: int
) -> str:
    """A line for the log; OutOfMemory when the largest phase needs more than the machine has."""
    phases = costs.memory_by_phase(networks, spec, text_rows)
    phase, needed = max(phases.items(), key=lambda item: item[1])
    available = machine.available_memory()
    if available is not None and needed > available:
        raise OutOfMemory(
            f"this render needs {needed / GB:.1f} GB of memory in its largest phase ({phase}), "
            f"and the machine has {available / GB:.1f} GB left: choose a smaller canvas or "
            "fewer frames, or close other programs"
        )
    return f"predicted peak of memory: {needed / GB:.2f} GB, in {phase}"


def check_outputs(outputs: Path) -> None:
    """Make the outputs folder; DiskError when nothing can be made in it."""
    with disk_errors(f"cannot write into {outputs}"):
        outputs.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".writable-", dir=outputs)).rmdir()


def check_disk(machine: Machine, spec: RenderSpec, *, work: Path, outputs: Path) -> None:
    """DiskError when the work files and the output do not fit where they will be."""
    wanted: dict[int, tuple[int, int, Path]] = {}
    for folder, size in (
        (work, disk_for_work(spec)),
        (outputs, disk_for_output(spec)),
    ):
        with disk_errors(f"cannot look at {folder}"):
            device, free = machine.free_disk(folder)
        before = wanted.get(device, (0, free, folder))[0]
        wanted[device] = (before + size, free, folder)
    for needed, free, folder in wanted.values():
        if needed > free:
            raise DiskError(
                f"this render needs {_size(needed)} of disk at {folder}, and "
                f"{_size(free)} are free: free some space and submit it again"
            )


def _size(count: int) -> str:
    return f"{count / GB:.2f} GB" if count >= GB / 10 else f"{count / MB:.1f} MB"
