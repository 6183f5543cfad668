"""What the systems say of their memory and disk."""

from pathlib import Path

import pytest

from h3farm.engine.machine import Machine, from_meminfo, from_vm_stat

MEMINFO = "MemTotal:       24684048 kB\nMemFree:        22613000 kB\nMemAvailable:   23410688 kB\n"
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12345.
Pages active:                            400000.
Pages inactive:                          390000.
Pages speculative:                         5000.
Pages throttled:                              0.
Pages wired down:                        150000.
Pages purgeable:                           1000.
"Translation faults":                 999999999.
"""


def test_linux_says_what_is_available() -> None:
    assert from_meminfo(MEMINFO) == 23410688 * 1024


def test_macos_pages_that_can_be_had_at_once_are_added_up() -> None:
    assert from_vm_stat(VM_STAT) == 16384 * (12345 + 390000 + 5000 + 1000)


@pytest.mark.parametrize("text", ["", "Pages free: many.", "MemFree: 5 kB"])
def test_a_system_that_says_something_else_is_not_guessed_at(text: str) -> None:
    assert from_meminfo(text) is None
    assert from_vm_stat(text) is None


def test_this_machine_says_how_much_it_has() -> None:
    machine = Machine()
    assert (machine.total_memory() or 0) >= (machine.available_memory() or 0) > 1 << 20
    assert machine.process_peak() > 1 << 20


def test_a_folder_that_is_not_there_yet_is_on_its_parents_disk(tmp_path: Path) -> None:
    device, free = Machine().free_disk(tmp_path / "a" / "b")
    assert device == tmp_path.stat().st_dev
    assert free > 0
