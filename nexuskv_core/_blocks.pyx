# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""The block index: the Python face of `arena/`. `block_reference.py` says what each call does."""
cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

import json
import os

from nexuskv_core._siphash cimport SipState, load_le64, sip_absorb, sip_finish, token_pair
from nexuskv_core._tokens cimport (
    PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS, nkv_token, nkv_usual_pair, open_buffer,
    start_of, whole_number,
)
from nexuskv_core.block_reference import Progress
from nexuskv_core.snapshots import read_snapshot, write_snapshot


cdef extern from "arena/index.h":
    enum:
        NKV_OK, NKV_FULL, NKV_NO_MEMORY, NKV_BAD_KEY
        NKV_BUSY
        NKV_OPEN, NKV_REGIONS, NKV_PAGE_BLOCKS
    ctypedef struct nkv_key:
        uint64_t lo, hi
    ctypedef struct nkv_block:
        uint32_t run, off
    ctypedef struct nkv_pool:
        uint32_t next, used, capacity
    ctypedef struct nkv_stream:
        uint32_t state
        uint64_t sequence, at_us
        uint32_t progress_state
    ctypedef struct nkv_holder:
        uint32_t stream, state
        uint64_t held
        uint32_t label, label_bytes
    ctypedef struct nkv_run:
        uint32_t seq, len, parent, parent_off, depth, hold_count, naming_count
    ctypedef struct nkv_hold:
        uint32_t holder, lo, hi, bits
    ctypedef struct nkv_header:
        uint64_t total_bytes, max_blocks, max_bytes, blocks, forgotten, collisions, refused
        nkv_pool runs, streams, holders
        uint32_t open_streams, open_holders, sweep_left
    ctypedef struct nkv_arena:
        uint8_t* base
        uint64_t bytes
        int fd
        int writable
        nkv_header* h
        nkv_run* runs
        nkv_stream* streams
        nkv_holder* holders
    ctypedef struct nkv_segment:
        uint32_t holder, start, end
    ctypedef struct nkv_segments:
        nkv_segment* found
        uint32_t count
    ctypedef struct nkv_region:
        uint64_t at, bytes

    int nkv_arena_open(nkv_arena*, uint64_t, uint64_t, int, uint64_t, uint64_t) nogil
    int nkv_arena_attach(nkv_arena*, int) nogil
    void nkv_arena_close(nkv_arena*) nogil
    void nkv_arena_point(nkv_arena*) nogil
    uint64_t nkv_used_bytes(const nkv_arena*) nogil
    int nkv_regions(const nkv_arena*, nkv_region*) nogil
    void* nkv_heap_at(const nkv_arena*, uint32_t) nogil
    nkv_hold* nkv_holds(const nkv_arena*, const nkv_run*) nogil
    nkv_key* nkv_run_key(const nkv_arena*, const nkv_run*, uint32_t) nogil
    int nkv_bit(const void*, uint32_t) nogil
    int64_t nkv_stream_open(nkv_arena*, const void*, uint32_t) nogil
    int64_t nkv_holder_open(nkv_arena*, uint32_t, const void*, uint32_t) nogil
    int nkv_stream_close(nkv_arena*, uint32_t) nogil
    int nkv_holder_close(nkv_arena*, uint32_t) nogil
    int nkv_sweep(nkv_arena*, uint64_t) nogil
    void nkv_progress_set(nkv_arena*, uint32_t, uint64_t, uint64_t, uint32_t) nogil
    nkv_block nkv_name_find(const nkv_arena*, uint32_t, uint64_t) nogil
    int64_t nkv_store_blocks(
        nkv_arena*, uint32_t, nkv_block, const uint64_t*, const nkv_key*, uint32_t) nogil
    int64_t nkv_hold_names(nkv_arena*, uint32_t, const uint64_t*, uint32_t) nogil
    int64_t nkv_remove_names(nkv_arena*, uint32_t, const uint64_t*, uint32_t) nogil
    void nkv_segments_free(nkv_segments*) nogil
    int nkv_find(const nkv_arena*, const nkv_key*, uint32_t, nkv_segments*) nogil
    int nkv_reach(const nkv_arena*, const nkv_key*, uint32_t, nkv_segments*) nogil
    ctypedef const nkv_key* (*nkv_key_at)(void*, uint32_t) noexcept nogil
    int nkv_reach_at(const nkv_arena*, nkv_key_at, void*, uint32_t, nkv_segments*) nogil
    int nkv_find_names(
        const nkv_arena*, uint32_t, const uint64_t*, uint32_t, nkv_segments*) nogil
    int nkv_key_of(const nkv_arena*, uint32_t, uint64_t, nkv_key*) nogil
    int nkv_progress_get(const nkv_arena*, uint32_t, nkv_stream*) nogil
    const char* nkv_check(const nkv_arena*) nogil

