"""What is told of tokens: the model's own log probabilities, whatever shares the step."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan  # noqa: E402
from argosy_engine.runtime.torch.logprobs import Drawn, rank_likely  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

TOKENS = [5, 9, 7, 1, 30, 2, 8] * 13


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("likely") / "tiny")
    config = EngineConfig(model=str(folder), served_name="m", threads=1, kv_cache_tokens=1024)
    return load(config)[0]


def chunk(start, end, block, name="r", **asked):
    return Chunk(
        request_id=name,
        tokens=TOKENS,
        block_table=to_table(range(block, block + 4)),
        start=start,
        count=end - start,
        samples=end == len(TOKENS),
        decode=False,
        sampling=SamplingParams(max_tokens=1, **asked),
        n_prompt=len(TOKENS),
    )


def run(runner, *chunks):
    tokens = sum(one.count for one in chunks)
    plan = StepPlan(
        index=1, chunks=chunks, block_size=32, prefill_tokens=tokens,
        prefill_sequences=len(chunks), decode_sequences=0, decode_context_tokens=0, after_idle=True,
    )  # fmt: skip
    return runner.execute(plan)


def test_a_row_tells_of_its_token_and_the_likeliest():
    shares = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]).log()
    first, second = rank_likely(shares, [1, 1], [2, 0])
    assert [(token, rank) for token, _, rank in first] == [(1, 3), (0, 1), (2, 2)]
    assert [value for _, value, _ in first] == pytest.approx(shares[0, [1, 0, 2]].tolist())
    assert [(token, rank) for token, _, rank in second] == [(1, 1)]
    (wide,) = rank_likely(shares[:1], [0], [20])
    assert [token for token, _, _ in wide] == [0, 0, 2, 1]


def test_only_those_that_ask_are_told_and_later_changes_of_the_logits_do_not_count():
    logits = torch.tensor([[2.0, 1.0, 0.0, 0.0]] * 3).log()
    logits[:, 2:] = float("-inf")
    quiet, asking = SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, logprobs=1)
    drawn = Drawn(logits, [quiet, asking, quiet])
    logits[1, 0] = float("-inf")
    assert drawn.rank([0, 1, 0], ["a", "b", "c"]) == {
        "b": ((1, pytest.approx(-1.0986123), 2), (0, pytest.approx(-0.4054651), 1))
    }
    assert Drawn(logits, [quiet]).rank([1], ["a"]) == {}


def test_a_prompts_tokens_are_told_in_chunks_as_in_one_step(runner):
    ask = {"prompt_logprobs": 2, "logprobs": 1}
    whole = run(runner, chunk(0, 91, 1, **ask), chunk(0, 50, 5, "other"))
    cuts = [(0, 1), (1, 40), (40, 90), (90, 91)]
    parts = [run(runner, chunk(start, end, 1, **ask)) for start, end in cuts]
    found = {at: one for part in parts for at, one in part.prompt_likely.get("r", {}).items()}
    assert sorted(found) == list(range(1, 91)) == sorted(whole.prompt_likely["r"])
    for at, likely in whole.prompt_likely["r"].items():
        assert likely[0][0] == TOKENS[at]
        assert len(likely) == 3
        assert [token for token, _, _ in likely] == [token for token, _, _ in found[at]]
        values = [value for _, value, _ in found[at]]
        assert [value for _, value, _ in likely] == pytest.approx(values, abs=1e-4)
    assert whole.likely.keys() == {"r"}
    assert whole.likely["r"][0][0] == whole.token_ids[0] == parts[-1].token_ids[0]
    assert "other" not in whole.prompt_likely


def test_a_row_whose_own_request_excludes_every_token_is_told_apart_from_no_number(
    runner, monkeypatch
):
    compute = runner.trunk.logits

    def broken(flat, pool):
        logits = compute(flat, pool)
        logits[0] = float("nan")
        logits[3] = float("-inf")
        return logits

    monkeypatch.setattr(runner.trunk, "logits", broken)
    rows = [
        chunk(0, len(TOKENS), 1, "nan", allowed_token_ids=(5,)),
        chunk(0, len(TOKENS), 5, "excluded", allowed_token_ids=(5,), bad_words=((5,),)),
        chunk(0, len(TOKENS), 9, "fine"),
        chunk(0, len(TOKENS), 13, "minus infinity"),
        chunk(0, len(TOKENS), 17, "held", grammar="no grammar"),
    ]
    out = run(runner, *rows)
    assert out.failed.keys() == {"nan", "excluded", "minus infinity", "held"}
    assert "computed no number" in out.failed["nan"]
    assert "leave one of these out" in out.failed["excluded"]
    assert "computed no number" in out.failed["minus infinity"]
    assert out.excluded == {"excluded", "held"}
