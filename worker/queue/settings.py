"""Where the farm keeps things and how it is reached: the one reader of its variables."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from redis.connection import parse_url

from h3farm.worker.queue.errors import SettingsError

DEFAULT_PORT = 8642
DEFAULT_KEEP_DAYS = 7  # of the work files of failed jobs
# A Unix socket's path has 104 bytes on macOS and 108 on Linux, the closing zero included.
SOCKET_PATH_LIMIT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The farm's settings. `from_env` makes them; tests make their own."""

    home: Path
    outputs: Path
    models: tuple[Path, ...]
    redis_url: str | None = None
    port: int = DEFAULT_PORT
    threads: int = 0
    keep_days: int = DEFAULT_KEEP_DAYS

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """Read H3FARM_HOME, _OUTPUTS, _MODELS, _PORT, _THREADS, _KEEP and REDIS_URL; SettingsError
        names the variable that cannot be used.
        """
        home = _folder(env.get("H3FARM_HOME") or "~/h3farm")
        models = [item for item in env.get("H3FARM_MODELS", "").split(os.pathsep) if item]
        return cls(
            home=home,
            outputs=_folder(env["H3FARM_OUTPUTS"])
            if env.get("H3FARM_OUTPUTS")
            else home / "outputs",
            models=tuple(_folder(item) for item in models) or (home / "models",),
            redis_url=_store_url(env.get("REDIS_URL", "")),
            port=_whole_number(env, "H3FARM_PORT", DEFAULT_PORT, 1, 65535),
            threads=_whole_number(env, "H3FARM_THREADS", 0, 0, 1024),
            keep_days=_whole_number(env, "H3FARM_KEEP", DEFAULT_KEEP_DAYS, 0, 3650),
        )

    @property
    def state(self) -> Path:
        """The folder of everything the farm keeps for itself."""
        return self.home / "state"

    @property
    def jobs(self) -> Path:
        """One folder per job, named by its id."""
        return self.state / "jobs"

    @property
    def batches(self) -> Path:
        """One record per batch, named by its id."""
        return self.state / "batches"

    @property
    def submit_lock(self) -> Path:
        """Shared by those who submit, held alone by who settles what a dead one left."""
        return self.state / "submit.lock"

    @property
    def wordlists(self) -> Path:
        """The user's lists of words for prompt templates."""
        return self.home / "wordlists"

    @property
    def logs(self) -> Path:
        """Logs of the processes."""
        return self.state / "logs"

    @property
    def measurements(self) -> Path:
        """What renders have taken on this machine."""
        return self.state / "measurements.jsonl"

    @property
    def embeddings(self) -> Path:
        """Embeddings of prompts, for when they are rendered again."""
        return self.state / "embeddings"

    @property
    def ladder(self) -> Path:
        """Which named changes renders have needed on this machine."""
        return self.state / "ladder.json"

    @property
    def store_folder(self) -> Path:
        """The embedded store's data."""
        return self.state / "store"

    @property
    def worker_lock(self) -> Path:
        """Held by the one worker."""
        return self.state / "worker.lock"

    @property
    def supervisor_file(self) -> Path:
        """Who supervises this farm, and where its dashboard is."""
        return self.state / "supervisor.json"

    @property
    def socket(self) -> Path:
        """The embedded store's socket; in the temporary folder when the home's path is too long."""
        path = self.state / "store.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
            return path
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:8]
        return Path(tempfile.gettempdir()) / f"h3farm-{os.getuid()}-{digest}.sock"

    @property
    def store_url(self) -> str:
        """The store's address in the form that redis-py reads."""
        return self.redis_url or f"unix://{quote(str(self.socket))}?db=0"

    @property
    def store_name(self) -> str:
        """The store's address for people: no password in it."""
        if self.redis_url is None:
            return str(self.socket)
        parts = urlsplit(self.redis_url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"

    @property
    def dashboard(self) -> str:
        """The dashboard's address."""
        return f"http://127.0.0.1:{self.port}/"


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _store_url(text: str) -> str | None:
    if not text:
        return None
    try:
        parse_url(text)  # type: ignore[no-untyped-call]
    except ValueError:
        # Not what was given: there may be a password in it.
        raise SettingsError(
            "REDIS_URL is no store's address: it must be like redis://127.0.0.1:6379/0, "
            "rediss://... or unix:///path/to/socket.",
            field="REDIS_URL",
            given="",
            allowed="redis://, rediss://, unix://",
        ) from None
    return text


def _whole_number(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not low <= int(text) <= high:
        raise SettingsError(
            f"{name} is {text!r}: it must be a whole number from {low} to {high}.",
            field=name,
            given=text,
            allowed=f"{low} to {high}",
        )
    return int(text)
