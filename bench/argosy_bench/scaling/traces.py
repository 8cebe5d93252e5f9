"""The traces on which laws are compared, each with its scale and its SLO.

The recordings are not in the repository. A folder has one folder for each, with the file
`requests.csv`, or for a week of rates `rate_envelope.csv`, as docs/how-to/simulate.md describes
them."""

import csv
from dataclasses import dataclass
from pathlib import Path

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Recording:
    """One row of the table."""

    name: str
    folder: str
    """In the folder of traces; it has `requests.csv`."""
    scale: float
    ttft_s: float = 1.0
    tpot_s: float = 0.06
    prefix: str = "none"
    rates: str | None = None
    """Folder with `rate_envelope.csv`, of which the first day is played."""
    forecastable: bool = True
    """False: its bursts are shorter than a cold start, and no law can follow them."""

    @property
    def is_a_day(self) -> bool:
        return self.rates is not None

    def files(self, folder: Path) -> list[Path]:
        """What it is read from."""
        files = [folder / self.folder / "requests.csv"]
        if self.rates is not None:
            files.append(folder / self.rates / "rate_envelope.csv")
        return files

    def flags(self, folder: Path, scratch: Path) -> list[str]:
        """What `argosy simulate` is told of the requests and the SLO.

        The first day of a week's rates is written to the folder `scratch`.
        """
        requests, *table = self.files(folder)
        flags = ["--trace", str(requests)]
        if table:
            day = scratch / f"{self.name}.csv"
            day.write_text(first_day(table[0].read_text()))
            flags = ["--rates", str(day), "--lengths", str(requests)]
        return [
            *flags, "--scale", f"{self.scale:g}", "--prefix", self.prefix,
            "--ttft", f"{self.ttft_s:g}", "--tpot", f"{self.tpot_s:g}",
        ]  # fmt: skip


RECORDINGS = (
    Recording("conv", "azure2023_conv", 8),
    Recording("m-large", "servegen_m-large", 8),
    Recording("m-mid", "servegen_m-mid", 8),
    Recording("m-small", "servegen_m-small", 24),
    Recording("r1", "servegen_r1", 4),
    Recording("mooncake", "mooncake_conversation", 3, 8.0, 0.08, "ideal"),
    Recording("day_code", "azure2023_code", 0.5, rates="azure2024_code_week"),
    Recording("day_conv", "azure2023_conv", 0.5, rates="azure2024_conv_week"),
    Recording("code", "azure2023_code", 6, 2.0, forecastable=False),
)
"""Scales give each about ten to thirty replicas of a 70B model on four H100."""


def chosen(names: str | None) -> list[Recording]:
    """The recordings of these names, all for None. SystemExit for a name that is none."""
    if names is None:
        return list(RECORDINGS)
    of = {recording.name: recording for recording in RECORDINGS}
    if unknown := [name for name in names.split(",") if name not in of]:
        raise SystemExit(f"--names {','.join(unknown)}: write some of {', '.join(of)}")
    return [of[name] for name in names.split(",")]


def first_day(table: str) -> str:
    """The rows of a CSV table with `t_s` of less than a day after the first one."""
    rows = list(csv.DictReader(table.splitlines()))
    begin = float(rows[0]["t_s"])
    day = [row for row in rows if float(row["t_s"]) - begin < DAY_S]
    return "\n".join(",".join(row) for row in ([*rows[0]], *(row.values() for row in day))) + "\n"
