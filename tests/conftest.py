"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # how long an example takes says something of the machine
settings.load_profile("untimed")
