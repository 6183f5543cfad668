"""logs, clean: the commands that look after what the farm has on its disk."""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator

from h3farm.worker.cli import exits, words
from h3farm.worker.queue import (
    OVER,
    RenderQueue,
    Settings,
    StoreUnavailable,
    UnknownJob,
    quantities,
)
from h3farm.worker.queue.disk import JobFolders
from h3farm.worker.queue.log_reader import LogReader
from h3farm.worker.retention import Item, Retention, jobs_on_disk, stored_jobs

FOLLOW_S = 0.3


def logs(arguments: argparse.Namespace, settings: Settings) -> int:
    """A job's log, from its folder: the farm need not run."""
    folders = JobFolders(settings.jobs)
    if folders.read(arguments.job) is None:
        raise UnknownJob(arguments.job)
    path = folders.log(arguments.job)
    if not arguments.follow and not path.exists() and not arguments.json:
        print("There is no log yet: no worker has begun the job.", file=sys.stderr)
        return exits.OK
    pieces = _pieces(folders, arguments.job, follow=arguments.follow)
    if arguments.json:
        words.print_json({"job": arguments.job, "log": str(path), "text": "".join(pieces)})
        return exits.OK
    for piece in pieces:
        print(words.printable(piece), end="", flush=True)
    return exits.OK


def _pieces(folders: JobFolders, job_id: str, *, follow: bool) -> Iterator[str]:
    """The log as it is, and with `follow` what comes until the job is over."""
    reader = LogReader(folders.log(job_id))
    yield reader.read()
    ended = not follow
    while not ended:
        # Looked at first: the last line is written a moment after the record.
        ended = (folders.read(job_id) or {}).get("state", OVER[0]) in OVER
        time.sleep(FOLLOW_S)
        yield reader.read()


def clean(arguments: argparse.Namespace, settings: Settings) -> int:
    """List what is past its time, and delete it."""
    with contextlib.ExitStack() as stack:
        queue: RenderQueue | None = None
        try:
            queue = stack.enter_context(RenderQueue.connect(settings))
        except StoreUnavailable:
            print(
                "note: the farm is not running, so records of jobs stay; work files can go",
                file=sys.stderr,
            )
        find_job = stored_jobs(queue) if queue else jobs_on_disk(settings)
        retention = Retention(settings, find_job)
        items = _chosen(arguments, retention, queue)
        failures = [] if arguments.dry_run else _delete(items, retention, queue)
    if arguments.json:
        words.print_json(
            {
                "items": [item.to_json() for item in items],
                "size_bytes": sum(item.size_bytes for item in items),
                "deleted": not arguments.dry_run,
                "failures": failures,
            }
        )
    else:
        _tell(items, failures, dry_run=arguments.dry_run)
    return exits.FAILED if failures else exits.OK


def _chosen(
    arguments: argparse.Namespace, retention: Retention, queue: RenderQueue | None
) -> list[Item]:
    items = list(retention.work(arguments.older_than))
    if queue and not arguments.work:
        # A record goes with its work files, which are in its folder.
        records = list(retention.records(arguments.older_than))
        whole = {item.job for item in records}
        items = [item for item in items if item.job not in whole] + records
        items += retention.batches(queue, whole)
    if arguments.failed:
        return [item for item in items if item.failed or item.kind == "batch"]
    return items + list(retention.leftovers())


def _delete(items: list[Item], retention: Retention, queue: RenderQueue | None) -> list[str]:
    """Delete; what could not be, in words."""
    failures = []
    for item in items:
        try:
            if queue and not _forgotten(item, queue):
                failures.append(f"{item.job} was taken up again, and stays")
                continue
            retention.delete(item)
        except OSError as error:
            failures.append(f"{item.path}: {error.strerror or error}")
    return failures


def _forgotten(item: Item, queue: RenderQueue) -> bool:
    """The store goes first: what it has forgotten, nobody looks for on the disk."""
    forget = {"record": queue.forget, "batch": queue.forget_batch}.get(item.kind)
    return forget is None or item.job is None or forget(item.job)


def _tell(items: list[Item], failures: list[str], *, dry_run: bool) -> None:
    if not items:
        print("Nothing is past its time.")
        return
    names = {"work": "work files", "record": "record, log", "batch": "batch", "leftover": "remains"}
    rows = [
        [names[item.kind], quantities.size(item.size_bytes), str(item.path), item.reason]
        for item in items
    ]
    print("\n".join(words.table(["WHAT", "SIZE", "WHERE", "WHY"], rows)))
    total = quantities.size(sum(item.size_bytes for item in items))
    places = f"{len(items)} place{'s' if len(items) != 1 else ''}"
    if dry_run:
        print(f"{total} in {places} would be deleted. Videos are never touched.")
    else:
        print(f"{total} in {places} deleted." if not failures else f"{total} in {places}, except:")
    for failure in failures:
        print(failure, file=sys.stderr)
