# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hash tables from block keys and entry numbers to where they are stored.

A slot carries 32 bits of the hash, so growing and closing gaps never look at what is stored.
"""
from cpython.mem cimport PyMem_RawFree
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from nexuskv_core._store cimport (
    BLOCK_BITS, DONE, NO_MEMORY, Block, Status, Store, Table, block_at, drop, grab, node_at,
    reserve_blocks, reserve_nodes,
)


cdef extern from *:
    """
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    /* Ask for huge pages under a large table: a probe then misses the TLB less. */
    static inline void nkv_huge_pages(void *start, size_t bytes) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        const size_t page = (size_t)1 << 21;
        size_t first = ((size_t)start + page - 1) & ~(page - 1);
        size_t last = ((size_t)start + bytes) & ~(page - 1);
        if (last > first) (void)madvise((void *)first, last - first, MADV_HUGEPAGE);
    #else
        (void)start;
        (void)bytes;
    #endif
    }
    """
    void nkv_huge_pages(void* start, size_t bytes) noexcept nogil


cdef inline Status table_reserve(Store* s, Table* t, uint64_t extra) noexcept nogil:
    cdef uint64_t size = t.mask + 1 if t.slots != NULL else 0
    cdef uint64_t wanted = size if size else 16
    cdef uint64_t i, at
    cdef uint64_t* slots
    while 4 * (t.used + extra) > 3 * wanted:
        wanted *= 2
    if wanted == size:
        return DONE
    slots = <uint64_t*>grab(s, wanted * sizeof(uint64_t))
    if slots == NULL:
        return NO_MEMORY
    nkv_huge_pages(slots, wanted * sizeof(uint64_t))
    for i in range(size):
        if t.slots[i]:
            at = <uint32_t>t.slots[i] & (wanted - 1)
            while slots[at]:
                at = (at + 1) & (wanted - 1)
            slots[at] = t.slots[i]
    drop(s, t.slots, size * sizeof(uint64_t))
    t.slots = slots
    t.mask = wanted - 1
    return DONE


cdef inline void table_insert(Table* t, uint32_t hashed, uint32_t number) noexcept nogil:
    cdef uint64_t at = hashed & t.mask
    while t.slots[at]:
        at = (at + 1) & t.mask
    t.slots[at] = hashed | (<uint64_t>number << 32)
    t.used += 1


cdef inline void table_remove(Table* t, uint32_t hashed, uint32_t number) noexcept nogil:
    """Closes the gap by moving later slots of the cluster back, so no tombstones pile up."""
    cdef uint64_t hole = hashed & t.mask
    cdef uint64_t at, home
    while <uint32_t>(t.slots[hole] >> 32) != number:
        hole = (hole + 1) & t.mask
    at = hole
    while True:
        at = (at + 1) & t.mask
        if t.slots[at] == 0:
            break
        home = <uint32_t>t.slots[at] & t.mask
        if ((at - home) & t.mask) >= ((at - hole) & t.mask):
            t.slots[hole] = t.slots[at]
            hole = at
    t.slots[hole] = 0
    t.used -= 1


cdef inline uint32_t find_block(Store* s, uint64_t lo, uint64_t hi) noexcept nogil:
    """0 when no block has this key."""
    cdef Table* t = &s.block_table
    cdef uint64_t at = <uint32_t>lo & t.mask
    cdef uint64_t slot = t.slots[at]
    cdef Block* block
    while slot:
        if <uint32_t>slot == <uint32_t>lo:
            block = block_at(s, <uint32_t>(slot >> 32))
            if block.lo == lo and block.hi == hi:
                return <uint32_t>(slot >> 32)
        at = (at + 1) & t.mask
        slot = t.slots[at]
    return 0


cdef inline uint32_t entry_hash(uint32_t entry) noexcept nogil:
    return entry * <uint32_t>0x9e3779b1 ^ (entry >> 15)


cdef inline uint32_t find_entry(Store* s, uint32_t entry) noexcept nogil:
    """0 when no node has this entry number."""
    cdef Table* t = &s.entry_table
    cdef uint32_t hashed = entry_hash(entry)
    cdef uint64_t at = hashed & t.mask
    cdef uint64_t slot = t.slots[at]
    while slot:
        if <uint32_t>slot == hashed and node_at(
            s, <uint32_t>(slot >> 32)
        ).u.entry.entry == entry:
            return <uint32_t>(slot >> 32)
        at = (at + 1) & t.mask
        slot = t.slots[at]
    return 0


cdef inline Status store_open(Store* s, uint32_t block_tokens) noexcept nogil:
    memset(s, 0, sizeof(Store))
    s.block_tokens = block_tokens
    s.fail_after = -1
    s.slabs_max = 1 << (32 - BLOCK_BITS)
    if table_reserve(s, &s.block_table, 0) != DONE or table_reserve(s, &s.entry_table, 0) != DONE:
        return NO_MEMORY
    if reserve_blocks(s, 0, 1) != DONE or reserve_nodes(s, 1) != DONE:
        return NO_MEMORY
    return DONE


cdef inline void store_close(Store* s) noexcept nogil:
    cdef uint32_t i
    for i in range(s.blocks.used):
        PyMem_RawFree(s.blocks.chunks[i])
        PyMem_RawFree(s.tokens.chunks[i])
    for i in range(s.nodes.used):
        PyMem_RawFree(s.nodes.chunks[i])
    PyMem_RawFree(s.blocks.chunks)
    PyMem_RawFree(s.tokens.chunks)
    PyMem_RawFree(s.nodes.chunks)
    PyMem_RawFree(s.block_table.slots)
    PyMem_RawFree(s.entry_table.slots)
