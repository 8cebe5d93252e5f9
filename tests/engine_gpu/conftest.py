"""Tests of what only a GPU shows: `make test-gpu`. The first run compiles kernels for minutes.

Without a GPU one case runs of each test that a CPU can run too, so that its code stays true; all
others are skipped.
"""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
WHY = "torch sees no GPU here, or --gpu is not given"


def sees_gpu() -> bool:
    """Whether torch can compute on a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Skip what this machine cannot run; give the others the time that compilers need."""
    ours = [item for item in items if item.path.is_relative_to(FOLDER)]
    there, seen = bool(ours) and sees_gpu(), set()
    for item in ours:
        item.add_marker(pytest.mark.timeout(600))
        if not there and ("gpu" in item.fixturenames or item.function in seen):
            item.add_marker(pytest.mark.skip(reason=WHY))
        seen.add(item.function)


@pytest.fixture(scope="session")
def gpu():
    """For tests that a CPU cannot run."""
    import torch

    return torch.device("cuda")
