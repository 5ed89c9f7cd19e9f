/* Who has which blocks of a run: an interval a holder, with a bitmap only where it has holes. */
#include <string.h>

#include "run_parts.h"

static uint32_t words_for(uint32_t blocks) { return (blocks + 63) / 64; }

static size_t bits_bytes(uint32_t words) { return sizeof(nkv_bits) + 8 * (size_t)words; }

static nkv_bits *bits_of(const nkv_arena *a, const nkv_hold *e) { return nkv_heap_at(a, e->bits); }

/* Where the holder's entry is, or would be. */
static uint32_t place_of(const nkv_arena *a, const nkv_run *r, uint32_t holder) {
    const nkv_hold *holds = nkv_holds(a, r);
    uint32_t lo = 0, hi = r->hold_count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (holds[mid].holder < holder) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static nkv_hold *entry_of(const nkv_arena *a, const nkv_run *r, uint32_t holder) {
    uint32_t at = place_of(a, r, holder);
    nkv_hold *e = nkv_holds(a, r) + at;
    return at < r->hold_count && e->holder == holder ? e : NULL;
}

static void free_bits(nkv_arena *a, nkv_hold *e) {
    if (e->bits) nkv_heap_give(a, e->bits, bits_bytes(bits_of(a, e)->words));
    e->bits = 0;
}

static uint32_t count_bits(const nkv_bits *bits, uint32_t lo, uint32_t hi) {
    uint32_t n = 0;
    for (uint32_t at = lo; at < hi;) {
        uint32_t until = (at / 64 + 1) * 64 < hi ? (at / 64 + 1) * 64 : hi;
        uint64_t word = bits->word[at / 64] >> (at % 64);
        if (until - at < 64) word &= (1ULL << (until - at)) - 1;
        n += (uint32_t)__builtin_popcountll(word);
        at = until;
    }
    return n;
}

static void set_bits(nkv_bits *bits, uint32_t lo, uint32_t hi, int on) {
    for (uint32_t at = lo; at < hi;) {
        uint32_t until = (at / 64 + 1) * 64 < hi ? (at / 64 + 1) * 64 : hi;
        uint64_t mask = until - at < 64 ? ((1ULL << (until - at)) - 1) << (at % 64) : ~0ULL;
        if (on) bits->word[at / 64] |= mask;
        else bits->word[at / 64] &= ~mask;
        at = until;
    }
}

static uint32_t held_of(const nkv_arena *a, const nkv_hold *e) {
    return e->bits ? count_bits(bits_of(a, e), e->lo, e->hi) : e->hi - e->lo;
}

/* A bitmap with room for `blocks`, that says what the entry says. */
static int reserve_bits(nkv_arena *a, nkv_hold *e, uint32_t blocks) {
    uint32_t words = words_for(blocks), old = e->bits ? bits_of(a, e)->words : 0, unit;
    nkv_bits *made;
    if (old >= words) return NKV_OK;
    words += words / 2;
    unit = nkv_heap_take(a, bits_bytes(words));
    if (!unit) return NKV_NO_MEMORY;
    made = nkv_heap_at(a, unit);
    memset(made, 0, bits_bytes(words));
    made->words = words;
    if (old) memcpy(made->word, bits_of(a, e)->word, 8 * (size_t)old);
    else set_bits(made, e->lo, e->hi, 1);
    free_bits(a, e);
    e->bits = unit;
    return NKV_OK;
}

static void drop_entry(nkv_arena *a, nkv_run *r, nkv_hold *e) {
    nkv_hold *holds = nkv_holds(a, r);
    free_bits(a, e);
    r->hold_count--;
    memmove(e, e + 1, (size_t)(holds + r->hold_count - e) * sizeof *e);
    if (r->hold_count == 0) nkv_no_room(a, &r->hold_room, &r->holds);
}

static nkv_hold *add_entry(nkv_arena *a, nkv_run *r, uint32_t holder) {
    uint32_t at = place_of(a, r, holder);
    nkv_hold *holds;
    if (r->hold_count >= NKV_MAX_RUN_HOLDERS) return NULL;
    if (nkv_room_for_one(a, &r->hold_room, &r->holds, &r->hold, r->hold_count) != NKV_OK)
        return NULL;
    holds = nkv_holds(a, r);
    memmove(holds + at + 1, holds + at, (size_t)(r->hold_count - at) * sizeof *holds);
    memset(&holds[at], 0, sizeof *holds);
    holds[at].holder = holder;
    r->hold_count++;
    return &holds[at];
}

/* Leave out the bitmap where there is no hole, and take the ends in to what is held. */
static void tidy(nkv_arena *a, nkv_hold *e) {
    const nkv_bits *bits = bits_of(a, e);
    while (e->lo < e->hi && !nkv_bit(bits, e->lo)) e->lo++;
    while (e->hi > e->lo && !nkv_bit(bits, e->hi - 1)) e->hi--;
    if (count_bits(bits, e->lo, e->hi) == e->hi - e->lo) free_bits(a, e);
}

static int64_t extend(nkv_arena *a, nkv_hold *e, uint32_t lo, uint32_t hi) {
    uint32_t from = e->lo < lo ? e->lo : lo, to = e->hi > hi ? e->hi : hi;
    uint32_t before = held_of(a, e);
    if (!e->bits && lo <= e->hi && hi >= e->lo) {
        e->lo = from;
        e->hi = to;
        return (int64_t)(to - from) - before;
    }
    if (reserve_bits(a, e, to) != NKV_OK) return NKV_NO_MEMORY;
    set_bits(bits_of(a, e), lo, hi, 1);
    e->lo = from;
    e->hi = to;
    tidy(a, e);
    return (int64_t)held_of(a, e) - before;
}

int64_t nkv_hold_add(nkv_arena *a, uint32_t run, uint32_t holder, uint32_t lo, uint32_t hi) {
    nkv_run *r = &a->runs[run];
    nkv_hold *e = entry_of(a, r, holder);
    int64_t added = 0;
    if (lo >= hi || (e && !e->bits && e->lo <= lo && hi <= e->hi)) return 0;
    nkv_begin(&r->seq);
    if (!e) {
        e = add_entry(a, r, holder);
        if (e) {
            e->lo = lo;
            e->hi = hi;
            added = hi - lo;
        } else {
            added = NKV_NO_MEMORY;
        }
    } else {
        added = extend(a, e, lo, hi);
    }
    nkv_end(&r->seq);
    if (added > 0) a->holders[holder].held += (uint64_t)added;
    return added;
}

static int drop_block(nkv_arena *a, nkv_run *r, nkv_hold *e, uint32_t off) {
    if (e->bits) {
        if (!nkv_bit(bits_of(a, e), off)) return 0;
        set_bits(bits_of(a, e), off, off + 1, 0);
        tidy(a, e);
    } else if (off == e->lo) {
        e->lo++;
    } else if (off == e->hi - 1) {
        e->hi--;
    } else {
        if (reserve_bits(a, e, e->hi) != NKV_OK) {
            /* Rather too little than something that is not there. */
            a->holders[e->holder].held -= e->hi - off - 1;
            e->hi = off;
            return 1;
        }
        set_bits(bits_of(a, e), off, off + 1, 0);
    }
    if (e->lo >= e->hi) drop_entry(a, r, e);
    return 1;
}

int nkv_hold_drop(nkv_arena *a, uint32_t run, uint32_t holder, uint32_t off) {
    nkv_run *r = &a->runs[run];
    nkv_hold *e = entry_of(a, r, holder);
    int dropped;
    if (!e || off < e->lo || off >= e->hi) return 0;
    nkv_begin(&r->seq);
    dropped = drop_block(a, r, e, off);
    nkv_end(&r->seq);
    a->holders[holder].held -= (uint64_t)dropped;
    return dropped;
}

int nkv_run_has(const nkv_arena *a, const nkv_run *r, uint32_t holder, uint32_t off) {
    const nkv_hold *e = entry_of(a, r, holder);
    return e && e->lo <= off && off < e->hi && (!e->bits || nkv_bit(bits_of(a, e), off));
}

int nkv_stream_has(const nkv_arena *a, nkv_block block, uint32_t stream) {
    uint32_t o = a->streams[stream].last_holder;
    while (o && !nkv_run_has(a, &a->runs[block.run], o, block.off)) o = a->holders[o].before;
    return o != 0;
}

uint32_t nkv_run_held(const nkv_arena *a, const nkv_run *r) {
    const nkv_hold *holds = nkv_holds(a, r);
    uint32_t end = 0;
    for (uint32_t i = 0; i < r->hold_count; i++)
        if (holds[i].hi > end) end = holds[i].hi;
    return end;
}

void nkv_holds_cut(nkv_arena *a, nkv_run *r, uint32_t len) {
    for (uint32_t i = r->hold_count; i-- > 0;) {
        nkv_hold *e = nkv_holds(a, r) + i;
        uint32_t before = held_of(a, e), left = 0;
        if (e->hi <= len) continue;
        if (e->lo < len) {
            e->hi = len;
            if (e->bits) tidy(a, e);
            left = held_of(a, e);
        }
        a->holders[e->holder].held -= before - left;
        if (!left) drop_entry(a, r, e);
    }
}

void nkv_holds_purge(nkv_arena *a, nkv_run *r) {
    for (uint32_t i = r->hold_count; i-- > 0;) {
        nkv_hold *e = nkv_holds(a, r) + i;
        if (a->holders[e->holder].state != NKV_OPEN) drop_entry(a, r, e);
    }
}
