"""The images of engines and gateways of this release. `argosy operator run` may name others."""

from importlib.metadata import version

DEFAULT_ENGINE = f"ghcr.io/argosy-serving/engine:{version('argosy')}"
DEFAULT_GATEWAY = f"ghcr.io/argosy-serving/gateway:{version('argosy')}"
