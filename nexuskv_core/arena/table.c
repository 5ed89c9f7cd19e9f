#include "table.h"

#include <stdlib.h>

enum {
    MOVED_AN_ADD = 4,          /* buckets moved with an insertion, at least */
    MOVED_AT_ONCE = 64,        /* under one version */
    FULL_PERCENT = 75,         /* when it begins to grow */
};

/* Entries are at the front of a bucket, so the first empty slot ends it. */
static unsigned filled(const uint64_t *slots) {
    unsigned n = 0;
    while (n < NKV_BUCKET_SLOTS && slots[n]) n++;
    return n;
}

static int is_full(const nkv_arena *a, const nkv_table *t, uint64_t bucket) {
    return nkv_slots(a, t, bucket)[NKV_BUCKET_SLOTS - 1] != 0;
}

/* The slot that an entry of this bucket goes to, NULL where there is none. */
static uint64_t *free_slot(const nkv_arena *a, const nkv_table *t, uint64_t bucket) {
    uint64_t end = nkv_table_end(t);
    while (bucket < end && is_full(a, t, bucket)) bucket++;
    if (bucket >= end) return NULL;
    return nkv_slots(a, t, bucket) + filled(nkv_slots(a, t, bucket));
}

/* ---- growing */

/* Take what lies in these buckets into the scratch; how many, below 0 without memory. */
static int64_t take_out(nkv_arena *a, const nkv_table *t, uint64_t from, uint64_t to) {
    size_t bytes = (size_t)(to - from) * NKV_BUCKET_SLOTS * sizeof(uint64_t), n = 0;
    uint64_t *slot = nkv_slots(a, t, from), *end = nkv_slots(a, t, to);
    if (bytes > a->scratch_bytes) {
        void *more = realloc(a->scratch, 2 * bytes);
        if (!more) return NKV_NO_MEMORY;
        a->scratch = more;
        a->scratch_bytes = 2 * bytes;
    }
    for (; slot < end; slot++) {
        uint64_t entry = *slot;
        ((uint64_t *)a->scratch)[n] = entry;
        n += entry != 0;
        __atomic_store_n(slot, 0, __ATOMIC_RELAXED);
    }
    return (int64_t)n;
}

/* Move whole stretches, from a bucket on into which nothing overflows to one that does not overflow
 * any more: no entry from before or behind lies in them, and none of theirs outside. */
static void move_some(nkv_arena *a, nkv_table *t) {
    nkv_extent *in = &t->in;
    uint64_t from = in->border > MOVED_AT_ONCE ? in->border - MOVED_AT_ONCE : 0, to = in->border;
    uint64_t end = nkv_table_end(t);
    int64_t taken;
    while (from && is_full(a, t, from - 1)) from--;
    while (to < end && is_full(a, t, to)) to++;
    if (to < end) to++;
    nkv_begin(&t->seq);
    taken = take_out(a, t, from, to);
    if (taken >= 0) in->border = from;     /* else it goes on the next time, a little fuller */
    for (int64_t i = 0; i < taken; i++) {
        uint64_t entry = ((uint64_t *)a->scratch)[i];
        /* There is one: the table is wider, and its end is spare. */
        *free_slot(a, t, nkv_home(in, (uint32_t)(entry >> 32))) = entry;
    }
    if (!in->border) {
        in->buckets = in->wider;
        in->wider = 0;
    }
    nkv_end(&t->seq);
}

static void begin_growth(nkv_table *t) {
    uint64_t wanted = nkv_extent_next(&t->in, NKV_TABLE_GROWTH);
    if (wanted <= t->in.buckets) return;
    nkv_begin(&t->seq);
    t->in.wider = wanted;
    /* Behind the last one: what is in the spare ones belongs before it. */
    t->in.border = t->in.buckets;
    nkv_end(&t->seq);
}

/* Before an entry is added: move a few where the table grows. */
static void grow(nkv_arena *a, nkv_table *t) {
    if (t->in.wider) {
        /* In larger steps less often, for fewer versions. */
        if (t->count % (MOVED_AT_ONCE / MOVED_AN_ADD) == 0) move_some(a, t);
    } else if (t->count * 100 >= t->in.buckets * NKV_BUCKET_SLOTS * FULL_PERCENT) {
        begin_growth(t);
    }
}

/* ---- adding and dropping */

int nkv_table_add(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number) {
    uint64_t *slot;
    t->count++;
    grow(a, t);
    slot = free_slot(a, t, nkv_home(&t->in, tag));
    if (!slot) {
        t->count--;
        return NKV_FULL;
    }
    __atomic_store_n(slot, (uint64_t)tag << 32 | number, __ATOMIC_RELEASE);
    return NKV_OK;
}

