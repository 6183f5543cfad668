"""`python -m h3farm.worker`: the one worker of a farm, until a signal ends it."""

import sys

from h3farm.worker.worker import main

sys.exit(main())
