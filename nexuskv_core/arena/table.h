/* A hash table of entries (32 bits of a hash, number other than 0), eight to a 64-byte bucket.
 *
 * The bucket is the hash scaled to the number of buckets, so buckets are in the order of the hashes
 * and the table grows where it is: from its end to its front, a few buckets with every insertion,
 * entries go to their places in a table half as wide again, never before the old ones. What
 * does not fit into its bucket goes to the next one: all buckets between an entry's own and the one
 * it lies in are full.
 *
 * An entry is one word, so a reader sees it whole; it checks what it finds against what the number
 * refers to. Only not finding something needs the version: entries may have been moving.
 */
#ifndef NKV_TABLE_H
#define NKV_TABLE_H

#include "memory.h"

typedef struct {
    const uint64_t *slots;     /* the bucket, */
    const uint64_t *end;       /* and what is behind the last one */
    uint32_t tag;
    uint32_t slot;
} nkv_probe;

static inline uint64_t nkv_bucket_of(uint32_t tag, uint64_t buckets) {
    return ((uint64_t)tag * buckets) >> 32;
}

/* The bucket of an entry of this hash. */
static inline uint64_t nkv_home(const nkv_extent *e, uint32_t tag) {
    uint64_t bucket = nkv_bucket_of(tag, e->buckets), wider = e->wider;
    return wider && bucket >= e->border ? nkv_bucket_of(tag, wider) : bucket;
}

/* Buckets that may hold something, the spare ones aside. */
static inline uint64_t nkv_extent_end(const nkv_extent *e) {
    return e->wider ? e->wider : e->buckets;
}

/* How many buckets it will be when it has grown by a part once more. */
static inline uint64_t nkv_extent_next(const nkv_extent *e, uint64_t part) {
    uint64_t wanted = e->buckets + e->buckets / part;
    return wanted < e->capacity ? wanted : e->capacity;
}

static inline uint64_t nkv_table_end(const nkv_table *t) {
    return nkv_extent_end(&t->in) + NKV_SPARE_BUCKETS;
}

static inline uint64_t *nkv_slots(const nkv_arena *a, const nkv_table *t, uint64_t bucket) {
    return (uint64_t *)(a->base + t->in.at + bucket * 64);
}

enum { NKV_TABLE_GROWTH = 2 };     /* by a half */

/* Inlined always: compilers drop a call of a function that does nothing but fetch ahead. */
static inline __attribute__((always_inline)) void nkv_table_prefetch(
    const nkv_arena *a, const nkv_table *t, uint32_t tag) {
    uint64_t bucket = nkv_home(&t->in, tag);
    if (bucket < t->in.capacity) __builtin_prefetch(nkv_slots(a, t, bucket), 0, 3);
}

static inline void nkv_probe_start(nkv_probe *p, const nkv_arena *a, const nkv_table *t,
                                   uint32_t tag) {
    uint64_t bucket = nkv_home(&t->in, tag);
    if (bucket >= t->in.capacity) bucket = 0;    /* a reader's torn view: checked by its version */
    p->slots = nkv_slots(a, t, bucket);
    p->end = nkv_slots(a, t, t->in.capacity + NKV_SPARE_BUCKETS);
    p->tag = tag;
    p->slot = 0;
}

/* The next number with this hash, 0 when there is none. */
static inline uint32_t nkv_probe_next(nkv_probe *p) {
    for (; p->slots < p->end; p->slots += NKV_BUCKET_SLOTS, p->slot = 0) {
        while (p->slot < NKV_BUCKET_SLOTS) {
            uint64_t entry = __atomic_load_n(&p->slots[p->slot++], __ATOMIC_RELAXED);
            if (entry == 0) {
                p->end = p->slots;
                return 0;
            }
            if ((uint32_t)(entry >> 32) == p->tag) return (uint32_t)entry;
        }
    }
    return 0;
}

/* 0, or NKV_FULL when the table cannot take it. */
int nkv_table_add(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number);
/* Take out one entry with a hash of from .. to - 1: its number, or 0. */
uint32_t nkv_table_take(nkv_arena *a, nkv_table *t, uint64_t from, uint64_t to, uint32_t *tag);
/* Whether it was there. */
int nkv_table_drop(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number);
/* 0 when everything lies where it should; `count` gets the number of entries. */
const char *nkv_table_check(const nkv_arena *a, const nkv_table *t, uint64_t *count);

#endif
