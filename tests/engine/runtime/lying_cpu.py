"""The child that tries products, on a CPU that announces more than it can do; without torch.

    DEADLY=ISA:TYPE[,…] python tests/engine/runtime/lying_cpu.py THREADS ISA…

Dies of SIGILL at the products named in DEADLY; bfloat16 claims twice the speed of float32.
"""

import os
import signal
import sys

from argosy_engine.runtime.torch import products


def work(threads):
    deadly = os.environ["DEADLY"].split(",")
    for event in ({"lived": "float32"}, {"lived": "bfloat16"}, {"speedup": 2.0}):
        if f"{os.environ['ONEDNN_MAX_CPU_ISA']}:{event.get('lived')}" in deadly:
            os.kill(os.getpid(), signal.SIGILL)
        yield event


if __name__ == "__main__":
    sys.exit(products.main(sys.argv[1:], work))
