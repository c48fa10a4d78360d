"""Settings of all tests."""

import os

from hypothesis import settings

# Deadlines are off, as how long an example takes says something of the machine. The suite tries the same examples in each run, so that
# what passed once passes again; `make fuzz` tries new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("new examples", deadline=None)
settings.load_profile("new examples" if os.environ.get("QCONVERT_NEW_EXAMPLES") else "suite")
