# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""The token list of a request, read from its JSON text without an object per token."""
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr


cdef char* UINT32_FORMAT = b"I"

cdef enum:
    MAX_DIGITS = 10     # of 4294967295
    MALFORMED = -1
    KEPT_SLACK = 4096   # bytes of an array that are not worth giving back


cdef inline bint is_space(uint8_t c) noexcept nogil:
    return c == 0x20 or c == 0x0a or c == 0x0d or c == 0x09


cdef inline const uint8_t* after_space(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and is_space(p[0]):
        p += 1
    return p


cdef Py_ssize_t scan(const uint8_t* p, const uint8_t* end, uint32_t* tokens) noexcept nogil:
    """How many tokens `[...]` holds, or MALFORMED. `tokens` has room for one per two bytes.

    Strict JSON: no sign, fraction, exponent or leading zero; nothing after the closing bracket.
    """
    cdef uint32_t* out = tokens
    cdef const uint8_t* first
    cdef uint64_t value
    p = after_space(p, end)
    if p == end or p[0] != 91:
        return MALFORMED
    p = after_space(p + 1, end)
    if p < end and p[0] == 93:
        return 0 if after_space(p + 1, end) == end else MALFORMED
    while True:
        first = p
        value = 0
        while p < end and p[0] - 48 < 10 and p[0] >= 48:
            value = value * 10 + (p[0] - 48)
            p += 1
            if p - first > MAX_DIGITS:
                return MALFORMED
        if p == first or value > UINT32_MAX or (first[0] == 48 and p - first > 1):
            return MALFORMED
        out[0] = <uint32_t>value
        out += 1
        if p < end and is_space(p[0]):
            p = after_space(p, end)
        if p == end:
            return MALFORMED
        if p[0] == 93:
            return (out - tokens) if after_space(p + 1, end) == end else MALFORMED
        if p[0] != 44:
            return MALFORMED
        p += 1
        if p < end and is_space(p[0]):
            p = after_space(p, end)


@cython.final
cdef class TokenText:
    """A JSON array of tokens: a read-only uint32 buffer that can give its text back."""
    cdef Py_buffer text
    cdef uint32_t* tokens
    cdef Py_ssize_t count
    cdef Py_ssize_t stride
    cdef bint open

    def __cinit__(self, text):
        cdef const uint8_t* start
        cdef Py_ssize_t room
        cdef void* smaller
        PyObject_GetBuffer(text, &self.text, PyBUF_SIMPLE)
        self.open = True
        self.stride = sizeof(uint32_t)
        start = <const uint8_t*>self.text.buf
        room = self.text.len // 2 + 1
        self.tokens = <uint32_t*>PyMem_Malloc(room * sizeof(uint32_t))
        if self.tokens == NULL:
            raise MemoryError
        self.count = scan(start, start + self.text.len, self.tokens)
        if self.count == MALFORMED:
            self.count = 0
            raise ValueError("not a JSON array of integers from 0 to 4294967295")
        if (room - self.count) * <Py_ssize_t>sizeof(uint32_t) > KEPT_SLACK:
            smaller = PyMem_Realloc(self.tokens, (self.count + 1) * sizeof(uint32_t))
            if smaller != NULL:
                self.tokens = <uint32_t*>smaller

    def __dealloc__(self):
        PyMem_Free(self.tokens)
        if self.open:
            PyBuffer_Release(&self.text)

    def __len__(self):
        return self.count

    def __getbuffer__(self, Py_buffer* view, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("the tokens are read-only")
        view.buf = self.tokens
        view.obj = self
        view.len = self.count * sizeof(uint32_t)
        view.itemsize = sizeof(uint32_t)
        view.readonly = 1
        view.ndim = 1
        view.format = NULL
        if flags & PyBUF_FORMAT:
            view.format = UINT32_FORMAT
        view.shape = &self.count if flags & PyBUF_ND else NULL
        view.strides = &self.stride if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL

    def tolist(self):
        """The tokens as a list of int."""
        cdef Py_ssize_t i
        return [self.tokens[i] for i in range(self.count)]

    def json_prefix(self, Py_ssize_t count):
        """The text of the first `count` tokens as it was sent, without brackets.

        Raises ValueError when there are fewer.
        """
        cdef const uint8_t* start
        cdef const uint8_t* end
        cdef const uint8_t* p
        cdef Py_ssize_t left = count
        if count < 0 or count > self.count:
            raise ValueError("there are not so many tokens")
        if count == 0:
            return b""
        start = <const uint8_t*>self.text.buf
        end = start + self.text.len
        start = <const uint8_t*>memchr(start, 91, end - start) + 1
        p = start
        while True:
            # A comma (44) follows each token but the last, which the bracket (93) follows.
            p = <const uint8_t*>memchr(p, 44 if left > 1 or count < self.count else 93, end - p)
            left -= 1
            if left == 0:
                return PyBytes_FromStringAndSize(<const char*>start, p - start)
            p += 1
