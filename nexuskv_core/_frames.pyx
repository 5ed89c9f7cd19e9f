# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: auto_pickle=False, autotestdict=False
"""Frames of the decision spool, written into mapped memory: called once for every answer."""
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from nexuskv_core._siphash cimport SipState, load_le64, sip_absorb, sip_finish, sip_start

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    static void nkv_store_le32(unsigned char* p, uint32_t value) {
        for (int i = 0; i < 4; i++) p[i] = (unsigned char)(value >> 8 * i);
    }
    /* Behind everything that was written before it, for who reads beside us. */
    static void nkv_publish_le32(unsigned char* p, uint32_t value) {
        uint32_t little;
        nkv_store_le32((unsigned char*)&little, value);
        __atomic_store_n((uint32_t*)p, little, __ATOMIC_RELEASE);
    }
    """
    void nkv_store_le32(uint8_t* p, uint32_t value) noexcept nogil
    void nkv_publish_le32(uint8_t* p, uint32_t value) noexcept nogil
    int madvise(void* address, size_t length, int advice) noexcept nogil
    int MADV_POPULATE_WRITE

cdef enum:
    HEAD_BYTES = 16


cdef uint32_t check_of(const uint8_t* p, Py_ssize_t length, uint64_t seq) noexcept nogil:
    cdef uint64_t last = <uint64_t>(length & 0xff) << 56
    cdef uint64_t lo = 0
    cdef uint64_t hi = 0
    cdef Py_ssize_t i
    cdef SipState state = sip_start(seq, 0)
    for i in range(length // 8):
        sip_absorb(&state, load_le64(p + 8 * i), 1)
    for i in range(length % 8):
        last |= <uint64_t>p[length - length % 8 + i] << (8 * i)
    sip_finish(state, last, 1, 3, &lo, &hi)
    return <uint32_t>lo


def frame_check(bytes payload not None, uint64_t seq):
    """The checksum of a frame, 32 bits: SipHash-1-3-128 of the payload under the number."""
    return check_of(<const uint8_t*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), seq)


def write_frame(object into, Py_ssize_t at, uint64_t seq, bytes payload not None):
    """Write a frame at a multiple of 8; returns where the next one begins.

    ValueError where it has no room, or the place is none.
    """
    cdef Py_ssize_t length = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t end = at + HEAD_BYTES + (length + 7 & ~<Py_ssize_t>7)
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(payload)
    cdef uint8_t* frame
    cdef Py_buffer view
    cdef int i
    PyObject_GetBuffer(into, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if at < 0 or at % 8 or end > view.len or length >= <Py_ssize_t>0xffffffff:
            raise ValueError("a frame has no room there")
        frame = <uint8_t*>view.buf + at
        memcpy(frame + HEAD_BYTES, p, length)
        nkv_store_le32(frame + 4, check_of(p, length, seq))
        for i in range(8):
            frame[8 + i] = <uint8_t>(seq >> (8 * i))
        nkv_publish_le32(frame, <uint32_t>length)
    finally:
        PyBuffer_Release(&view)
    return end


def make_writable(object data, Py_ssize_t at, Py_ssize_t length):
    """Let the kernel make pages of a mapping ready to be written, without the GIL.

    Returns the errno of what kept it from that, or 0: it is a favour, which not every system does.
    """
    cdef Py_buffer view
    cdef int failed
    cdef uintptr_t begin
    cdef uintptr_t end
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        begin = <uintptr_t>view.buf + max(0, min(at, view.len))
        end = <uintptr_t>view.buf + max(0, min(at + length, view.len))
        begin &= ~<uintptr_t>4095
        with nogil:
            failed = madvise(<void*>begin, end - begin, MADV_POPULATE_WRITE)
        return errno if failed else 0
    finally:
        PyBuffer_Release(&view)
