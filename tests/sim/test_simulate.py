"""`argosy simulate`, as a user runs it, on a small trace: figures, repetition, and refusals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from argosy_law.decision import Rule
from argosy_law.sim import cli, hindsight, traces
from argosy_law.sim.flags import FIGURES

TRACE = Path(__file__).with_name("ramp.csv")
ARGOSY = Path(sys.executable).with_name("argosy")


def arguments(out: Path, **flags: str) -> list[str]:
    given = {
        "trace": str(TRACE),
        "warmup": "60",
        "profile": "llama-70b-h100-tp4",
        "cold": "60",
        "ttft": "1",
        "tpot": "0.06",
        "policy": "static:1,1",
        "out": str(out),
    } | {name.replace("_", "-"): value for name, value in flags.items()}
    return [word for name, value in given.items() for word in (f"--{name}", value)]


def simulated(out: Path, **flags: str) -> dict[str, Any]:
    """The result of a real process."""
    done = subprocess.run(
        [ARGOSY, "simulate", *arguments(out, **flags)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, **flags: str) -> str:
    """What the command says, which has written nothing."""
    out = tmp_path / "refused.json"
    assert cli.main(arguments(out, **flags)) == 2
    assert not out.exists()
    said = capsys.readouterr().err
    assert said.startswith("argosy simulate: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.slow
def test_the_result_has_the_figures_of_the_table_and_equal_seeds_give_equal_ones(
    tmp_path: Path,
) -> None:
    first = simulated(tmp_path / "1.json", policy="goodput", seed="3")
    second = simulated(tmp_path / "2.json", policy="goodput", seed="3")
    assert list(first) == list(FIGURES)
    assert first.pop("wall_s") > 0
    assert second.pop("wall_s") > 0
    assert first == second
    counted = sum(float(row.split(",")[0]) >= 60 for row in TRACE.read_text().split()[1:])
    assert first["requests"] == counted
    assert 0.5 < first["attainment"] <= min(first["attainment_ttft"], first["attainment_tpot"]) <= 1
    assert 0 < first["gpu_hours_physical"] < first["gpu_hours_static"]
    assert first["requests_killed"] == 0


@pytest.mark.slow
def test_the_simulator_needs_no_package_of_the_other_programs(tmp_path: Path) -> None:
    argv = ["argosy", "simulate", *arguments(tmp_path / "out.json", policy="goodput")]
    script = (
        "import sys\n"
        f"sys.argv = {argv!r}\n"
        "from argosy import main\n"
        "try:\n    main()\n"
        "except SystemExit as done:\n    assert done.code == 0, done\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "pydantic" not in loaded
    assert "argosy_operator" not in loaded
    assert not loaded & {
        "kopf", "kubernetes", "httpx", "torch", "numpy", "typer", "yaml", "starlette", "uvicorn",
        "argosy_engine", "argosy_gateway", "prometheus_client",
    }  # fmt: skip


def test_a_schedule_has_its_replicas_ready_when_it_opens(tmp_path: Path) -> None:
    trace = traces.read(str(TRACE), TRACE.read_text().splitlines(), most_tokens=10**6)
    flags = arguments(tmp_path / "x.json", policy="goodput", schedules="5 0 * * *; 2m; 7,8")
    options = cli.parse(flags)
    run = cli.play(options, trace, {"prefill": 1, "decode": 1})
    for role, least in (("prefill", 7), ("decode", 8)):
        pods = run.world.pods[role]
        at_start = [p for p in pods if p.ready_at <= 300 < p.gone_at]
        assert len(at_start) >= least
        assert min(p.created_at for p in pods[1:]) < 300 - 60
    assert {t.rule for d in run.decisions for t in d.targets} >= {Rule.SCHEDULE}


def test_a_known_constant_fleet_is_not_searched_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    assert cli.main(arguments(first, policy="goodput")) == 0
    searched = json.loads(first.read_text())
    monkeypatch.setattr(hindsight, "smallest", lambda *_, **__: pytest.fail("it searched"))
    flags = {
        "static": searched["replicas_static"],
        "static-same-engine": searched["replicas_static_same_engine"],
    }
    assert cli.main(arguments(second, policy="goodput", **flags)) == 0
    given = json.loads(second.read_text())
    assert given.pop("wall_s") > 0
    assert given == {name: searched[name] for name in given}
    assert cli.main(arguments(second, **{"static": "7,3", "static-same-engine": "2,3"})) == 0
    other = json.loads(second.read_text())
    assert (other["replicas_static"], other["replicas_static_same_engine"]) == ("7,3", "2,3")
    assert other["gpu_hours_static"] == 2 * other["gpu_hours_static_same_engine"]


@pytest.mark.parametrize("error", ["0.8", "1.2", "none"])
def test_the_laws_prior_may_be_wrong_or_absent(error: str) -> None:
    prior = cli.parse(arguments(Path("out"), policy="goodput", profile_error=error)).goals.prior
    if error == "none":
        assert prior is None
    else:
        assert prior is not None
        true = cli.parse(arguments(Path("out"))).setup.replica.profile
        assert prior.prefill_s(1000) == pytest.approx(float(error) * true.prefill_s(1000))
        assert prior.step_s(10, 5000) == pytest.approx(float(error) * true.step_s(10, 5000))
        assert prior.kv_tokens == true.kv_tokens


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"policy": "nonsense"}, "keda, wva, or static:P,D"),
        ({"policy": "static:0,3"}, "each from 1 to 1000"),
        ({"start": "1,1"}, "static:P,D has its replicas in --policy"),
        ({"policy": "goodput", "start": "1"}, "--start 1: write prefill and decode replicas"),
        ({"order": "random"}, "write one of fifo, deadline"),
        ({"first_token": "auto"}, "--first-token auto is chosen by the operator's law"),
        ({"rates": "w.csv"}, "give either --trace, or both --rates and --lengths"),
        ({"scale": "0"}, "--scale 0: write a number from 0.01 to 10000"),
        ({"tpot": "fast"}, "--tpot fast: write a number"),
        ({"goal": "1"}, "--goal 1: write a number from 0.01 to 0.999"),
        ({"warmup": "-5"}, "--warmup -5: write a number of at least 0"),
        ({"warmup": "300"}, "no request would count"),
        ({"seed": "1.5"}, "--seed 1.5: write a whole number of at least 0"),
        ({"scrape_loss": "1"}, "--scrape-loss 1: write a number from 0 to 0.99"),
        ({"outage": "600"}, "--outage 600: write when it begins and how long it is"),
        ({"outage": "1,0"}, "in seconds, such as 600,120"),
        ({"trace": "/nowhere.csv"}, "/nowhere.csv: No such file"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_write(
    flags: dict[str, str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert words in refused(capsys, tmp_path, **flags)


def test_a_bad_trace_is_refused_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,1000000,5\n")
    said = refused(capsys, tmp_path, trace=str(bad))
    assert f"{bad}, line 3: 1000000 + 5 tokens do not fit" in said
    bad.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n0,\xff,5\n")
    assert f"{bad}, line " in refused(capsys, tmp_path, trace=str(bad))
    bad.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n100,10,5\n")
    assert "cached_prefix_tokens" in refused(capsys, tmp_path, trace=str(bad), prefix="ideal")


def test_a_table_of_rates_is_played_with_the_lengths_of_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, table = tmp_path / "out.json", tmp_path / "rates.csv"
    table.write_text("t_s,req_per_s\n0,2\n150,4\n300,2\n")
    flags = ["--rates", str(table), "--lengths", str(TRACE), *arguments(out)[2:]]
    assert cli.main(flags) == 0
    result = json.loads(out.read_text())
    assert result["requests"] == pytest.approx(900 - 60 * 2.4, rel=0.15)
    table.write_text("t_s,req_per_s\n0,2\n150,nan\n")
    assert cli.main(flags) == 2
    assert f"{table}, line 3: req_per_s is nan" in capsys.readouterr().err
