"""`python -m h3farm.web`: serve the dashboard on loopback until a signal ends it."""

import logging
import signal
import sys
from types import FrameType

from waitress.server import create_server

from h3farm.web.app import create_app
from h3farm.web.farm import EXTENSION, Farm
from h3farm.worker.queue import Settings, SettingsError
from h3farm.worker.queue.process import end_with_parent, log_to

ADDRESS = "127.0.0.1"
THREADS = 32  # an open stream holds one; see hub.MAX_STREAMS
MAX_BODY = 8 * 1024 * 1024  # refused by the server itself; the application refuses much less

logger = logging.getLogger(__name__)


def main() -> int:
    """The exit code: 0 after a signal, 1 when the port is taken, 2 for wrong settings."""
    try:
        settings = Settings.from_env()
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201 (what a program says when it cannot start)
        return 2
    log_to("web", settings.logs)
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
    end_with_parent()  # else the next supervisor would find its port taken
    logger.info("The dashboard is at %s", settings.dashboard)
    server.run()  # returns at SystemExit, when its threads have ended
    server.close()
    farm.queue.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
