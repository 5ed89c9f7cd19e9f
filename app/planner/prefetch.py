"""Whether bringing state ahead of its use is worth it. Pure.

E = p_use * gain - (1 - p_use) * (transfer + pollution + interference)
"""


def worth_us(
    p_use: float, gain_us: float, transfer_us: float, pollution_us: float, interference_us: float
) -> float:
    """What is to be expected of it, in microseconds: what its use spares, by how likely that is,
    less what it costs others for nothing. `p_use` is from 0 to 1.
    """
    return p_use * gain_us - (1 - p_use) * (transfer_us + pollution_us + interference_us)
