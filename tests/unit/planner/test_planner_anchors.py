"""Published measurements of pulling state against computing it again, as the planner sees them.

gpt-oss-120b on H200 (llm-d, peer-to-peer KV pull, August 2026), milliseconds of recompute and pull.
GLM 753B of the same: a tie near 8.7 K tokens, a pull floor of 1.2 to 1.3 s, 93 KB a token; a pull is
27 % quicker at 12 K and 61 % at 24 K.
"""

import pytest

from app.contract.enums import TierKind
from app.planner.fit import Point, fit_path, fit_prefill
from app.planner.profile import Path

K = 1_024
MEASURED = {2: (78, 35), 8: (250, 57), 16: (510, 86), 32: (1173, 165), 48: (1988, 235)}
ODD = (2, 16, 48)
ANY = Path(TierKind.DEVICE, 0.0, 1.0, 0.0, remote=True)


def test_fitted_on_the_odd_points_every_point_is_right_and_within_a_quarter() -> None:
    prefill = fit_prefill([Point(n * K, MEASURED[n][0] * 1e3) for n in ODD])
    path = fit_path([Point(n * K, MEASURED[n][1] * 1e3) for n in ODD], ANY)
    for thousands, (recompute_ms, pull_ms) in MEASURED.items():
        tokens = thousands * K
        computing = (prefill.schedule_us + prefill.recompute_us(tokens, 0)) / 1e3
        pulling = (path.latency_us + tokens / path.bytes_per_us) / 1e3
        assert computing == pytest.approx(recompute_ms, rel=0.25)
        assert pulling == pytest.approx(pull_ms, rel=0.25)
        assert (pulling < computing) == (pull_ms < recompute_ms)
