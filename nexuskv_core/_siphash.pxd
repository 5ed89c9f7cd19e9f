# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""SipHash-c-d with 128-bit output (Aumasson and Bernstein, 2012), over little-endian u32 tokens.

The state after every block is kept, so the hash of every prefix costs one finalisation: the hash of
a prefix is SipHash of its bytes, and padding makes lists of different length different messages.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct SipState:
    uint64_t v0
    uint64_t v1
    uint64_t v2
    uint64_t v3


cdef inline uint64_t rotl(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void sip_round(SipState* s) noexcept nogil:
    s.v0 += s.v1
    s.v2 += s.v3
    s.v1 = rotl(s.v1, 13) ^ s.v0
    s.v3 = rotl(s.v3, 16) ^ s.v2
    s.v0 = rotl(s.v0, 32)
    s.v2 += s.v1
    s.v0 += s.v3
    s.v1 = rotl(s.v1, 17) ^ s.v2
    s.v3 = rotl(s.v3, 21) ^ s.v0
    s.v2 = rotl(s.v2, 32)


cdef inline SipState sip_start(uint64_t k0, uint64_t k1) noexcept nogil:
    cdef SipState s
    s.v0 = k0 ^ <uint64_t>0x736f6d6570736575
    # 0xee marks the 128-bit variant, here and in the finalisation.
    s.v1 = k1 ^ <uint64_t>0x646f72616e646f6d ^ 0xee
    s.v2 = k0 ^ <uint64_t>0x6c7967656e657261
    s.v3 = k1 ^ <uint64_t>0x7465646279746573
    return s


cdef inline void sip_absorb(SipState* s, uint64_t word, int c_rounds) noexcept nogil:
    cdef int _i
    s.v3 ^= word
    for _i in range(c_rounds):
        sip_round(s)
    s.v0 ^= word


cdef inline void sip_finish(
    SipState s, uint64_t last_word, int c_rounds, int d_rounds, uint64_t* lo, uint64_t* hi
) noexcept nogil:
    """`last_word`: the bytes left over, with the message length modulo 256 in the top byte."""
    cdef int _i
    sip_absorb(&s, last_word, c_rounds)
    s.v2 ^= 0xee
    for _i in range(d_rounds):
        sip_round(&s)
    lo[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
    s.v1 ^= 0xdd
    for _i in range(d_rounds):
        sip_round(&s)
    hi[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3


cdef inline uint64_t token_pair(const uint32_t* tokens) noexcept nogil:
    return <uint64_t>tokens[0] | (<uint64_t>tokens[1] << 32)


cdef inline void absorb_blocks(
    SipState* states, const uint32_t* tokens, size_t blocks, uint32_t block_tokens
) noexcept nogil:
    """From the state in `states[0]`, store the state after each block behind it."""
    cdef SipState s = states[0]
    cdef size_t block
    cdef uint32_t i
    for block in range(1, blocks + 1):
        if block_tokens == 16:
            for i in range(8):      # a constant length, which the compiler unrolls
                sip_absorb(&s, token_pair(tokens + 2 * i), 1)
        else:
            for i in range(block_tokens // 2):
                sip_absorb(&s, token_pair(tokens + 2 * i), 1)
        tokens += block_tokens
        states[block] = s


cdef inline void finish_block(
    const SipState* s, uint64_t tokens_absorbed, uint64_t* lo, uint64_t* hi
) noexcept nogil:
    sip_finish(s[0], (4 * tokens_absorbed & 0xff) << 56, 1, 3, lo, hi)


cdef inline void finish_tail(
    SipState s, const uint32_t* tail, uint32_t tail_tokens, uint64_t total_tokens,
    uint64_t* lo, uint64_t* hi,
) noexcept nogil:
    cdef uint64_t last = (4 * total_tokens & 0xff) << 56
    cdef uint32_t i = 0
    while i + 2 <= tail_tokens:
        sip_absorb(&s, token_pair(tail + i), 1)
        i += 2
    if i < tail_tokens:
        last |= tail[i]
    sip_finish(s, last, 1, 3, lo, hi)


cdef inline uint64_t load_le64(const uint8_t* p) noexcept nogil:
    cdef uint64_t word = 0
    cdef int i
    for i in range(8):
        word |= <uint64_t>p[i] << (8 * i)
    return word


cdef inline void store_le64(uint8_t* p, uint64_t word) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(word >> (8 * i))
