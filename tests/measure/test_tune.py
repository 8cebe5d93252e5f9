"""`argosy tune` finds better limits of a live engine, writes them, and gives it its own back."""

import asyncio
import signal
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from argosy_bench.ports import free_ports
from argosy_bench.processes import Server, engine
from argosy_measure.limits import Found, Limits, Sample
from argosy_measure.tune import conclude, main, write_fragment
from argosy_operator.api.v1alpha1 import ServingDeploymentSpec

BEFORE, AFTER = Limits(256, 2048, "MAX_UTILIZATION"), Limits(64, "auto", "GUARANTEED_NO_EVICT")


def found(before: Limits, after: Limits, rates=(100.0, 200.0), attainment=1.0) -> Found:
    outcomes = {
        limits: tuple(Sample(rate + i, 1.0, 0.1, 0.02, attainment) for i in range(3))
        for limits, rate in zip((before, after), rates, strict=True)
    }
    return Found(before, after, outcomes)


@pytest.mark.parametrize(
    "after", [AFTER, Limits(64, 512, "MAX_UTILIZATION"), Limits(8, 16, "MAX_UTILIZATION")]
)
def test_the_fragment_is_part_of_a_valid_fleet(after: Limits):
    spec = yaml.safe_load(write_fragment(found(BEFORE, after)))["spec"]
    whole = ServingDeploymentSpec.model_validate({"model": {"uri": "pvc://models/m"}} | spec)
    assert whole.engine.max_num_seqs == after.max_num_seqs
    assert whole.engine.max_num_batched_tokens == after.max_num_batched_tokens
    assert (whole.engine.args != ()) == (after.capacity_policy != "MAX_UTILIZATION")


def test_only_other_limits_that_keep_the_goal_are_a_result():
    assert conclude(found(BEFORE, AFTER), 0.9)[0]
    assert conclude(found(BEFORE, AFTER, (100.0, 100.0)), 0.9)[0]
    assert not conclude(found(BEFORE, AFTER, attainment=0.5), 0.9)[0]
    assert not conclude(found(BEFORE, BEFORE, (1.0, 1.0)), 0.9)[0]


@pytest.mark.parametrize(
    "words",
    [
        ["localhost:8000"],
        ["http://h", "--repeats", "2"],
        ["http://h", "--goal", "90"],
        ["http://h", "--seqs", "4,5000"],
        ["http://h", "--tokens", "8"],
        ["http://h", "--ttft", "200"],
        ["http://h", "--restart", "vllm serve m --max-num-seqs {max_num_seqs}"],
    ],
)
def test_wrong_flags_are_refused_with_2(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_silent_server_is_3_and_a_workload_that_is_none_or_a_restart_that_cannot_be_2(tmp_path):
    out = ["--out", str(tmp_path / "t")]
    assert main(["http://127.0.0.1:9", *out]) == 3
    command = "/no/such/program {max_num_seqs} {max_num_batched_tokens}"
    assert main(["http://127.0.0.1:9", "--restart", command, *out]) == 2
    assert not (tmp_path / "t").exists()


async def begin(server: Server, out: Path, *words: str) -> asyncio.subprocess.Process:
    """Start `argosy tune` on a small load whose throughput grows with the batch."""
    given = f"""-m argosy tune {server.url} --admin http://127.0.0.1:{server.admin} --out {out}
        --workload 20,20,0 --requests 24 --repeats 3 --tokens 2048"""
    return await asyncio.create_subprocess_exec(
        sys.executable, *given.split(), *words, stderr=asyncio.subprocess.PIPE
    )


async def limits_of(server: Server) -> dict[str, object]:
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(f"http://127.0.0.1:{server.admin}/limits")).json()


@pytest.mark.slow
async def test_a_larger_batch_is_found_written_and_the_former_limits_restored(tmp_path: Path):
    async with engine("e", "--max-num-seqs", "2") as server:
        former = await limits_of(server)
        process = await begin(server, tmp_path / "t.yaml", "--seqs", "2,16")
        assert await process.wait() == 0
        assert await limits_of(server) == former
    written = yaml.safe_load((tmp_path / "t.yaml").read_text())
    assert written == {"spec": {"engine": {"maxNumSeqs": 16, "maxNumBatchedTokens": 2048}}}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_search_gives_the_engine_its_limits_back(tmp_path: Path, sent: int):
    async with engine("e", "--max-num-seqs", "9") as server:
        former = await limits_of(server)
        process = await begin(server, tmp_path / "t.yaml", "--seqs", "1,2,3")
        while (await limits_of(server))["max_num_seqs"] == 9:
            assert process.returncode is None
            await asyncio.sleep(0.05)
        process.send_signal(sent)
        assert await process.wait() == 130
        assert await limits_of(server) == former
    assert not (tmp_path / "t.yaml").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_engine_without_limits_is_started_anew_and_ended(tmp_path: Path):
    api, admin, kv = free_ports(3)
    command = f"""{sys.executable} -m argosy engine serve --model sim:opt-13b-a100 --served-name m
        --host 127.0.0.1 --port {api} --admin-port {admin} --kv-port {kv}
        --max-num-seqs {{max_num_seqs}} --max-num-batched-tokens {{max_num_batched_tokens}}"""
    server = Server("e", api, process=None, start_s=0.0, admin=admin)
    process = await begin(
        server, tmp_path / "t.yaml", "--restart", command, "--seqs-before", "2", "--seqs", "2,16"
    )
    assert await process.wait() == 0
    async with httpx.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{server.url}/health")
    engine_fields = yaml.safe_load((tmp_path / "t.yaml").read_text())["spec"]["engine"]
    assert engine_fields["maxNumSeqs"] == 16
