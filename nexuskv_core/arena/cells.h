/* A hash table like that of table.h for very many entries: ten of 6 bytes to a 64-byte bucket, each
 * in its own bucket, so that there is one place to look at. The few that do not fit into theirs are
 * in a table beside it, and their bucket counts them.
 *
 * Of the hash an entry has the lowest 16 bits. The bucket says the rest, as there are 65,536 of them
 * at least, so entries can be put elsewhere without a look at what they refer to.
 *
 * An entry stays in its slot; for what readers see the same holds as there.
 */
#ifndef NKV_CELLS_H
#define NKV_CELLS_H

#include "table.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    NKV_CELLS_FEWEST = 1 << 16,        /* buckets */
    NKV_CELLS_GROWTH = 4,              /* by a quarter */
};

static inline nkv_bucket *nkv_bucket_at(const nkv_arena *a, const nkv_cells *t, uint64_t bucket) {
    return (nkv_bucket *)(a->base + t->in.at) + bucket;
}

static inline __attribute__((always_inline)) void nkv_cells_prefetch(
    const nkv_arena *a, const nkv_cells *t, uint32_t tag) {
    uint64_t bucket = nkv_home(&t->in, tag);
    if (bucket < t->in.capacity) __builtin_prefetch(nkv_bucket_at(a, t, bucket), 0, 3);
}

/* The slots with these low bits, and the free ones, a bit each: without a branch, since one that
 * nobody can foresee costs more than all ten looks. */
#if defined(__SSE2__)
static inline uint32_t nkv_bucket_match(const nkv_bucket *b, uint16_t low) {
    __m128i same = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)b->low),
                                   _mm_set1_epi16((int16_t)low));
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, _mm_setzero_si128())) |
           (uint32_t)(b->low[8] == low) << 8 | (uint32_t)(b->low[9] == low) << 9;
}
static inline uint32_t nkv_bucket_free(const nkv_bucket *b) {
    const __m128i *four = (const __m128i *)b->number;
    __m128i none = _mm_setzero_si128(), same = _mm_packs_epi32(
        _mm_cmpeq_epi32(_mm_loadu_si128(four), none),
        _mm_cmpeq_epi32(_mm_loadu_si128(four + 1), none));
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, none)) |
           (uint32_t)(b->number[8] == 0) << 8 | (uint32_t)(b->number[9] == 0) << 9;
}
#else
static inline uint32_t nkv_bucket_match(const nkv_bucket *b, uint16_t low) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < NKV_CELL_SLOTS; i++) found |= (uint32_t)(b->low[i] == low) << i;
    return found;
}
static inline uint32_t nkv_bucket_free(const nkv_bucket *b) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < NKV_CELL_SLOTS; i++) found |= (uint32_t)(b->number[i] == 0) << i;
    return found;
}
#endif

/* Into a free slot of its own bucket. */
static inline void nkv_bucket_put(nkv_bucket *b, uint32_t vacant, uint32_t tag, uint32_t number) {
    uint32_t slot = (uint32_t)__builtin_ctz(vacant);
    b->low[slot] = (uint16_t)tag;
    __atomic_store_n(&b->number[slot], number, __ATOMIC_RELEASE);
}

/* Whether an entry with this hash may be beside the bucket. */
static inline int nkv_bucket_sieve(const nkv_bucket *b, uint32_t tag) {
    return __atomic_load_n(&b->sieve, __ATOMIC_ACQUIRE) >> (tag & 15) & 1;
}

typedef struct {
    const nkv_arena *a;
    const nkv_cells *t;
    const nkv_bucket *bucket;
    uint32_t tag, match;
    int spilled;               /* `spill` is where it goes on */
    nkv_probe spill;
} nkv_cell_probe;

static inline void nkv_cells_start(nkv_cell_probe *p, const nkv_arena *a, const nkv_cells *t,
                                   uint32_t tag) {
    uint64_t bucket = nkv_home(&t->in, tag);
    if (bucket >= t->in.capacity) bucket = 0;     /* a reader's torn view */
    p->a = a;
    p->t = t;
    p->bucket = nkv_bucket_at(a, t, bucket);
    p->tag = tag;
    p->match = nkv_bucket_match(p->bucket, (uint16_t)tag);
    p->spilled = 0;
}

/* The next number that may have this hash, 0 when there is none. */
static inline uint32_t nkv_cells_next(nkv_cell_probe *p) {
    while (p->match) {
        uint32_t i = (uint32_t)__builtin_ctz(p->match), number;
        p->match &= p->match - 1;
        number = __atomic_load_n(&p->bucket->number[i], __ATOMIC_ACQUIRE);
        if (number) return number;
    }
    if (!p->spilled) {
        if (!nkv_bucket_sieve(p->bucket, p->tag)) return 0;
        p->spilled = 1;
        nkv_probe_start(&p->spill, p->a, &p->t->spill, p->tag);
    }
    return nkv_probe_next(&p->spill);
}

/* To be called before an entry is added: moves a few entries where the table grows. */
void nkv_cells_grow(nkv_arena *a, nkv_cells *t);
/* An entry whose bucket is full. 0, or NKV_FULL. */
int nkv_cells_spill(nkv_arena *a, nkv_cells *t, uint32_t tag, uint32_t number);
/* Whether it was there. */
int nkv_cells_drop(nkv_arena *a, nkv_cells *t, uint32_t tag, uint32_t number);
const char *nkv_cells_check(const nkv_arena *a, const nkv_cells *t, uint64_t *count);

#endif
