"""The thresholds that rivals run with. A rival that is not here has its own defaults."""

from collections.abc import Mapping

CHOSEN: Mapping[str, Mapping[str, float]] = {}
