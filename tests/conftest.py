"""Fixtures that every folder of tests may use, and how hypothesis draws."""

import os

from hypothesis import settings

from local.cluster.fetch import use
from tests.support.cluster import cluster, namespace

__all__ = ["cluster", "namespace"]

# Tests start `ip` and `nft`, which the preflight may have unpacked into the cache.
use()

# CI draws the same examples every time, so that a submission fails for what it changed; everybody
# else's runs draw new ones. Machines are shared: an example may take long without being slow.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")
