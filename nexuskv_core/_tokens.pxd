# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Token lists, keys and numbers on their way from Python: checked, unboxed, hashed."""
from cpython.buffer cimport (
    PyBUF_CONTIG_RO, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nexuskv_core._siphash cimport (
    SipState, absorb_blocks, load_le64, sip_absorb, sip_start, store_le64,
)


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define NKV_COLD __attribute__((cold, noinline))
    #else
    #define NKV_COLD
    #endif
    #define NKV_INT(item) ((PyLongObject *)(item))
    #if PY_VERSION_HEX >= 0x030C0000
    #define NKV_SMALL(a) (PyUnstable_Long_IsCompact(NKV_INT(a)) && \
                          PyUnstable_Long_CompactValue(NKV_INT(a)) >= 0)
    #define NKV_VALUE(a) ((uint32_t)PyUnstable_Long_CompactValue(NKV_INT(a)))
    #else
    #define NKV_SMALL(a) (Py_SIZE(a) == 1)
    #define NKV_VALUE(a) ((uint32_t)NKV_INT(a)->ob_digit[0])
    #endif
    /* 0 and two tokens as one word; 1 for what this fast path leaves to nkv_token. */
    static inline int nkv_usual_pair(PyObject **items, uint64_t *word) {
        PyObject *a = items[0], *b = items[1];
        if (Py_TYPE(a) != &PyLong_Type || Py_TYPE(b) != &PyLong_Type) return 1;
        if (!(NKV_SMALL(a) & NKV_SMALL(b))) return 1;
        *word = (uint64_t)NKV_VALUE(a) | (uint64_t)NKV_VALUE(b) << 32;
        return 0;
    }
    /* 0 and the token, 1 for another type, 2 out of range; runs no Python code. */
    NKV_COLD static int nkv_token(PyObject *item, uint32_t *token) {
        unsigned long long value;
        if (!PyLong_Check(item) || PyBool_Check(item)) return 1;
        value = PyLong_AsUnsignedLongLong(item);
        if (value == (unsigned long long)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 2;
        }
        *token = (uint32_t)value;
        return value > 0xFFFFFFFFULL ? 2 : 0;
    }
    """
    int nkv_usual_pair(PyObject** items, uint64_t* word) noexcept
    int nkv_token(PyObject* item, uint32_t* token) noexcept
    PyObject** PySequence_Fast_ITEMS(PyObject* sequence) noexcept
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject* sequence) noexcept


cdef inline SipState start_of(bytes key) except *:
    cdef const uint8_t* p
    if key is None:
        raise TypeError("a scope key is bytes")
    if PyBytes_GET_SIZE(key) != 16:
        raise ValueError("a scope key is 16 bytes")
    p = <const uint8_t*>PyBytes_AS_STRING(key)
    return sip_start(load_le64(p), load_le64(p + 8))


cdef inline bytes hash_bytes(uint64_t lo, uint64_t hi):
    cdef uint8_t out[16]
    store_le64(out, lo)
    store_le64(out + 8, hi)
    return PyBytes_FromStringAndSize(<char*>out, 16)


cdef inline int unbox_and_hash(
    PyObject** items, uint32_t* tokens, size_t blocks, SipState* states, uint32_t block_tokens
) noexcept:
    """Not 0 when an item is no token. `states[0]` is set; the state after each block is stored.

    The hash waits on itself, so unboxing beside it is nearly free. Words go to it in a register:
    loading one from two tokens just stored would stall.
    """
    cdef SipState s = states[0]
    cdef uint64_t word = 0
    cdef int bad = 0
    cdef size_t block
    cdef uint32_t i
    for block in range(blocks):
        i = 0
        while i < block_tokens and nkv_usual_pair(items + i, &word) == 0:
            tokens[i] = <uint32_t>word
            tokens[i + 1] = <uint32_t>(word >> 32)
            sip_absorb(&s, word, 1)
            i += 2
        if i < block_tokens:
            for i in range(block_tokens):
                bad |= nkv_token(items[i], &tokens[i])
            absorb_blocks(states + block, tokens, 1, block_tokens)
            s = states[block + 1]
        states[block + 1] = s
        items += block_tokens
        tokens += block_tokens
    return bad


cdef inline int open_buffer(object tokens, Py_buffer* view) except -1:
    """On success the caller releases the view."""
    cdef bytes code
    if not PyObject_CheckBuffer(tokens):
        raise TypeError("tokens are a list of integers or a contiguous buffer of uint32")
    try:
        PyObject_GetBuffer(tokens, view, PyBUF_CONTIG_RO | PyBUF_FORMAT)
    except BufferError:
        raise ValueError("a token buffer is contiguous") from None
    code = view.format if view.format != NULL else b"B"
    if view.ndim != 1 or view.itemsize != 4 or code.lstrip(b"@=<") not in (b"I", b"L"):
        PyBuffer_Release(view)
        raise ValueError("a token buffer has one dimension of native uint32")
    return 0


cdef inline uint64_t whole_number(object value, str name, object limit) except? 0:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an integer")
    if not 0 <= value <= limit:
        raise ValueError(f"{name} is from 0 to {limit}")
    return value
