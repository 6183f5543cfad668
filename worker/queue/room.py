"""Whether the disks have room for all that waits, asked before more is taken in.

Bytes are those of the worst case (noise, which compresses badly): what fits here does fit.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import redis

from h3farm.engine.disk_sizes import disk_for_output, disk_for_work
from h3farm.engine.machine import Machine
from h3farm.engine.spec import RenderSpec
from h3farm.worker.queue import quantities
from h3farm.worker.queue.errors import NotEnoughDisk
from h3farm.worker.queue.settings import Settings
from h3farm.worker.queue.states import OVER, State

RESERVE_BYTES = 16_000_000  # stays free: the store and the records write too

# KEYS: the sets of jobs that are not over. Their number, and the bytes of their outputs.
SUM = """
local count, bytes = 0, 0
for _, key in ipairs(KEYS) do
  for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    count = count + 1
    bytes = bytes + tonumber(redis.call('HGET', 'h3farm:job:' .. id, 'output_bytes') or '0')
  end
end
return {count, bytes}
"""


def check_room(
    connection: redis.Redis, settings: Settings, specs: Iterable[RenderSpec], machine: Machine
) -> None:
    """NotEnoughDisk when the outputs of everything that waits and of `specs` do not fit.

    Work files count once, at their largest: one job has them at a time, and those of interrupted
    jobs are on the disk already.
    """
    wanted = list(specs)
    keys = [f"h3farm:state:{state}" for state in State if state not in OVER]
    waiting, waiting_bytes = cast("list[int]", connection.register_script(SUM)(keys=keys))
    outputs = waiting_bytes + sum(disk_for_output(spec) for spec in wanted)
    work = max((disk_for_work(spec) for spec in wanted), default=0)
    for needed, free, folder in shortages(settings, machine, outputs=outputs, work=work):
        those = f"the {len(wanted)} new ones" if len(wanted) > 1 else "this one"
        those = f"{waiting} jobs that wait and {those}" if waiting else those
        raise NotEnoughDisk(
            f"There is not enough room at {folder}: {those} can take {quantities.size(needed)}, "
            f"and {quantities.size(free)} are free. Free some space, or submit with `anyway`: "
            "a render that finds the disk full waits until there is room."
        )


def shortages(
    settings: Settings, machine: Machine, *, outputs: int, work: int
) -> list[tuple[int, int, Path]]:
    """(bytes needed, bytes free, folder) of each disk that has too little room.

    outputs, work: bytes to be written into the folders of outputs and of jobs, which may be on one
    disk.
    """
    wanted: dict[int, tuple[int, int, Path]] = {}
    for folder, size in ((settings.jobs, work), (settings.outputs, outputs)):
        device, free = machine.free_disk(folder)
        before = wanted.get(device, (RESERVE_BYTES, 0, folder))[0]
        wanted[device] = (before + size, free, folder)
    return [row for row in wanted.values() if row[0] > row[1]]
