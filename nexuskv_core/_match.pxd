# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Read-only matching: which stored entries share how much with a token list, best first.

First the list's path is walked upwards from its deepest stored block, and whole subtrees of equal
extent are noted as sources; then sources are opened best first. Work grows with the list's own
path, the candidates wanted and the logarithm of the index, never with the index.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nexuskv_core._store cimport (
    DONE, ENTRY, NO_MEMORY, RUN, TAIL, GroupBody, Node, Status, Store, block_at, block_tokens_at,
    drop, grab, nkv_prefetch, node_at,
)
from nexuskv_core._treap cimport node_tokens, own_best, own_count, shared_tokens
from nexuskv_core._trie cimport (
    FLAG_FINE, FLAG_PARTIAL, RULE_MASK, Query, deepest_block,
)


cdef enum:
    EXACT = 0
    PREFIX = 1
    PARTIAL = 2
    EXACT_ONLY = 2      # the rule


# Entries of one extent and one class: a treap subtree, or one node without its siblings.
cdef struct Source:
    uint64_t order      # of the best entry
    uint32_t entry
    uint32_t best
    uint32_t units
    uint32_t node
    uint32_t count
    uint8_t match_class
    uint8_t alone
    uint8_t spent       # its best entry was already given out


cdef struct Search:
    Query q
    Source* sources
    uint32_t used
    uint32_t capacity
    uint32_t limit      # candidates wanted
    uint64_t budget     # sources that may still be opened
    uint64_t seen       # entries in sources noted
    uint32_t unit       # of the group at hand
    uint32_t flags
    Status status


cdef struct Candidate:
    uint32_t entry
    uint32_t units
    uint32_t match_class


# ---- noting sources

cdef inline void note(
    Store* s, Search* m, uint32_t units, int match_class, uint32_t number, int alone
) noexcept nogil:
    cdef uint32_t best = own_best(s, number) if alone else node_at(s, number).best
    cdef uint32_t capacity
    cdef Source* grown
    cdef Source* source
    if best == 0 or units == 0:
        return
    if m.used == m.capacity:
        capacity = 2 * m.capacity if m.capacity else 64
        grown = <Source*>grab(s, capacity * sizeof(Source))
        if grown == NULL:
            m.status = NO_MEMORY
            return
        if m.used:
            memcpy(grown, m.sources, m.used * sizeof(Source))
        drop(s, m.sources, m.capacity * sizeof(Source))
        m.sources = grown
        m.capacity = capacity
    source = &m.sources[m.used]
    m.used += 1
    source.order = node_at(s, best).u.entry.order
    source.entry = node_at(s, best).u.entry.entry
    source.best = best
    source.units = units
    source.node = number
    source.count = own_count(s, number) if alone else node_at(s, number).count
    source.match_class = match_class
    source.alone = alone
    source.spent = 0
    m.seen += source.count


cdef inline uint32_t units_of(const Search* m, uint32_t length) noexcept nogil:
    return length - length % m.unit if m.unit else length


cdef inline void note_partial(
    Store* s, Search* m, uint32_t length, uint32_t number, int alone
) noexcept nogil:
    if m.flags & FLAG_PARTIAL:
        note(s, m, units_of(m, length), PARTIAL, number, alone)


cdef inline void note_covered(
    Store* s, Search* m, uint32_t length, uint32_t entries
) noexcept nogil:
    """Entries that end on the list's path, `length` tokens from its start."""
    cdef int match_class = EXACT if length == m.q.length else PREFIX
    if match_class == EXACT or m.flags & RULE_MASK != EXACT_ONLY:
        note(s, m, units_of(m, length), match_class, entries, 0)


# ---- siblings around the list's next tokens
# A sibling's rank is twice the tokens it shares with the list, plus one unless all of its own are
# shared. On either side of the list's place among the siblings ranks only rise towards it, so a
# stretch between two equal ranks needs no look inside.

cdef inline uint32_t rank_of(
    Store* s, uint32_t number, const uint32_t* tokens, uint32_t length, int* before
) noexcept nogil:
    cdef uint32_t own = 0
    cdef const uint32_t* own_tokens = node_tokens(s, node_at(s, number), &own)
    cdef uint32_t limit = own if own < length else length
    cdef uint32_t shared = shared_tokens(own_tokens, tokens, limit)
    if shared == own:
        before[0] = 1
        return 2 * shared
    before[0] = shared < length and own_tokens[shared] < tokens[shared]
    return 2 * shared + 1


