"""For all tests."""

import signal

# A run under `nohup` ignores this signal, and so would every process that the tests start and end.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
