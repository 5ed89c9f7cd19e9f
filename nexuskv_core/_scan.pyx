# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""The token list of a request, read from its JSON text without an object per token."""
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr

from msgspec import Raw


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


# ---- msgpack

cdef extern from *:
    """
    /* Bytes behind a kind that is a number not below 0; 9 for any other kind. A table and a shift
     * for all widths: which one comes next cannot be guessed, so branches on it are dear. */
    #define NKV_ROW(w) w, w, w, w, w, w, w, w, w, w, w, w, w, w, w, w
    static const uint8_t nkv_width[256] = {
        NKV_ROW(0), NKV_ROW(0), NKV_ROW(0), NKV_ROW(0), NKV_ROW(0), NKV_ROW(0), NKV_ROW(0),
        NKV_ROW(0), NKV_ROW(9), NKV_ROW(9), NKV_ROW(9), NKV_ROW(9),
        9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 4, 8,
        NKV_ROW(9), NKV_ROW(9), NKV_ROW(9)
    };
    /* Take numbers in while nine bytes are left and they are not below 0; how many. */
    static uint32_t nkv_take_numbers(const uint8_t **at, const uint8_t *end, uint32_t count,
                                     int wide, void *to) {
        const uint8_t *p = *at;
        uint32_t i;
        for (i = 0; i < count && end - p >= 9; i++) {
            uint32_t width = nkv_width[p[0]];
            uint64_t word, value;
            if (width == 9) break;
            memcpy(&word, p + 1, 8);
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            word = __builtin_bswap64(word);
    #endif
            value = width ? word >> (64 - 8 * width) : p[0];
            if (wide) {
                ((uint64_t *)to)[i] = value;
            } else {
                if (value >> 32) break;
                ((uint32_t *)to)[i] = (uint32_t)value;
            }
            p += 1 + width;
        }
        *at = p;
        return i;
    }
    """
    uint32_t nkv_take_numbers(
        const uint8_t** at, const uint8_t* end, uint32_t count, int wide, void* to
    ) noexcept nogil


cdef inline const uint8_t* whole(
    const uint8_t* p, const uint8_t* end, uint64_t* value, bint* negative
) noexcept nogil:
    """Behind a whole number, or NULL; a negative one is given as its complement."""
    cdef uint8_t kind
    cdef Py_ssize_t width, i
    cdef uint64_t found = 0
    if p == end:
        return NULL
    kind = p[0]
    p += 1
    negative[0] = False
    if kind < 0x80:
        value[0] = kind
        return p
    if kind >= 0xe0:
        negative[0] = True
        value[0] = <uint64_t>0 - (0x100 - kind)
        return p
    if kind < 0xcc or kind > 0xd3:
        return NULL
    width = 1 << (kind & 3)
    if end - p < width:
        return NULL
    for i in range(width):
        found = found << 8 | p[i]
    if kind >= 0xd0 and p[0] & 0x80:
        negative[0] = True
        if width < 8:
            found |= UINT64_MAX << (8 * width)
    value[0] = found
    return p + width


def msgpack_u32(data):
    """A msgpack array of numbers from 0 to 2^32 - 1 as native uint32; None for anything else."""
    return msgpack_array(data, 4)


def msgpack_u64(data):
    """A msgpack array of numbers from -2^63 to 2^64 - 1, modulo 2^64, as native uint64; None for
    anything else."""
    return msgpack_array(data, 8)


cdef const uint8_t* take_numbers(
    const uint8_t* p, const uint8_t* end, uint32_t count, size_t width, char* to
) noexcept nogil:
    """Behind so many numbers, which are written to `to`; NULL where one of them is none."""
    cdef uint32_t done = 0
    cdef uint64_t value = 0
    cdef bint negative = False
    while True:
        done += nkv_take_numbers(&p, end, count - done, width == 8, to + done * width)
        if done == count:
            return p
        p = whole(p, end, &value, &negative)
        if p == NULL:
            return NULL
        if width == 8:
            (<uint64_t*>to)[done] = value
        elif negative or value > UINT32_MAX:
            return NULL
        else:
            (<uint32_t*>to)[done] = <uint32_t>value
        done += 1


cdef object msgpack_array(object data, size_t width):
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef object packed
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        end = p + view.len
        packed = numbers_at(&p, end, width)
        return packed.obj if packed is not None and p == end else None
    finally:
        PyBuffer_Release(&view)


