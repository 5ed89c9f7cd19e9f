# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Memory of the index: slabs of blocks and nodes, whose addresses never move.

Everything is named by u32 number; number 0 is the null block and the null node. `reserve_*` may
fail and change nothing a reader can see; `take_*` and `give_*` after a reservation cannot fail.
"""
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define nkv_prefetch(p) __builtin_prefetch(p)
    #else
    #define nkv_prefetch(p) ((void)(p))
    #endif
    """
    void nkv_prefetch(const void* address) noexcept nogil


cdef enum:
    BLOCK_BITS = 11     # blocks of a slab, log2
    NODE_BITS = 10      # nodes of a slab, log2
    TOKENS_MAX = 16     # tokens a block or a tail slot can hold

cdef enum Status:
    DONE = 0
    NO_MEMORY = 1
    FULL = 2

cdef enum Kind:
    FREE = 0
    RUN = 1
    TAIL = 2
    ENTRY = 3
    GROUP = 4


# One per stored block: 24 bytes, plus a token slot in a parallel slab where the group is fine.
cdef struct Block:
    uint64_t lo
    uint64_t hi
    uint32_t next       # following block of the run; free list
    uint32_t run


# Consecutive blocks with no branch, tail or entry before the last one.
cdef struct RunBody:
    uint32_t children   # roots of the treaps below the run's last block
    uint32_t tails
    uint32_t entries
    uint32_t first
    uint32_t last
    uint32_t length     # blocks
    uint32_t depth      # blocks from the root to the end of the run
    uint32_t group


cdef struct TailBody:
    uint32_t entries
    uint32_t tokens     # the node whose 64 bytes hold them
    uint32_t length


cdef struct EntryBody:
    uint64_t order
    uint32_t entry


# Entries of one scope that share rule, unit and partial: one trie each.
cdef struct GroupBody:
    uint64_t k0
    uint64_t k1
    uint32_t root
    uint32_t next       # next group of the scope
    uint32_t unit
    uint32_t flags      # rule | partial << 2 | fine << 3


cdef union Body:
    RunBody run
    TailBody tail
    EntryBody entry
    GroupBody group


# 64 bytes. Siblings form a treap; `count` and `best` summarise a treap subtree and all below it.
cdef struct Node:
    uint32_t up
    uint32_t left
    uint32_t right
    uint32_t owner
    uint32_t priority
    uint32_t count      # entries
    uint32_t best       # the entry node of lowest (order, entry)
    uint32_t kind
    Body u


cdef union TokenSlot:
    Node node
    uint32_t tokens[TOKENS_MAX]


# A slot is hash | number << 32; linear probing, at most three quarters full, 0 is empty.
cdef struct Table:
    uint64_t* slots
    uint64_t mask
    uint64_t used


cdef struct Slabs:
    void** chunks
    uint32_t used
    uint32_t capacity


cdef struct Store:
    Slabs blocks
    Slabs tokens        # parallel to `blocks`; NULL where the slab's blocks keep no tokens
    Slabs nodes
    uint32_t free_blocks[2]
    uint64_t free_block_count[2]
    uint32_t free_nodes
    uint64_t free_node_count
    uint64_t block_count
    uint64_t entry_count
    Table block_table
    Table entry_table
    uint32_t block_tokens
    uint64_t random
    uint64_t memory_bytes
    int64_t fail_after  # for tests: allocations left before one fails; negative is never
    uint32_t slabs_max


cdef inline int raise_status(Status status) except -1:
    if status == FULL:
        raise OverflowError("the index holds as many blocks or entries as it can number")
    if status != DONE:
        raise MemoryError("no memory for the index")
    return 0


cdef inline void* grab(Store* s, size_t bytes_wanted) noexcept nogil:
    """Zeroed memory, or NULL."""
    cdef void* p
    if s.fail_after == 0:
        return NULL
    if s.fail_after > 0:
        s.fail_after -= 1
    p = PyMem_RawCalloc(1, bytes_wanted)
    if p != NULL:
        s.memory_bytes += bytes_wanted
    return p


cdef inline void drop(Store* s, void* p, size_t bytes_held) noexcept nogil:
    if p != NULL:
        PyMem_RawFree(p)
        s.memory_bytes -= bytes_held


# ---- slabs

cdef inline Block* block_at(Store* s, uint32_t number) noexcept nogil:
    return <Block*>s.blocks.chunks[number >> BLOCK_BITS] + (number & ((1 << BLOCK_BITS) - 1))


cdef inline const uint32_t* block_tokens_at(Store* s, uint32_t number) noexcept nogil:
    """NULL where blocks of this slab keep no tokens."""
    cdef uint32_t* base = <uint32_t*>s.tokens.chunks[number >> BLOCK_BITS]
    if base == NULL:
        return NULL
    return base + <size_t>(number & ((1 << BLOCK_BITS) - 1)) * s.block_tokens


cdef inline Node* node_at(Store* s, uint32_t number) noexcept nogil:
    return <Node*>s.nodes.chunks[number >> NODE_BITS] + (number & ((1 << NODE_BITS) - 1))


