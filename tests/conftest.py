"""For all tests."""

import signal

# A run under `nohup`, or in the background of a script, ignores these signals, and so would every
# process that the tests start and end.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
