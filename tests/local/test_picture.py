"""The README's picture: what is drawn at a second was known at that second."""

import math
from dataclasses import replace

import pytest

from local.demo.traffic.plan import arrivals
from local.demo.traffic.score import Limits, Seen
from local.demo.traffic.watch import Reading

pytestmark = pytest.mark.slow  # Matplotlib takes seconds to import

LIMITS = Limits(ttft_s=1.0, tpot_s=0.04)
STEP_S = 45.0


def records() -> list[Seen]:
    """From the step on, prompts wait for 4 s; so do those that came in the second before it."""
    made = []
    for due in arrivals():
        waits = STEP_S - 1 <= due.at_s < STEP_S + 8
        ttft_s = 4.0 if waits else 0.2
        ended = due.at_s + ttft_s + 1
        made.append(Seen(due.at_s, due.phase, "ok", ttft_s, 0.03, due.output_tokens, ended))
    return made


def readings() -> list[Reading]:
    """A reading a second; a second prefill replica is asked for at 50 s and ready at 53 s."""
    return [
        Reading(
            float(at),
            "phase",
            1.0,
            None,
            prefill=(2 if at >= 53 else 1, 2 if at >= 50 else 1),
            decode=(1, 1),
            gpus=8,
            cpu_share=0.1,
            decision="",
        )
        for at in range(1, 182)
    ]


@pytest.fixture(scope="module")
def drawn():
    from local.demo.traffic import picture

    figure = picture.panels(readings(), records(), LIMITS)
    yield figure.axes
    picture.pyplot.close(figure)


def curve(panel, *, number: int = 0) -> dict[float, float]:
    """The value that a step curve takes from each of its x on."""
    line = panel.get_lines()[number]
    assert line.get_drawstyle() == "steps-post"
    return dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def test_the_slo_does_not_fall_before_the_load_rises(drawn):
    met = curve(drawn[2])
    assert {met[second] for second in range(10, 46)} == {100.0}
    # Those due at 44 s end at 49 s, the first that can be known to miss.
    assert {met[second] for second in range(46, 49)} == {100.0}
    assert met[52] < 50


def test_the_slo_is_met_again_when_the_last_late_answer_is_six_seconds_old(drawn):
    met = curve(drawn[2])
    assert met[57] < 100  # due before 53 s, ended before 58 s
    assert met[65] == 100


def test_demand_does_not_rise_before_the_step(drawn):
    (area,) = drawn[0].collections[:1]
    corners = area.get_paths()[0].vertices
    before = [y for x, y in corners if 10 < x <= STEP_S]
    after = [y for x, y in corners if STEP_S + 6 < x < 90]
    assert max(before) < 6  # Poisson around 2.8/s
    assert max(after) > 9  # Poisson around 11.2/s


def test_demand_is_drawn_from_the_second_at_which_it_was_counted_on():
    from local.demo.traffic import picture

    # The first requests come after 45 s, so 45 s counts none and 46 s counts six in 6 s.
    sent = [replace(one, due_s=45.1 + n / 6) for n, one in enumerate(records()[:60])]
    figure = picture.panels(readings(), sent, LIMITS)
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    picture.pyplot.close(figure)
    assert {y for x, y in corners if x <= 45.5} == {0.0}
    assert 1.0 in {y for x, y in corners if x == 46}


def test_replicas_change_at_the_reading_that_saw_them(drawn):
    desired, ready = curve(drawn[1], number=0), curve(drawn[1], number=1)
    assert (desired[49], desired[50]) == (1, 2)
    assert (ready[52], ready[53]) == (1, 2)


def test_the_curve_has_a_hole_where_nothing_ended(drawn):
    assert math.isnan(curve(drawn[2])[0])


def test_the_picture_is_written(tmp_path):
    from local.demo.traffic import picture

    picture.draw(tmp_path / "ramp.png", readings(), records(), LIMITS)
    assert (tmp_path / "ramp.png").read_bytes().startswith(b"\x89PNG")
