"""Masks of the grammars of a step's rows, made in a thread while the model computes.

The tokens before a draw are known when its step begins, so no step waits for a mask.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from argosy_engine.core.step import FlatBatch
from argosy_engine.core.tokenizer import Grammars
from argosy_engine.errors import GrammarError

__all__ = ["Masks"]

Made = tuple[dict[int, bytes], dict[int, str]]
"""By row: masks, and why there is none."""


class Masks:
    """One runner's."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def begin(self, flat: FlatBatch) -> "Future[Made] | None":
        """None if no row has a grammar. The rows' tokens must not change until it is done."""
        rows = [row for row, params in enumerate(flat.sampling) if params.grammar]
        return self._thread.submit(self._make, flat, rows) if rows else None

    def close(self) -> None:
        self._thread.shutdown()

    def _make(self, flat: FlatBatch, rows: Sequence[int]) -> Made:
        masks: dict[int, bytes] = {}
        failed: dict[int, str] = {}
        for row in rows:
            params = flat.sampling[row]
            output = flat.histories[row][flat.n_prompts[row] - params.sent :]
            try:
                assert self._grammars is not None
                masks[row] = self._grammars.mask(flat.request_ids[row], params.grammar, output)
            except GrammarError as error:
                failed[row] = str(error)
            except BaseException as error:  # a panic in Rust is no Exception
                failed[row] = f"the answer cannot go on: {error}"
        return masks, failed
