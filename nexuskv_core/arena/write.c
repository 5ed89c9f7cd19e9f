#include <string.h>

#include "index.h"

enum {
    SWEPT_A_CALL = 2,          /* runs */
    TOUCHED_BLOCKS = 512,      /* between two looks at the memory that will be needed */
    AHEAD = 12,                /* names whose buckets are fetched before they are needed */
};

/* ---- streams and holders */

static int keep_label(nkv_arena *a, const void *label, uint32_t bytes, uint32_t *unit) {
    *unit = 0;
    if (!bytes) return NKV_OK;
    *unit = nkv_heap_take(a, bytes);
    if (!*unit) return NKV_NO_MEMORY;
    memcpy(nkv_heap_at(a, *unit), label, bytes);
    return NKV_OK;
}

int64_t nkv_stream_open(nkv_arena *a, const void *label, uint32_t label_bytes) {
    uint32_t number, unit;
    nkv_stream *s;
    if (keep_label(a, label, label_bytes, &unit) != NKV_OK) return NKV_NO_MEMORY;
    number = nkv_pool_take(a, &a->h->streams, sizeof(nkv_stream), offsetof(nkv_stream, spare));
    if (!number) {
        if (unit) nkv_heap_give(a, unit, label_bytes);
        return NKV_NO_MEMORY;
    }
    s = &a->streams[number];
    s->label = unit;
    s->label_bytes = label_bytes;
    a->h->open_streams++;
    __atomic_store_n(&s->state, NKV_OPEN, __ATOMIC_RELEASE);
    return number;
}

int64_t nkv_holder_open(nkv_arena *a, uint32_t stream, const void *label, uint32_t label_bytes) {
    uint32_t number, unit;
    nkv_holder *o;
    if (keep_label(a, label, label_bytes, &unit) != NKV_OK) return NKV_NO_MEMORY;
    number = nkv_pool_take(a, &a->h->holders, sizeof(nkv_holder), offsetof(nkv_holder, spare));
    if (!number) {
        if (unit) nkv_heap_give(a, unit, label_bytes);
        return NKV_NO_MEMORY;
    }
    o = &a->holders[number];
    o->stream = stream;
    o->label = unit;
    o->label_bytes = label_bytes;
    o->before = a->streams[stream].last_holder;
    a->streams[stream].last_holder = number;
    a->h->open_holders++;
    __atomic_store_n(&o->state, NKV_OPEN, __ATOMIC_RELEASE);
    return number;
}

int nkv_holder_close(nkv_arena *a, uint32_t holder) {
    nkv_holder *o = &a->holders[holder];
    uint32_t *link = &a->streams[o->stream].last_holder;
    if (o->state != NKV_OPEN) return 0;
    while (*link != holder) link = &a->holders[*link].before;
    *link = o->before;
    __atomic_store_n(&o->state, NKV_CLOSED, __ATOMIC_RELEASE);
    if (o->label) nkv_heap_give(a, o->label, o->label_bytes);
    o->label = o->label_bytes = 0;
    a->h->open_holders--;
    a->h->sweep_left = a->h->runs.next;
    return 1;
}

int nkv_stream_close(nkv_arena *a, uint32_t stream) {
    nkv_stream *s = &a->streams[stream];
    if (s->state != NKV_OPEN) return 0;
    __atomic_store_n(&s->state, NKV_CLOSED, __ATOMIC_RELEASE);
    while (s->last_holder) nkv_holder_close(a, s->last_holder);
    if (s->label) nkv_heap_give(a, s->label, s->label_bytes);
    s->label = s->label_bytes = 0;
    a->h->open_streams--;
    a->h->sweep_left = a->h->runs.next;
    return 1;
}

int nkv_sweep(nkv_arena *a, uint64_t runs) {
    nkv_header *h = a->h;
    for (; runs && h->sweep_left; runs--, h->sweep_left--) {
        if (h->sweep_at == 0 || h->sweep_at >= h->runs.next) h->sweep_at = 1;
        if (a->runs[h->sweep_at].len) {
            nkv_run_purge(a, h->sweep_at);
            nkv_settle(a, h->sweep_at, 0, 0);
        }
        h->sweep_at++;
    }
    return h->sweep_left == 0;
}

void nkv_progress_set(nkv_arena *a, uint32_t stream, uint64_t sequence, uint64_t at_us,
                      uint32_t state) {
    nkv_stream *s = &a->streams[stream];
    nkv_begin(&s->seq);
    s->sequence = sequence;
    s->at_us = at_us;
    s->progress_state = state;
    nkv_end(&s->seq);
}

/* ---- store */

/* The stream calls another block so, or did: that one is not there any more. */
static void yield_name(nkv_arena *a, uint32_t stream, uint64_t name, nkv_block other,
                       uint32_t pinned) {
    a->h->collisions++;
    nkv_name_drop(a, stream, name);
    for (uint32_t o = a->streams[stream].last_holder; o; o = a->holders[o].before)
        nkv_hold_drop(a, other.run, o, other.off);
    nkv_settle(a, other.run, pinned, 0);
}

/* Blocks lo .. lo + count - 1 of a run are at the holder, and these are their names. */
static int64_t mark(nkv_arena *a, uint32_t run, uint32_t lo, uint32_t holder,
                    const uint64_t *names, uint32_t count) {
    uint32_t stream = a->holders[holder].stream, done = 0;
    int64_t added = 0;
    while (done < count) {
        nkv_block here = {run, lo + done}, other;
        uint32_t put = nkv_names_put(a, here, stream, names + done, count - done, &other);
        int64_t more = nkv_hold_add(a, run, holder, here.off, here.off + put);
        if (more < 0) return more;
        added += more;
        done += put;
        /* A block that could not be removed again by its name must not be held. */
        if (done < count && !other.run) return NKV_NO_MEMORY;
        /* In the order of the blocks: the other one may be one of these. */
        if (done < count) yield_name(a, stream, names[done], other, run);
    }
    return added;
}