cdef extern from *:
    """
    static double nkv_double(uint64_t bits) { double d; memcpy(&d, &bits, 8); return d; }
    static double nkv_float(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
    """
    double nkv_double(uint64_t bits) noexcept nogil
    double nkv_float(uint32_t bits) noexcept nogil


cdef enum:
    MAX_NESTING = 32
    MAX_FIELDS = 64         # of an event
    MAX_NULLS = 65536       # of a list that is made
    NOT_LONG = 0

# Fields that are long lists of numbers, and the bytes that one of them takes; by name, and by place
# in an event that is an array.
cdef dict LONG_FIELDS = {"block_hashes": 8, "seq_hashes": 8, "token_ids": 4}
cdef uint8_t[4] LONG_PLACES = [0, 8, 0, 4]


cdef inline uint64_t big_endian(const uint8_t* p, Py_ssize_t width) noexcept nogil:
    cdef uint64_t found = 0
    cdef Py_ssize_t i
    for i in range(width):
        found = found << 8 | p[i]
    return found


cdef const uint8_t* container(
    const uint8_t* p, const uint8_t* end, uint8_t few, uint8_t wide, uint32_t* count
) noexcept nogil:
    """Behind the head of an array (0x90, 0xdc) or a map (0x80, 0xde), or NULL."""
    if p == end:
        return NULL
    if p[0] & 0xf0 == few:
        count[0] = p[0] & 0x0f
        p += 1
    elif p[0] == wide and end - p >= 3:
        count[0] = <uint32_t>big_endian(p + 1, 2)
        p += 3
    elif p[0] == wide + 1 and end - p >= 5:
        count[0] = <uint32_t>big_endian(p + 1, 4)
        p += 5
    else:
        return NULL
    return p if count[0] <= <uint64_t>(end - p) else NULL


cdef const uint8_t* text_of(
    const uint8_t* p, const uint8_t* end, uint8_t narrow, Py_ssize_t* length
) noexcept nogil:
    """Behind the head of a text (0xd9 and on) or bytes (0xc4 and on), or NULL."""
    cdef Py_ssize_t width
    if p == end:
        return NULL
    if narrow == 0xd9 and p[0] & 0xe0 == 0xa0:
        length[0] = p[0] & 0x1f
        p += 1
    elif narrow <= p[0] < narrow + 3:
        width = 1 << (p[0] - narrow)
        if end - p < 1 + width:
            return NULL
        length[0] = <Py_ssize_t>big_endian(p + 1, width)
        p += 1 + width
    else:
        return NULL
    return p if length[0] <= end - p else NULL


cdef const uint8_t* behind(const uint8_t* p, const uint8_t* end, int nesting) noexcept nogil:
    """Behind one value of any kind, or NULL."""
    cdef uint8_t kind
    cdef uint32_t count = 0
    cdef Py_ssize_t length = 0
    cdef const uint8_t* q
    cdef bint pairs
    if p == end or nesting == 0:
        return NULL
    kind = p[0]
    if kind < 0x80 or kind >= 0xe0 or 0xc0 <= kind <= 0xc3:
        return p + 1 if kind != 0xc1 else NULL
    if kind == 0xca or kind == 0xcb or 0xcc <= kind <= 0xd3:
        length = 5 if kind == 0xca else 9 if kind == 0xcb else 1 + (1 << (kind & 3))
        return p + length if end - p >= length else NULL
    q = text_of(p, end, 0xd9, &length)
    if q == NULL:
        q = text_of(p, end, 0xc4, &length)
    if q != NULL:
        return q + length
    q = container(p, end, 0x90, 0xdc, &count)
    pairs = q == NULL
    if pairs:
        q = container(p, end, 0x80, 0xde, &count)
    if q == NULL:
        return NULL
    while count and q != NULL:
        q = behind(q, end, nesting - 1)
        if pairs and q != NULL:
            q = behind(q, end, nesting - 1)
        count -= 1
    return q


