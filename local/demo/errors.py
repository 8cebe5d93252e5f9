"""What stops the demo. Each text says what failed and where to look.

    DemoError
    └── CommandError    kubectl or helm failed; its own message

A wait that takes too long raises TimeoutError.
"""


class DemoError(Exception):
    """A stage failed."""


class CommandError(DemoError):
    """kubectl or helm failed."""
