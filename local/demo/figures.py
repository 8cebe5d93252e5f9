"""What the demo measures; docs/figures/demo.md explains each figure."""

import time

from local.figures import Figure, Figures, Target

FIGURES = (
    Figure("answer_correct", target=Target("==", 1)),
    Figure("answers_from_both_pods", target=Target(">=", 0.95)),
    Figure("attainment_after_settling", target=Target(">=", 0.9)),
    Figure("attainment_whole_ramp"),
    Figure("client_late_p99_s", "s"),
    Figure("cluster_start_s", "s", digits=1),
    Figure("container_restarts", target=Target("==", 0)),
    Figure("cpu_busy_share_p95"),
    Figure("decode_replicas_max", target=Target(">=", 2)),
    Figure("engine_start_s", "s", digits=1),
    Figure("fleets_ready_s", "s", digits=1),
    Figure("gpu_hours", "h", Target("<=", 1)),
    Figure("hints_work", target=Target("==", 1)),
    Figure("operator_rss_mib", "MiB", digits=1),
    Figure("pd_equals_colocated", target=Target("==", 1)),
    Figure("prefill_replicas_max", target=Target(">=", 2)),
    Figure("replicas_back_at_min", target=Target("==", 1)),
    Figure("requests_lost", target=Target("==", 0)),
    Figure("requests_planned"),
    Figure("requests_refused", target=Target("==", 0)),
    Figure("requests_shed"),
    Figure("requests_total"),
    Figure("scored_requests_per_phase_min", target=Target(">=", 50)),
    Figure("seconds_total", "s", digits=1),
    Figure("seconds_warm", "s", digits=1),
    Figure("settling_s", "s"),
    Figure("sim_engine_start_s", "s", digits=1),
    Figure("writes_at_rest_per_minute", "1/min", Target("==", 0)),
)


class DemoFigures(Figures):
    """The figures of one `make demo`, with its clocks."""

    def __init__(self, began: float) -> None:
        super().__init__(FIGURES, "make demo")
        self.began = began
        """Unix time at which `make demo` was entered."""
        self.caches_complete: float | None = None
        """Unix time at which binaries, environment and weights were all complete."""

    def finish(self, *, own_cluster: bool) -> None:
        """Stop the clocks. On a cluster of the user's some figures stay unmeasured."""
        now = time.time()
        self.put("seconds_total", now - self.began)
        self.put("seconds_warm", now - (self.caches_complete or self.began))
        if not own_cluster:
            self.notes["cluster"] = "an existing one: no audit log, CPU share is this machine's"
