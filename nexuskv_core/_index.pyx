# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled prefix index. Every call holds the GIL from start to end, so calls are atomic."""
from cpython.buffer cimport (
    PyBUF_CONTIG_RO, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from nexuskv_core._check cimport check_store
from nexuskv_core._match cimport (
    PARTIAL, Candidate, Search, Source, next_candidate, note_group, order_sources,
)
from nexuskv_core._siphash cimport (
    SipState, absorb_blocks, finish_tail, load_le64, sip_absorb, sip_finish, sip_start, store_le64,
    token_pair,
)
from nexuskv_core._store cimport (
    DONE, ENTRY, FULL, RUN, TAIL, GroupBody, Node, Status, Store, drop, find_entry, give_node,
    grab, nkv_prefetch, node_at, reserve_blocks, reserve_nodes, store_close, store_open, table_reserve,
)
from nexuskv_core._trie cimport (
    FLAG_FINE, FLAG_PARTIAL, RULE_MASK, Query, deepest_block, delete_entry, insert_entry,
    new_group,
)


cdef extern from *:
    """
    static int nkv_rare_token(PyObject *item, uint32_t *token);
    /* 0 and the token, 1 for another type, 2 out of range; runs no Python code. */
    static inline int nkv_token(PyObject *item, uint32_t *token) {
        if (Py_TYPE(item) == &PyLong_Type) {
    #if PY_VERSION_HEX >= 0x030C0000
            if (PyUnstable_Long_IsCompact((PyLongObject *)item)) {
                Py_ssize_t small = PyUnstable_Long_CompactValue((PyLongObject *)item);
                *token = (uint32_t)small;
                return small < 0 ? 2 : 0;
            }
    #else
            if (Py_SIZE(item) == 1) {
                *token = (uint32_t)((PyLongObject *)item)->ob_digit[0];
                return 0;
            }
            if (Py_SIZE(item) == 2) {
                unsigned long long value = ((PyLongObject *)item)->ob_digit[1];
                value = value << PyLong_SHIFT | ((PyLongObject *)item)->ob_digit[0];
                *token = (uint32_t)value;
                return value > 0xFFFFFFFFULL ? 2 : 0;
            }
    #endif
        }
        return nkv_rare_token(item, token);
    }
    static int nkv_rare_token(PyObject *item, uint32_t *token) {
        unsigned long long value;
        if (!PyLong_Check(item) || PyBool_Check(item)) {
            return 1;
        }
        value = PyLong_AsUnsignedLongLong(item);
        if (value == (unsigned long long)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 2;
        }
        *token = (uint32_t)value;
        return value > 0xFFFFFFFFULL ? 2 : 0;
    }
    """
    int nkv_token(PyObject* item, uint32_t* token) noexcept
    PyObject** PySequence_Fast_ITEMS(PyObject* sequence) noexcept
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject* sequence) noexcept


cdef enum:
    KEEP_BYTES = 1 << 18        # scratch above this is freed after the call
    OPENED_A_CANDIDATE = 32     # sources a match may open for each candidate wanted
    UNBOX_AHEAD = 64            # tokens
    NODES_AN_ENTRY = 8          # group, root, split run, run, tail, its tokens, entry; one spare


