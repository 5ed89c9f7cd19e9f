/* A hash table of entries (32 bits of a hash, number other than 0), eight to a 64-byte bucket.
 *
 * The bucket is the hash scaled to the number of buckets, so buckets are in the order of the hashes
 * and growing is a copy from front to back: a few buckets are moved with every insertion, into an
 * area half as large again, and the memory behind is given back. What does not fit into its bucket
 * goes to the next one: all buckets between an entry's own and the one it lies in are full.
 *
 * An entry is one word, so a reader sees it whole; it checks what it finds against what the number
 * refers to. Only not finding something needs the version: entries may have been moving.
 */
#ifndef NKV_TABLE_H
#define NKV_TABLE_H

#include "memory.h"

typedef struct {
    const nkv_arena *a;
    const nkv_table *t;
    uint64_t at;         /* bytes from the arena's start: the bucket, */
    uint64_t end;        /* and where the area ends */
    uint32_t tag;
    uint32_t slot;
} nkv_probe;

static inline uint64_t nkv_bucket_of(uint32_t tag, uint64_t buckets) {
    return ((uint64_t)tag * buckets) >> 32;
}

/* Which area an entry of this hash is in, and its bucket there. */
static inline uint64_t nkv_home(const nkv_table *t, uint32_t tag, int *area) {
    int other = (int)(t->current ^ 1) & 1;
    uint64_t buckets = t->buckets[other];
    if (buckets) {
        uint64_t bucket = nkv_bucket_of(tag, buckets);
        if (bucket >= t->moved) {
            *area = other;
            return bucket;
        }
    }
    *area = other ^ 1;
    return nkv_bucket_of(tag, t->buckets[other ^ 1]);
}

static inline uint64_t *nkv_slots(const nkv_arena *a, uint64_t at) {
    return (uint64_t *)(a->base + at);
}

/* Inlined always: compilers drop a call of a function that does nothing but fetch ahead. */
static inline __attribute__((always_inline)) void nkv_table_prefetch(
    const nkv_arena *a, const nkv_table *t, uint32_t tag) {
    int area;
    uint64_t bucket = nkv_home(t, tag, &area);
    if (bucket < t->capacity) __builtin_prefetch(a->base + t->area[area] + bucket * 64, 0, 3);
}

static inline void nkv_probe_start(nkv_probe *p, const nkv_arena *a, const nkv_table *t,
                                   uint32_t tag) {
    int area;
    uint64_t bucket = nkv_home(t, tag, &area);
    if (bucket >= t->capacity) bucket = 0;    /* a reader's torn view: checked by its version */
    p->a = a;
    p->t = t;
    p->at = t->area[area] + bucket * 64;
    p->end = t->area[area] + (t->capacity + NKV_SPARE_BUCKETS) * 64;
    p->tag = tag;
    p->slot = 0;
}

/* The next number with this hash, 0 when there is none. */
static inline uint32_t nkv_probe_next(nkv_probe *p) {
    for (;;) {
        const uint64_t *slots = nkv_slots(p->a, p->at);
        while (p->slot < NKV_BUCKET_SLOTS) {
            uint64_t entry = __atomic_load_n(&slots[p->slot++], __ATOMIC_RELAXED);
            if (entry == 0) {
                p->slot = NKV_BUCKET_SLOTS;
                p->at = p->end;
                return 0;
            }
            if ((uint32_t)(entry >> 32) == p->tag) return (uint32_t)entry;
        }
        if (p->at + 64 >= p->end) return 0;
        p->at += 64;
        p->slot = 0;
    }
}

/* To be called before an entry is added: moves a few entries where the table grows. */
void nkv_table_grow(nkv_arena *a, nkv_table *t);
/* 0, or NKV_FULL when the table cannot take it. */
int nkv_table_add(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number);
/* Whether it was there. */
int nkv_table_drop(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number);
/* 0 when everything lies where it should; `count` gets the number of entries. */
const char *nkv_table_check(const nkv_arena *a, const nkv_table *t, uint64_t *count);

#endif
