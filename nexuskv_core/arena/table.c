#include "table.h"

#include <string.h>

enum {
    MOVED_AN_ADD = 2,          /* buckets moved with an insertion, at least */
    MOVED_AT_ONCE = 32,        /* under one version */
    RELEASED = 2 << 20,        /* bytes given back together */
};

/* Entries are at the front of a bucket, so the first empty slot ends it. */
static unsigned filled(const uint64_t *slots) {
    unsigned n = 0;
    while (n < NKV_BUCKET_SLOTS && slots[n]) n++;
    return n;
}

static int put(nkv_arena *a, nkv_table *t, int area, uint64_t bucket, uint64_t entry) {
    uint64_t end = t->buckets[area] + NKV_SPARE_BUCKETS;
    for (; bucket < end; bucket++) {
        uint64_t *slots = nkv_slots(a, t->area[area] + bucket * 64);
        unsigned n = filled(slots);
        if (n < NKV_BUCKET_SLOTS) {
            __atomic_store_n(&slots[n], entry, __ATOMIC_RELEASE);
            return NKV_OK;
        }
    }
    return NKV_FULL;
}

static int can_put(const nkv_arena *a, const nkv_table *t, int area, uint64_t bucket) {
    uint64_t end = t->buckets[area] + NKV_SPARE_BUCKETS;
    for (; bucket < end; bucket++)
        if (nkv_slots(a, t->area[area] + bucket * 64)[NKV_BUCKET_SLOTS - 1] == 0) return 1;
    return 0;
}

static void release_moved(nkv_arena *a, const nkv_table *t, int old, uint64_t before) {
    uint64_t from = t->area[old] + (before * 64 & ~(uint64_t)(RELEASED - 1));
    uint64_t to = t->area[old] + (t->moved * 64 & ~(uint64_t)(RELEASED - 1));
    if (to > from) nkv_release(a, from, to);
}

/* Move whole stretches: up to a bucket that was not full nothing lies outside its own stretch. */
static void move_some(nkv_arena *a, nkv_table *t, uint64_t wanted) {
    int old = (int)(t->current ^ 1);
    uint64_t before = t->moved;
    uint64_t end = t->buckets[old] + NKV_SPARE_BUCKETS;
    uint64_t target = t->moved + wanted;
    int full = 1;
    nkv_begin(&t->seq);
    while (t->moved < end && (t->moved < target || full)) {
        uint64_t *slots = nkv_slots(a, t->area[old] + t->moved * 64);
        unsigned n = filled(slots);
        for (unsigned i = 0; i < n; i++) {
            uint32_t tag = (uint32_t)(slots[i] >> 32);
            /* Cannot fail: the new area is half as large again, and its end is spare. */
            put(a, t, (int)t->current, nkv_bucket_of(tag, t->buckets[t->current]), slots[i]);
            slots[i] = 0;
        }
        full = n == NKV_BUCKET_SLOTS;
        t->moved++;
    }
    nkv_end(&t->seq);
    if (t->moved >= end) {
        uint64_t from = t->area[old];
        nkv_begin(&t->seq);
        t->buckets[old] = 0;
        t->moved = 0;
        nkv_end(&t->seq);
        nkv_release(a, from, from + end * 64);
    } else {
        release_moved(a, t, old, before);
    }
}

static void begin_growth(nkv_table *t) {
    int next = (int)(t->current ^ 1);
    uint64_t wanted = t->buckets[t->current] + t->buckets[t->current] / 2;
    if (wanted > t->capacity) wanted = t->capacity;
    if (wanted <= t->buckets[t->current]) return;
    nkv_begin(&t->seq);
    t->buckets[next] = wanted;
    t->current = (uint32_t)next;
    t->moved = 0;
    nkv_end(&t->seq);
}

void nkv_table_grow(nkv_arena *a, nkv_table *t) {
    if (t->buckets[t->current ^ 1]) {
        /* In larger steps less often, for fewer versions. */
        if (t->count % (MOVED_AT_ONCE / MOVED_AN_ADD) == 0) move_some(a, t, MOVED_AT_ONCE);
    } else if (t->count * 20 >= t->buckets[t->current] * NKV_BUCKET_SLOTS * 17) {
        begin_growth(t);
    }
}

