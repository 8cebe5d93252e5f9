"""The images that this release uses by default. `argosy operator run` may name others."""

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy_operator.render.common import Images

DEFAULT_ENGINE = f"ghcr.io/argosy-serving/engine:{version('argosy')}"
DEFAULT_FETCH = f"ghcr.io/argosy-serving/fetch:{version('argosy')}"
DEFAULT_GATEWAY = f"ghcr.io/argosy-serving/gateway:{version('argosy')}"


def default_images() -> "Images":
    """All of them, with the defaults of pods that an operator has whose chart sets none."""
    from argosy_operator.render.common import Images

    return Images(DEFAULT_ENGINE, DEFAULT_GATEWAY, fetch=DEFAULT_FETCH)
