"""What the commands of the one-machine cluster raise. Each text says why and what to do.

    OneMachineError
    ├── FetchError      a package could be neither installed nor unpacked
    ├── BuildError      a binary could not be built
    ├── ClusterError    the cluster cannot start, stop or answer
    └── ApiError        the API server answered with an error

Standard library only: `fetch.py` and `build.py` run before there is an environment.
"""


class OneMachineError(Exception):
    """Base of all."""


class FetchError(OneMachineError):
    """A package could be neither installed nor unpacked."""


class BuildError(OneMachineError):
    """A binary could not be built."""


class ClusterError(OneMachineError):
    """The cluster cannot do what was asked."""


class ApiError(OneMachineError):
    """The API server answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
