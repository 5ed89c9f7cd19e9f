#include "cells.h"

#include <stdlib.h>

enum {
    MOVED_AN_ADD = 4,          /* buckets moved with an insertion, at least */
    MOVED_AT_ONCE = 64,        /* under one version */
    FULL_PERCENT = 85,         /* when it begins to grow */
    MOST_SPILLED = 64,         /* of a bucket; far more than chance brings */
};

/* The hashes of a bucket are from this one on, where there are so many buckets. */
static uint64_t first_tag(uint64_t bucket, uint64_t buckets) {
    return ((bucket << 32) + buckets - 1) / buckets;
}

static uint32_t tag_of(uint64_t first, uint16_t low) {
    return (uint32_t)(first + (uint16_t)(low - first));
}

static int spill(nkv_arena *a, nkv_cells *t, nkv_bucket *b, uint32_t tag, uint32_t number) {
    int status = b->spilled == MOST_SPILLED ? NKV_FULL : NKV_OK;
    if (status == NKV_OK) status = nkv_table_add(a, &t->spill, tag, number);
    if (status != NKV_OK) return status;
    b->spilled++;
    __atomic_store_n(&b->sieve, b->sieve | 1u << (tag & 15), __ATOMIC_RELEASE);
    return NKV_OK;
}

/* ---- growing */

/* The buckets that one bucket's entries go to, and their free slots as bits: kept here, as reading
 * them again just after they were written is slow. */
enum { NEAR = 3 };
typedef struct {
    nkv_bucket *first;
    uint64_t at;
    uint32_t vacant[NEAR];
} nkv_near;

static void put_near(nkv_arena *a, nkv_cells *t, nkv_near *n, uint32_t tag, uint32_t number) {
    uint64_t i = nkv_bucket_of(tag, t->in.wider) - n->at;
    if (!n->vacant[i]) {
        spill(a, t, n->first + i, tag, number);     /* there was room for it a moment ago */
        return;
    }
    nkv_bucket_put(n->first + i, n->vacant[i], tag, number);
    n->vacant[i] &= n->vacant[i] - 1;
}

/* The entries of one bucket, and those beside it, go to buckets that are never before it. All are
 * taken out first, as some of them may have to go beside the next one. */
static void move_bucket(nkv_arena *a, nkv_cells *t, uint64_t bucket) {
    nkv_bucket *b = nkv_bucket_at(a, t, bucket), was = *b;
    uint64_t from = first_tag(bucket, t->in.buckets), to = first_tag(bucket + 1, t->in.buckets);
    uint32_t tags[MOST_SPILLED], numbers[MOST_SPILLED];
    nkv_near near;
    for (uint32_t i = 0; i < was.spilled; i++)
        numbers[i] = nkv_table_take(a, &t->spill, from, to, &tags[i]);
    for (uint32_t i = 0; i < NKV_CELL_SLOTS; i++)
        __atomic_store_n(&b->number[i], 0, __ATOMIC_RELAXED);
    b->spilled = 0;
    __atomic_store_n(&b->sieve, 0, __ATOMIC_RELAXED);
    t->in.border = bucket;
    near.at = nkv_bucket_of((uint32_t)from, t->in.wider);
    near.first = nkv_bucket_at(a, t, near.at);
    for (uint32_t i = 0; i < NEAR; i++) near.vacant[i] = nkv_bucket_free(near.first + i);
    for (uint32_t i = 0; i < NKV_CELL_SLOTS; i++)
        if (was.number[i]) put_near(a, t, &near, tag_of(from, was.low[i]), was.number[i]);
    for (uint32_t i = 0; i < was.spilled; i++)
        if (numbers[i]) put_near(a, t, &near, tags[i], numbers[i]);
}

static void move_some(nkv_arena *a, nkv_cells *t) {
    nkv_begin(&t->seq);
    for (uint32_t i = 0; i < MOVED_AT_ONCE && t->in.border; i++)
        move_bucket(a, t, t->in.border - 1);
    if (!t->in.border) {
        t->in.buckets = t->in.wider;
        t->in.wider = 0;
    }
    nkv_end(&t->seq);
}

static void begin_growth(nkv_cells *t) {
    uint64_t wanted = nkv_extent_next(&t->in, NKV_CELLS_GROWTH);
    if (wanted <= t->in.buckets) return;
    nkv_begin(&t->seq);
    t->in.wider = wanted;
    t->in.border = t->in.buckets;
    nkv_end(&t->seq);
}

