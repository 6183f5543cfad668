"""The farm's environment variables."""

from pathlib import Path

import pytest

from h3farm.worker.queue import Settings, SettingsError


def test_the_defaults_are_in_the_users_home() -> None:
    settings = Settings.from_env({})
    home = Path("~/h3farm").expanduser()
    assert settings == Settings(
        home=home, outputs=home / "outputs", models=(home / "models",), port=8642, threads=0
    )


def test_every_variable_is_read() -> None:
    settings = Settings.from_env(
        {
            "H3FARM_HOME": "/farm",
            "H3FARM_OUTPUTS": "~/videos",
            "H3FARM_MODELS": "/a:/b c",
            "REDIS_URL": "redis://host:6379/1",
            "H3FARM_PORT": "9000",
            "H3FARM_THREADS": "3",
            "H3FARM_KEEP": "30",
        }
    )
    assert settings == Settings(
        home=Path("/farm"),
        outputs=Path("~/videos").expanduser(),
        models=(Path("/a"), Path("/b c")),
        redis_url="redis://host:6379/1",
        port=9000,
        threads=3,
        keep_days=30,
    )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "H3FARM_PORT",
            "http",
            "H3FARM_PORT is 'http': it must be a whole number from 1 to 65535.",
        ),
        ("H3FARM_PORT", "0", "H3FARM_PORT is '0': it must be a whole number from 1 to 65535."),
        (
            "H3FARM_THREADS",
            "-1",
            "H3FARM_THREADS is '-1': it must be a whole number from 0 to 1024.",
        ),
        *(
            (
                "REDIS_URL",
                value,
                "REDIS_URL is no store's address: it must be like redis://127.0.0.1:6379/0, "
                "rediss://... or unix:///path/to/socket.",
            )
            for value in ("http://:secret@host", "host:6379", "redis://:sec/ret@host")
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: value})
    assert str(caught.value) == sentence
    assert caught.value.field == name


def test_a_long_home_gets_its_socket_a_short_path() -> None:
    """Unix sockets have about a hundred bytes for theirs; letters may take several."""
    near, far = (Settings.from_env({"H3FARM_HOME": f"/{'ü' * count}"}) for count in (20, 50))
    assert near.socket == near.home / "state" / "store.sock"
    assert far.socket.name.startswith("h3farm-")
    assert len(str(far.socket).encode()) < 100
    assert far.socket != Settings.from_env({"H3FARM_HOME": f"/{'ü' * 51}"}).socket
