"""Real engines that compute with torch on a CPU whose AMX kills, and the products on this one."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.runtime import cpu  # noqa: E402
from argosy_engine.runtime.torch import runner  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_torch.engines import engine  # noqa: E402

LYING = (
    "-P",
    str(Path(__file__).parent / "lying_engine.py"),
)


def test_an_engine_serves_bfloat16_on_a_cpu_that_dies_of_its_announced_amx(tmp_path, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    model, log = write_tiny(tmp_path / "tiny"), tmp_path / "log"
    options = ("--compute", "torch", "--dtype", "bfloat16")
    with engine(model, "colocated", log, *options, program=LYING) as lying:
        lying.complete("sixteen bytes of prompt and some more", 12)
        info = 'argosy_engine_info{cpu_isa="AVX512_CORE_BF16",dtype="bfloat16"}'
        assert lying.metric(info) == 1
    said = [line for line in log.read_text().splitlines() if "ONEDNN_MAX_CPU_ISA" in line]
    assert len(said) == 1
    assert "DEFAULT (SIGILL), AVX512_CORE_FP16 (SIGILL)" in said[0]


@pytest.fixture
def narrow(tmp_path):
    """A folder whose checkpoint is bfloat16, by its config."""
    folder = write_tiny(tmp_path / "tiny")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"torch_dtype": "float32"', '"dtype": "bfloat16"'))
    return folder


def start(folder, dtype):
    config = EngineConfig(
        model=str(folder),
        served_name="m",
        compute="torch",
        dtype=dtype,
        threads=1,
        kv_cache_tokens=512,
    )
    return runner.load(config)[0]


@pytest.mark.parametrize(("faster", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_auto_takes_the_type_that_is_faster_here(narrow, monkeypatch, faster, dtype):
    found = cpu.Cpu("DEFAULT", bfloat16_works=True, bfloat16_faster=faster)
    monkeypatch.setattr(cpu._Process, "settled", found)
    assert start(narrow, "auto").facts == {"cpu_isa": "DEFAULT", "dtype": dtype}
