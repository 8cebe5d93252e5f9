"""The page of what other engines do, and of the tests that say whether ours does it.

A test belongs to number N if its name begins with `test_tN_`. The rest of its name is the sentence
that it holds.
"""

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["BEHAVIOURS", "page", "shown_by"]

TESTS = Path(__file__).resolve().parents[1] / "tests"

BEHAVIOURS: Mapping[int, str] = {
    1: "requests are added, end and are aborted in every state",
    2: "all that fit into the budget of a step are computed together",
    3: "three prompts of 800 tokens in steps of 1024 and chunks of 400",
    4: "the example of TensorRT-LLM's page on in-flight batching",
    5: "no decode waits for a prompt",
    6: "prefill first: no step has both",
    7: "every way to end: end of sequence, stop ids, `max_tokens`, context, `min_tokens`",
    8: "preemption takes the lowest priority",
    9: "first come, first served: preemption takes the last, which resumes before later ones",
    10: "what a preempted request had in a step goes to others",
    11: "nothing is admitted in a step that preempted",
    12: "prompts that are longer than a step, or than the pool",
    13: "what each capacity policy promises of preemptions",
    14: "a prompt waits for an equal one that is being computed",
    15: "short and long prompts share a step",
    16: "prefix cache: numbers of blocks, sharing, order in which they are given away",
    17: "prefix cache: the one used longest ago goes first",
    18: "prefix cache: of a prompt that is cached whole something is computed",
    19: "prefix cache: salts separate",
    20: "prefix cache: only full blocks are found",
    21: "prefix cache: reset only when nothing runs",
    22: "prefix cache: an aborted prompt leaves only what was computed",
    23: "handover: prefill keeps its blocks until they are released",
    24: "handover: a block that is not full is handed over",
    25: "handover: what prefill had cached is handed over, too",
    26: "handover: pulled and local requests beside each other",
    27: "handover: blocks that have not come are not found",
    28: "handover: decode computes nothing of what it was given",
    29: "handover: KV that arrives at a full engine waits",
    30: "handover: an engine that cannot receive does not ask",
    31: "handover: a client that leaves at any time leaves nothing",
    32: "handover: the end of a lease during and after a send",
    33: "handover: prefill dies at any point, and the text stays",
    34: "handover: decode dies, and prefill's blocks become free",
    35: "handover: late and repeated messages change nothing",
    36: "handover: an engine that has started anew does not know old tickets",
    37: "handover: engines whose KV does not fit refuse each other and say why",
    38: "handover: whose error reaches the client, and which one is tried elsewhere",
    39: "handover: a failed load leaves nothing in the prefix cache",
    40: "handover: a pulled request that is preempted keeps its text",
    41: "the logits are those of Hugging Face's models in float32",
    42: "a greedy text is the same alone, in a batch, in chunks, from the prefix cache, after a "
    "preemption, and with prefill and decode apart",
    43: "a sampled text with a seed is, too",
    44: "the greedy text is that of Hugging Face's `generate`",
    45: "streams: role, content, reason, usage, end; characters, stop texts and probabilities over "
    "several events; several choices; a client that leaves",
    46: "OpenAI's Python package, unmodified",
    47: "a full queue is 429, a draining engine 503 and not ready",
    48: "load generators and evaluations, unmodified",
    49: "metrics: vLLM's names and edges; intervals add up; goodput is joint and its search finds "
    "a known rate",
    50: "tensor parallelism changes no text",
    51: "a simulated engine takes the steps of a real one",
}
"""Number → what vLLM's, SGLang's or TensorRT-LLM's own tests and pages say, or what clients expect
of any engine."""


def shown_by() -> dict[int, list[tuple[str, str]]]:
    """Number → (file below `tests/`, name of the test), in the order of the files."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for number, name in re.findall(
            r"^(?:async )?def test_t(\d+)_(\w+)\(", path.read_text(), re.M
        ):
            found.setdefault(int(number), []).append((str(path.relative_to(TESTS)), name))
    return found


def page() -> str:
    """One row a number, with its tests by file."""
    parts = [
        "# What other engines do, test by test\n",
        "The tests of a number are run with `pytest tests -k test_t14_`. The name of a test says "
        "what it shows.\n",
        "| number | what is expected | shown by |",
        "|---|---|---|",
    ]
    known = shown_by()
    for number, words in BEHAVIOURS.items():
        files: dict[str, list[str]] = {}
        for file, name in known.get(number, []):
            files.setdefault(file, []).append(name.replace("_", " "))
        shown = "; ".join(f"`{file}`: {', '.join(names)}" for file, names in files.items())
        parts.append(f"| T{number} | {words} | {shown or 'nothing yet'} |")
    return "\n".join(parts) + "\n"
