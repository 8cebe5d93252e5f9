"""What a gateway says of settings that it does not take, and what it takes where none are said."""

import pytest

from argosy_gateway.options import KEY
from tests.gateway.test_live_settings import WORDS, data, started

SLO_NEEDED = "needs --slo-ttft-ms and --slo-tpot-ms"
NAMES = "each --slo-class needs a name of its own, and not 'default'"
NO_CLASS = "is not NAME:TTFT_MS:TPOT_MS:PRIORITY"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (None, "there is no ConfigMap f-gateway"),
        ({}, "ConfigMap f-gateway has no flags.json"),
        ([KEY], "ConfigMap f-gateway has no flags.json"),
        ({KEY: "{"}, "flags.json is not JSON: Expecting property name enclosed in double quotes: "
         "line 1 column 2 (char 1)"),
        ({KEY: '{"a": 1}'}, "flags.json is not a list of strings"),
        ({KEY: '["a", 1]'}, "flags.json is not a list of strings"),
        (data(), "--served-name is missing"),
        (data(*WORDS, "--max-queue", "x"), "argument --max-queue: invalid int value: 'x'"),
        (data(*WORDS, "--max-queue", "0"), "--max-queue must be at least 1"),
        (data(*WORDS, "--max-body-bytes", "0"), "--max-body-bytes must be at least 1"),
        (data(*WORDS, "--engine-max-num-seqs", "0"), "--engine-max-num-seqs must be at least 1"),
        (data("--slo-ttft-ms", "0"), "argument --slo-ttft-ms: 0 is not a positive number"),
        (data("--slo-tpot-ms", "inf"), "argument --slo-tpot-ms: inf is not a positive number"),
        (data("--drain-timeout-s=nan"), "argument --drain-timeout-s: nan is not a positive number"),
        (data("--queue-timeout-s=-1"), "argument --queue-timeout-s: -1 is not a positive number"),
        (data("--wake-timeout-s=0"), "argument --wake-timeout-s: 0 is not a positive number"),
        (data("--shed-ttft-factor=-1"), "argument --shed-ttft-factor: -1 is not a positive number"),
        (data("--served-name"), "argument --served-name: expected one argument"),
        (data("--slo-class=x:1:1"), f"argument --slo-class: x:1:1 {NO_CLASS}"),
        (data("--slo-class=X:1:1:1"), f"argument --slo-class: X:1:1:1 {NO_CLASS}"),
        (data("--slo-class=x:1:1:1000"), f"argument --slo-class: x:1:1:1000 {NO_CLASS}"),
        (data("--slo-class=x:0:1:1"), "argument --slo-class: 0 is not a positive number"),
        (data(*WORDS, "--slo-class=default:1:1:1"), NAMES),
        (data(*WORDS, "--slo-class=a:1:1:1", "--slo-class=a:2:2:2"), NAMES),
        (data("--slo-ttft-ms", "5"), "an SLO needs both --slo-ttft-ms and --slo-tpot-ms"),
        (data("--slo-tpot-ms", "5"), "an SLO needs both --slo-ttft-ms and --slo-tpot-ms"),
        (data("--queue", "deadline"), f"--queue deadline {SLO_NEEDED}"),
        (data("--first-token", "within-target"), f"--first-token within-target {SLO_NEEDED}"),
        (data("--slo-class=a:1:1:1"), f"--slo-class {SLO_NEEDED}"),
    ],
)  # fmt: skip
def test_settings_that_are_wrong_are_logged_with_what_is_wrong(wrong, says, caplog):
    _, take = started()
    take(wrong)
    assert caplog.messages == [f"the settings stay as they are: {says}"]
    take(wrong)
    assert len(caplog.messages) == 1, "they are the same as before"
