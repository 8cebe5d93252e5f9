"""Run a state machine of hypothesis inside a test whose name is a sentence."""

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_sequences(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Play `examples` random sequences of up to `steps` rules.

    Hypothesis gets a function, not the class. To name the class it would read the source of the
    whole module with `ast`, and CPython 3.11 can fail there with a SystemError when the garbage
    collector runs a finalizer that formats a traceback.
    """

    def new() -> RuleBasedStateMachine:
        return machine()

    run_state_machine_as_test(
        new,  # type: ignore[arg-type] # a function is documented, only the annotation is narrower
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )
