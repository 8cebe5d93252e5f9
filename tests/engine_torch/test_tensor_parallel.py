"""Two ranks of tensor parallelism beside one: the same logits, the same texts.

The second rank is a process of its own, as in an engine.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, NewRequest, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan, flatten  # noqa: E402
from argosy_engine.errors import LoadError, RankLostError  # noqa: E402
from argosy_engine.model.share import Share  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402
from argosy_engine.runtime.loop import move_kv  # noqa: E402
from argosy_engine.runtime.torch.ranks import processes  # noqa: E402
from argosy_engine.runtime.torch.ranks.processes import (  # noqa: E402
    Kind,
    Ranks,
    for_ranks,
    pack_step,
    receive,
    send,
    step_of,
)
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from argosy_engine.server.serve import _scheduler  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine.processes import eventually  # noqa: E402
from tests.engine_torch.engines import engine  # noqa: E402

BLOCK, ROOMY, CROWDED, SLOTS = 16, 40, 12, 20
TOKENS = [5 + (at * at * 7) % 240 for at in range(45)]
CHUNKS = (13, 24, *[1] * 8)  # a prompt in two parts, then decodes
MODELS = {
    "Llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "Qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 24},
    "Qwen2 with one KV head": {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 1},
}
"""Qwen3 normalises q and k, Qwen2 has biases. 259 tokens are not even, so the heads differ."""


def write_model(folder, **options):
    """Random weights of two layers."""
    write_tiny(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"tie_word_embeddings": False, **options}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for name, shape in shapes_of(config).items():
        drawn = torch.randn(shape, generator=generator)
        # Matrices that carry the context on; norms and biases that are not all the same.
        weights[name] = drawn * 2 * shape[1] ** -0.5 if len(shape) == 2 else 1 + 0.3 * drawn
    save_file(weights, folder / "model.safetensors")
    return folder


def shapes_of(config):
    """Every tensor that one of MODELS reads."""
    hidden, inner, dim = (config[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "lm_head.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for at in (f"model.layers.{index}." for index in range(config["num_hidden_layers"])):
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
            shapes[f"{at}self_attn.{name}_norm.weight"] = (dim,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, q)
        shapes[f"{at}mlp.gate_proj.weight"] = shapes[f"{at}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{at}input_layernorm.weight"] = (hidden,)
        shapes[f"{at}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def config_of(folder, ranks, **options):
    return EngineConfig(
        model=str(folder),
        served_name="m",
        tensor_parallel_size=ranks,
        **{
            "dtype": "float32",
            "compute": "torch",
            "threads": 1,
            "block_size": BLOCK,
            "kv_cache_tokens": ROOMY * BLOCK,
            "max_num_batched_tokens": 64,
            "preemption_mode": "swap",
            **options,
        },
    )


@contextlib.contextmanager
def loaded(config):
    """The runner of a model; its other ranks end with the block."""
    size = config.tensor_parallel_size
    ranks = Ranks(size, on_lost=lambda _: None) if size > 1 else None
    try:
        runner, _ = load(for_ranks(config), ranks)
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise
    yield runner
    runner.close()


def plan_of(chunks):
    return StepPlan(
        index=1,
        chunks=chunks,
        block_size=BLOCK,
        prefill_tokens=sum(chunk.count for chunk in chunks),
        prefill_sequences=len(chunks),
        decode_sequences=0,
        decode_context_tokens=0,
        after_idle=True,
    )


def logits_of(runner):
    """Of the last token of each of CHUNKS."""
    found, start = [], 0
    for count in CHUNKS:
        chunk = Chunk(
            request_id="r",
            tokens=TOKENS,
            block_table=to_table([7, 2, 5]),
            start=start,
            count=count,
            samples=True,
            decode=count == 1,
            sampling=SamplingParams(max_tokens=1),
        )
        flat = flatten(plan_of((chunk,)))
        found.append(runner.trunk.logits(flat, runner._pool).clone())
        start += count
    return torch.cat(found)


def texts_of(runner, config):
    """(texts of four requests, every second one sampled; how many preempted ones were swapped)."""
    layout = runner.kv_layout()
    block_gib = layout.block_bytes * layout.copies / (1 << 30)
    config = config_of(
        config.model,
        config.tensor_parallel_size,
        kv_cache_tokens=config.kv_cache_tokens,
        swap_space=block_gib * (SLOTS + 0.5),
    )
    runner.reserve_host(SLOTS)
    scheduler = _scheduler(config, runner)
    sequences = [
        scheduler.add(
            NewRequest(
                request_id=f"r{index}",
                token_ids=[5 + (index * 31 + at * 7) % 200 for at in range(20 + 9 * index)],
                sampling=SamplingParams(
                    max_tokens=60, temperature=float(index % 2), seed=index, ignore_eos=True
                ),
                arrival_s=0.0,
            )
        )
        for index in range(4)
    ]
    swapped = 0
    while scheduler.sequences:
        scheduled = scheduler.schedule(0.0)
        swapped += sum(bool(one.swapped) for one in scheduled.preempted)
        move_kv(runner, scheduled, lambda *_: None)
        if scheduled.plan is not None:
            scheduler.update(scheduled.plan, runner.execute(scheduled.plan), 0.0)
    return [sequence.tokens for sequence in sequences], swapped


def greedy_text(folder, prompt, count):
    """Of one rank."""
    config = config_of(folder, 1)
    runner, tokenizer = load(config)
    scheduler, ids = _scheduler(config, runner), tokenizer.encode(prompt)
    greedy = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    asked = scheduler.add(NewRequest(request_id="r", token_ids=ids, sampling=greedy, arrival_s=0.0))
    while scheduler.sequences:
        plan = scheduler.schedule(0.0).plan
        scheduler.update(plan, runner.execute(plan), 0.0)
    runner.close()
    return tokenizer.decode(asked.tokens[-count:])


@dataclass(frozen=True)
class Found:
    logits: torch.Tensor
    texts: list[list[int]]
    swapped: int


def found_with(folder, ranks, blocks):
    config = config_of(folder, ranks, kv_cache_tokens=blocks * BLOCK)
    with loaded(config) as runner:
        runner.warm_up()
        return Found(logits_of(runner), *texts_of(runner, config))


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """One rank with room for all, and two with so little that requests are swapped."""
    folder = write_model(tmp_path_factory.mktemp("ranks") / "model", **MODELS[request.param])
    return found_with(folder, 1, ROOMY), found_with(folder, 2, CROWDED)


def test_t50_two_ranks_compute_the_logits_of_one(both):
    one, two = both
    assert two.logits.shape == one.logits.shape
    assert (two.logits - one.logits).abs().max() < 1e-5 * one.logits.abs().max()


def test_t50_texts_of_two_ranks_are_those_of_one_greedy_sampled_and_swapped(both):
    one, two = both
    assert (one.swapped, two.swapped > 0) == (0, True)
    assert all(len(set(text)) > 20 for text in one.texts)  # says something
    assert two.texts == one.texts


# ----------------------------------------------------------------- an engine


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def is_over(pid):
    """Gone, or dead and not yet waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_t50_an_engine_of_two_ranks_answers_and_ends_by_name_when_one_is_killed(tmp_path):
    model, told = write_tiny(tmp_path / "tiny"), tmp_path / "told"
    options = ("--tensor-parallel-size", "2", "--termination-message", str(told))
    with engine(model, "colocated", tmp_path / "log", *options) as two:
        text = two.complete("what two ranks say", 20)
        (rank,) = children_of(two.pid)
        os.kill(rank, signal.SIGKILL)
        eventually(lambda: is_over(two.pid))
    assert json.loads(told.read_text()) == {
        "reason": "RankLost",
        "message": f"rank 1 (process {rank}) ended: SIGKILL",
    }
    assert text == greedy_text(model, "what two ranks say", 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_t50_no_rank_outlives_the_engine(tmp_path, number):
    model = write_tiny(tmp_path / "tiny")
    options = ("--tensor-parallel-size", "2", "--load-format", "dummy")
    with engine(model, "colocated", tmp_path / "log", *options) as two:
        (rank,) = children_of(two.pid)
        os.kill(two.pid, number)
        eventually(lambda: is_over(two.pid) and is_over(rank))


# ----------------------------------------------------------------- what cannot be


def test_sizes_that_do_not_divide_are_refused_with_the_sizes(tmp_path):
    changed = {"num_attention_heads": 6, "intermediate_size": 130, "num_key_value_heads": 6}
    spec = read_spec(write_model(tmp_path / "model", **changed))
    with pytest.raises(LoadError) as refused:
        Share(0, 4).of_model(spec)
    assert refused.value.message == (
        "--tensor-parallel-size 4: the model has 6 attention heads and 130 rows of gate and up and "
        "6 KV heads, which 4 ranks cannot share evenly: write a size that divides them"
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compute": "native"}, "--compute native is for engines of one rank"),
        ({"compute": "auto", "quantization": "int8"}, "--quantization int8 is for"),
    ],
)
def test_what_only_one_rank_does_is_refused_by_name(tmp_path, options, named):
    with pytest.raises(LoadError) as refused:
        for_ranks(config_of(tmp_path, 2, **options))
    assert named in refused.value.message
    assert "--tensor-parallel-size is 2" in refused.value.message


