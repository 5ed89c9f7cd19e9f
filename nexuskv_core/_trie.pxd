# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One trie of runs per group: insertion, removal, and the path search shared with matching.

A run other than the root ends where there is a tail, an entry or a branch; `split_run` and
`settle` keep it so. Both relabel only blocks of the list being added or removed.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from nexuskv_core._siphash cimport SipState, finish_block
from nexuskv_core._store cimport (
    ENTRY, GROUP, RUN, TAIL, Block, GroupBody, Node, RunBody, Store, block_at, block_tokens_at,
    give_block, give_node, nkv_prefetch, node_at, tail_tokens_at, take_block, take_node,
)
from nexuskv_core._table cimport entry_hash, find_block, table_insert, table_remove
from nexuskv_core._treap cimport (
    compare_tokens, root_of, sum_up, sum_up_to_root, treap_insert, treap_remove, treap_replace,
)


cdef enum:
    PROBES = 8          # path positions probed at once, so that their cache misses overlap
    FLAG_PARTIAL = 4
    FLAG_FINE = 8       # tokens of whole blocks are kept: extents end inside a block
    RULE_MASK = 3


# A token list with the hash state after every block.
cdef struct Query:
    const uint32_t* tokens
    uint32_t length
    uint32_t blocks
    const SipState* states


cdef inline uint64_t group_mark(uint32_t group) noexcept nogil:
    """Keeps the blocks of two groups of a scope apart; a bijection of the group's number."""
    cdef uint64_t z = group * <uint64_t>0x9e3779b97f4a7c15
    z = (z ^ (z >> 32)) * <uint64_t>0xd6e8feb86659fd93
    return z ^ (z >> 32)


cdef inline void block_key(
    Store* s, const Query* q, uint32_t depth, uint64_t mark, uint64_t* lo, uint64_t* hi
) noexcept nogil:
    finish_block(&q.states[depth], <uint64_t>depth * s.block_tokens, lo, hi)
    lo[0] ^= mark


cdef inline uint32_t deepest_block(
    Store* s, const Query* q, uint32_t group, uint32_t* depth
) noexcept nogil:
    """The last stored block on the list's path, 0 for none, and its depth.

    A stored block's ancestors are stored, so the depth is found by search, nine intervals a step.
    """
    cdef uint64_t mark = group_mark(group)
    cdef uint64_t lo[PROBES]
    cdef uint64_t hi[PROBES]
    cdef uint32_t at[PROBES]
    cdef uint32_t below = 0
    cdef uint32_t above = q.blocks + 1
    cdef uint32_t found = 0
    cdef uint32_t block, i, probes
    cdef uint64_t slot
    while above - below > 1:
        probes = above - below - 1
        if probes > PROBES:
            probes = PROBES
        for i in range(probes):
            at[i] = below + <uint32_t>(<uint64_t>(above - 1 - below) * (i + 1) / probes)
            block_key(s, q, at[i], mark, &lo[i], &hi[i])
            nkv_prefetch(&s.block_table.slots[<uint32_t>lo[i] & s.block_table.mask])
        for i in range(probes):
            slot = s.block_table.slots[<uint32_t>lo[i] & s.block_table.mask]
            nkv_prefetch(block_at(s, <uint32_t>(slot >> 32)))
        for i in range(probes, 0, -1):
            block = find_block(s, lo[i - 1], hi[i - 1])
            if block:
                found = block
                below = at[i - 1]
                break
            above = at[i - 1]
    depth[0] = below
    return found


# ---- insertion

cdef inline uint32_t find_group(
    Store* s, uint32_t first, uint32_t unit, uint32_t flags
) noexcept nogil:
    """The group of a scope, from its first one on; 0 when there is none like it."""
    cdef GroupBody* group
    while first:
        group = &node_at(s, first).u.group
        if group.unit == unit and group.flags == flags:
            return first
        first = group.next
    return 0


