"""Make sure that the browser tests have a Chromium; prints which one they will use.

Order: PLAYWRIGHT_CHROMIUM, an installed one, Debian's package (as root), Playwright's download.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC_APPS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def installed() -> str | None:
    """The path of a browser that is here already, or None."""
    chosen = os.environ.get("PLAYWRIGHT_CHROMIUM")
    if chosen:
        return chosen
    for name in NAMES:
        if path := shutil.which(name):
            return path
    for app in MAC_APPS:
        if Path(app).exists():
            return app
    return downloaded()


def downloaded() -> str | None:
    """The browser that Playwright keeps for itself, or None when it has not been downloaded."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where it is needed

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def install() -> None:
    """Fetch a browser: the system's package where we may, else Playwright's download."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], check=True)
    else:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=True)


def main() -> int:
    """Install a browser unless there is one; 1 with advice when that fails."""
    if not installed():
        try:
            install()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no browser for the tests, and installing one failed: {error}")
    path = installed()
    if not path:
        print(
            "Install Chromium or Chrome, or set PLAYWRIGHT_CHROMIUM to its program, and try again."
        )
        return 1
    print(f"browser for the tests: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
