"""What this machine has left: memory and disk. Standard library only."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path


class Machine:
    """Asks the system; a test puts its own numbers here."""

    def available_memory(self) -> int | None:
        """Bytes that can be had without swapping, None where the system does not say."""
        if sys.platform == "darwin":
            listing = subprocess.run(["vm_stat"], capture_output=True, text=True, check=False)
            return from_vm_stat(listing.stdout)
        try:
            return from_meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))
        except OSError:
            return None

    def total_memory(self) -> int | None:
        """Bytes of memory built in, None where the system does not say."""
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return None

    def free_disk(self, folder: Path) -> tuple[int, int]:
        """(device, free bytes) of the file system that `folder`, or what there is of it, is on."""
        while not folder.exists():
            folder = folder.parent
        return folder.stat().st_dev, shutil.disk_usage(folder).free

    def process_peak(self) -> int:
        """The most bytes of memory this process ever held, mapped weights in memory included."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def from_meminfo(text: str) -> int | None:
    """Linux: "MemAvailable:   22862000 kB"."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def from_vm_stat(text: str) -> int | None:
    """macOS: pages that are free, or hold what can be dropped at once.

    "Mach Virtual Memory Statistics: (page size of 16384 bytes)", then "Pages free:   123456."
    """
    size = re.search(r"page size of (\d+) bytes", text)
    pages = {
        name: int(count)
        for name, count in re.findall(r"^Pages (.+?):\s+(\d+)\.$", text, re.MULTILINE)
    }
    if not size or "free" not in pages:
        return None
    reclaimable = ("free", "inactive", "speculative", "purgeable")
    return int(size[1]) * sum(pages.get(name, 0) for name in reclaimable)
