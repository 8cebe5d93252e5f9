"""A graph without a GPU: the calls that were captured, on the tensors that they had.

`Tape.capture` records each operator of torch and each Triton kernel with its arguments. A replay
calls them again, and no Python of the step: whatever the step read from Python stays what it was at
the capture. As on a GPU, results come to where they were at the capture.

A capture fails with a RuntimeError where a GPU's would fail or read freed memory: if it asks the
device a question, or reads a tensor that neither belongs to one of the `owners` nor was computed in
the capture. A replay fails if an owner has other memory than it had.
"""

from collections.abc import Iterable, Mapping

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

QUESTIONS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal")
"""Operators whose result, or whose shape, the host waits for."""
INDEXED = ("index", "index_put", "index_put_", "_unsafe_index")


class Questions(TorchDispatchMode):
    """Collects what makes a host wait for its device: numbers, and shapes that depend on them."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in QUESTIONS:
            self.asked.append(name)
        return func(*args, **(kwargs or {}))


class Tape:
    """Captures what reads and writes the tensors of `owners`, found through their attributes.

    Kernels of an owner's attribute `_kernels` are recorded, too.
    """

    def __init__(self, *owners):
        self._owners = [*owners]
        self.graphs = []
        for owner in owners:
            if hasattr(owner, "_kernels"):
                owner._kernels = _Kernels(self, owner._kernels)
        self._recording = None

    def keep(self, owner):
        """Let captures read its tensors, too."""
        if not any(one is owner for one in self._owners):
            self._owners.append(owner)

    def capture_step(self, compute):
        """As `capture`, of a method of an object that keeps its own tensors."""
        self.keep(compute.func.__self__)
        return self.capture(compute)

    def capture(self, compute):
        recording = _Recording({_place(one) for one in tensors_of(self._owners)})
        self._recording = recording
        try:
            with recording:
                compute()
        finally:
            self._recording = None
        graph = _Graph(self._owners, recording)
        self.graphs.append(graph)
        return graph

    def launched(self, kernel, grid, args, kwargs):
        with _disable_current_modes():
            if self._recording is None:
                kernel[grid](*args, **kwargs)
            else:
                self._recording.call(kernel[grid], args, kwargs)


class _Kernels:
    def __init__(self, tape, kernels):
        self._tape, self._module = tape, kernels

    def __getattr__(self, name):
        return _Kernel(self._tape, getattr(self._module, name))


class _Kernel:
    def __init__(self, tape, kernel):
        self._tape, self._kernel = tape, kernel

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self._tape.launched(self._kernel, grid, args, kwargs)


class _Recording(TorchDispatchMode):
    def __init__(self, owned):
        super().__init__()
        self.calls = []
        self.outside = set()  # owners' memory that the calls name
        self._owned, self._made = owned, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        # An index of booleans has as many rows as there are of them that are true.
        masks = name in INDEXED and any(one.dtype is torch.bool for one in _tensors(args[1]))
        if masks or name in QUESTIONS:
            raise RuntimeError(f"a captured step asks its device a question: {func}")
        return self.call(func, args, kwargs or {})

    def call(self, func, args, kwargs):
        read = {_place(one) for one in _tensors((args, kwargs))}
        strange = read - self._owned - self._made
        if strange:
            raise RuntimeError(f"a captured step reads memory without an owner: {func}")
        self.outside |= read - self._made
        with _disable_current_modes():
            found = func(*args, **kwargs)
        results = _tensors(found)
        self._made |= {_place(one) for one in results} - self._owned
        self.calls.append((func, args, kwargs, [(one, _place(one) in read) for one in results]))
        return found


class _Graph:
    def __init__(self, owners, recording):
        self._owners, self._calls = owners, recording.calls
        self._outside = recording.outside
        self.replays = 0

    @torch.inference_mode()
    def replay(self):
        self.replays += 1
        moved = self._outside - {_place(one) for one in tensors_of(self._owners)}
        assert not moved, "an owner has other memory than at the capture"
        for func, args, kwargs, results in self._calls:
            found = _tensors(func(*args, **kwargs))
            for now, (then, shared) in zip(found, results, strict=True):
                if not shared:
                    then.copy_(now)


def _tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _place(tensor):
    """What names its memory; oneDNN's tensors have no address."""
    if tensor.layout is torch._mkldnn:
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def tensors_of(owners):
    """All tensors that are reached through attributes and containers."""
    seen, left = set(), list(owners)
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, Mapping):
            left.extend(one.values())
        elif isinstance(one, Iterable) and not isinstance(one, str | bytes):
            if isinstance(one, list | tuple | set | frozenset):
                left.extend(one)
        elif type(one).__module__.startswith(("argosy_engine", "tests", "engine_torch", "test_")):
            left.extend(vars(one).values() if hasattr(one, "__dict__") else ())
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            left.extend(getattr(one, name) for name in slots if hasattr(one, name))