cdef extern from "arena/table.h":
    """
    /* Where the 16 bytes of item `i` are; NULL for anything else. */
    static const nkv_key *nkv_key_in(void *items, uint32_t i) {
        PyObject *item = ((PyObject **)items)[i];
        if (!PyBytes_CheckExact(item) || PyBytes_GET_SIZE(item) != 16) return NULL;
        return (const nkv_key *)PyBytes_AS_STRING(item);
    }
    """
    const nkv_key* nkv_key_in(void*, uint32_t) noexcept nogil
    void nkv_head_prefetch(const nkv_arena*, const nkv_key*) nogil


cdef enum:
    KEY_BYTES = 16
    MAX_BLOCK_TOKENS = 1 << 20
    MAX_LABEL_BYTES = 4096
    QUERIES_AHEAD = 8       # of a batch, whose first buckets are fetched before they are needed

cdef uint64_t U32_MOST = 0xffffffff


# ---- what comes from Python

cdef class _Words:
    """Whole numbers of one width: a buffer of them as it is, or a list unboxed."""
    cdef Py_buffer view
    cdef bint viewing
    cdef void* made
    cdef const void* data
    cdef size_t count

    def __dealloc__(self):
        free(self.made)
        if self.viewing:
            PyBuffer_Release(&self.view)


cdef _Words tokens_of(object tokens):
    cdef _Words words = _Words.__new__(_Words)
    cdef PyObject** items
    cdef uint32_t* out
    cdef uint64_t pair = 0
    cdef size_t i = 0
    if not isinstance(tokens, (list, tuple)):
        open_buffer(tokens, &words.view)
        words.viewing = True
        words.data = words.view.buf
        words.count = words.view.len // 4
        return words
    words.count = PySequence_Fast_GET_SIZE(<PyObject*>tokens)
    items = PySequence_Fast_ITEMS(<PyObject*>tokens)
    words.made = malloc(4 * words.count + 8)
    if words.made == NULL:
        raise MemoryError
    out = <uint32_t*>words.made
    while i + 2 <= words.count:
        if nkv_usual_pair(items + i, &pair) != 0:
            take_token(items[i], i, out)
            take_token(items[i + 1], i + 1, out)
        else:
            out[i] = <uint32_t>pair
            out[i + 1] = <uint32_t>(pair >> 32)
        i += 2
    if i < words.count:
        take_token(items[i], i, out)
    words.data = out
    return words


cdef int take_token(PyObject* item, size_t position, uint32_t* out) except -1:
    cdef int bad = nkv_token(item, out + position)
    if bad == 1:
        raise TypeError(f"token {position} is not an integer")
    if bad == 2:
        raise ValueError(f"token {position} is not from 0 to 4294967295")
    return 0


cdef _Words names_of(object names):
    cdef _Words words = _Words.__new__(_Words)
    cdef uint64_t* out
    cdef size_t i
    if not isinstance(names, (list, tuple)):
        PyObject_GetBuffer(names, &words.view, PyBUF_SIMPLE)
        words.viewing = True
        if words.view.len % 8:
            raise ValueError("a buffer of names has 8 bytes for each")
        words.data = words.view.buf
        words.count = words.view.len // 8
    else:
        words.count = len(names)
        words.made = malloc(8 * words.count + 8)
        if words.made == NULL:
            raise MemoryError
        out = <uint64_t*>words.made
        for i in range(words.count):
            out[i] = names[i]
        words.data = out
    if words.count > U32_MOST:
        raise OverflowError("too many names at once")
    return words


# ---- keys