cdef inline void note_ranked(
    Store* s, Search* m, uint32_t number, uint32_t rank, uint32_t depth_tokens
) noexcept nogil:
    cdef Node* node = node_at(s, number)
    if rank & 1:
        note_partial(s, m, depth_tokens + rank // 2, number, 1)
    elif node.kind == TAIL:
        note_covered(s, m, depth_tokens + rank // 2, node.u.tail.entries)


cdef inline void note_stretch(
    Store* s, Search* m, uint32_t number, uint32_t low, uint32_t high, int before,
    uint32_t depth_tokens, const uint32_t* tokens, uint32_t length,
) noexcept nogil:
    """A treap subtree on one side of the list's place, its ranks within low .. high."""
    cdef uint32_t rank
    cdef int side = 0
    if number == 0:
        return
    if low == high:
        note_partial(s, m, depth_tokens + low // 2, number, 0)
        return
    rank = rank_of(s, number, tokens, length, &side)
    note_ranked(s, m, number, rank, depth_tokens)
    note_stretch(
        s, m, node_at(s, number).left, low if before else rank, rank if before else high,
        before, depth_tokens, tokens, length,
    )
    note_stretch(
        s, m, node_at(s, number).right, rank if before else low, high if before else rank,
        before, depth_tokens, tokens, length,
    )


cdef inline void note_siblings(
    Store* s, Search* m, uint32_t root, uint32_t depth_tokens
) noexcept nogil:
    """Tails, or runs that keep tokens, below the path position `depth_tokens`."""
    cdef const uint32_t* tokens = m.q.tokens + depth_tokens
    cdef uint32_t length = m.q.length - depth_tokens
    cdef uint32_t low_before = 1
    cdef uint32_t low_after = 1
    cdef uint32_t rank
    cdef int before = 0
    if length > s.block_tokens:
        length = s.block_tokens
    if length == 0:
        note_partial(s, m, depth_tokens, root, 0)
        return
    while root:
        rank = rank_of(s, root, tokens, length, &before)
        note_ranked(s, m, root, rank, depth_tokens)
        if before:
            note_stretch(
                s, m, node_at(s, root).left, low_before, rank, 1, depth_tokens, tokens, length
            )
            low_before = rank
            root = node_at(s, root).right
        else:
            note_stretch(
                s, m, node_at(s, root).right, low_after, rank, 0, depth_tokens, tokens, length
            )
            low_after = rank
            root = node_at(s, root).left


cdef inline void note_all_but(
    Store* s, Search* m, uint32_t root, uint32_t child, uint32_t depth_tokens
) noexcept nogil:
    """Child runs other than the one on the list's path (0: all of them)."""
    cdef Node* node
    if child == 0:
        note_partial(s, m, depth_tokens, root, 0)
        return
    node = node_at(s, child)
    note_partial(s, m, depth_tokens, node.left, 0)
    note_partial(s, m, depth_tokens, node.right, 0)
    while node.up:
        note_partial(s, m, depth_tokens, node.up, 1)
        if node_at(s, node.up).left == child:
            note_partial(s, m, depth_tokens, node_at(s, node.up).right, 0)
        else:
            note_partial(s, m, depth_tokens, node_at(s, node.up).left, 0)
        child = node.up
        node = node_at(s, child)


# ---- the walk up one group's path

cdef inline int enough(const Search* m, uint32_t first, uint32_t bound) noexcept nogil:
    """Whether sources of more than `bound` units already hold more than what is wanted."""
    cdef uint64_t entries = 0
    cdef uint32_t i
    for i in range(first, m.used):
        if m.sources[i].units > bound:
            entries += m.sources[i].count
    return entries > m.limit


cdef inline void note_inside_run(
    Store* s, Search* m, uint32_t run, uint32_t block, uint32_t depth
) noexcept nogil:
    """The list ends or leaves inside a run, after `block`: all at and below its end is partial."""
    cdef uint32_t depth_tokens = depth * s.block_tokens
    cdef uint32_t shared = 0
    cdef uint32_t length
    if m.flags & FLAG_FINE:
        length = m.q.length - depth_tokens
        shared = shared_tokens(
            block_tokens_at(s, block_at(s, block).next), m.q.tokens + depth_tokens,
            length if length < s.block_tokens else s.block_tokens,
        )
    note_partial(s, m, depth_tokens + shared, run, 1)


cdef inline void note_run_end(
    Store* s, Search* m, uint32_t run, uint32_t child
) noexcept nogil:
    """The list's path passes the end of a run, and goes on in `child` (0: nowhere stored)."""
    cdef Node* node = node_at(s, run)
    cdef uint32_t depth_tokens = node.u.run.depth * s.block_tokens
    if node.u.run.entries:
        note_covered(s, m, depth_tokens, node.u.run.entries)
    if node.u.run.tails:
        note_siblings(s, m, node.u.run.tails, depth_tokens)
    if node.u.run.children and m.flags & FLAG_PARTIAL:
        if m.flags & FLAG_FINE:
            note_siblings(s, m, node.u.run.children, depth_tokens)
        else:
            note_all_but(s, m, node.u.run.children, child, depth_tokens)


cdef inline void note_group(Store* s, Search* m, uint32_t number) noexcept nogil:
    cdef GroupBody* group = &node_at(s, number).u.group
    cdef uint32_t first = m.used
    cdef uint32_t depth = 0
    cdef uint32_t child = 0
    cdef uint32_t previous = 0
    cdef uint32_t run, block, bound
    m.unit = group.unit
    m.flags = group.flags
    block = deepest_block(s, &m.q, number, &depth)
    if m.flags & RULE_MASK == EXACT_ONLY and depth < m.q.blocks:
        return
    run = block_at(s, block).run if block else group.root
    nkv_prefetch(node_at(s, node_at(s, run).owner))
    if depth < node_at(s, run).u.run.depth:
        note_inside_run(s, m, run, block, depth)
    else:
        note_run_end(s, m, run, 0)
    while node_at(s, run).owner and m.flags & RULE_MASK != EXACT_ONLY and m.status == DONE:
        child = run
        run = node_at(s, run).owner
        # What is left shares no more than this.
        bound = units_of(m, (node_at(s, run).u.run.depth + 1) * s.block_tokens - 1)
        if bound == 0 or (bound != previous and enough(m, first, bound)):
            return
        previous = bound
        note_run_end(s, m, run, child)


# ---- giving candidates out: a binary heap over the sources

cdef inline int better(const Source* a, const Source* b) noexcept nogil:
    if a.units != b.units:
        return a.units > b.units
    if a.match_class != b.match_class:
        return a.match_class < b.match_class
    if a.order != b.order:
        return a.order < b.order
    return a.entry < b.entry


cdef inline void sift_down(Search* m, uint32_t at) noexcept nogil:
    cdef Source moving = m.sources[at]
    cdef uint32_t child = 2 * at + 1
    while child < m.used:
        if child + 1 < m.used and better(&m.sources[child + 1], &m.sources[child]):
            child += 1
        if not better(&m.sources[child], &moving):
            break
        m.sources[at] = m.sources[child]
        at = child
        child = 2 * at + 1
    m.sources[at] = moving


cdef inline void sift_up(Search* m, uint32_t at) noexcept nogil:
    cdef Source moving = m.sources[at]
    while at and better(&moving, &m.sources[(at - 1) // 2]):
        m.sources[at] = m.sources[(at - 1) // 2]
        at = (at - 1) // 2
    m.sources[at] = moving


cdef inline void order_sources(Search* m) noexcept nogil:
    cdef uint32_t i
    for i in range(m.used // 2, 0, -1):
        sift_down(m, i - 1)


cdef inline void push_part(
    Store* s, Search* m, const Source* whole, uint32_t number, int alone
) noexcept nogil:
    cdef uint32_t before = m.used
    note(s, m, whole.units, whole.match_class, number, alone)
    if m.used > before:
        m.sources[before].spent = m.sources[before].best == whole.best
        sift_up(m, before)


cdef inline void open_source(Store* s, Search* m) noexcept nogil:
    """Replace the first source by its parts; the part with its best entry starts out spent."""
    cdef Source whole = m.sources[0]
    cdef Node* node = node_at(s, whole.node)
    cdef uint64_t seen = m.seen
    m.used -= 1
    if m.used:
        m.sources[0] = m.sources[m.used]
        sift_down(m, 0)
    if not whole.alone:
        push_part(s, m, &whole, whole.node, 1)
        push_part(s, m, &whole, node.left, 0)
        push_part(s, m, &whole, node.right, 0)
    elif node.kind == RUN:
        push_part(s, m, &whole, node.u.run.entries, 0)
        push_part(s, m, &whole, node.u.run.tails, 0)
        push_part(s, m, &whole, node.u.run.children, 0)
    elif node.kind == TAIL:
        push_part(s, m, &whole, node.u.tail.entries, 0)
    m.seen = seen


cdef inline int next_candidate(Store* s, Search* m, Candidate* found) noexcept nogil:
    """1 and the next best candidate; 0 when there is none or the budget is spent."""
    while m.used and m.status == DONE:
        if not m.sources[0].spent:
            m.sources[0].spent = 1
            found.entry = m.sources[0].entry
            found.units = m.sources[0].units
            found.match_class = m.sources[0].match_class
            return 1
        if m.budget == 0:
            return 0
        m.budget -= 1
        open_source(s, m)
    return 0
