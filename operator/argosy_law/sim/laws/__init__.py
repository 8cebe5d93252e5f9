"""The laws that `argosy simulate` plays, by name: the operator's and those of other autoscalers.

Each of the others is one file, which names its source, version and defaults. `law` has the protocol
and what they share.
"""

from collections.abc import Mapping
from typing import Any

from argosy_law.sim.laws.dynamo import Dynamo
from argosy_law.sim.laws.hpa import HorizontalPodAutoscaler
from argosy_law.sim.laws.keda import Keda
from argosy_law.sim.laws.law import Goodput, Law
from argosy_law.sim.laws.wva import Wva

LAWS: Mapping[str, Law[Any]] = {
    "goodput": Goodput(),
    "dynamo": Dynamo(),
    "hpa": HorizontalPodAutoscaler(),
    "keda": Keda(),
    "wva": Wva(),
}
