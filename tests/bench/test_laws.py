"""Laws at equal attainment, the choice of thresholds, and the law without its parts."""

import json
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from xml.etree import ElementTree

import pytest

from argosy_bench.laws import ablation, changes, choose, equal, kept, page, picture
from argosy_bench.laws.ablation import PARTS
from argosy_bench.laws.choose import GRIDS, Choice
from argosy_bench.laws.kept import Kept
from argosy_bench.laws.player import Law, Player, Point
from argosy_bench.scaling import shapes
from argosy_bench.scaling.runs import PROFILE
from argosy_bench.scaling.traces import Recording
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.estimate.profiles import PRESETS
from argosy_operator.core.scaling.goals import SLO, Goals, Windows
from argosy_operator.core.scaling.size.model import Limits, model_of
from argosy_operator.core.scaling.size.work import Work
from argosy_operator.sim.reference import hindsight

RAMP = Path(__file__).parents[1] / "sim" / "ramp.csv"
SMALL = Recording("small", "ramp", 2)


@pytest.fixture
def player(tmp_path: Path) -> Player:
    (tmp_path / "ramp").mkdir()
    (tmp_path / "ramp" / "requests.csv").write_text(RAMP.read_text())
    return Player(tmp_path, tmp_path / "scratch", ("--warmup", "60"))


def point(attainment: float, cost: float) -> Point:
    return Point(attainment, 10 * cost, 10.0, 0.0)


# --- what is kept -------------------------------------------------------------------------------


def test_comments_docstrings_and_format_are_no_program() -> None:
    one = '"""About."""\nA = 1  # why\n"""Doc."""\n\n\ndef f(x):\n    """Say."""\n    return (x)\n'
    same = "A = 1\ndef f(x): return x\n"
    assert kept.program(one) == kept.program(same)
    assert kept.program(one) != kept.program(same.replace("A = 1", "A = 2"))
    assert kept.program('def f():\n    """Only a text."""\n') == kept.program("def f(): pass\n")


def test_each_policy_follows_from_code_of_its_own() -> None:
    digests = {policy: kept.code(policy) for policy in ("static", "oracle", "goodput", "keda")}
    assert len(set(digests.values())) == 4
    assert kept.code("hpa") == digests["keda"]


def test_what_is_kept_is_not_played_again_by_another_process(tmp_path: Path) -> None:
    file = tmp_path / "new" / "kept.jsonl"
    assert Kept(file).of(("a", 1), "a run", lambda: {"x": 1.5}) == {"x": 1.5}
    again = Kept(file)
    assert again.of(("a", 1), "a run", lambda: pytest.fail("played")) == {"x": 1.5}
    assert again.of(("a", 2), "another", lambda: 3) == 3
    assert [json.loads(line)["what"] for line in file.read_text().splitlines()] == [
        "a run", "another",
    ]  # fmt: skip


# --- changes ------------------------------------------------------------------------------------


def test_a_changed_constant_is_the_same_in_every_module_and_comes_back() -> None:
    names = ("size.sizing.HYSTERESIS", "size.joint.fewest", "size.sizing.fewest")
    before = [changes.value(name) for name in names]
    assert before[1] is before[2]
    with changes.changed({names[0]: 1.0, names[1]: ablation.each_alone}):
        inside = [changes.value(name) for name in names]
    assert inside == [1.0, ablation.each_alone, ablation.each_alone]
    assert [changes.value(name) for name in names] == before


def test_what_was_changed_comes_back_after_an_error() -> None:
    before = changes.value("size.sizing.HYSTERESIS")

    def failing() -> None:
        with changes.changed({"size.sizing.HYSTERESIS": 1.0}):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert changes.value("size.sizing.HYSTERESIS") == before


def test_windows_are_changed_in_the_goals() -> None:
    goals = Goals("disaggregated", (), None)
    after = changes.goals_with({"Windows.down_hold_s": 60.0, "size.sizing.HYSTERESIS": 1}, goals)
    assert after == replace(goals, windows=Windows(down_hold_s=60.0))
    assert changes.value("Windows.down_hold_s") == Windows().down_hold_s


@pytest.mark.parametrize("name", [*GRIDS, *(n for p in PARTS.values() for n in p.law.changes)])
def test_every_name_that_is_changed_is_there(name: str) -> None:
    assert changes.value(name) is not None


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(KeyError, match=r"there is no size\.sizing\.NOTHING"):
        changes.value("size.sizing.NOTHING")


# --- playing ------------------------------------------------------------------------------------


def test_a_law_is_played_once_and_a_changed_one_comes_out_otherwise(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = Law()
    first = player.play(SMALL, 0, law)
    assert first.cost > 0
    assert 0 < first.attainment <= 1
    slow = player.play(SMALL, 0, replace(law, changes={"estimate.demand.MARGIN_RANGE": (3.0, 3.0)}))
    assert slow.gpu_hours > first.gpu_hours
    assert slow.static == first.static
    monkeypatch.setattr(hindsight, "smallest", lambda *_, **__: pytest.fail("it searched"))
    monkeypatch.setattr("argosy_bench.laws.player.replay", lambda *_: pytest.fail("it played"))
    assert player.play(SMALL, 0, law) == first
    assert player.points(SMALL, 1, law) == [first]


def test_a_rival_runs_with_its_thresholds_and_within_twice_the_constant_fleet(
    player: Player,
) -> None:
    chosen = Law("keda", equal.thresholds("keda"), {}, ("--order", "fifo"))
    plain = player.play(SMALL, 0, replace(chosen, setting={}))
    assert player.play(SMALL, 0, chosen) == plain
    eager = {name: value / 50 for name, value in chosen.setting.items()}
    most = player.play(SMALL, 0, replace(chosen, setting=eager))
    assert plain.cost < most.cost <= 2.0 + 1e-9


def test_the_oracle_is_a_law_too(player: Player) -> None:
    best = player.play(SMALL, 0, Law("oracle"))
    assert best.attainment >= 0.9
    assert best.cost <= 1.01


# --- equal attainment ---------------------------------------------------------------------------


def cost(curve: equal.Curve, attainment: float = 0.9) -> tuple[float, bool]:
    found = equal.cost_at(curve, attainment)
    assert found is not None
    return round(found[0], 9), found[1]


def test_between_two_points_the_logarithm_of_the_cost_is_linear_in_attainment() -> None:
    curve = [point(0.95, 1.6), point(0.85, 0.9), point(0.8, 1.0)]
    assert cost(curve) == (1.2, True)
    assert cost(curve, 0.85) == (0.9, True)


def test_the_cheapest_point_bounds_a_law_that_is_always_above_and_one_below_has_none() -> None:
    assert equal.cost_at([point(0.97, 1.2), point(0.93, 1.1)]) == (1.1, False)
    assert equal.cost_at([point(0.97, 1.0), point(0.93, 1.1)]) == (1.0, False)
    assert equal.cost_at([point(0.7, 1.2), point(0.89, 2.0)]) is None


def test_the_cheapest_rival_counts_and_one_without_the_goal_does_not() -> None:
    of = {
        "goodput": [point(0.9, 0.8)],
        "wva": [point(0.9, 1.0)],
        "keda": [point(0.8, 0.1)],
        "hpa": [point(0.95, 1.6)],
    }
    assert equal.against_best(of) == (0.8, "wva")
    assert equal.against_best({"goodput": of["goodput"], "keda": of["keda"]}) is None
    lines = equal.table({"conv": of})
    assert lines[2] == "| conv | 0.80 | 1.00 | below 0.90 | ≤ 1.60 | 0.80 (`wva`) |"
    assert lines[3].endswith("| 0.80 |")


@pytest.mark.parametrize("law", equal.RIVALS)
def test_rivals_are_played_around_their_chosen_thresholds(law: str) -> None:
    aims = equal.aims(law, "fifo")
    assert [dict(aim.setting) for aim in aims][equal.FACTORS.index(1.0)] == equal.thresholds(law)


def test_a_picture_has_a_panel_for_each_trace_and_a_line_for_each_law() -> None:
    of = {"goodput": [point(0.8, 0.7), point(0.95, 1.0)], "wva <2>": [point(0.5, 9.0)]}
    root = ElementTree.fromstring(picture.svg(dict.fromkeys(("a", "b", "c", "d"), of)))
    ns = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{ns}g")) == 4
    assert len(root.findall(f"{ns}g/{ns}polyline")) == 8
    outside = root.find(f"{ns}g/{ns}polyline")
    assert outside is not None
    assert outside.get("points") == "260.0,190.0", "the edge of the panel"


# --- pages --------------------------------------------------------------------------------------


def test_only_what_is_between_the_marks_is_replaced() -> None:
    text = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert page.replaced(text, "a", ["x", "y"]) == (
        "before\n<!-- a -->\n\nx\ny\n\n<!-- end of a -->\nafter\n"
    )
    with pytest.raises(ValueError, match="the page has no section: write the lines <!-- b -->"):
        page.replaced(text, "b", ["x"])


def test_rows_of_other_names_stay_in_a_table_of_the_same_header() -> None:
    text = (
        "<!-- a -->\n\n| x | y | z |\n|---|\n| 1 | a | old |\n| 2 | a | b |\n\n<!-- end of a -->\n"
    )
    new = ["| x | y | z |", "|---|", "| 3 | a | c |", "| 1 | a | new |"]
    assert page.updated(text, "a", new)[2:] == ["| 1 | a | new |", "| 2 | a | b |", "| 3 | a | c |"]
    assert page.updated(text, "a", ["| x | other |", *new[1:]])[2:] == new[2:]


def test_a_table_of_parts_is_written_into_its_section(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- a -->\n\nnothing yet\n\n<!-- end of a -->\nafter\n")
    for number in (1, 2):
        page.update(path, "a", ["| x | y |", "|---|", f"| {number} | a |"])
    table = "| x | y |\n|---|\n| 1 | a |\n| 2 | a |"
    assert path.read_text() == f"before\n<!-- a -->\n\n{table}\n\n<!-- end of a -->\nafter\n"


def test_the_page_of_the_project_has_the_sections_that_commands_write() -> None:
    text = equal.PAGE.read_text()
    for name in ("equal attainment", "ablation", "oracle", "thresholds", "traces"):
        assert page.replaced(text, name, ["new"]) != text


def test_a_part_is_shown_against_the_whole_law_on_the_same_traces() -> None:
    whole, without = [point(0.95, 1.0), point(0.91, 0.8)], [point(0.90, 1.1), point(0.92, 0.88)]
    assert ablation.row("without it", "conv", without, whole, "2.0", "abc") == (
        "| without it | conv | 0.900 | 0.910 | 0.984 | 0.0 | 2.0 | -2.0 points, +10.0 % | `abc` |"
    )
    assert ablation.row("whole", "conv", whole, None, "-", "abc") == (
        "| whole | conv | 0.910 | 0.930 | 0.894 | 0.0 | - |  | `abc` |"
    )


def test_sized_for_arrival_the_order_by_deadline_is_not_known() -> None:
    of = capacity.replica(capacity.begin("prefill", PRESETS[PROFILE], SLO(1.0, 0.06, 0.9)), 0.0)
    work = Work(prompt=1000.0, prompt_squared=2e6, output=100.0)
    assert ablation.sized_for_arrival(of, work, 1.0, "deadline").order == "fifo"
    name = "size.prefill.prefill_model"
    with changes.changed({name: ablation.sized_for_arrival}):
        model = model_of("prefill", of, work, Limits(1.0, 0.06, 0.9, order="deadline"))
    assert model == ablation.sized_for_arrival(of, work, 1.0)


def test_attention_is_known_beside_the_time_of_a_token() -> None:
    slow = replace(PRESETS[PROFILE], per_prompt_token_s=1e-3)
    estimate = capacity.begin("prefill", slow, SLO(1.0, 0.06, 0.9))
    of = ablation.knowing_attention(estimate, 5.0)
    true = PRESETS[PROFILE]
    assert (of.base_s, of.kv_tokens) == (true.prefill_base_s, 5.0)
    assert of.per_prompt_token_s == true.per_prompt_token_s
    assert of.per_prompt_token_squared_s == true.per_prompt_token_squared_s > 0


def test_the_ramp_is_played_with_the_changed_law_and_with_no_other_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "size.sizing.HYSTERESIS"
    monkeypatch.setattr(shapes, "ramp_lost_minutes", lambda *_: changes.value(name))
    assert ablation.ramp_minutes(Law(changes={name: 7.0}), 2) == "7.0"
    assert ablation.ramp_minutes(Law(flags=("--order", "fifo")), 2) == "-"


# --- thresholds ---------------------------------------------------------------------------------


def test_the_thresholds_of_the_code_are_those_that_are_frozen() -> None:
    differing = choose.differing()
    assert differing == {}, (
        "the code has other thresholds than bench/chosen-thresholds.json: choose them again "
        f"({choose.COMMAND} --traces DIR --write), or take the code's as they are "
        f"({choose.COMMAND} --freeze)"
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "chosen.json"
    monkeypatch.setattr(choose, "FILE", path)
    return path


HYSTERESIS, QUANTILE = "size.sizing.HYSTERESIS", "estimate.demand.QUANTILE"
HELD_OUT = Recording("held out", "ramp", 3)


@dataclass
class Played:
    """Stands for the runs: costs by the value of `HYSTERESIS`, on each trace."""

    costs: dict[float, float]
    held_out: dict[float, float]
    step_s: dict[float, float] = field(default_factory=dict)
    """Seconds after the step; 100 unless it says otherwise."""
    laws: list[changes.Changes] = field(default_factory=list)

    def points(self, recording: Recording, _: int, law: Law) -> list[Point]:
        self.laws.append(law.changes)
        costs = self.held_out if recording == HELD_OUT else self.costs
        return [point(0.95, costs.get(law.changes.get(HYSTERESIS, 1.15), 1.0))]

    def step(self, *_: object) -> float:
        return self.step_s.get(changes.value(HYSTERESIS), 100.0)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    runs = Played({1.05: 0.9, 1.1: 0.999, 1.25: 2.0}, {1.05: 0.99})
    monkeypatch.setattr(Player, "points", runs.points)
    units = (("s", runs.step, 120.0),)
    monkeypatch.setattr(choose, "SHAPES", units)
    return runs


def searched(player: Player) -> choose.Search:
    return choose.Search(player, [SMALL], [HELD_OUT])


def test_a_better_value_is_chosen_and_the_next_threshold_is_tried_with_it(
    player: Player, played: Played
) -> None:
    search = searched(player)
    choice = search.choose(HYSTERESIS)
    assert (choice.value, choice.best, choice.why) == (1.05, 1.05, "")
    assert choice.scores == {"1.15": 0.0, "1.05": -0.1054, "1.1": -0.001, "1.25": 0.6931}
    assert (choice.traces, choice.shaped) == (("small",), (100.0,))
    assert choice.held_out == pytest.approx(log(0.99))
    played.laws.clear()
    assert search.choose(QUANTILE).value == changes.value(QUANTILE)
    assert all(law[HYSTERESIS] == 1.05 for law in played.laws)


def test_a_value_that_is_better_by_noise_alone_is_not_chosen(
    player: Player, played: Played
) -> None:
    played.costs[1.05] = 0.9955
    choice = searched(player).choose(HYSTERESIS)
    assert (choice.value, choice.best) == (1.15, None)
    assert choose.row(HYSTERESIS, choice, "abc").split(" | ")[2:4] == [
        "1.05, but no more than noise", "-0.4 %",
    ]  # fmt: skip


def test_a_value_that_is_worse_on_held_out_traces_is_not_chosen(
    player: Player, played: Played
) -> None:
    played.held_out[1.05] = 1.01
    search = searched(player)
    choice = search.choose(HYSTERESIS)
    assert (choice.value, choice.best) == (1.15, 1.05)
    assert choose.row(HYSTERESIS, choice, "abc") == (
        "| `size.sizing.HYSTERESIS` | 1.15 | 1.05 | -10.0 % | +1.0 % | 100 s "
        "| 1.15: 1.05 is worse on the held-out traces | `abc` |"
    )
    assert search.found == {}


def test_a_value_that_is_slower_after_a_step_than_its_target_is_not_chosen(
    player: Player, played: Played
) -> None:
    played.step_s = {1.05: 120.0}
    assert searched(player).choose(HYSTERESIS).value == 1.05
    played.step_s = {1.05: 135.0}
    choice = searched(player).choose(HYSTERESIS)
    assert (choice.value, choice.why) == (1.15, "slower on a ramp, step or jump")
    played.step_s = {1.05: 135.0, 1.15: 150.0}
    assert searched(player).choose(HYSTERESIS).value == 1.05, "the code is no better"


def test_a_choice_is_frozen_beside_those_of_the_other_thresholds(file: Path) -> None:
    choose.write({"estimate.demand.QUANTILE": Choice(0.5, {"0.5": 0.1}, ("conv",), 1)})
    choose.write({"size.sizing.CATCHING_UP": Choice(0.25, {})})
    read = choose.read()
    assert read["estimate.demand.QUANTILE"].scores == {"0.5": 0.1}
    assert list(json.loads(file.read_text())["thresholds"]) == [
        "size.sizing.CATCHING_UP", "estimate.demand.QUANTILE",
    ]  # fmt: skip
    assert choose.differing()["estimate.demand.QUANTILE"][1] == "0.5"


def test_freezing_takes_the_code_and_keeps_scores_of_values_that_were_tried(file: Path) -> None:
    now = changes.value("estimate.demand.QUANTILE")
    tried = Choice(0.9, {json.dumps(now): 0.2, "0.9": 0.1}, ("conv",), 1)
    choose.write({"estimate.demand.QUANTILE": tried})
    choose.write(choose.frozen(choose.read()))
    assert choose.differing() == {}
    assert choose.read()["estimate.demand.QUANTILE"] == replace(tried, value=now)
    assert choose.read()["size.sizing.HYSTERESIS"].scores == {}
    assert file.exists()
