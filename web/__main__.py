"""`python -m h3farm.web`: serve the dashboard on loopback until a signal ends it."""

import logging
import os
import signal
import sys
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType

from h3farm.web.app import create_app
from h3farm.web.farm import EXTENSION, Farm
from h3farm.worker.queue import Settings, SettingsError
from waitress.server import create_server

ADDRESS = "127.0.0.1"
PARENT_CHECK_S = 1.0
LOG_BYTES = 5_000_000
OLD_LOGS = 3
THREADS = 32  # an open stream holds one; see hub.MAX_STREAMS
MAX_BODY = 8 * 1024 * 1024  # refused by the server itself; the application refuses much less

logger = logging.getLogger(__name__)


def configure_logs(folder: Path) -> None:
    """Log to stderr and to `web.log`, in the format of the farm's other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    rotating = RotatingFileHandler(
        folder / "web.log", maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8"
    )
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s web        %(levelname)-7s %(message)s",
        handlers=[rotating, logging.StreamHandler()],
    )
    logging.getLogger("waitress").setLevel(logging.WARNING)  # it tells of every closed tab


def end_with_parent() -> None:
    """SIGTERM ourselves when the supervisor is gone: the next one would find its port taken."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> int:
    """The exit code: 0 after a signal, 1 when the port is taken, 2 for wrong settings."""
    try:
        settings = Settings.from_env()
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 (what a program says when it cannot start)
        return 2
    configure_logs(settings.logs)
    app = create_app(settings)
    try:
        server = create_server(
            app,
            host=ADDRESS,
            port=settings.port,
            threads=THREADS,
            max_request_body_size=MAX_BODY,
            ident=None,
        )
    except OSError as error:
        print(  # noqa: T201
            f"The dashboard cannot listen on {ADDRESS}:{settings.port}: {error.strerror}. "
            "Is another farm running? H3FARM_PORT chooses another port.",
            file=sys.stderr,
        )
        return 1
    farm: Farm = app.extensions[EXTENSION]

    def end(number: int, frame: FrameType | None) -> None:
        farm.hub.close()  # else the server would wait for the open streams
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    end_with_parent()
    logger.info("The dashboard is at %s", settings.dashboard)
    server.run()  # returns at SystemExit, when its threads have ended
    server.close()
    farm.queue.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
