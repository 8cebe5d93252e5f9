"""`argosy operator run|crds|explain`; `kubectl argosy explain` is the same program.

`app.py` holds the typer application and `main`; each verb has a file of its own, named after it.
"""

from argosy_operator.cli.app import main

__all__ = ["main"]