cdef inline bint nulls(const uint8_t* p, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        if p[i] != 0xc0:
            return False
    return True


cdef object value_of(const uint8_t** at, const uint8_t* end, size_t long_width):
    """One value: what is short as it is, long numbers as a buffer, a list of nulls alone as a tuple
    of them, the rest left as msgpack."""
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* q
    cdef Py_ssize_t length = 0
    cdef uint64_t number = 0
    cdef bint negative = False
    cdef uint8_t kind = p[0]
    cdef uint32_t count = 0
    cdef object packed
    if long_width:
        packed = numbers_at(&p, end, long_width)
        if packed is not None:
            at[0] = p
            return packed
    q = container(p, end, 0x90, 0xdc, &count)
    if q != NULL and count <= MAX_NULLS and nulls(q, count):
        at[0] = q + count
        return (None,) * count
    at[0] = behind(p, end, MAX_NESTING)
    if at[0] == NULL:
        return None
    if kind == 0xc0:
        return None
    if kind == 0xc2 or kind == 0xc3:
        return kind == 0xc3
    if kind == 0xca:
        return nkv_float(<uint32_t>big_endian(p + 1, 4))
    if kind == 0xcb:
        return nkv_double(big_endian(p + 1, 8))
    if whole(p, end, &number, &negative) != NULL:
        return <int64_t>number if negative else number
    q = text_of(p, end, 0xd9, &length)
    if q != NULL:
        return PyUnicode_DecodeUTF8(<const char*>q, length, NULL)
    q = text_of(p, end, 0xc4, &length)
    if q != NULL:
        return PyBytes_FromStringAndSize(<const char*>q, length)
    return Raw(PyBytes_FromStringAndSize(<const char*>p, at[0] - p))


cdef object numbers_at(const uint8_t** at, const uint8_t* end, size_t width):
    """A list of numbers as a buffer of uint32 or uint64; None for any other value."""
    cdef const uint8_t* p
    cdef uint32_t count = 0
    cdef bytes out
    p = container(at[0], end, 0x90, 0xdc, &count)
    if p == NULL:
        return None
    out = PyBytes_FromStringAndSize(NULL, count * width)
    p = take_numbers(p, end, count, width, PyBytes_AS_STRING(out))
    if p == NULL:
        return None
    at[0] = p
    return memoryview(out).cast("Q" if width == 8 else "I")


cdef object event_of(const uint8_t** at, const uint8_t* end):
    """A map as a dict, an array as a list; None, and NULL in `at`, for anything else."""
    cdef uint32_t count = 0
    cdef uint32_t i, _i
    cdef Py_ssize_t length = 0
    cdef const uint8_t* p = container(at[0], end, 0x80, 0xde, &count)
    cdef const uint8_t* text
    cdef dict fields
    cdef list values
    cdef str name
    if p != NULL and count <= MAX_FIELDS:
        fields = {}
        for _i in range(count):
            text = text_of(p, end, 0xd9, &length)
            if text == NULL or text + length == end:
                at[0] = NULL
                return None
            name = PyUnicode_DecodeUTF8(<const char*>text, length, NULL)
            p = text + length
            fields[name] = value_of(&p, end, LONG_FIELDS.get(name, NOT_LONG))
            if p == NULL:
                at[0] = NULL
                return None
        at[0] = p
        return fields
    p = container(at[0], end, 0x90, 0xdc, &count)
    at[0] = NULL
    if p == NULL or count > MAX_FIELDS:
        return None
    values = []
    for i in range(count):
        if p == end:
            return None
        values.append(value_of(&p, end, LONG_PLACES[i] if i < 4 else 0))
        if p == NULL:
            return None
    at[0] = p
    return values


def msgpack_batch(data, uint32_t max_events):
    """`[when, events, rank]` read to the ends of its events: (when, events, rank).

    An event is a dict or a list. In it long lists of numbers are buffers, lists of nulls alone are
    tuples, other lists and maps still msgpack (`msgspec.Raw`). None for what has another form, or
    more events, or is no msgpack.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef uint32_t parts = 0
    cdef uint32_t count = 0
    cdef uint32_t _i
    cdef object when
    cdef object rank = None
    cdef list events = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = <const uint8_t*>view.buf + view.len
        p = container(<const uint8_t*>view.buf, end, 0x90, 0xdc, &parts)
        if p == NULL or not 2 <= parts <= 3 or p == end:
            return None
        when = value_of(&p, end, NOT_LONG)
        if p == NULL:
            return None
        p = container(p, end, 0x90, 0xdc, &count)
        if p == NULL or count > max_events:
            return None
        for _i in range(count):
            events.append(event_of(&p, end))
            if p == NULL:
                return None
        if parts == 3:
            if p == end:
                return None
            rank = value_of(&p, end, NOT_LONG)
        return (when, events, rank) if p == end else None
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)
