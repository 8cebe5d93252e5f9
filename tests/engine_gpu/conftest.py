"""Tests of what only a GPU shows: `make test-gpu`. Elsewhere all of them are skipped.

The first run compiles the kernels for each shape and type, which takes minutes.
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this folder the time that compilers need."""
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """Skip where torch sees no GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here, or --gpu is not given")
    return torch.device("cuda")
