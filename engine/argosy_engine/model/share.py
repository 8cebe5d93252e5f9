"""Which part of each matrix one rank of tensor parallelism holds, and how parts are put together.

Megatron's way: q, k, v, gate and up are cut by rows, attention's output and down by columns, so a
layer adds its ranks' results twice. Every rank has the whole embedding. The head is cut by rows,
and only the logits of sampled tokens are gathered.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from argosy.model_config import ModelSpec
from argosy_engine.errors import LoadError
from argosy_engine.model.trunk import Product

ALL = slice(None)


class Group(Protocol):
    """The ranks of one engine. Each of them makes the same calls in the same order."""

    def sum_(self, x: torch.Tensor) -> None:
        """Replace `x` by the sum of all ranks' `x`."""
        ...

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """On rank 0 all ranks' `x` in their order, of one shape; on the others nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `ranks`; counted from 0."""

    rank: int = 0
    ranks: int = 1

    def of_model(self, spec: ModelSpec) -> ModelSpec:
        """The shapes that this rank computes. LoadError if the model cannot be cut so."""
        if self.ranks == 1:
            return spec
        self._refuse_remainders(spec)
        return replace(
            spec,
            heads=spec.heads // self.ranks,
            kv_heads=max(1, spec.kv_heads // self.ranks),
            inner=spec.inner // self.ranks,
        )

    def of(self, size: int) -> slice:
        """This rank's part of a dimension that the ranks divide."""
        part = size // self.ranks
        return slice(self.rank * part, (self.rank + 1) * part)

    def kv_heads(self, spec: ModelSpec) -> slice:
        """KV heads. Where there are fewer heads than ranks, several ranks hold one."""
        if spec.kv_heads >= self.ranks:
            return self.of(spec.kv_heads)
        head = self.rank * spec.kv_heads // self.ranks
        return slice(head, head + 1)

    def of_kv(self, spec: ModelSpec) -> slice:
        """Rows of k and of v."""
        heads = self.kv_heads(spec)
        return slice(heads.start * spec.head_dim, heads.stop * spec.head_dim)

    def head_rows(self, vocab: int) -> int:
        """Rows of the head that each rank computes; the last ones may be of no token."""
        return -(-vocab // self.ranks)

    def of_head(self, vocab: int) -> slice:
        """This rank's tokens."""
        rows = self.head_rows(vocab)
        return slice(min(self.rank * rows, vocab), min((self.rank + 1) * rows, vocab))

    def _refuse_remainders(self, spec: ModelSpec) -> None:
        wrong = [
            f"{size} {what}"
            for size, what in ((spec.heads, "attention heads"), (spec.inner, "rows of gate and up"))
            if size % self.ranks
        ]
        if spec.kv_heads % self.ranks and self.ranks % spec.kv_heads:
            wrong.append(f"{spec.kv_heads} KV heads")
        if wrong:
            raise LoadError(
                "BadArgument",
                f"--tensor-parallel-size {self.ranks}: the model has {' and '.join(wrong)}, which "
                f"{self.ranks} ranks cannot share evenly: write a size that divides them",
            )


WHOLE = Share()


class Summed:
    """A matrix that is cut by columns: each rank multiplies its part of `x`, and all are added."""

    def __init__(self, part: Product, group: Group) -> None:
        self._part = part
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._part(x)
        self._group.sum_(out)
        return out


class Joined:
    """A head that is cut by rows: rank 0 gets the logits [S, vocab], the others their own part."""

    def __init__(self, part: Product, group: Group, vocab: int) -> None:
        self._part = part
        self._group = group
        self._vocab = vocab

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        own = self._part(x)
        if not len(x):  # a step that ends no prompt
            return own.new_empty(0, self._vocab)
        rows = own.shape[1]
        parts = self._group.gather(own)
        cut = [part[:, : max(0, self._vocab - at * rows)] for at, part in enumerate(parts)]
        return torch.cat(cut, dim=1) if cut else own
