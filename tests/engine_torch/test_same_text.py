"""One request's text does not depend on its company, its chunks or the prefix cache.

tests/engine_torch/test_preemption.py has preemptions, test_handover.py prefill and decode apart.
"""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import NewRequest  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from argosy_engine.server.serve import _scheduler  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

PROMPT = [5 + (at * at * 7) % 250 for at in range(150)]
OTHERS = [[5 + (at * 31 + other * 17) % 250 for at in range(40 + 25 * other)] for other in range(5)]
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, top_p=0.95, seed=11)
WAYS = {
    "beside others": {"before": OTHERS[:2], "beside": OTHERS[2:]},
    "in chunks": {"step_tokens": 32},
    "in chunks beside others": {"step_tokens": 48, "beside": OTHERS},
    "from the prefix cache": {"before": [PROMPT]},
    "half from the prefix cache, in chunks": {"before": [PROMPT[:80]], "step_tokens": 32},
}


@pytest.fixture(scope="module", params=["native", "torch"])
def config(request, tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("same") / "tiny")
    return EngineConfig(
        model=str(folder),
        served_name="m",
        dtype="float32",
        compute=request.param,
        threads=1,
        block_size=16,
        kv_cache_tokens=2048,
        max_num_batched_tokens=1024,
    )


class Serving:
    """A loaded engine without its threads; each step is computed at once."""

    def __init__(self, config):
        self.runner, _ = load(config)
        self.scheduler = _scheduler(config, self.runner)
        self.likely = {}
        self.prompt_likely = {}

    def add(self, name, tokens, sampling):
        request = NewRequest(
            request_id=name, token_ids=list(tokens), sampling=sampling, arrival_s=0.0
        )
        return self.scheduler.add(request)

    def finish(self):
        while self.scheduler.sequences:
            plan = self.scheduler.schedule(0.0).plan
            out = self.runner.execute(plan)
            for name, told in out.prompt_likely.items():
                self.prompt_likely.setdefault(name, {}).update(told)
            self.scheduler.update(plan, out, 0.0)


def text(config, sampling, *, before=(), beside=(), step_tokens=1024):
    """(the output of PROMPT, the tokens of it that were found in the cache)"""
    engine = Serving(replace(config, max_num_batched_tokens=step_tokens))
    for index, tokens in enumerate(before):
        engine.add(f"before {index}", tokens, GREEDY)
    engine.finish()
    for index, tokens in enumerate(beside):
        engine.add(f"beside {index}", tokens, replace(SAMPLED, seed=index))
    asked = engine.add("asked", PROMPT, sampling)
    engine.finish()
    engine.runner.close()
    return asked.tokens[len(PROMPT) :], asked.cached_tokens


@pytest.mark.parametrize("way", WAYS)
def test_t42_no_company_chunk_or_cache_changes_a_greedy_text(config, way):
    alone, _ = text(config, GREEDY)
    found, cached = text(config, GREEDY, **WAYS[way])
    assert len(set(alone)) > 5  # says something
    assert found == alone
    assert (cached > 0) == ("cache" in way)


def test_t42_steps_that_the_engine_sizes_itself_give_the_same_text(config):
    """As it does on a CPU unless told otherwise: a long batch of prompts takes several steps."""
    chosen = Serving(replace(config, max_num_batched_tokens=None))
    assert chosen.scheduler.limits.auto_tokens
    assert chosen.scheduler.step_limits().max_num_batched_tokens == 256
    chosen.runner.close()
    alone, _ = text(config, GREEDY)
    assert text(config, GREEDY, beside=OTHERS, step_tokens=None)[0] == alone


@pytest.mark.parametrize("way", WAYS)
def test_t43_no_company_chunk_or_cache_changes_a_sampled_text(config, way):
    alone, _ = text(config, SAMPLED)
    assert text(config, SAMPLED, **WAYS[way])[0] == alone
    assert text(config, replace(SAMPLED, seed=12))[0] != alone


def told(config, step_tokens, beside):
    """Log probability of each token of PROMPT but the first one."""
    engine = Serving(replace(config, max_num_batched_tokens=step_tokens))
    for index, tokens in enumerate(beside):
        engine.add(f"beside {index}", tokens, GREEDY)
    engine.add("asked", PROMPT, replace(GREEDY, max_tokens=1, prompt_logprobs=0))
    engine.finish()
    engine.runner.close()
    found = engine.prompt_likely["asked"]
    return [found[at][0][1] for at in range(1, len(PROMPT))]


@pytest.mark.parametrize("way", ["beside others", "in chunks"])
def test_t42_in_bfloat16_the_probabilities_are_close(config, way):
    """Not equal: products of other shapes add in another order, and a rounding is 0.4 %."""
    narrow = replace(config, dtype="bfloat16")
    alone = told(narrow, 1024, [])
    beside = OTHERS if way == "beside others" else []
    found = told(narrow, 1024 if beside else 32, beside)
    gaps = sorted(abs(a - b) for a, b in zip(alone, found, strict=True))
    assert gaps[-1] < 0.25
    assert gaps[len(gaps) // 2] < 0.03
