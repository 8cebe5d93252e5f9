"""Numbers as Kubernetes writes them, such as 2, 500m, 1k, 1e3, 16Gi (`resource.Quantity`)."""

import re
from decimal import Decimal

LARGEST = 2**63 - 1
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?"
)
_UNITS = {
    **{unit: Decimal(10) ** (3 * n) for n, unit in enumerate("num", start=-3)},
    **{unit: Decimal(10) ** (3 * n) for n, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** n for n, unit in enumerate("KMGTPE", start=1)},
}


def quantity(text: object) -> Decimal | None:
    """The number; None where Kubernetes would not read one, or not hold it."""
    if not isinstance(text, str | int | float) or isinstance(text, bool):
        return None
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    number = Decimal(digits) * (_UNITS[unit] if unit else Decimal(10) ** int(exponent or 0))
    return number if abs(number) <= LARGEST else None
