"""Durations and sizes as a person wants them, the same on the page and in the shell."""


def seconds(value: float) -> str:
    """A duration, rounded: "4.2 s", "48 s", "3 min 20 s", "2 h 05 min"."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return "{} h {:02d} min".format(*divmod(minutes, 60))


def size(count: float) -> str:
    """Bytes, rounded: "812 bytes", "3.4 MB"."""
    if count < 1000:
        return f"{count:.0f} bytes"
    power = next((power for power in (1, 2) if count < 1000 ** (power + 1)), 3)
    shown = count / 1000**power
    return f"{shown:.{1 if shown < 100 else 0}f} {('kB', 'MB', 'GB')[power - 1]}"
