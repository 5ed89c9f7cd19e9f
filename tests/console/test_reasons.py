"""Every reason that a decision can have is said in words, and figures are written for people."""

import pytest

from app.console import words
from app.console.reasons import AFTERWARDS, ENDINGS, EXCLUSIONS, FALLBACKS, UNSURE, said
from app.contract.enums import ExclusionReason, FallbackReason
from app.decisions.record import DecisionOutcome, OutcomeStatus
from app.errors import ErrorCode
from app.index.matcher import Freshness


def test_every_reason_has_its_own_sentence():
    assert set(FALLBACKS) == set(FallbackReason)
    assert set(EXCLUSIONS) == set(ExclusionReason)
    assert set(ENDINGS) == set(DecisionOutcome)
    assert set(AFTERWARDS) == set(OutcomeStatus)
    unsure = {f"index_{one.value}" for one in Freshness if one is not Freshness.CURRENT}
    assert unsure | {"engines_unknown", "cancelled"} == set(UNSURE)
    for reason in (*FallbackReason, *ExclusionReason, *UNSURE, *ErrorCode):
        assert said(str(reason)).what.endswith(".")
        assert "reason that was given" not in said(str(reason)).what
    assert "`too_warm`" in said("too_warm").what


@pytest.mark.parametrize(
    ("value_us", "text"),
    [
        (None, "–"), (0, "0 µs"), (999, "999 µs"), (12_400, "12.4 ms"), (3_200_000, "3.2 s"),
        (250_000_000, "4 min 10 s"), (7_500_000_000, "2 h 5 min"), (-1_500, "−1.5 ms"),
        (273_600_000_000, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations(value_us, text):
    assert words.duration(value_us) == text


def test_amounts_counts_and_shares():
    assert [words.amount(n) for n in (512, 1536, 41 << 30)] == ["512 B", "1.5 KiB", "41 GiB"]
    assert [words.count(n) for n in (12_345, 1_234_567)] == ["12,345", "1.2 M"]
    assert [words.share(n) for n in (None, 0.4567)] == ["–", "45.7 %"]
    assert dict(words.flat({"a": {"b": [1, 2]}, "c": None})) == {"a.b": "1, 2", "c": "–"}
