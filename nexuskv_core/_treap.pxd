# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Siblings as treaps over `Node`, each summing up the entries in and below it.

Order of siblings: entries by (order, number); tails by their tokens; runs by the tokens of their
first block where tokens are kept, else by its key. Expected height is logarithmic.
"""
from libc.stdint cimport uint32_t

from nexuskv_core._store cimport (
    ENTRY, RUN, TAIL, Block, Node, Store, block_at, block_tokens_at, node_at, tail_tokens_at,
)


cdef inline uint32_t shared_tokens(
    const uint32_t* a, const uint32_t* b, uint32_t limit
) noexcept nogil:
    cdef uint32_t i = 0
    while i < limit and a[i] == b[i]:
        i += 1
    return i


cdef inline int compare_tokens(
    const uint32_t* a, uint32_t a_tokens, const uint32_t* b, uint32_t b_tokens
) noexcept nogil:
    cdef uint32_t limit = a_tokens if a_tokens < b_tokens else b_tokens
    cdef uint32_t i = shared_tokens(a, b, limit)
    if i < limit:
        return -1 if a[i] < b[i] else 1
    return <int>a_tokens - <int>b_tokens


cdef inline const uint32_t* node_tokens(
    Store* s, const Node* node, uint32_t* length
) noexcept nogil:
    """Tokens a sibling is ordered by; NULL for a run whose group keeps none."""
    if node.kind == TAIL:
        length[0] = node.u.tail.length
        return tail_tokens_at(s, node.u.tail.tokens)
    length[0] = s.block_tokens
    return block_tokens_at(s, node.u.run.first)


cdef inline int compare_nodes(Store* s, const Node* a, const Node* b) noexcept nogil:
    cdef uint32_t a_tokens = 0
    cdef uint32_t b_tokens = 0
    cdef const uint32_t* a_first
    cdef const uint32_t* b_first
    cdef Block* x
    cdef Block* y
    if a.kind == ENTRY:
        if a.u.entry.order != b.u.entry.order:
            return -1 if a.u.entry.order < b.u.entry.order else 1
        return -1 if a.u.entry.entry < b.u.entry.entry else a.u.entry.entry > b.u.entry.entry
    a_first = node_tokens(s, a, &a_tokens)
    b_first = node_tokens(s, b, &b_tokens)
    if a_first != NULL:
        return compare_tokens(a_first, a_tokens, b_first, b_tokens)
    x = block_at(s, a.u.run.first)
    y = block_at(s, b.u.run.first)
    if x.lo != y.lo:
        return -1 if x.lo < y.lo else 1
    return -1 if x.hi < y.hi else x.hi > y.hi


cdef inline uint32_t lower_entry(Store* s, uint32_t a, uint32_t b) noexcept nogil:
    """The entry node of lower (order, number); 0 stands for none."""
    if a == 0 or b == 0:
        return a | b
    return a if compare_nodes(s, node_at(s, a), node_at(s, b)) <= 0 else b


cdef inline uint32_t own_best(Store* s, uint32_t number) noexcept nogil:
    """Best entry of a node and what hangs below it, its siblings left out."""
    cdef Node* node = node_at(s, number)
    cdef uint32_t best
    if node.kind == ENTRY:
        return number
    if node.kind == TAIL:
        return node_at(s, node.u.tail.entries).best
    best = node_at(s, node.u.run.entries).best
    best = lower_entry(s, best, node_at(s, node.u.run.tails).best)
    return lower_entry(s, best, node_at(s, node.u.run.children).best)


cdef inline uint32_t own_count(Store* s, uint32_t number) noexcept nogil:
    cdef Node* node = node_at(s, number)
    if node.kind == ENTRY:
        return 1
    if node.kind == TAIL:
        return node_at(s, node.u.tail.entries).count
    return (
        node_at(s, node.u.run.entries).count
        + node_at(s, node.u.run.tails).count
        + node_at(s, node.u.run.children).count
    )


cdef inline void sum_up(Store* s, uint32_t number) noexcept nogil:
    cdef Node* node = node_at(s, number)
    cdef Node* left = node_at(s, node.left)
    cdef Node* right = node_at(s, node.right)
    node.count = own_count(s, number) + left.count + right.count
    node.best = lower_entry(s, own_best(s, number), lower_entry(s, left.best, right.best))


cdef inline void sum_up_to_root(Store* s, uint32_t number) noexcept nogil:
    """Refresh a node and every node above it, through its siblings and its owners."""
    cdef Node* node
    while number:
        sum_up(s, number)
        node = node_at(s, number)
        number = node.up if node.up else node.owner


cdef inline uint32_t* root_of(Store* s, uint32_t owner, uint32_t kind) noexcept nogil:
    """Where the owner keeps the treap of its members of this kind."""
    cdef Node* node = node_at(s, owner)
    if kind == RUN:
        return &node.u.run.children
    if kind == TAIL:
        return &node.u.run.tails
    if node.kind == TAIL:
        return &node.u.tail.entries
    return &node.u.run.entries


cdef inline void relink(
    Store* s, uint32_t* root, uint32_t parent, uint32_t old, uint32_t new
) noexcept nogil:
    """Make `new` take the place of `old` below `parent` (0: as the root)."""
    cdef Node* node
    if parent == 0:
        root[0] = new
    else:
        node = node_at(s, parent)
        if node.left == old:
            node.left = new
        else:
            node.right = new
    if new:
        node_at(s, new).up = parent


cdef inline void rotate_up(Store* s, uint32_t* root, uint32_t number) noexcept nogil:
    cdef Node* node = node_at(s, number)
    cdef uint32_t above = node.up
    cdef Node* parent = node_at(s, above)
    cdef uint32_t moved
    relink(s, root, parent.up, above, number)
    if parent.left == number:
        moved = node.right
        parent.left = moved
        node.right = above
    else:
        moved = node.left
        parent.right = moved
        node.left = above
    if moved:
        node_at(s, moved).up = above
    parent.up = number
    sum_up(s, above)


cdef inline void treap_insert(Store* s, uint32_t owner, uint32_t number) noexcept nogil:
    """Put a node, not present, among its owner's members; the sums above are the caller's."""
    cdef Node* node = node_at(s, number)
    cdef uint32_t* root = root_of(s, owner, node.kind)
    cdef uint32_t at = root[0]
    cdef uint32_t above = 0
    cdef Node* other
    cdef int side = 0
    node.owner = owner
    while at:
        other = node_at(s, at)
        side = compare_nodes(s, node, other)
        above = at
        at = other.left if side < 0 else other.right
    node.up = above
    if above == 0:
        root[0] = number
    elif side < 0:
        node_at(s, above).left = number
    else:
        node_at(s, above).right = number
    while node.up and node_at(s, node.up).priority < node.priority:
        rotate_up(s, root, number)


cdef inline void treap_remove(Store* s, uint32_t number) noexcept nogil:
    """Take a node out and refresh all sums above it; its owner field stays for the caller."""
    cdef Node* node = node_at(s, number)
    cdef uint32_t* root = root_of(s, node.owner, node.kind)
    cdef uint32_t above
    while node.left or node.right:
        if node.right == 0 or (
            node.left and node_at(s, node.left).priority > node_at(s, node.right).priority
        ):
            rotate_up(s, root, node.left)
        else:
            rotate_up(s, root, node.right)
    above = node.up
    relink(s, root, above, number, 0)
    sum_up_to_root(s, above if above else node.owner)


cdef inline void treap_replace(Store* s, uint32_t old, uint32_t new) noexcept nogil:
    """Give `new` the place of `old` among its siblings; the sums of `new` are the caller's."""
    cdef Node* gone = node_at(s, old)
    cdef Node* node = node_at(s, new)
    node.left = gone.left
    node.right = gone.right
    node.priority = gone.priority
    node.owner = gone.owner
    relink(s, root_of(s, gone.owner, gone.kind), gone.up, old, new)
    if node.left:
        node_at(s, node.left).up = new
    if node.right:
        node_at(s, node.right).up = new
    gone.up = gone.left = gone.right = 0
