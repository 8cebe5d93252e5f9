"""Why a model was not fetched: `FetchError`, whose reason becomes a condition of the fleet."""

import re
from typing import Literal

FetchReason = Literal[
    "SourceForbidden",
    "SourceNotFound",
    "SourceUnreachable",
    "OnlyPickles",
    "FilesIncomplete",
    "VolumeFull",
    "VolumeNotWritable",
    "UnsupportedArchitecture",
    "WeightsInvalid",
    "BadArgument",
]
"""Reasons of conditions of the ServingDeployment (designs/0001-seams.md §3)."""


_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""`user:password@` of a URL. The at sign of `hf://org/name@revision` comes after a slash."""


class FetchError(Exception):
    """The model cannot be fetched. `message` names what was asked, and says why.

    User and password are cut out of every URL in it: it ends in a condition of the fleet, and
    clients put the URL that they asked into their own errors.
    """

    def __init__(self, reason: FetchReason, message: str) -> None:
        self.reason: FetchReason = reason
        self.message = _USER_INFO.sub("", message)
        super().__init__(f"{reason}: {self.message}")
