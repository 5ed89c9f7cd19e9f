"""Published measurements of pulling state against computing it again, as the planner sees them.

gpt-oss-120b on H200 (llm-d, peer-to-peer KV pull, August 2026), milliseconds of recompute and pull.
GLM 753B of the same: a tie near 8.7 K tokens, a pull floor of 1.2 to 1.3 s, 93 KB a token.
"""

from pathlib import Path as File

import pytest

from app.contract.enums import TierKind
from app.planner.choose import Plan, PlanAction, plan
from app.planner.fit import Point, fit_path, fit_prefill
from app.planner.profile import Path, Profile, load_profile
from app.planner.question import CostBounds, Question, Source, Target
from app.policy.text import parse_document

FILES = File(__file__).resolve().parents[3] / "profiles"
K = 1_024
MEASURED = {2: (78, 35), 8: (250, 57), 16: (510, 86), 32: (1173, 165), 48: (1988, 235)}
ODD = (2, 16, 48)
DEFAULT = CostBounds()


def shipped(name: str) -> Profile:
    return load_profile(parse_document((FILES / f"{name}.yaml").read_bytes()))


def asked(profile: Profile, tokens: int, bounds: CostBounds = DEFAULT) -> Plan:
    """An idle engine, and the whole prompt's state at another one."""
    target = Target("e1", 1, "here", profile, queue_depth=0, queued_prefill_tokens=0)
    source = Source("s1", "there", TierKind.DEVICE, tokens, profile.default_bytes_per_token)
    return plan(Question(tokens, (target,), (source,), bounds=bounds))


def cost_ms(found: Plan, action: PlanAction) -> float:
    shown = [found.chosen, *found.alternatives]
    return next(one.priced.total_us for one in shown if one.action is action) / 1e3


def fitted_on_the_odd_points() -> Profile:
    path = fit_path(
        [Point(n * K, MEASURED[n][1] * 1e3) for n in ODD],
        Path(TierKind.DEVICE, 0.0, 1.0, 0.0, remote=True),
    )
    return Profile(
        schema_version="nexuskv.cost_profile.v1",
        name="fitted",
        source="the odd points",
        prefill=fit_prefill([Point(n * K, MEASURED[n][0] * 1e3) for n in ODD]),
        paths=(path,),
        restore_us=0.0,
        # Sizes are in tokens here.
        default_bytes_per_token=1.0,
    )


@pytest.mark.parametrize("thousands", MEASURED)
@pytest.mark.parametrize("name", ["fitted on the odd points", "gpt-oss-120b-h200"])
def test_every_point_is_decided_right_and_told_within_a_quarter(name: str, thousands: int) -> None:
    fitted = name.startswith("fitted")
    profile = fitted_on_the_odd_points() if fitted else shipped(name)
    recompute_ms, pull_ms = MEASURED[thousands]
    found = asked(profile, thousands * K)
    assert found.chosen.action is PlanAction.TRANSFER
    assert cost_ms(found, PlanAction.RECOMPUTE) == pytest.approx(recompute_ms, rel=0.25)
    # The last token is computed, and the engine is scheduled, whatever is pulled.
    own_ms = profile.prefill.schedule_us / 1e3
    assert cost_ms(found, PlanAction.TRANSFER) - own_ms == pytest.approx(pull_ms, rel=0.25)


def break_even(profile: Profile, bounds: CostBounds) -> int:
    """The shortest prompt whose state is pulled; every longer one's is, too."""
    lengths = range(4 * K, 16 * K, 32)
    pulled = [
        tokens
        for tokens in lengths
        if asked(profile, tokens, bounds).chosen.action is PlanAction.TRANSFER
    ]
    assert pulled == list(range(min(pulled), 16 * K, 32))
    return min(pulled)


def test_the_break_even_of_a_model_with_a_floor_is_where_it_was_measured() -> None:
    profile = shipped("glm-753b")
    even, sure = break_even(profile, CostBounds(deviations=0.0)), break_even(profile, DEFAULT)
    assert even == pytest.approx(8_700, rel=0.05)
    # Before the gain is sure to be one, a little more must be gained.
    assert even < sure
    assert sure == pytest.approx(8_700, rel=0.15)


@pytest.mark.parametrize("file", sorted(FILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_each_shipped_profile_is_read_and_says_where_it_is_from(file: File) -> None:
    profile = load_profile(parse_document(file.read_bytes()))
    assert profile.name == file.stem
    assert len(profile.source) > 80
    assert profile.version.startswith("sha256:")