/* The next piece of the chain below `above`: where it is or will be; its length, 0 without room. */
static int64_t place_piece(nkv_arena *a, nkv_block above, const nkv_key *keys, uint32_t count,
                           nkv_block *begin) {
    uint32_t piece = count < NKV_PIECE_BLOCKS ? count : NKV_PIECE_BLOCKS;
    const nkv_run *r = &a->runs[above.run];
    uint32_t child, equal;
    begin->run = above.run;
    begin->off = above.off + 1;
    if (above.run && begin->off < r->len) {
        uint32_t most = r->len - begin->off < piece ? r->len - begin->off : piece;
        equal = nkv_run_equal(a, r, begin->off, keys, most);
        if (equal) return nkv_make_room(a, 0, above.run) == NKV_OK ? equal : 0;
    }
    child = nkv_head_find(a, keys);
    if (child) {
        if (nkv_make_room(a, 0, child) != NKV_OK || !a->runs[child].len) return 0;
        begin->run = child;
        begin->off = 0;
        return nkv_run_equal(a, &a->runs[child], 0, keys,
                             a->runs[child].len < piece ? a->runs[child].len : piece);
    }
    if (nkv_make_room(a, piece, above.run) != NKV_OK) return 0;
    if (above.run && begin->off == r->len && r->len + piece <= NKV_MAX_RUN_BLOCKS)
        return nkv_run_append(a, above.run, keys, piece) == NKV_OK ? piece : 0;
    begin->run = nkv_run_new(a, above, keys, piece);
    begin->off = 0;
    return begin->run ? piece : 0;
}

int64_t nkv_store_blocks(nkv_arena *a, uint32_t holder, nkv_block above, const uint64_t *names,
                  const nkv_key *keys, uint32_t count) {
    int64_t added = 0;
    uint32_t done = 0;
    a->h->changes++;
    nkv_sweep(a, SWEPT_A_CALL);
    while (done < count) {
        nkv_block begin;
        int64_t piece, more;
        if (done % TOUCHED_BLOCKS == 0) nkv_touch_ahead(a);
        piece = place_piece(a, above, keys + done, count - done, &begin);
        if (piece <= 0) break;
        more = mark(a, begin.run, begin.off, holder, names + done, (uint32_t)piece);
        if (more < 0) {
            if (begin.run != above.run) nkv_settle(a, begin.run, 0, 0);
            break;
        }
        added += more;
        if (above.run && above.run != begin.run) nkv_settle(a, above.run, 0, 0);
        nkv_touch(a, begin.run);
        above.run = begin.run;
        above.off = begin.off + (uint32_t)piece - 1;
        done += (uint32_t)piece;
    }
    if (above.run) nkv_settle(a, above.run, 0, 0);
    a->h->refused += count - done;
    return done < count && done == 0 ? NKV_FULL : added;
}

/* ---- hold and remove, by name */

static inline __attribute__((always_inline)) void prefetch_names(
    const nkv_arena *a, uint32_t stream, const uint64_t *names, uint32_t from, uint32_t to,
    uint32_t count) {
    for (uint32_t i = from; i < to && i < count; i++) nkv_name_prefetch(a, stream, names[i]);
}

int64_t nkv_hold_names(nkv_arena *a, uint32_t holder, const uint64_t *names, uint32_t count) {
    uint32_t stream = a->holders[holder].stream;
    int64_t unknown = 0;
    nkv_block begin = {0, 0};
    uint32_t length = 0;
    a->h->changes++;
    nkv_sweep(a, SWEPT_A_CALL);
    prefetch_names(a, stream, names, 0, AHEAD, count);
    for (uint32_t i = 0; i <= count; i++) {
        nkv_block here = {0, 0};
        if (i < count) {
            prefetch_names(a, stream, names, i + AHEAD, i + AHEAD + 1, count);
            here = nkv_name_find(a, stream, names[i]);
            unknown += here.run == 0;
        }
        if (length && here.run == begin.run && here.off == begin.off + length) {
            length++;
            continue;
        }
        if (length) {
            if (nkv_hold_add(a, begin.run, holder, begin.off, begin.off + length) < 0)
                return NKV_NO_MEMORY;
            nkv_touch(a, begin.run);
        }
        begin = here;
        length = here.run != 0;
    }
    return unknown;
}

int64_t nkv_remove_names(nkv_arena *a, uint32_t holder, const uint64_t *names, uint32_t count) {
    uint32_t stream = a->holders[holder].stream;
    int64_t removed = 0;
    a->h->changes++;
    nkv_sweep(a, SWEPT_A_CALL);
    prefetch_names(a, stream, names, 0, AHEAD, count);
    for (uint32_t i = 0; i < count; i++) {
        nkv_block here = nkv_name_find(a, stream, names[i]);
        prefetch_names(a, stream, names, i + AHEAD, i + AHEAD + 1, count);
        if (!here.run || !nkv_hold_drop(a, here.run, holder, here.off)) continue;
        removed++;
        if (here.off + 1 == a->runs[here.run].len) nkv_settle(a, here.run, 0, 0);
    }
    return removed;
}