cdef inline uint32_t* tail_tokens_at(Store* s, uint32_t slot) noexcept nogil:
    return (<TokenSlot*>node_at(s, slot)).tokens


cdef inline Status slabs_reserve(Store* s, Slabs* slabs) noexcept nogil:
    cdef uint32_t capacity
    cdef void** chunks
    if slabs.used < slabs.capacity:
        return DONE
    capacity = 16 if slabs.capacity == 0 else 2 * slabs.capacity
    chunks = <void**>grab(s, <size_t>capacity * sizeof(void*))
    if chunks == NULL:
        return NO_MEMORY
    if slabs.used:
        memcpy(chunks, slabs.chunks, slabs.used * sizeof(void*))
    drop(s, slabs.chunks, slabs.capacity * sizeof(void*))
    slabs.chunks = chunks
    slabs.capacity = capacity
    return DONE


cdef inline Status add_block_slab(Store* s, int fine) noexcept nogil:
    cdef uint32_t per_slab = 1 << BLOCK_BITS
    cdef size_t token_bytes = <size_t>per_slab * s.block_tokens * sizeof(uint32_t)
    cdef Block* blocks
    cdef void* tokens = NULL
    cdef uint32_t base, i
    if s.blocks.used >= s.slabs_max:
        return FULL
    if slabs_reserve(s, &s.blocks) != DONE or slabs_reserve(s, &s.tokens) != DONE:
        return NO_MEMORY
    if fine:
        tokens = grab(s, token_bytes)
        if tokens == NULL:
            return NO_MEMORY
    blocks = <Block*>grab(s, per_slab * sizeof(Block))
    if blocks == NULL:
        drop(s, tokens, token_bytes)
        return NO_MEMORY
    base = s.blocks.used << BLOCK_BITS
    s.blocks.chunks[s.blocks.used] = blocks
    s.tokens.chunks[s.blocks.used] = tokens
    s.blocks.used += 1
    s.tokens.used += 1
    # Linked in ascending order, so that the blocks of one chain lie side by side.
    for i in range(per_slab - 1):
        blocks[i].next = base + i + 1
    blocks[per_slab - 1].next = s.free_blocks[fine]
    s.free_blocks[fine] = base if base else 1
    s.free_block_count[fine] += per_slab if base else per_slab - 1
    return DONE


cdef inline Status reserve_blocks(Store* s, int fine, uint64_t wanted) noexcept nogil:
    cdef Status status
    while s.free_block_count[fine] < wanted:
        status = add_block_slab(s, fine)
        if status != DONE:
            return status
    return DONE


cdef inline uint32_t take_block(Store* s, int fine) noexcept nogil:
    cdef uint32_t number = s.free_blocks[fine]
    s.free_blocks[fine] = block_at(s, number).next
    s.free_block_count[fine] -= 1
    s.block_count += 1
    return number


cdef inline void give_block(Store* s, uint32_t number) noexcept nogil:
    cdef int fine = s.tokens.chunks[number >> BLOCK_BITS] != NULL
    cdef Block* block = block_at(s, number)
    memset(block, 0, sizeof(Block))
    block.next = s.free_blocks[fine]
    s.free_blocks[fine] = number
    s.free_block_count[fine] += 1
    s.block_count -= 1


cdef inline Status reserve_nodes(Store* s, uint64_t wanted) noexcept nogil:
    cdef uint32_t per_slab = 1 << NODE_BITS
    cdef uint32_t base, i
    cdef Node* nodes
    while s.free_node_count < wanted:
        if s.nodes.used >= s.slabs_max:
            return FULL
        if slabs_reserve(s, &s.nodes) != DONE:
            return NO_MEMORY
        nodes = <Node*>grab(s, per_slab * sizeof(Node))
        if nodes == NULL:
            return NO_MEMORY
        base = s.nodes.used << NODE_BITS
        s.nodes.chunks[s.nodes.used] = nodes
        s.nodes.used += 1
        for i in range(per_slab - 1):
            nodes[i].up = base + i + 1
        nodes[per_slab - 1].up = s.free_nodes
        s.free_nodes = base if base else 1
        s.free_node_count += per_slab if base else per_slab - 1
        if base == 0:
            nodes[0].up = 0
    return DONE


cdef inline uint32_t take_node(Store* s, Kind kind) noexcept nogil:
    cdef uint32_t number = s.free_nodes
    cdef Node* node = node_at(s, number)
    cdef uint64_t z
    s.free_nodes = node.up
    s.free_node_count -= 1
    memset(node, 0, sizeof(Node))
    node.kind = kind
    s.random += <uint64_t>0x9e3779b97f4a7c15
    z = (s.random ^ (s.random >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    z = (z ^ (z >> 27)) * <uint64_t>0x94d049bb133111eb
    node.priority = <uint32_t>(z >> 32)
    return number


cdef inline void give_node(Store* s, uint32_t number) noexcept nogil:
    cdef Node* node = node_at(s, number)
    memset(node, 0, sizeof(Node))
    node.up = s.free_nodes
    s.free_nodes = number
    s.free_node_count += 1