def siphash_128(bytes key not None, bytes message not None, int c_rounds=1, int d_rounds=3):
    """SipHash-c-d with 128-bit output of any message; `key` is 16 bytes."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(message)
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(message)
    cdef uint64_t last = <uint64_t>(length & 0xff) << 56
    cdef uint64_t lo = 0
    cdef uint64_t hi = 0
    cdef Py_ssize_t i
    cdef SipState state = start_of(key)
    for i in range(length // 8):
        sip_absorb(&state, load_le64(p + 8 * i), c_rounds)
    for i in range(length % 8):
        last |= <uint64_t>p[length - length % 8 + i] << (8 * i)
    sip_finish(state, last, c_rounds, d_rounds, &lo, &hi)
    return hash_bytes(lo, hi)


cdef SipState start_of(bytes key) except *:
    cdef const uint8_t* p
    if key is None:
        raise TypeError("a scope key is bytes")
    if PyBytes_GET_SIZE(key) != 16:
        raise ValueError("a scope key is 16 bytes")
    p = <const uint8_t*>PyBytes_AS_STRING(key)
    return sip_start(load_le64(p), load_le64(p + 8))


cdef bytes hash_bytes(uint64_t lo, uint64_t hi):
    cdef uint8_t out[16]
    store_le64(out, lo)
    store_le64(out + 8, hi)
    return PyBytes_FromStringAndSize(<char*>out, 16)


cdef int raise_status(Status status) except -1:
    if status == FULL:
        raise OverflowError("the index holds as many blocks or entries as it can number")
    if status != DONE:
        raise MemoryError("no memory for the index")
    return 0


cdef uint64_t whole_number(object value, str name, object limit) except? 0:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an integer")
    if not 0 <= value <= limit:
        raise ValueError(f"{name} is from 0 to {limit}")
    return value


cdef int unbox_and_hash(
    PyObject** items, uint32_t* tokens, size_t length, SipState* states, uint32_t block_tokens
) noexcept:
    """Not 0 when an item is no token. `states[0]` is set, and the state after each block stored.

    The hash waits on itself, so unboxing beside it is nearly free, if it runs so far ahead that a
    token was stored before the hash loads it as half of a wider word.
    """
    cdef size_t ahead = UNBOX_AHEAD if length > UNBOX_AHEAD else length
    cdef size_t at = 0
    cdef int bad = 0
    cdef SipState s = states[0]
    cdef size_t i
    for i in range(ahead):
        bad |= nkv_token(items[i], &tokens[i])
    while ahead + UNBOX_AHEAD + block_tokens <= length:
        for i in range(at, at + block_tokens, 2):
            bad |= nkv_token(items[i + UNBOX_AHEAD], &tokens[i + UNBOX_AHEAD])
            bad |= nkv_token(items[i + UNBOX_AHEAD + 1], &tokens[i + UNBOX_AHEAD + 1])
            nkv_prefetch(items[i + 2 * UNBOX_AHEAD])
            nkv_prefetch(items[i + 2 * UNBOX_AHEAD + 1])
            sip_absorb(&s, token_pair(tokens + i), 1)
        at += block_tokens
        ahead += block_tokens
        states[at // block_tokens] = s
    for i in range(ahead, length):
        bad |= nkv_token(items[i], &tokens[i])
    absorb_blocks(
        states + at // block_tokens, tokens + at, (length - at) // block_tokens, block_tokens
    )
    return bad


cdef class MatchSet:
    """What `PrefixIndex.match` found."""
    cdef readonly bytes identity
    cdef readonly list candidates
    cdef readonly Py_ssize_t truncated

    def __init__(self, *args, **kwargs):
        raise TypeError("a MatchSet comes from PrefixIndex.match")

    def __repr__(self):
        return (
            f"MatchSet(identity={self.identity!r}, candidates={self.candidates!r}, "
            f"truncated={self.truncated})"
        )


cdef class Scope:
    """First of the groups of one scope."""
    cdef uint32_t group


cdef class PrefixIndex:
    """Entries by the token lists they cover; see README.md for what is stored and what it costs."""
    cdef Store store
    cdef dict scopes
    cdef Query query            # of the call at hand, with the memory it points into:
    cdef Py_buffer view
    cdef bint viewing
    cdef uint32_t* unboxed
    cdef size_t unboxed_capacity
    cdef SipState* states
    cdef size_t states_capacity
    cdef Source* sources
    cdef uint32_t sources_capacity

    def __cinit__(self, *, block_tokens: int = 16):
        if block_tokens not in (2, 4, 8, 16):
            raise ValueError("block_tokens is 2, 4, 8 or 16")
        self.scopes = {}
        raise_status(store_open(&self.store, block_tokens))

    def __dealloc__(self):
        self.free_scratch(0)
        store_close(&self.store)

    def __len__(self):
        return self.store.entry_count

    # ---- token lists

    cdef int free_scratch(self, size_t keep_bytes) noexcept:
        if self.viewing:
            PyBuffer_Release(&self.view)
            self.viewing = False
        if self.unboxed_capacity * sizeof(uint32_t) > keep_bytes:
            drop(&self.store, self.unboxed, self.unboxed_capacity * sizeof(uint32_t))
            self.unboxed = NULL
            self.unboxed_capacity = 0
        if self.states_capacity * sizeof(SipState) > keep_bytes:
            drop(&self.store, self.states, self.states_capacity * sizeof(SipState))
            self.states = NULL
            self.states_capacity = 0
        if self.sources_capacity * sizeof(Source) > keep_bytes:
            drop(&self.store, self.sources, self.sources_capacity * sizeof(Source))
            self.sources = NULL
            self.sources_capacity = 0
        return 0

    cdef int open_buffer(self, object tokens) except -1:
        cdef bytes code
        if not PyObject_CheckBuffer(tokens):
            raise TypeError("tokens are a list of integers or a contiguous buffer of uint32")
        try:
            PyObject_GetBuffer(tokens, &self.view, PyBUF_CONTIG_RO | PyBUF_FORMAT)
        except BufferError:
            raise ValueError("a token buffer is contiguous") from None
        self.viewing = True
        code = self.view.format if self.view.format != NULL else b"B"
        if self.view.ndim != 1 or self.view.itemsize != 4 or code.lstrip(b"@=<") not in (b"I", b"L"):
            raise ValueError("a token buffer has one dimension of native uint32")
        return 0

    cdef int reserve_scratch(self, size_t length, bint unbox) except -1:
        cdef size_t states = length // self.store.block_tokens + 1
        if length > <size_t>0x7fffffff:
            raise OverflowError("a token list has at most 2^31 - 1 tokens")
        if unbox and length > self.unboxed_capacity:
            drop(&self.store, self.unboxed, self.unboxed_capacity * sizeof(uint32_t))
            self.unboxed_capacity = 0
            self.unboxed = <uint32_t*>grab(&self.store, (length + 1024) * sizeof(uint32_t))
            if self.unboxed == NULL:
                raise MemoryError("no memory for the tokens")
            self.unboxed_capacity = length + 1024
        if states > self.states_capacity:
            drop(&self.store, self.states, self.states_capacity * sizeof(SipState))
            self.states_capacity = 0
            self.states = <SipState*>grab(&self.store, (states + 64) * sizeof(SipState))
            if self.states == NULL:
                raise MemoryError("no memory for the hash states")
            self.states_capacity = states + 64
        return 0

    cdef int load(self, bytes scope_key, object tokens) except -1:
        """Fill `self.query`: check, unbox and hash the list; its memory is the scratch's."""
        cdef SipState state = start_of(scope_key)
        cdef bint unbox = isinstance(tokens, (list, tuple))
        cdef uint32_t bt = self.store.block_tokens
        cdef const uint32_t* data
        cdef size_t length
        cdef int bad = 0
        if unbox:
            length = PySequence_Fast_GET_SIZE(<PyObject*>tokens)
        else:
            self.open_buffer(tokens)
            length = self.view.len // 4
        self.reserve_scratch(length, unbox)
        self.states[0] = state
        if unbox:
            data = self.unboxed
            bad = unbox_and_hash(
                PySequence_Fast_ITEMS(<PyObject*>tokens), self.unboxed, length, self.states, bt
            )
        else:
            data = <const uint32_t*>self.view.buf
            absorb_blocks(self.states, data, length // bt, bt)
        if bad:
            self.refuse(tokens)
        self.query.tokens = data
        self.query.length = <uint32_t>length
        self.query.blocks = <uint32_t>(length // bt)
        self.query.states = self.states
        return 0

    cdef int refuse(self, object tokens) except -1:
        cdef uint32_t ignored = 0
        cdef int bad
        for position, token in enumerate(tokens):
            bad = nkv_token(<PyObject*>token, &ignored)
            if bad == 1:
                raise TypeError(f"token {position} is not an integer")
            if bad == 2:
                raise ValueError(f"token {position} is not from 0 to 4294967295")
        raise ValueError("tokens changed while they were read")

    cdef bytes query_identity(self):
        cdef uint64_t lo = 0
        cdef uint64_t hi = 0
        cdef uint32_t hashed = self.query.blocks * self.store.block_tokens
        finish_tail(
            self.states[self.query.blocks], self.query.tokens + hashed,
            self.query.length - hashed, self.query.length, &lo, &hi,
        )
        return hash_bytes(lo, hi)

    # ---- the interface

    def identity(self, bytes scope_key not None, tokens):
        """Keyed 16-byte hash of the whole token list."""
        try:
            self.load(scope_key, tokens)
            return self.query_identity()
        finally:
            self.free_scratch(KEEP_BYTES)

    def add(
        self, bytes scope_key not None, tokens, entry, *, rule, unit_tokens, partial, order
    ):
        """Store an entry; a call that raises leaves the index as it was."""
        cdef uint32_t entry_number = whole_number(entry, "entry", 0xffffffff)
        cdef uint32_t unit = whole_number(unit_tokens, "unit_tokens", 0xffffffff)
        cdef uint32_t flags = whole_number(rule, "rule", 2)
        cdef uint64_t order_number = whole_number(order, "order", 0xffffffffffffffff)
        if not isinstance(partial, bool):
            raise TypeError("partial is a bool")
        if flags == 1:
            unit = 0    # a checkpoint is never floored
        if partial and flags == 0 and unit:
            flags |= FLAG_PARTIAL
            if unit % self.store.block_tokens:
                flags |= FLAG_FINE
        try:
            self.load(scope_key, tokens)
            if self.query.length == 0:
                raise ValueError("an entry has at least one token")
            if find_entry(&self.store, entry_number):
                raise ValueError(f"entry {entry_number} is already present")
            self.insert(scope_key, entry_number, unit, flags, order_number)
        finally:
            self.free_scratch(KEEP_BYTES)

    cdef uint32_t find_group(self, Scope scope, uint32_t unit, uint32_t flags) noexcept:
        cdef uint32_t at = scope.group
        cdef GroupBody* group
        while at:
            group = &node_at(&self.store, at).u.group
            if group.unit == unit and group.flags == flags:
                return at
            at = group.next
        return 0

    cdef int insert(
        self, bytes scope_key, uint32_t entry, uint32_t unit, uint32_t flags, uint64_t order
    ) except -1:
        cdef Store* s = &self.store
        cdef Scope scope = self.scopes.get(scope_key)
        cdef uint32_t block = 0
        cdef uint32_t depth = 0
        cdef uint32_t group = 0
        cdef int fine = flags & FLAG_FINE != 0
        if scope is not None:
            group = self.find_group(scope, unit, flags)
        if group:
            block = deepest_block(s, &self.query, group, &depth)
        raise_status(reserve_nodes(s, NODES_AN_ENTRY))
        raise_status(reserve_blocks(s, fine, self.query.blocks - depth))
        raise_status(table_reserve(s, &s.block_table, self.query.blocks - depth))
        raise_status(table_reserve(s, &s.entry_table, 1))
        if scope is None:
            scope = Scope.__new__(Scope)
            self.scopes[scope_key] = scope
        # From here on nothing can fail.
        if group == 0:
            s.random ^= self.states[0].v0
            group = new_group(
                s, load_le64(<const uint8_t*>PyBytes_AS_STRING(scope_key)),
                load_le64(<const uint8_t*>PyBytes_AS_STRING(scope_key) + 8), unit, flags,
            )
            node_at(s, group).u.group.next = scope.group
            scope.group = group
        insert_entry(s, &self.query, group, block, depth, entry, order)
        return 0

    def remove(self, entry):
        """True when the entry was there; blocks only it needed are free for others."""
        cdef uint32_t number = find_entry(
            &self.store, whole_number(entry, "entry", 0xffffffff)
        )
        if number == 0:
            return False
        number = delete_entry(&self.store, number)
        if number:
            self.drop_group(number)
        return True

    cdef int drop_group(self, uint32_t number) except -1:
        cdef GroupBody* group = &node_at(&self.store, number).u.group
        cdef bytes scope_key = hash_bytes(group.k0, group.k1)
        cdef Scope scope = self.scopes[scope_key]
        cdef uint32_t* link = &scope.group
        while link[0] != number:
            link = &node_at(&self.store, link[0]).u.group.next
        link[0] = group.next
        if scope.group == 0:
            del self.scopes[scope_key]
        give_node(&self.store, group.root)
        give_node(&self.store, number)
        return 0

    def match(self, bytes scope_key not None, tokens, *, max_candidates=64):
        """Entries that share a usable extent with the token list, best first."""
        cdef Search search
        cdef MatchSet found = MatchSet.__new__(MatchSet)
        cdef Scope scope
        cdef uint32_t group
        cdef uint32_t limit = whole_number(max_candidates, "max_candidates", 1 << 20)
        if limit == 0:
            raise ValueError("max_candidates is at least 1")
        found.candidates = []
        try:
            self.load(scope_key, tokens)
            found.identity = self.query_identity()
            scope = self.scopes.get(scope_key)
            if scope is not None and self.query.length:
                memset(&search, 0, sizeof(Search))
                search.q = self.query
                search.limit = limit
                search.budget = OPENED_A_CANDIDATE * (<uint64_t>limit + 8)
                search.sources = self.sources
                search.capacity = self.sources_capacity
                group = scope.group
                while group and search.status == DONE:
                    note_group(&self.store, &search, group)
                    group = node_at(&self.store, group).u.group.next
                order_sources(&search)
                self.give_out(&search, found)
        finally:
            self.free_scratch(KEEP_BYTES)
        return found

    cdef int give_out(self, Search* search, MatchSet found) except -1:
        cdef Candidate candidate
        cdef uint32_t given = 0
        try:
            while given < search.limit and next_candidate(&self.store, search, &candidate):
                found.candidates.append((candidate.entry, candidate.match_class, candidate.units))
                given += 1
        finally:
            # Opening a source may have moved the scratch.
            self.sources = search.sources
            self.sources_capacity = search.capacity
        found.truncated = search.seen - given
        raise_status(search.status)
        return 0

    # ---- looking inside

    def stats(self):
        """entries, blocks, scopes, and memory_bytes: all the index allocated outside Python."""
        return {
            "entries": self.store.entry_count,
            "blocks": self.store.block_count,
            "scopes": len(self.scopes),
            "memory_bytes": self.store.memory_bytes,
        }

    def dump(self):
        """(scope_key, rule, unit_tokens, partial, tokens, order, entry) of each entry, sorted.

        `tokens` is a count. A checkpoint has unit 0, and partial is true only where it can apply.
        """
        cdef Store* s = &self.store
        cdef uint32_t number, holder
        cdef Node* node
        cdef uint64_t at
        listing = []
        for at in range(s.entry_table.mask + 1):
            number = <uint32_t>(s.entry_table.slots[at] >> 32)
            if number == 0:
                continue
            node = node_at(s, number)
            holder = node.owner
            listing.append(self.describe(node, node_at(s, holder)))
        listing.sort()
        return listing

    cdef tuple describe(self, Node* node, Node* holder):
        cdef uint64_t length = 0
        cdef GroupBody* group
        if holder.kind == TAIL:
            length = holder.u.tail.length
            holder = node_at(&self.store, holder.owner)
        length += <uint64_t>holder.u.run.depth * self.store.block_tokens
        group = &node_at(&self.store, holder.u.run.group).u.group
        return (
            hash_bytes(group.k0, group.k1), group.flags & RULE_MASK, group.unit,
            group.flags & FLAG_PARTIAL != 0, length, node.u.entry.order, node.u.entry.entry,
        )

    def check_invariants(self):
        """Walk the whole index; AssertionError names the first rule that does not hold."""
        groups = []
        cdef Scope scope
        cdef uint32_t group
        for scope_key, scope in self.scopes.items():
            group = scope.group
            assert group, "a scope has a group"
            while group:
                assert hash_bytes(
                    node_at(&self.store, group).u.group.k0, node_at(&self.store, group).u.group.k1
                ) == scope_key, "a group knows its scope"
                groups.append(group)
                group = node_at(&self.store, group).u.group.next
        check_store(&self.store, groups)

    def _fail_allocations_after(self, count):
        """For tests: let `count` allocations pass and refuse those after; None ends it."""
        self.store.fail_after = -1 if count is None else count

    def _limit_slabs(self, count):
        """For tests: numbers run out after so many slabs of blocks, or of nodes."""
        self.store.slabs_max = count
