"""A clock that no one sets and that counts the time in which the machine is suspended.

Python's `time.monotonic` stands still while a laptop sleeps, so that a lease would seem to live for as long as the sleep.
"""

import sys
import time

if sys.platform.startswith("linux"):

    def now() -> float:
        """Seconds since an arbitrary point in time."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def now() -> float:
        """Seconds since an arbitrary point in time."""
        # Unlike `time.monotonic`, it runs on while the machine sleeps.
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def now() -> float:
        """Seconds since an arbitrary point in time."""
        return time.monotonic()