cdef inline uint32_t new_group(
    Store* s, uint64_t k0, uint64_t k1, uint32_t unit, uint32_t flags
) noexcept nogil:
    cdef uint32_t number = take_node(s, GROUP)
    cdef uint32_t root = take_node(s, RUN)
    cdef GroupBody* group = &node_at(s, number).u.group
    group.k0 = k0
    group.k1 = k1
    group.unit = unit
    group.flags = flags
    group.root = root
    node_at(s, root).u.run.group = number
    return number


cdef inline uint32_t split_run(
    Store* s, uint32_t number, uint32_t block, uint32_t depth
) noexcept nogil:
    """End a run at an inner block; returns the new upper run, the lower one keeps its number."""
    cdef uint32_t upper_number = take_node(s, RUN)
    cdef Node* lower = node_at(s, number)
    cdef Node* upper = node_at(s, upper_number)
    cdef uint32_t at, _i
    upper.u.run.first = lower.u.run.first
    upper.u.run.last = block
    upper.u.run.length = lower.u.run.length - (lower.u.run.depth - depth)
    upper.u.run.depth = depth
    upper.u.run.group = lower.u.run.group
    upper.u.run.children = number
    at = upper.u.run.first
    for _i in range(upper.u.run.length):
        block_at(s, at).run = upper_number
        at = block_at(s, at).next
    lower.u.run.first = at
    lower.u.run.length = lower.u.run.depth - depth
    block_at(s, block).next = 0
    treap_replace(s, number, upper_number)
    lower.owner = upper_number
    sum_up(s, number)
    sum_up(s, upper_number)
    return upper_number


cdef inline uint32_t append_run(
    Store* s, const Query* q, uint32_t parent, uint32_t depth, uint32_t group
) noexcept nogil:
    """Store blocks `depth` .. `q.blocks` as one new run below `parent`."""
    cdef uint32_t number = take_node(s, RUN)
    cdef Node* node = node_at(s, number)
    cdef RunBody* run = &node.u.run
    cdef int fine = node_at(s, group).u.group.flags & FLAG_FINE != 0
    cdef uint64_t mark = group_mark(group)
    cdef uint32_t bt = s.block_tokens
    cdef uint32_t fresh, i, _i
    cdef Block* block
    run.length = q.blocks - depth
    run.depth = q.blocks
    run.group = group
    for i in range(depth, q.blocks):
        fresh = take_block(s, fine)
        block = block_at(s, fresh)
        block_key(s, q, i + 1, mark, &block.lo, &block.hi)
        block.run = number
        block.next = 0
        if fine:
            memcpy(
                <void*>block_tokens_at(s, fresh), q.tokens + <size_t>i * bt, bt * sizeof(uint32_t)
            )
        if run.last:
            block_at(s, run.last).next = fresh
        else:
            run.first = fresh
        run.last = fresh
        nkv_prefetch(&s.block_table.slots[<uint32_t>block.lo & s.block_table.mask])
    # A pass of its own, so that the table's cache misses overlap.
    fresh = run.first
    for _i in range(run.length):
        block = block_at(s, fresh)
        table_insert(&s.block_table, <uint32_t>block.lo, fresh)
        fresh = block.next
    treap_insert(s, parent, number)
    return number


cdef inline uint32_t find_tail(
    Store* s, uint32_t run, const uint32_t* tokens, uint32_t length
) noexcept nogil:
    cdef uint32_t at = node_at(s, run).u.run.tails
    cdef Node* node
    cdef int side
    while at:
        node = node_at(s, at)
        side = compare_tokens(
            tokens, length, tail_tokens_at(s, node.u.tail.tokens), node.u.tail.length
        )
        if side == 0:
            return at
        at = node.left if side < 0 else node.right
    return 0


cdef inline uint32_t append_tail(
    Store* s, uint32_t run, const uint32_t* tokens, uint32_t length
) noexcept nogil:
    cdef uint32_t number = take_node(s, TAIL)
    cdef uint32_t slot = take_node(s, TAIL)
    cdef Node* node = node_at(s, number)
    memcpy(tail_tokens_at(s, slot), tokens, length * sizeof(uint32_t))
    node.u.tail.tokens = slot
    node.u.tail.length = length
    treap_insert(s, run, number)
    return number


