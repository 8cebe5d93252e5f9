"""`argosy operator run|crds|explain`, and `kubectl argosy` in a folder of its own.

`app.py` holds the typer application and `main`; each verb has a file of its own, named after it.
"""

from argosy_operator.cli.app import main

__all__ = ["main"]
