# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""Every pair of a target and a source, priced: the inner loop of the planner.

`app.planner.pricing` says the same of one pair, term by term, and is what tests hold this to.
"""
from libc.math cimport sqrt

cdef enum:
    TARGET_FIELDS = 12
    SOURCE_FIELDS = 8
    PATH_FIELDS = 3
    LINK_FIELDS = 4
    TIERS = 5
    USABLE = 0
    NOT_LONGER = 1
    NO_PATH = 2
    LINK_BUSY = 3
    NO_CAPACITY = 4
    OVERLOADED = 5
    DEADLINE = 6
    GAIN_UNCERTAIN = 7
    OUTCOMES = 11

cdef double UNKNOWN = 1.0
cdef double CONTENDED = 0.25
cdef double MAX_US = 1e15


cdef struct Asked:
    double prompt
    double deadline_us
    double deviations
    double min_gain_us
    double max_queue_us
    int nodes


cdef int priced(
    const Asked* q, const double* t, const double* s, const double* paths, const double* links,
    double* total_us,
) noexcept nogil:
    """One pair: its outcome, and its cost where it has one (-1 otherwise)."""
    cdef double last = q.prompt - 1
    cdef double have = t[0] if t[0] < last else last
    cdef double reach = s[0] if s[0] < last else last
    cdef double tokens = reach
    cdef double moved, rate = 0, latency = 0, relative = 0, share, took, hidden, tail, saved, gain
    cdef const double* link = NULL
    cdef const double* path
    cdef int remote = s[6] != t[9]
    total_us[0] = -1
    if t[1] >= 0 and s[4] and t[0] + t[1] < tokens:
        tokens = t[0] + t[1]
    if not s[4] and tokens != s[0]:
        tokens = 0
    if tokens <= have:
        return NO_CAPACITY if reach > have and s[4] else NOT_LONGER
    path = paths + PATH_FIELDS * (2 * (TIERS * <int>t[10] + <int>s[7]) + remote)
    share = 1
    if s[6] >= 0 and t[9] >= 0:
        link = links + LINK_FIELDS * (<int>s[6] * q.nodes + <int>t[9])
        rate = link[1]
    if path[1] <= 0 and rate <= 0:
        return NO_PATH
    if link != NULL:
        if link[3] > 0 and link[2] >= link[3]:
            return LINK_BUSY
        share += link[2]
    if rate > 0:
        latency = link[0]
        relative = path[2] if path[1] > 0 else CONTENDED
    else:
        rate, latency, relative = path[1], path[0], path[2]
    if not s[3]:
        relative += UNKNOWN
    if share > 1:
        relative += CONTENDED
    moved = s[2] + s[1] * (tokens - have)
    took = latency + moved * share / rate
    if took > MAX_US:
        took = MAX_US
    hidden = took if took < t[11] else t[11]
    tail = (q.prompt - tokens) * (t[4] + t[5] * (tokens + (q.prompt - tokens) / 2)) * t[3]
    saved = (tokens - have) * (t[4] + t[5] * (have + (tokens - have) / 2)) * t[3]
    total_us[0] = t[2] + took - hidden + t[7] + tail
    gain = t[8] - total_us[0]
    if not (
        gain - q.deviations * sqrt((relative * took) ** 2 + (t[6] * saved) ** 2) > q.min_gain_us
    ):
        return GAIN_UNCERTAIN
    if q.deadline_us >= 0 and total_us[0] > q.deadline_us:
        return DEADLINE
    if q.max_queue_us > 0 and t[11] > q.max_queue_us:
        return OVERLOADED
    return USABLE


def best_sources(
    const double[::1] targets not None, const double[::1] sources not None,
    const double[::1] paths not None, const double[::1] links not None, int nodes,
    double prompt, double deadline_us, double deviations, double min_gain_us, double max_queue_us,
    const unsigned char[::1] barred not None,
):
    """For each target the place and cost of the source that is soonest among those that may be
    used, and place, cost and outcome of the one that is among those that are only late or
    overloaded, and among the others that have a cost (-1 for none); and how many pairs ended as
    which outcome.

    A target is (local tokens, free tokens or -1, queue us, slowdown, us a token, us a pair,
    uncertainty, overhead us, computing us, node, profile, of the queue what is known: it hides
    transfers and may be too long); a source (tokens, bytes a token,
    fixed bytes, bytes known, partial, excluded, node, tier); a path (latency us, bytes a us,
    uncertainty) for each profile, tier and whether it is remote; a link (latency us, bytes a us, in
    flight, most in flight) from each node to each. A node below zero has none. An excluded source
    is not looked at. `barred` is empty, or has for each target and each source 0, or as which
    outcome (8 to 10 are the caller's) that pair ends without being priced. ValueError where a place
    or an outcome is beyond these.
    """
    cdef Py_ssize_t target_count = targets.shape[0] // TARGET_FIELDS
    cdef Py_ssize_t source_count = sources.shape[0] // SOURCE_FIELDS
    cdef Py_ssize_t profiles = paths.shape[0] // (2 * TIERS * PATH_FIELDS)
    cdef Py_ssize_t i, j
    cdef long counts[OUTCOMES]
    cdef long usable, late, other
    cdef int outcome, late_outcome, other_outcome
    cdef double total_us, usable_us, late_us, other_us
    cdef const double* t
    cdef const double* s
    cdef const double* link_at = &links[0] if links.shape[0] else NULL
    cdef const double* path_at = &paths[0] if paths.shape[0] else NULL
    cdef Asked q
    q.prompt, q.deadline_us, q.deviations = prompt, deadline_us, deviations
    q.min_gain_us, q.max_queue_us, q.nodes = min_gain_us, max_queue_us, nodes
    if nodes < 0 or links.shape[0] != <Py_ssize_t>nodes * nodes * LINK_FIELDS:
        raise ValueError("links are not from each node to each")
    for i in range(target_count):
        t = &targets[i * TARGET_FIELDS]
        if not (t[9] < nodes and 0 <= t[10] < profiles):
            raise ValueError("no such node or profile")
    for j in range(source_count):
        s = &sources[j * SOURCE_FIELDS]
        if not (s[6] < nodes and 0 <= s[7] < TIERS):
            raise ValueError("no such node or tier")
    if barred.shape[0] and barred.shape[0] != target_count * source_count:
        raise ValueError("pairs are not each target with each source")
    for j in range(barred.shape[0]):
        if barred[j] >= OUTCOMES:
            raise ValueError("no such outcome")
    for outcome in range(OUTCOMES):
        counts[outcome] = 0
    best = []
    for i in range(target_count):
        t = &targets[i * TARGET_FIELDS]
        usable = late = other = -1
        usable_us = late_us = other_us = -1
        late_outcome = other_outcome = USABLE
        for j in range(source_count):
            s = &sources[j * SOURCE_FIELDS]
            if s[5]:
                continue
            if barred.shape[0] and barred[i * source_count + j]:
                counts[barred[i * source_count + j]] += 1
                continue
            outcome = priced(&q, t, s, path_at, link_at, &total_us)
            counts[outcome] += 1
            if outcome == USABLE:
                if usable < 0 or total_us < usable_us:
                    usable, usable_us = j, total_us
            elif outcome == OVERLOADED or outcome == DEADLINE:
                if late < 0 or total_us < late_us:
                    late, late_us, late_outcome = j, total_us, outcome
            elif total_us >= 0 and (other < 0 or total_us < other_us):
                other, other_us, other_outcome = j, total_us, outcome
        best.append(
            (usable, usable_us, late, late_us, late_outcome, other, other_us, other_outcome)
        )
    return best, [counts[outcome] for outcome in range(OUTCOMES)]