/* The last entry behind `bucket` that belongs to it or before it and cannot stay once `bucket` has
 * a free slot; the bucket it is in, or 0. */
static uint64_t find_pulled(const nkv_arena *a, const nkv_table *t, uint64_t bucket,
                            unsigned *slot) {
    uint64_t end = nkv_table_end(t);
    for (uint64_t b = bucket + 1; b < end; b++) {
        const uint64_t *slots = nkv_slots(a, t, b);
        unsigned n = filled(slots);
        for (unsigned i = n; i-- > 0;) {
            if (nkv_home(&t->in, (uint32_t)(slots[i] >> 32)) <= bucket) {
                *slot = i;
                return b;
            }
        }
        if (n < NKV_BUCKET_SLOTS) break;
    }
    return 0;
}

/* Free a slot of a bucket: by its last entry, or, when the bucket was full, by one from behind. */
static void vacate(nkv_arena *a, nkv_table *t, uint64_t bucket, unsigned slot) {
    int moving = 0;
    for (;;) {
        uint64_t *slots = nkv_slots(a, t, bucket);
        unsigned n = filled(slots), from = 0;
        uint64_t pulled = n == NKV_BUCKET_SLOTS ? find_pulled(a, t, bucket, &from) : 0;
        if (!pulled) {
            if (slot != n - 1 && !moving) {
                nkv_begin(&t->seq);
                moving = 1;
            }
            __atomic_store_n(&slots[slot], slots[n - 1], __ATOMIC_RELEASE);
            __atomic_store_n(&slots[n - 1], 0, __ATOMIC_RELEASE);
            break;
        }
        if (!moving) {
            nkv_begin(&t->seq);
            moving = 1;
        }
        __atomic_store_n(&slots[slot], nkv_slots(a, t, pulled)[from],
                         __ATOMIC_RELEASE);
        bucket = pulled;
        slot = from;
    }
    if (moving) nkv_end(&t->seq);
}

int nkv_table_drop(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number) {
    uint64_t bucket = nkv_home(&t->in, tag), end = nkv_table_end(t);
    uint64_t entry = (uint64_t)tag << 32 | number;
    for (; bucket < end; bucket++) {
        const uint64_t *slots = nkv_slots(a, t, bucket);
        unsigned n = filled(slots);
        for (unsigned i = 0; i < n; i++) {
            if (slots[i] == entry) {
                vacate(a, t, bucket, i);
                t->count--;
                return 1;
            }
        }
        if (n < NKV_BUCKET_SLOTS) break;
    }
    return 0;
}

uint32_t nkv_table_take(nkv_arena *a, nkv_table *t, uint64_t from, uint64_t to, uint32_t *tag) {
    uint64_t end = nkv_table_end(t), last = nkv_home(&t->in, (uint32_t)(to - 1));
    for (uint64_t bucket = nkv_home(&t->in, (uint32_t)from); bucket < end; bucket++) {
        const uint64_t *slots = nkv_slots(a, t, bucket);
        unsigned n = filled(slots);
        for (unsigned i = 0; i < n; i++) {
            uint32_t number = (uint32_t)slots[i];
            *tag = (uint32_t)(slots[i] >> 32);
            if (*tag < from || *tag >= to) continue;
            vacate(a, t, bucket, i);
            t->count--;
            return number;
        }
        if (bucket >= last && n < NKV_BUCKET_SLOTS) break;
    }
    return 0;
}

static const char *check_bucket(const nkv_arena *a, const nkv_table *t, uint64_t bucket) {
    const uint64_t *slots = nkv_slots(a, t, bucket);
    unsigned n = filled(slots);
    for (unsigned i = n; i < NKV_BUCKET_SLOTS; i++)
        if (slots[i]) return "an entry behind an empty slot";
    for (unsigned i = 0; i < n; i++) {
        uint64_t home = nkv_home(&t->in, (uint32_t)(slots[i] >> 32));
        if (home > bucket) return "an entry in front of its bucket";
        for (uint64_t b = home; b < bucket; b++)
            if (!is_full(a, t, b)) return "an entry behind a bucket that is not full";
    }
    return NULL;
}

const char *nkv_table_check(const nkv_arena *a, const nkv_table *t, uint64_t *count) {
    *count = 0;
    if (t->seq & 1) return "a table that changes";
    for (uint64_t b = 0; b < nkv_table_end(t); b++) {
        const char *found = check_bucket(a, t, b);
        if (found) return found;
        *count += filled(nkv_slots(a, t, b));
    }
    return *count == t->count ? NULL : "a table that counts wrongly";
}