# ----------------------------------------------------------------- what a rank holds and is sent


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"), [(4, 2, 2), (8, 2, 4), (8, 8, 4), (6, 1, 3), (12, 4, 2)]
)
def test_each_query_head_finds_its_kv_head_on_its_own_rank(tmp_path, heads, kv_heads, ranks):
    changed = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    whole = replace(read_spec(write_model(tmp_path / "model", **changed)), inner=96)
    for rank in range(ranks):
        share = Share(rank, ranks)
        part, rows = share.of_model(whole), share.of_kv(whole)
        assert rows.stop - rows.start == part.kv_size
        for own in range(part.heads):
            kv_head = rows.start // whole.head_dim + own * part.kv_heads // part.heads
            assert kv_head == (rank * part.heads + own) * kv_heads // heads


chunks = st.tuples(st.integers(0, 40), st.integers(1, 9), st.booleans())


@given(st.lists(chunks, min_size=1, max_size=6))
def test_a_rank_is_sent_all_that_its_part_of_a_step_needs(asked):
    made = tuple(
        Chunk(
            request_id=f"r{index}",
            tokens=[(index * 97 + at) % 251 for at in range(start + count)],
            block_table=to_table(range(index * 20, index * 20 + 20)),
            start=start,
            count=count,
            samples=samples,
            decode=False,
            sampling=SamplingParams(max_tokens=1),
        )
        for index, (start, count, samples) in enumerate(asked)
    )
    flat = flatten(plan_of(made))
    sent, received = socket.socketpair()
    with sent, received:
        send(sent, Kind.STEP, pack_step(flat))
        kind, numbers = receive(received)
    empty = ("sample_positions", "sampling", "histories", "n_prompts", "request_ids")
    assert kind is Kind.STEP
    assert step_of(numbers) == replace(flat, **{name: [] for name in empty})


# ----------------------------------------------------------------- how a rank ends

HEARD = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]));"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("sys.exit(3)", (RankLostError, "ended: exit status 3")),
        ("import os; os.kill(os.getpid(), 9)", (RankLostError, "ended: SIGKILL")),
        (
            """s.sendall(b'{"reason": "OutOfMemory", "message": "lower it"}')""",
            (LoadError, "OutOfMemory: rank 1: lower it"),
        ),
        (
            """s.sendall(b'{"reason": "", "message": "KeyError(1)"}')""",
            (RankLostError, "rank 1: KeyError(1)"),
        ),
    ],
)
def test_why_a_rank_ended_is_told_once(monkeypatch, ends, expected):
    monkeypatch.setattr(processes, "PROGRAM", (sys.executable, "-c", HEARD + ends))
    lost = []
    ranks = Ranks(2, lost.append)
    eventually(lambda: lost)
    with pytest.raises(expected[0]) as failure:
        ranks.fail(RuntimeError("connection closed"))
    ranks.close()
    assert expected[1] in str(failure.value)
    assert lost == [failure.value]