void nkv_cells_grow(nkv_arena *a, nkv_cells *t) {
    if (t->in.wider) {
        if (t->count % (MOVED_AT_ONCE / MOVED_AN_ADD) == 0) move_some(a, t);
    } else if (t->count * 100 >= t->in.buckets * NKV_CELL_SLOTS * FULL_PERCENT) {
        begin_growth(t);
    }
}

/* ---- adding and dropping */

int nkv_cells_spill(nkv_arena *a, nkv_cells *t, uint32_t tag, uint32_t number) {
    int status;
    nkv_begin(&t->seq);
    status = spill(a, t, nkv_bucket_at(a, t, nkv_home(&t->in, tag)), tag, number);
    nkv_end(&t->seq);
    return status;
}

int nkv_cells_drop(nkv_arena *a, nkv_cells *t, uint32_t tag, uint32_t number) {
    nkv_bucket *b = nkv_bucket_at(a, t, nkv_home(&t->in, tag));
    int dropped = 0;
    for (uint32_t i = 0; i < NKV_CELL_SLOTS && !dropped; i++) {
        if (b->number[i] != number) continue;
        __atomic_store_n(&b->number[i], 0, __ATOMIC_RELEASE);
        dropped = 1;
    }
    if (!dropped && b->spilled) {
        nkv_begin(&t->seq);
        dropped = nkv_table_drop(a, &t->spill, tag, number);
        b->spilled = (uint16_t)(b->spilled - dropped);
        if (!b->spilled) __atomic_store_n(&b->sieve, 0, __ATOMIC_RELEASE);
        nkv_end(&t->seq);
    }
    t->count -= (uint64_t)dropped;
    return dropped;
}

/* ---- checking */

static const char *check_bucket(const nkv_arena *a, const nkv_cells *t, uint64_t bucket) {
    const nkv_bucket *b = nkv_bucket_at(a, t, bucket);
    /* Old buckets are before the border, those of the wider table are not. */
    uint64_t buckets = t->in.wider && bucket >= t->in.border ? t->in.wider : t->in.buckets;
    uint64_t from = first_tag(bucket, buckets), to = first_tag(bucket + 1, buckets);
    for (uint32_t i = 0; i < NKV_CELL_SLOTS; i++) {
        uint32_t here = tag_of(from, b->low[i]);
        if (b->number[i] && (here >= to || nkv_home(&t->in, here) != bucket))
            return "an entry in another's bucket";
    }
    return NULL;
}

/* Every bucket counts rightly what is beside it. */
static const char *check_spilled(const nkv_arena *a, const nkv_cells *t) {
    uint64_t end = nkv_extent_end(&t->in), beside = nkv_table_end(&t->spill) * NKV_BUCKET_SLOTS;
    uint16_t *counts = calloc(end, sizeof *counts);
    const uint64_t *entries = nkv_slots(a, &t->spill, 0);
    const char *found = counts ? NULL : "no memory to check";
    for (uint64_t i = 0; i < beside && !found; i++)
        if (entries[i]) counts[nkv_home(&t->in, (uint32_t)(entries[i] >> 32))]++;
    for (uint64_t i = 0; i < end && !found; i++)
        if (counts[i] != nkv_bucket_at(a, t, i)->spilled)
            found = "a bucket that counts wrongly what is beside it";
    for (uint64_t i = 0; i < beside && !found; i++) {
        uint32_t tag = (uint32_t)(entries[i] >> 32);
        if (entries[i] && !nkv_bucket_sieve(nkv_bucket_at(a, t, nkv_home(&t->in, tag)), tag))
            found = "an entry beside a bucket that does not know of it";
    }
    free(counts);
    return found;
}

const char *nkv_cells_check(const nkv_arena *a, const nkv_cells *t, uint64_t *count) {
    const char *found = nkv_table_check(a, &t->spill, count);
    if (t->seq & 1) return "a table that changes";
    for (uint64_t i = 0; i < nkv_extent_end(&t->in) && !found; i++) {
        const nkv_bucket *b = nkv_bucket_at(a, t, i);
        *count += (uint64_t)(NKV_CELL_SLOTS - __builtin_popcount(nkv_bucket_free(b)));
        found = check_bucket(a, t, i);
    }
    if (!found) found = check_spilled(a, t);
    return found || *count == t->count ? found : "a table that counts wrongly";
}
