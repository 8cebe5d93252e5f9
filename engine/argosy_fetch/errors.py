"""Why a model was not fetched: `FetchError`, whose reason becomes a condition of the fleet."""

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


class FetchError(Exception):
    """The model cannot be fetched. `message` names what was asked, and says why."""

    def __init__(self, reason: FetchReason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason: FetchReason = reason
        self.message = message
