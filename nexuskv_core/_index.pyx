# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""The compiled prefix index. Every call holds the GIL from start to end, so calls are atomic."""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from nexuskv_core._check cimport check_store, describe_entry
from nexuskv_core._match cimport (
    Candidate, Search, Source, next_candidate, note_group, order_sources,
)
from nexuskv_core._siphash cimport (
    SipState, absorb_blocks, finish_tail, load_le64, sip_absorb, sip_finish,
)
from nexuskv_core._store cimport (
    DONE, NO_MEMORY, GroupBody, Store, drop, give_node, grab, node_at, raise_status, reserve_blocks,
    reserve_nodes,
)
from nexuskv_core._table cimport find_entry, store_close, store_open, table_reserve
from nexuskv_core._tokens cimport (
    PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS, hash_bytes, nkv_token, open_buffer, start_of,
    unbox_and_hash, whole_number,
)
from nexuskv_core._trie cimport (
    FLAG_FINE, FLAG_PARTIAL, Query, deepest_block, delete_entry, find_group,
    insert_entry, new_group,
)


cdef enum:
    KEEP_BYTES = 1 << 18        # scratch above this is freed after the call
    OPENED_A_CANDIDATE = 32     # sources a match may open for each candidate wanted
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


@cython.final
cdef class MatchSet:
    """What `PrefixIndex.match` found."""
    cdef readonly bytes identity
    cdef readonly list candidates
    cdef readonly Py_ssize_t truncated

    def __init__(self, bytes identity not None, list candidates not None, Py_ssize_t truncated):
        self.identity = identity
        self.candidates = candidates
        self.truncated = truncated

    def __repr__(self):
        return (
            f"MatchSet(identity={self.identity!r}, candidates={self.candidates!r}, "
            f"truncated={self.truncated})"
        )


@cython.final
cdef class _Scope:
    """First of the groups of one scope."""
    cdef uint32_t group


@cython.final
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
        cdef Py_buffer view
        if self.viewing:
            # Forgotten first: releasing may run code that calls the index, and the garbage
            # collector follows the member.
            view = self.view
            memset(&self.view, 0, sizeof(Py_buffer))
            self.viewing = False
            PyBuffer_Release(&view)
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

    cdef int reserve_scratch(self, size_t length, bint unbox) except -1:
        cdef size_t states = length // self.store.block_tokens + 1
        if length > <size_t>0x7fffffff:
            raise OverflowError("a token list has at most 2^31 - 1 tokens")
        if unbox and length > self.unboxed_capacity:
            drop(&self.store, self.unboxed, self.unboxed_capacity * sizeof(uint32_t))
            self.unboxed_capacity = 0
            self.unboxed = <uint32_t*>grab(&self.store, (length + 1024) * sizeof(uint32_t))
            if self.unboxed == NULL:
                raise_status(NO_MEMORY)
            self.unboxed_capacity = length + 1024
        if states > self.states_capacity:
            drop(&self.store, self.states, self.states_capacity * sizeof(SipState))
            self.states_capacity = 0
            self.states = <SipState*>grab(&self.store, (states + 64) * sizeof(SipState))
            if self.states == NULL:
                raise_status(NO_MEMORY)
            self.states_capacity = states + 64
        return 0

    cdef int load(self, bytes scope_key, object tokens) except -1:
        """Fill `self.query`: check, unbox and hash the list; its memory is the scratch's."""
        cdef SipState state = start_of(scope_key)
        cdef bint unbox = isinstance(tokens, (list, tuple))
        cdef uint32_t bt = self.store.block_tokens
        cdef PyObject** items
        cdef const uint32_t* data
        cdef size_t length, i
        cdef int bad = 0
        if unbox:
            length = PySequence_Fast_GET_SIZE(<PyObject*>tokens)
        else:
            open_buffer(tokens, &self.view)
            self.viewing = True
            length = self.view.len // 4
        self.reserve_scratch(length, unbox)
        self.states[0] = state
        if unbox:
            data = self.unboxed
            items = PySequence_Fast_ITEMS(<PyObject*>tokens)
            bad = unbox_and_hash(items, self.unboxed, length // bt, self.states, bt)
            for i in range(length - length % bt, length):
                bad |= nkv_token(items[i], &self.unboxed[i])
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

    cdef int insert(
        self, bytes scope_key, uint32_t entry, uint32_t unit, uint32_t flags, uint64_t order
    ) except -1:
        cdef Store* s = &self.store
        cdef _Scope scope = self.scopes.get(scope_key)
        cdef uint32_t block = 0
        cdef uint32_t depth = 0
        cdef uint32_t group = 0
        cdef int fine = flags & FLAG_FINE != 0
        if scope is not None:
            group = find_group(s, scope.group, unit, flags)
        if group:
            block = deepest_block(s, &self.query, group, &depth)
        raise_status(reserve_nodes(s, NODES_AN_ENTRY))
        raise_status(reserve_blocks(s, fine, self.query.blocks - depth))
        raise_status(table_reserve(s, &s.block_table, self.query.blocks - depth))
        raise_status(table_reserve(s, &s.entry_table, 1))
        if scope is None:
            scope = _Scope.__new__(_Scope)
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
        cdef _Scope scope = self.scopes[scope_key]
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
        cdef _Scope scope
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
        """First into C, then into Python: making objects may run code that calls the index."""
        cdef Candidate few[64]
        cdef Candidate* given = few
        cdef uint64_t room = search.limit if search.limit < search.seen else search.seen
        cdef uint32_t count = 0
        cdef uint32_t i
        if room > 64:
            given = <Candidate*>grab(&self.store, room * sizeof(Candidate))
            if given == NULL:
                search.status = NO_MEMORY
                room = 0
        while count < room and next_candidate(&self.store, search, &given[count]):
            count += 1
        self.sources = search.sources       # noting and opening may have moved it
        self.sources_capacity = search.capacity
        found.truncated = search.seen - count
        try:
            raise_status(search.status)
            for i in range(count):
                found.candidates.append((given[i].entry, given[i].match_class, given[i].units))
        finally:
            if given != few:
                drop(&self.store, given, room * sizeof(Candidate))
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
        cdef uint32_t number
        cdef uint64_t at
        listing = []
        for at in range(s.entry_table.mask + 1):
            number = <uint32_t>(s.entry_table.slots[at] >> 32)
            if number:
                listing.append(describe_entry(s, number))
        listing.sort()
        return listing

    def check_invariants(self):
        """Walk the whole index; AssertionError names the first rule that does not hold."""
        groups = []
        cdef _Scope scope
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
