"""`argosy` on a CPU that announces AMX and dies of it, as oneDNN does there.

    python lying_engine.py engine serve …      the engine
    python lying_engine.py products THREADS …  the child in which it tries products

In both processes a bfloat16 product of 8 rows or more is SIGILL unless oneDNN is capped below AMX.
"""

import os
import signal
import sys

import argosy
from argosy_engine.model.trunk import Linear

WITHOUT_AMX = ("AVX512_CORE", "AVX512_CORE_BF16", "AVX2")  # …_FP16 dies too: two steps down


def lie() -> None:
    true_product = Linear.__call__

    def product(self, x):
        capped = os.environ.get("ONEDNN_MAX_CPU_ISA") in WITHOUT_AMX
        if not capped and x.element_size() == 2 and x.shape[0] >= 8:
            os.kill(os.getpid(), signal.SIGILL)
        return true_product(self, x)

    Linear.__call__ = product


def main() -> int:
    lie()
    if sys.argv[1] == "products":
        from argosy_engine.runtime.torch import products

        return products.main(sys.argv[2:])
    from argosy_engine.runtime import cpu

    cpu.cpu_flags = lambda: {"avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}
    cpu.PROGRAM = (sys.executable, "-P", __file__, "products")
    return argosy.main()


if __name__ == "__main__":
    sys.exit(main())