cdef int chain_blocks(
    const SipState* scope, nkv_key parent, const uint32_t* tokens, size_t blocks,
    uint32_t block_tokens, const nkv_key* extras, const uint8_t* has_extra, nkv_key* out,
) noexcept nogil:
    """The parent comes last, so that the tokens of the next block are hashed beside it."""
    cdef SipState s
    cdef size_t block
    cdef uint32_t i
    cdef uint64_t bytes_in = 8 * ((<uint64_t>block_tokens + 1) // 2) + KEY_BYTES
    for block in range(blocks):
        s = scope[0]
        if block_tokens == 16:
            for i in range(8):
                sip_absorb(&s, token_pair(tokens + 2 * i), 1)
        else:
            for i in range(block_tokens // 2):
                sip_absorb(&s, token_pair(tokens + 2 * i), 1)
            if block_tokens % 2:
                sip_absorb(&s, tokens[block_tokens - 1], 1)
        if has_extra != NULL and has_extra[block]:
            sip_absorb(&s, extras[block].lo, 1)
            sip_absorb(&s, extras[block].hi, 1)
            sip_absorb(&s, parent.lo, 1)
            sip_absorb(&s, parent.hi, 1)
            sip_finish(s, ((bytes_in + KEY_BYTES) & 0xff) << 56, 1, 3, &parent.lo, &parent.hi)
        else:
            sip_absorb(&s, parent.lo, 1)
            sip_absorb(&s, parent.hi, 1)
            sip_finish(s, (bytes_in & 0xff) << 56, 1, 3, &parent.lo, &parent.hi)
        out[block] = parent
        tokens += block_tokens
    return 0


cdef int take_key(bytes key, str what, nkv_key* out) except -1:
    if PyBytes_GET_SIZE(key) != KEY_BYTES:
        raise ValueError(f"{what} has 16 bytes")
    memcpy(out, PyBytes_AS_STRING(key), KEY_BYTES)
    return 0


cdef bytes chained(
    bytes scope_key, object tokens, object block_tokens, const nkv_key* parent, object extras
):
    """The keys, which are written into the object that is returned."""
    cdef uint32_t per_block = whole_number(block_tokens, "block_tokens", MAX_BLOCK_TOKENS)
    cdef SipState scope = start_of(scope_key)
    cdef nkv_key above
    cdef nkv_key* given = NULL
    cdef uint8_t* has = NULL
    cdef _Words words
    cdef size_t blocks, block
    cdef bytes keys
    if per_block == 0:
        raise ValueError(f"block_tokens is from 1 to {MAX_BLOCK_TOKENS}")
    memset(&above, 0, sizeof(above))
    if parent != NULL:
        above = parent[0]
    words = tokens_of(tokens)
    blocks = words.count // per_block
    keys = PyBytes_FromStringAndSize(NULL, blocks * KEY_BYTES)
    try:
        if extras is not None:
            if len(extras) != blocks:
                raise ValueError("extras has one entry a block")
            given = <nkv_key*>malloc(blocks * sizeof(nkv_key) + 1)
            has = <uint8_t*>malloc(blocks + 1)
            if given == NULL or has == NULL:
                raise MemoryError
            for block in range(blocks):
                has[block] = extras[block] is not None
                if has[block]:
                    take_key(extras[block], "an extra digest", &given[block])
        chain_blocks(
            &scope, above, <const uint32_t*>words.data, blocks, per_block, given, has,
            <nkv_key*>PyBytes_AS_STRING(keys),
        )
    finally:
        free(given)
        free(has)
    return keys


def chain(bytes scope_key not None, tokens, block_tokens, *, parent=None, extras=None):
    """The 16-byte keys of a list's whole blocks; see `reference.chain`."""
    cdef nkv_key above
    if parent is None:
        return chained(scope_key, tokens, block_tokens, NULL, extras)
    take_key(parent, "a parent key", &above)
    return chained(scope_key, tokens, block_tokens, &above, extras)


# ---- the index

class BusyError(RuntimeError):
    """The writer did not finish a change: what is asked for is not known now."""


class IndexFullError(RuntimeError):
    """Nothing was stored, since nothing can be forgotten to make room."""


@cython.final
cdef class _Batch:
    """Queries that are looked up together, and what was found: of query i it is in `found` from
    `ends[i]` to `ends[i + 1]`. One buffer for all: what is allocated for each query is allocated
    and freed under the GIL, which threads would wait for.
    """
    cdef list given             # keeps the keys where they are
    cdef Py_ssize_t count
    cdef nkv_segments one
    cdef nkv_segment* found
    cdef size_t room
    cdef size_t* ends
    cdef const nkv_key** keys
    cdef uint32_t* lengths

    def __cinit__(self, queries):
        cdef Py_ssize_t i
        # A list of its own: somebody may change the given one meanwhile.
        self.given = list(queries)
        self.count = len(self.given)
        self.room = 2 * self.count + 16
        self.found = <nkv_segment*>malloc(self.room * sizeof(nkv_segment))
        self.ends = <size_t*>calloc(self.count + 1, sizeof(size_t))
        self.keys = <const nkv_key**>malloc((self.count + 1) * sizeof(void*))
        self.lengths = <uint32_t*>malloc((self.count + 1) * sizeof(uint32_t))
        if self.found == NULL or self.ends == NULL or self.keys == NULL or self.lengths == NULL:
            raise MemoryError
        for i in range(self.count):
            self.keys[i] = <const nkv_key*>PyBytes_AS_STRING(<bytes?>self.given[i])
            self.lengths[i] = blocks_of(<bytes>self.given[i])

    def __dealloc__(self):
        nkv_segments_free(&self.one)
        free(self.found)
        free(self.ends)
        free(self.keys)
        free(self.lengths)

    cdef int look(self, const nkv_arena* arena) except -1:
        cdef Py_ssize_t i
        cdef int status = NKV_OK
        with nogil:
            for i in range(self.count):
                if i + QUERIES_AHEAD < self.count and self.lengths[i + QUERIES_AHEAD]:
                    nkv_head_prefetch(arena, self.keys[i + QUERIES_AHEAD])
                status = nkv_reach(arena, self.keys[i], self.lengths[i], &self.one)
                if status == NKV_OK:
                    status = self.keep(i)
                if status != NKV_OK:
                    break
        return raise_read(status)

    cdef int keep(self, Py_ssize_t i) noexcept nogil:
        """What was found of query i; NKV_NO_MEMORY where there is no room for it."""
        cdef size_t begin = self.ends[i]
        cdef size_t end = begin + self.one.count
        cdef nkv_segment* more
        if end > self.room:
            more = <nkv_segment*>realloc(self.found, 2 * end * sizeof(nkv_segment))
            if more == NULL:
                return NKV_NO_MEMORY
            self.found, self.room = more, 2 * end
        if self.one.count:
            memcpy(self.found + begin, self.one.found, self.one.count * sizeof(nkv_segment))
        self.ends[i + 1] = end
        return NKV_OK


@cython.final
cdef class BlockIndex:
    """Which holder has which blocks of which chains; see README.md and `block_reference.py`.

    Its memory is one region: this process's own, or with `shared` a memfd that other processes
    map to read (`fd`, `attach`). At most `max_blocks` blocks and, unless 0, `max_bytes` bytes;
    beyond, the leaves that were stored or confirmed longest ago are forgotten. Raises
    IndexFullError where nothing can be, BusyError where a reader's writer died in a change,
    PermissionError where a reader writes.
    """
    cdef nkv_arena arena
    cdef nkv_segments segments
    cdef bint frozen

    def __cinit__(self, *, max_blocks=1 << 24, max_bytes=0, shared=False, _attach=None):
        cdef bytes secret
        cdef uint64_t blocks, most
        if _attach is not None:
            if nkv_arena_attach(&self.arena, _attach) != NKV_OK:
                raise ValueError("not the memory of a block index of this version")
            return
        blocks = whole_number(max_blocks, "max_blocks", 0xf0000000)
        most = whole_number(max_bytes, "max_bytes", 1 << 44)
        if blocks == 0:
            raise ValueError("max_blocks is at least 1")
        secret = os.urandom(16)
        if nkv_arena_open(
            &self.arena, blocks, most, shared, load_le64(<const uint8_t*>PyBytes_AS_STRING(secret)),
            load_le64(<const uint8_t*>PyBytes_AS_STRING(secret) + 8),
        ) != NKV_OK:
            raise MemoryError("no address space for the index; ask for fewer blocks")

    def __dealloc__(self):
        nkv_segments_free(&self.segments)
        nkv_arena_close(&self.arena)

    @staticmethod
    def attach(int fd):
        """A reader of the index whose `fd` this is; ValueError when it is none."""
        return BlockIndex(_attach=fd)

    def fd(self):
        """Of the shared memory; ValueError when it is not shared."""
        if self.arena.fd < 0:
            raise ValueError("the index is not shared")
        return self.arena.fd

    cdef int must_write(self) except -1:
        if not self.arena.writable:
            raise PermissionError("this index is attached to read only")
        if self.frozen:
            raise RuntimeError("a snapshot of the index is being written")
        return 0

    cdef uint32_t open_stream_of(self, object number) except 0:
        cdef uint64_t found = whole_number(number, "a stream", U32_MOST)
        if (
            found == 0 or found >= self.arena.h.streams.next
            or self.arena.streams[found].state != NKV_OPEN
        ):
            raise ValueError(f"no open stream {number}")
        return <uint32_t>found

    cdef uint32_t open_holder_of(self, object number) except 0:
        cdef uint64_t found = whole_number(number, "a holder", U32_MOST)
        if (
            found == 0 or found >= self.arena.h.holders.next
            or self.arena.holders[found].state != NKV_OPEN
        ):
            raise ValueError(f"no open holder {number}")
        return <uint32_t>found

    # ---- streams and holders

    def open_stream(self, bytes label not None=b""):
        cdef int64_t number
        self.must_write()
        check_label(label)
        number = nkv_stream_open(&self.arena, PyBytes_AS_STRING(label), len(label))
        if number < 0:
            raise MemoryError("no room for another stream")
        return number

    def open_holder(self, stream, bytes label not None=b""):
        cdef int64_t number
        cdef uint32_t of = self.open_stream_of(stream)
        self.must_write()
        check_label(label)
        number = nkv_holder_open(&self.arena, of, PyBytes_AS_STRING(label), len(label))
        if number < 0:
            raise MemoryError("no room for another holder")
        return number

    def close_stream(self, stream):
        cdef uint64_t number = whole_number(stream, "a stream", U32_MOST)
        self.must_write()
        if number == 0 or number >= self.arena.h.streams.next:
            return False
        return nkv_stream_close(&self.arena, <uint32_t>number) != 0

    def close_holder(self, holder):
        cdef uint64_t number = whole_number(holder, "a holder", U32_MOST)
        self.must_write()
        if number == 0 or number >= self.arena.h.holders.next:
            return False
        return nkv_holder_close(&self.arena, <uint32_t>number) != 0

    def sweep(self, blocks=0xffffffffffffffff):
        self.must_write()
        return nkv_sweep(&self.arena, whole_number(blocks, "blocks", 0xffffffffffffffff)) != 0

    def label(self, holder):
        cdef nkv_holder* found = &self.arena.holders[self.open_holder_of(holder)]
        if found.label_bytes == 0:
            return b""
        return PyBytes_FromStringAndSize(
            <const char*>nkv_heap_at(&self.arena, found.label), found.label_bytes
        )

    def stream_of(self, holder):
        return self.arena.holders[self.open_holder_of(holder)].stream

    def set_progress(self, stream, sequence, at_us, state):
        cdef uint32_t number = self.open_stream_of(stream)
        self.must_write()
        nkv_progress_set(
            &self.arena, number, whole_number(sequence, "sequence", 0xffffffffffffffff),
            whole_number(at_us, "at_us", 0xffffffffffffffff),
            whole_number(state, "state", U32_MOST),
        )

    def progress(self, stream):
        cdef nkv_stream found
        if nkv_progress_get(&self.arena, self.open_stream_of(stream), &found) != NKV_OK:
            raise BusyError("the stream's progress is being written")
        return Progress(found.sequence, found.at_us, found.progress_state)

    # ---- writing

    def store(self, holder, names, bytes keys not None, *, parent=None):
        cdef uint32_t number = self.open_holder_of(holder)
        cdef _Words words = names_of(names)
        cdef nkv_block above
        self.must_write()
        if PyBytes_GET_SIZE(keys) != <Py_ssize_t>(KEY_BYTES * words.count):
            raise ValueError("keys has 16 bytes for each name")
        memset(&above, 0, sizeof(above))
        if parent is not None:
            above = nkv_name_find(&self.arena, self.arena.holders[number].stream, parent)
            if above.run == 0:
                return None
        return self.put(number, above, words, <const nkv_key*>PyBytes_AS_STRING(keys))

    def store_tokens(
        self, holder, bytes scope_key not None, names, tokens, block_tokens, *, parent=None,
        extras=None,
    ):
        cdef uint32_t number = self.open_holder_of(holder)
        cdef _Words words = names_of(names)
        cdef nkv_block above
        cdef nkv_key parent_key
        cdef bytes keys
        self.must_write()
        memset(&above, 0, sizeof(above))
        if parent is not None:
            above = nkv_name_find(&self.arena, self.arena.holders[number].stream, parent)
            if above.run == 0:
                return None
            parent_key = nkv_run_key(&self.arena, &self.arena.runs[above.run], above.off)[0]
        keys = chained(
            scope_key, tokens, block_tokens, &parent_key if parent is not None else NULL, extras
        )
        if PyBytes_GET_SIZE(keys) != <Py_ssize_t>(KEY_BYTES * words.count):
            raise ValueError("keys has 16 bytes for each name")
        return self.put(number, above, words, <const nkv_key*>PyBytes_AS_STRING(keys))

    cdef object put(self, uint32_t holder, nkv_block above, _Words names, const nkv_key* keys):
        cdef int64_t added = nkv_store_blocks(
            &self.arena, holder, above, <const uint64_t*>names.data, keys, <uint32_t>names.count
        )
        if added < 0:
            raise IndexFullError("the index has no room, and nothing in it can be forgotten")
        return added

    def hold(self, holder, names):
        cdef uint32_t number = self.open_holder_of(holder)
        cdef _Words words = names_of(names)
        cdef int64_t unknown
        self.must_write()
        unknown = nkv_hold_names(
            &self.arena, number, <const uint64_t*>words.data, <uint32_t>words.count
        )
        if unknown < 0:
            raise IndexFullError("the index has no room, and nothing in it can be forgotten")
        return unknown

    def remove(self, holder, names):
        cdef uint32_t number = self.open_holder_of(holder)
        cdef _Words words = names_of(names)
        self.must_write()
        return nkv_remove_names(
            &self.arena, number, <const uint64_t*>words.data, <uint32_t>words.count
        )

    # ---- reading

    def key_of(self, stream, name):
        cdef nkv_key key
        cdef int found = nkv_key_of(&self.arena, self.open_stream_of(stream), name, &key)
        if found < 0:
            raise BusyError("the index is being written")
        return PyBytes_FromStringAndSize(<char*>&key, KEY_BYTES) if found else None

    def find(self, bytes keys not None):
        raise_read(nkv_find(
            &self.arena, <const nkv_key*>PyBytes_AS_STRING(keys), blocks_of(keys), &self.segments
        ))
        return segments_of(&self.segments)

    def find_names(self, stream, names):
        cdef uint32_t number = self.open_stream_of(stream)
        cdef _Words words = names_of(names)
        raise_read(nkv_find_names(
            &self.arena, number, <const uint64_t*>words.data, <uint32_t>words.count, &self.segments
        ))
        return segments_of(&self.segments)

    def reach(self, keys):
        """Of a list only the keys that have to be looked at are."""
        if isinstance(keys, list):
            raise_read(nkv_reach_at(
                &self.arena, nkv_key_in, PySequence_Fast_ITEMS(<PyObject*>keys),
                <uint32_t>PySequence_Fast_GET_SIZE(<PyObject*>keys), &self.segments,
            ))
        else:
            raise_read(nkv_reach(
                &self.arena, <const nkv_key*>PyBytes_AS_STRING(<bytes?>keys), blocks_of(keys),
                &self.segments,
            ))
        return reach_of(self.segments.found, self.segments.count)

    def reach_many(self, queries):
        """Without the GIL: threads help here, as they do not for single lookups."""
        cdef _Batch batch = _Batch(queries)
        batch.look(&self.arena)
        return [
            reach_of(batch.found + batch.ends[i], <uint32_t>(batch.ends[i + 1] - batch.ends[i]))
            for i in range(batch.count)
        ]

    # ---- looking inside

    def stats(self):
        cdef nkv_header* h = self.arena.h
        return {
            "blocks": h.blocks,
            "streams": h.open_streams,
            "holders": h.open_holders,
            "forgotten": h.forgotten,
            "collisions": h.collisions,
            "refused": h.refused,
            "runs": h.runs.used,
            "memory_bytes": nkv_used_bytes(&self.arena),
            "max_blocks": h.max_blocks,
            "max_bytes": h.max_bytes,
        }

    def held(self, holder):
        return self.arena.holders[self.open_holder_of(holder)].held

    def dump(self):
        cdef uint32_t run, i, off
        cdef nkv_run* r
        cdef nkv_hold* e
        facts = []
        for run in range(1, self.arena.h.runs.next):
            r = &self.arena.runs[run]
            for i in range(r.hold_count if r.len else 0):
                e = nkv_holds(&self.arena, r) + i
                if self.arena.holders[e.holder].state != NKV_OPEN:
                    continue
                for off in range(e.lo, e.hi):
                    if e.bits == 0 or nkv_bit(nkv_heap_at(&self.arena, e.bits), off):
                        facts.append((e.holder, PyBytes_FromStringAndSize(
                            <char*>nkv_run_key(&self.arena, r, off), KEY_BYTES).hex()))
        for holder, key in sorted(facts):
            yield json.dumps({"holder": holder, "key": key}).encode()

    def check_invariants(self):
        cdef const char* found = nkv_check(&self.arena)
        if found != NULL:
            raise AssertionError((<bytes>found).decode())

    # ---- copies

    def regions(self):
        """(offset, memory) of all that a copy needs; for `snapshots`."""
        cdef nkv_region found[NKV_REGIONS]
        cdef int count = nkv_regions(&self.arena, found)
        cdef int i
        return [
            (found[i].at, self.memory(found[i].at, found[i].bytes)) for i in range(count)
        ]

    def memory(self, uint64_t at, uint64_t length):
        """A part of the arena, writable where the index is; valid as long as the index is."""
        if at + length > self.arena.bytes or length == 0:
            raise ValueError("not a part of the arena")
        return memoryview(_View(self, at, length))

    def adopt(self):
        """Take over a header that was read into the memory; ValueError when it is of another."""
        if self.arena.h.total_bytes != self.arena.bytes:
            raise ValueError("a copy of an index of another layout")
        nkv_arena_point(&self.arena)

    def snapshot(self, path, meta=b""):
        """Write a copy to a file that takes the place of the one there; nothing may be stored
        meanwhile (RuntimeError). OSError where it cannot be written."""
        self.must_write()
        self.frozen = True
        try:
            write_snapshot(self, path, meta)
        finally:
            self.frozen = False

    @staticmethod
    def restore(path, *, shared=False):
        """The index of a copy, and its `meta`. Raises SnapshotError for any other file, OSError."""
        return read_snapshot(path, lambda blocks, most: BlockIndex(
            max_blocks=blocks, max_bytes=most, shared=shared))


@cython.final
cdef class _View:
    """Keeps the index while its memory is looked at."""
    cdef BlockIndex index
    cdef uint64_t at
    cdef uint64_t length

    def __cinit__(self, BlockIndex index, uint64_t at, uint64_t length):
        self.index = index
        self.at = at
        self.length = length

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(
            view, self, self.index.arena.base + self.at, self.length,
            not self.index.arena.writable, flags,
        )


cdef int check_label(bytes label) except -1:
    if len(label) > MAX_LABEL_BYTES:
        raise ValueError(f"a label has at most {MAX_LABEL_BYTES} bytes")
    return 0


cdef int raise_read(int status) except -1:
    if status == NKV_BUSY:
        raise BusyError("the index is being written")
    if status == NKV_BAD_KEY:
        raise ValueError("a key has 16 bytes")
    if status != NKV_OK:
        raise MemoryError
    return 0


cdef uint32_t blocks_of(bytes keys) except? 0:
    cdef Py_ssize_t length = PyBytes_GET_SIZE(keys)
    if length % KEY_BYTES:
        raise ValueError("keys has 16 bytes for each block")
    return <uint32_t>(length // KEY_BYTES)


cdef list segments_of(const nkv_segments* s):
    cdef list found = []
    cdef uint32_t i
    for i in range(s.count):
        found.append((s.found[i].holder, s.found[i].start, s.found[i].end))
    return found


cdef dict reach_of(const nkv_segment* s, uint32_t count):
    cdef dict found = {}
    cdef uint32_t i
    for i in range(count):
        found[s[i].holder] = s[i].end
    return found