int nkv_table_add(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number) {
    int area;
    uint64_t bucket;
    t->count++;
    nkv_table_grow(a, t);
    bucket = nkv_home(t, tag, &area);
    if (!can_put(a, t, area, bucket)) {
        t->count--;
        return NKV_FULL;
    }
    return put(a, t, area, bucket, (uint64_t)tag << 32 | number);
}

/* The last entry behind `bucket` that belongs to it or before it and cannot stay once `bucket` has
 * a free slot; the bucket it is in, or 0. */
static uint64_t find_pulled(const nkv_arena *a, const nkv_table *t, int area, uint64_t bucket,
                            unsigned *slot) {
    uint64_t end = t->buckets[area] + NKV_SPARE_BUCKETS;
    for (uint64_t b = bucket + 1; b < end; b++) {
        const uint64_t *slots = nkv_slots(a, t->area[area] + b * 64);
        unsigned n = filled(slots);
        for (unsigned i = n; i-- > 0;) {
            if (nkv_bucket_of((uint32_t)(slots[i] >> 32), t->buckets[area]) <= bucket) {
                *slot = i;
                return b;
            }
        }
        if (n < NKV_BUCKET_SLOTS) break;
    }
    return 0;
}

/* Free a slot of a bucket: by its last entry, or, when the bucket was full, by one from behind. */
static void vacate(nkv_arena *a, nkv_table *t, int area, uint64_t bucket, unsigned slot) {
    int moving = 0;
    for (;;) {
        uint64_t *slots = nkv_slots(a, t->area[area] + bucket * 64);
        unsigned n = filled(slots), from = 0;
        uint64_t pulled = n == NKV_BUCKET_SLOTS ? find_pulled(a, t, area, bucket, &from) : 0;
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
        __atomic_store_n(&slots[slot], nkv_slots(a, t->area[area] + pulled * 64)[from],
                         __ATOMIC_RELEASE);
        bucket = pulled;
        slot = from;
    }
    if (moving) nkv_end(&t->seq);
}

int nkv_table_drop(nkv_arena *a, nkv_table *t, uint32_t tag, uint32_t number) {
    int area;
    uint64_t bucket = nkv_home(t, tag, &area);
    uint64_t entry = (uint64_t)tag << 32 | number;
    uint64_t end = t->buckets[area] + NKV_SPARE_BUCKETS;
    for (; bucket < end; bucket++) {
        const uint64_t *slots = nkv_slots(a, t->area[area] + bucket * 64);
        unsigned n = filled(slots);
        for (unsigned i = 0; i < n; i++) {
            if (slots[i] == entry) {
                vacate(a, t, area, bucket, i);
                t->count--;
                return 1;
            }
        }
        if (n < NKV_BUCKET_SLOTS) break;
    }
    return 0;
}

static const char *check_bucket(const nkv_arena *a, const nkv_table *t, int area, uint64_t bucket) {
    const uint64_t *slots = nkv_slots(a, t->area[area] + bucket * 64);
    unsigned n = filled(slots);
    for (unsigned i = n; i < NKV_BUCKET_SLOTS; i++)
        if (slots[i]) return "an entry behind an empty slot";
    for (unsigned i = 0; i < n; i++) {
        int own;
        uint64_t home = nkv_home(t, (uint32_t)(slots[i] >> 32), &own);
        if (own != area || home > bucket) return "an entry in front of its bucket";
        for (uint64_t b = home; b < bucket; b++)
            if (nkv_slots(a, t->area[area] + b * 64)[NKV_BUCKET_SLOTS - 1] == 0)
                return "an entry behind a bucket that is not full";
    }
    return NULL;
}

const char *nkv_table_check(const nkv_arena *a, const nkv_table *t, uint64_t *count) {
    *count = 0;
    if (t->seq & 1) return "a table that changes";
    for (int area = 0; area < 2; area++) {
        uint64_t end = t->buckets[area] ? t->buckets[area] + NKV_SPARE_BUCKETS : 0;
        uint64_t first = area == (int)t->current ? 0 : t->moved;
        for (uint64_t b = first; b < end; b++) {
            const char *found = check_bucket(a, t, area, b);
            if (found) return found;
            *count += filled(nkv_slots(a, t->area[area] + b * 64));
        }
    }
    return *count == t->count ? NULL : "a table that counts wrongly";
}