cdef inline void insert_entry(
    Store* s, const Query* q, uint32_t group, uint32_t block, uint32_t depth,
    uint32_t entry, uint64_t order,
) noexcept nogil:
    """Cannot fail: blocks, nodes (seven at most) and table space were reserved.

    `block` and `depth` are what `deepest_block` answered for this group.
    """
    cdef uint32_t holder = node_at(s, group).u.group.root
    cdef uint32_t tail_length = q.length - q.blocks * s.block_tokens
    cdef const uint32_t* tail_tokens = q.tokens + (q.length - tail_length)
    cdef uint32_t number, run
    if block:
        holder = block_at(s, block).run
        if node_at(s, holder).u.run.depth != depth:
            holder = split_run(s, holder, block, depth)
    if depth < q.blocks:
        holder = append_run(s, q, holder, depth, group)
    if tail_length:
        run = holder
        holder = find_tail(s, run, tail_tokens, tail_length)
        if holder == 0:
            holder = append_tail(s, run, tail_tokens, tail_length)
    number = take_node(s, ENTRY)
    node_at(s, number).u.entry.order = order
    node_at(s, number).u.entry.entry = entry
    treap_insert(s, holder, number)
    sum_up_to_root(s, number)
    table_insert(&s.entry_table, entry_hash(entry), number)
    s.entry_count += 1


# ---- removal

cdef inline void free_blocks_of(Store* s, const RunBody* run) noexcept nogil:
    cdef uint32_t at = run.first
    cdef uint32_t _i, following
    for _i in range(run.length):
        following = block_at(s, at).next
        table_remove(&s.block_table, <uint32_t>block_at(s, at).lo, at)
        give_block(s, at)
        at = following


cdef inline void join_only_child(Store* s, uint32_t number) noexcept nogil:
    """Put the blocks of a run in front of its only child, which takes its place."""
    cdef Node* node = node_at(s, number)
    cdef uint32_t child_number = node.u.run.children
    cdef Node* child = node_at(s, child_number)
    cdef uint32_t at = node.u.run.first
    cdef uint32_t _i
    for _i in range(node.u.run.length):
        block_at(s, at).run = child_number
        at = block_at(s, at).next
    block_at(s, node.u.run.last).next = child.u.run.first
    child.u.run.first = node.u.run.first
    child.u.run.length += node.u.run.length
    treap_replace(s, number, child_number)
    sum_up(s, child_number)
    give_node(s, number)


cdef inline uint32_t settle(Store* s, uint32_t number) noexcept nogil:
    """Free or join runs nothing needs any more, upwards; returns the group if it became empty."""
    cdef RunBody* run
    cdef Node* child
    cdef uint32_t parent
    while True:
        run = &node_at(s, number).u.run
        if run.entries or run.tails:
            return 0
        parent = node_at(s, number).owner
        if run.children:
            child = node_at(s, run.children)
            if parent and child.left == 0 and child.right == 0:
                join_only_child(s, number)
            return 0
        if parent == 0:
            return run.group
        treap_remove(s, number)
        free_blocks_of(s, run)
        give_node(s, number)
        number = parent


cdef inline uint32_t delete_entry(Store* s, uint32_t number) noexcept nogil:
    """Remove an entry node and all that only it needed; returns the group if it became empty."""
    cdef Node* node = node_at(s, number)
    cdef uint32_t holder = node.owner
    cdef uint32_t run
    treap_remove(s, number)
    table_remove(&s.entry_table, entry_hash(node.u.entry.entry), number)
    give_node(s, number)
    s.entry_count -= 1
    node = node_at(s, holder)
    if node.kind == TAIL:
        run = node.owner
        if node.u.tail.entries == 0:
            treap_remove(s, holder)
            give_node(s, node.u.tail.tokens)
            give_node(s, holder)
        holder = run
    return settle(s, holder)
