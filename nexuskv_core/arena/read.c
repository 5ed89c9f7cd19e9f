/* Finding, beside a writer that may be in the midst of anything. What a run says is used only when
 * its version was even and is still the same afterwards; numbers read before that is known are
 * checked against what the arena has.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "index.h"

enum {
    SPINS = 2000,              /* looks at a version that is odd, before others may run */
    WAIT_NS = 5000000,         /* for a writer that does not run either, or is dead */
    TRIES = 200,               /* of reading a run, or a table, again */
    TORN = 1,
};

typedef struct {
    const nkv_key *keys;
    nkv_key_at at;             /* instead of `keys`, where it is not NULL */
    void *context;
} nkv_path;

typedef struct {
    uint32_t id, seq;
    nkv_run r;
} nkv_view;

static inline const nkv_key *path_key(const nkv_path *path, uint32_t i) {
    return path->at ? path->at(path->context, i) : path->keys + i;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static __attribute__((noinline)) uint32_t await_end(const uint32_t *seq) {
    struct timespec begun, now;
    uint32_t seen = nkv_seen(seq);
    for (int i = 0; i < SPINS && seen & 1; i++) {
        relax();
        seen = nkv_seen(seq);
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    now = begun;
    while (seen & 1 && (now.tv_sec - begun.tv_sec) * 1000000000LL + now.tv_nsec - begun.tv_nsec <
                           WAIT_NS) {
        sched_yield();
        seen = nkv_seen(seq);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
    return seen;
}

/* An even version, or an odd one when the writer did not come to an end. */
static inline uint32_t await_even(const uint32_t *seq) {
    uint32_t seen = nkv_seen(seq);
    return seen & 1 ? await_end(seq) : seen;
}

static inline int look(const nkv_arena *a, uint32_t run, nkv_view *v) {
    const nkv_run *r = &a->runs[run];
    if (run >= a->h->runs.capacity) return TORN;
    v->id = run;
    v->seq = await_even(&r->seq);
    if (v->seq & 1) return NKV_BUSY;
    memcpy(&v->r, r, sizeof *r);
    return nkv_same(&r->seq, v->seq) ? NKV_OK : TORN;
}

static inline int still(const nkv_arena *a, const nkv_view *v) {
    return nkv_same(&a->runs[v->id].seq, v->seq);
}

static inline int in_heap(const nkv_arena *a, uint32_t unit, uint64_t bytes) {
    return (uint64_t)unit * NKV_HEAP_UNIT + bytes <=
           (uint64_t)a->h->heap_capacity * NKV_HEAP_UNIT;
}

/* NULL when the view cannot be true, as below. */
static inline const nkv_hold *view_holds(const nkv_arena *a, const nkv_view *v) {
    uint64_t bytes = (uint64_t)v->r.hold_count * sizeof(nkv_hold);
    return v->r.hold_room && !in_heap(a, v->r.holds, bytes) ? NULL : nkv_holds(a, &v->r);
}

static inline const nkv_naming *view_namings(const nkv_arena *a, const nkv_view *v) {
    uint64_t bytes = (uint64_t)v->r.naming_count * sizeof(nkv_naming);
    return v->r.naming_room && !in_heap(a, v->r.names, bytes) ? NULL : nkv_namings(a, &v->r);
}

static inline const nkv_key *view_key(const nkv_arena *a, const nkv_view *v, uint32_t off) {
    uint32_t index = off / NKV_PAGE_BLOCKS, page = v->r.dir;
    if (index == (v->r.len - 1) / NKV_PAGE_BLOCKS) {
        page = v->r.last_page;
    } else if (v->r.pages_cap > 1) {
        if (!in_heap(a, page, 4 * ((uint64_t)index + 1))) return NULL;
        page = ((const uint32_t *)nkv_heap_at(a, page))[index];
    }
    if (page >= a->h->key_pages.capacity) return NULL;
    return nkv_key_page(a, page) + off % NKV_PAGE_BLOCKS;
}

/* ---- stretches found */

void nkv_segments_free(nkv_segments *s) {
    free(s->found);
    free(s->ends);
    memset(s, 0, sizeof *s);
}

static int add_segment(nkv_segments *s, uint32_t holder, uint32_t start, uint32_t end) {
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity ? s->capacity * 2 : 64;
        void *more = realloc(s->found, capacity * sizeof *s->found);
        if (!more) return NKV_NO_MEMORY;
        s->found = more;
        s->capacity = capacity;
    }
    s->found[s->count].holder = holder;
    s->found[s->count].start = start;
    s->found[s->count++].end = end;
    return NKV_OK;
}

/* Where a run begins on the path, which stretches reach it, and what it adds. */
typedef struct {
    uint32_t at;               /* blocks of the path before the run */
    uint32_t matched;          /* blocks of the run on the path */
    uint32_t reaching;         /* of `ends`, the first so many */
    uint32_t next;             /* of them, the one to look at now */
    int first_only;            /* only stretches from the path's first block on */
} nkv_step;

static int note_end(nkv_segments *s, uint32_t segment) {
    if (s->end_count == s->end_capacity) {
        uint32_t capacity = s->end_capacity ? s->end_capacity * 2 : 64;
        void *more = realloc(s->ends, capacity * sizeof *s->ends);
        if (!more) return NKV_NO_MEMORY;
        s->ends = more;
        s->end_capacity = capacity;
    }
    s->ends[s->end_count++] = segment;
    return NKV_OK;
}

/* Blocks from .. to - 1 of the run are at the holder; `ends` is in the order of holders. */
static int note(nkv_segments *s, nkv_step *step, uint32_t holder, uint32_t from, uint32_t to) {
    uint32_t segment = s->count;
    if (from == 0 && step->at) {
        while (step->next < step->reaching && s->found[s->ends[step->next]].holder < holder)
            step->next++;
        if (step->next < step->reaching && s->found[s->ends[step->next]].holder == holder) {
            segment = s->ends[step->next++];
            s->found[segment].end = step->at + to;
        }
    }
    if (segment == s->count) {
        if (step->first_only && step->at + from) return NKV_OK;
        if (add_segment(s, holder, step->at + from, step->at + to) != NKV_OK)
            return NKV_NO_MEMORY;
    }
    return to == step->matched ? note_end(s, segment) : NKV_OK;
}

static int note_bits(const nkv_arena *a, const nkv_hold *e, nkv_segments *s, nkv_step *step) {
    const nkv_bits *bits = nkv_heap_at(a, e->bits);
    uint32_t hi = e->hi < step->matched ? e->hi : step->matched, at = e->lo;
    if (!in_heap(a, e->bits, sizeof *bits) || !in_heap(a, e->bits, 16 + 8 * (uint64_t)bits->words) ||
        hi > bits->words * 64)
        return TORN;
    while (at < hi) {
        uint32_t from;
        while (at < hi && !nkv_bit(bits, at)) at++;
        from = at;
        while (at < hi && nkv_bit(bits, at)) at++;
        if (from < at && note(s, step, e->holder, from, at) != NKV_OK) return NKV_NO_MEMORY;
        if (step->first_only) break;
    }
    return NKV_OK;
}

static int note_holds(const nkv_arena *a, const nkv_view *v, nkv_segments *s, nkv_step *step,
                      uint32_t stream) {
    uint32_t count = v->r.hold_count;
    const nkv_hold *holds = view_holds(a, v);
    if (count > NKV_MAX_RUN_HOLDERS || !holds) return TORN;
    for (uint32_t i = 0; i < count; i++) {
        nkv_hold e = holds[i];
        const nkv_holder *o = &a->holders[e.holder];
        int status = NKV_OK;
        if (e.holder >= a->h->holders.capacity) return TORN;
        if (e.lo >= step->matched || (step->first_only && e.lo)) continue;
        if (__atomic_load_n(&o->state, __ATOMIC_ACQUIRE) != NKV_OPEN) continue;
        if (stream && o->stream != stream) continue;
        if (e.bits)
            status = note_bits(a, &e, s, step);
        else if (e.lo < e.hi)
            status = note(s, step, e.holder, e.lo, e.hi < step->matched ? e.hi : step->matched);
        if (status != NKV_OK) return status;
    }
    return NKV_OK;
}

/* ---- following a path */

/* A run, and what is known of how far the path goes along it: `same` of its blocks, and fewer than
 * `differs`; all that it can where these are one apart. */
typedef struct {
    nkv_view v;
    uint32_t most;             /* blocks that run and path have for one another */
    uint32_t same, differs;
} nkv_leg;

static inline int is_settled(const nkv_leg *leg) { return leg->same + 1 == leg->differs; }

/* Whether the path, which goes on behind it, may leave the run at a fork. */
static inline int leaves_at(const nkv_leg *leg, uint32_t off) {
    return off + 1 >= leg->same && off + 1 < leg->differs && off + 1 < leg->most;
}

static inline uint32_t listed_forks(const nkv_leg *leg) {
    return leg->v.r.forks < NKV_FORKS ? leg->v.r.forks : NKV_FORKS;
}

/* Have all that is looked at next on its way into the cache at once: the last key that may be on the
 * path, who has the blocks, and where the runs are found that hang on this one. */
static int fetch_ahead(const nkv_arena *a, const nkv_leg *leg, const nkv_path *path, uint32_t at) {
    const nkv_view *v = &leg->v;
    const nkv_key *key = view_key(a, v, leg->most - 1);
    if (key) __builtin_prefetch(key);
    if (v->r.hold_room) __builtin_prefetch(view_holds(a, v));
    else if (v->r.hold.holder < a->h->holders.capacity)
        __builtin_prefetch(&a->holders[v->r.hold.holder]);
    for (uint32_t i = 0; i < listed_forks(leg); i++) {
        const nkv_key *child;
        if (!leaves_at(leg, v->r.fork[i])) continue;
        child = path_key(path, at + v->r.fork[i] + 1);
        if (!child) return NKV_BAD_KEY;
        nkv_head_prefetch(a, child);
    }
    return NKV_OK;
}

/* Narrow the leg by the key at one offset. NKV_OK, TORN, or NKV_BAD_KEY. */
static int compare(const nkv_arena *a, nkv_leg *leg, const nkv_path *path, uint32_t at,
                   uint32_t off) {
    const nkv_key *key = view_key(a, &leg->v, off), *wanted = path_key(path, at + off);
    if (!wanted) return NKV_BAD_KEY;
    if (!key) return TORN;
    if (nkv_key_equal(key, wanted)) leg->same = off + 1;
    else leg->differs = off + 1;
    return NKV_OK;
}

static int find_leg(const nkv_arena *a, const nkv_path *path, uint32_t at, uint32_t count,
                    nkv_leg *leg, nkv_leg *next);

/* Whether the path goes on in a run that hangs on this one, which is `next` then: what that run
 * says of the path holds for all before it. */
static int try_children(const nkv_arena *a, nkv_leg *leg, const nkv_path *path, uint32_t at,
                        uint32_t count, nkv_leg *next) {
    for (uint32_t i = 0; i < listed_forks(leg); i++) {
        uint32_t off = leg->v.r.fork[i];
        int status;
        if (!leaves_at(leg, off)) continue;
        status = find_leg(a, path, at + off + 1, count, next, NULL);
        if (status != NKV_OK) return status;
        if (!next->v.id) continue;
        leg->same = off + 1;
        leg->differs = off + 2;
        return NKV_OK;
    }
    return NKV_OK;
}

/* How far the path at least goes along a run that may begin with its next key; `same` is 0 where it
 * does not. A key stands for all before it, so the first one is looked at last. */
static int begin_leg(const nkv_arena *a, nkv_leg *leg, const nkv_path *path, uint32_t at,
                     uint32_t count, nkv_leg *next) {
    int status;
    leg->most = leg->v.r.len < count - at ? leg->v.r.len : count - at;
    leg->same = 0;
    leg->differs = leg->most + 1;
    status = fetch_ahead(a, leg, path, at);
    if (status == NKV_OK) status = compare(a, leg, path, at, leg->most - 1);
    if (next && status == NKV_OK && !leg->same)
        status = try_children(a, leg, path, at, count, next);
    for (uint32_t i = 0; i < listed_forks(leg) && status == NKV_OK; i++)
        if (!is_settled(leg) && leaves_at(leg, leg->v.r.fork[i]))
            status = compare(a, leg, path, at, leg->v.r.fork[i]);
    if (status == NKV_OK && !leg->same && leg->differs > 1) status = compare(a, leg, path, at, 0);
    return status;
}

/* The run that begins with the path's key at `at`: NKV_OK with the leg, whose run is 0 where there
 * is none. With `next`, that is the run in which the path goes on, if it is found at once. */
static int find_leg(const nkv_arena *a, const nkv_path *path, uint32_t at, uint32_t count,
                    nkv_leg *leg, nkv_leg *next) {
    const nkv_table *t = &a->h->heads;
    const nkv_key *key = path_key(path, at);
    if (!key) return NKV_BAD_KEY;
    for (int i = 0; i < TRIES; i++) {
        uint32_t seen = await_even(&t->seq), run;
        int torn = 0;
        nkv_probe probe;
        nkv_probe_start(&probe, a, t, nkv_head_tag(key));
        while ((run = nkv_probe_next(&probe)) != 0) {
            int status = look(a, run, &leg->v);
            leg->same = 0;
            if (next) next->v.id = 0;
            if (status == NKV_OK && leg->v.r.len)
                status = begin_leg(a, leg, path, at, count, next);
            if (status < 0) return status;
            if (status == NKV_OK && leg->same && still(a, &leg->v)) return NKV_OK;
            if (status == TORN || !still(a, &leg->v)) torn = 1;
        }
        leg->v.id = 0;
        if (next) next->v.id = 0;
        if (seen & 1) return NKV_BUSY;
        if (!torn && nkv_same(&t->seq, seen)) return NKV_OK;
    }
    return NKV_BUSY;
}

/* Find where path and run part: first it is looked whether the path goes on where something hangs;
 * then by halving. NKV_OK, TORN, or what went wrong. */
static int settle(const nkv_arena *a, nkv_leg *leg, const nkv_path *path, uint32_t at,
                  uint32_t count, nkv_leg *next) {
    int status = NKV_OK;
    if (!is_settled(leg)) status = try_children(a, leg, path, at, count, next);
    while (status == NKV_OK && !is_settled(leg))
        status = compare(a, leg, path, at, leg->same + (leg->differs - leg->same) / 2 - 1);
    return status;
}

/* Take in what one run says, whose view is fresh; TORN when it changed meanwhile. */
static int take_run(const nkv_arena *a, const nkv_view *v, nkv_segments *s, nkv_step *step,
                    uint32_t stream) {
    uint32_t count = s->count, reaching = s->end_count;
    int status;
    step->reaching = reaching;
    step->next = 0;
    status = note_holds(a, v, s, step, stream);
    if (status == NKV_OK && still(a, v)) {
        if (reaching)
            memmove(s->ends, s->ends + reaching, (s->end_count - reaching) * sizeof *s->ends);
        s->end_count -= reaching;
        return NKV_OK;
    }
    for (uint32_t i = 0; i < reaching; i++) s->found[s->ends[i]].end = step->at;
    s->count = count;
    s->end_count = reaching;
    return status < 0 ? status : TORN;
}

static int walk(const nkv_arena *a, const nkv_path *path, uint32_t count, int first_only,
                nkv_segments *s) {
    nkv_step step = {0, 0, 0, 0, first_only};
    nkv_leg leg, next;
    int tries = 0;
    s->count = s->end_count = 0;
    next.v.id = 0;
    while (step.at < count) {
        int status = NKV_OK;
        if (next.v.id) {
            leg = next;
            next.v.id = 0;
        } else {
            status = find_leg(a, path, step.at, count, &leg, &next);
        }
        if (status != NKV_OK) return status;
        if (!leg.v.id) break;
        status = settle(a, &leg, path, step.at, count, &next);
        step.matched = leg.same;
        if (status == NKV_OK) status = take_run(a, &leg.v, s, &step, 0);
        if (status < 0) return status;
        if (status == TORN) {
            next.v.id = 0;
            if (++tries > TRIES) return NKV_BUSY;
            continue;
        }
        step.at += step.matched;
        if (first_only && !s->end_count) break;
    }
    return NKV_OK;
}

int nkv_find(const nkv_arena *a, const nkv_key *keys, uint32_t count, nkv_segments *out) {
    nkv_path path = {keys, NULL, NULL};
    return walk(a, &path, count, 0, out);
}

int nkv_reach(const nkv_arena *a, const nkv_key *keys, uint32_t count, nkv_segments *out) {
    nkv_path path = {keys, NULL, NULL};
    return walk(a, &path, count, 1, out);
}

int nkv_reach_at(const nkv_arena *a, nkv_key_at at, void *context, uint32_t count,
                 nkv_segments *out) {
    nkv_path path = {NULL, at, context};
    return walk(a, &path, count, 1, out);
}

/* ---- by name */

/* Whether the stream calls the block by a name of its own; -1 where the view cannot be true. */
static int view_own(const nkv_arena *a, const nkv_view *v, uint32_t stream, uint32_t off) {
    const nkv_naming *n = view_namings(a, v);
    uint32_t index = off / NKV_PAGE_BLOCKS;
    if (!n) return -1;
    for (uint32_t i = 0; i < v->r.naming_count; i++) {
        uint32_t page = n[i].dir;
        if (n[i].stream != stream || index >= n[i].cap) continue;
        if (n[i].cap > 1) {
            if (!in_heap(a, page, 4 * ((uint64_t)index + 1))) return -1;
            page = ((const uint32_t *)nkv_heap_at(a, page))[index];
        }
        if (page >= a->h->name_pages.capacity) return -1;
        return page && (a->name_pages[page].set >> off % NKV_PAGE_BLOCKS & 1);
    }
    return 0;
}

/* The block of a cell, if that is the stream's and of this name: NKV_OK with run 0 when not. */
static int look_cell(const nkv_arena *a, uint32_t cell, uint32_t stream, uint64_t name,
                     nkv_block *at, nkv_view *v) {
    uint32_t slot = cell % NKV_PAGE_BLOCKS, run;
    const nkv_name_page *p = &a->name_pages[cell / NKV_PAGE_BLOCKS];
    int status;
    at->run = 0;
    if (cell / NKV_PAGE_BLOCKS >= a->h->name_pages.capacity) return NKV_OK;
    run = __atomic_load_n(&p->run, __ATOMIC_ACQUIRE);
    status = look(a, run, v);
    if (status != NKV_OK) return status;
    if (!(__atomic_load_n(&p->set, __ATOMIC_ACQUIRE) >> slot & 1) || p->name[slot] != name ||
        p->stream != stream || p->run != run)
        return NKV_OK;
    at->off = p->index * NKV_PAGE_BLOCKS + slot;
    if (!still(a, v) || at->off >= v->r.len) return TORN;
    at->run = run;
    return NKV_OK;
}

/* The block of a stream's own name, or of a shared one (stream 0), and a view of its run. */
static int look_own(const nkv_arena *a, uint32_t stream, uint64_t name, nkv_block *at,
                    nkv_view *v) {
    const nkv_cells *t = &a->h->names;
    uint32_t tag = nkv_name_tag(a, stream, name);
    for (int i = 0; i < TRIES; i++) {
        uint32_t seen = await_even(&t->seq), cell;
        int torn = 0;
        nkv_cell_probe probe;
        nkv_cells_start(&probe, a, t, tag);
        while ((cell = nkv_cells_next(&probe)) != 0) {
            int status = look_cell(a, cell, stream, name, at, v);
            if (status < 0) return status;
            if (status == NKV_OK && at->run) return NKV_OK;
            torn |= status == TORN;
        }
        at->run = 0;
        if (seen & 1) return NKV_BUSY;
        if (!torn && nkv_same(&t->seq, seen)) return NKV_OK;
    }
    return NKV_BUSY;
}

/* The block that the stream calls so, run 0 when there is none, and a view of its run. */
static int look_name(const nkv_arena *a, uint32_t stream, uint64_t name, nkv_block *at,
                     nkv_view *v) {
    uint32_t own = __atomic_load_n(&a->streams[stream].own_names, __ATOMIC_RELAXED);
    for (int i = 0; i < TRIES; i++) {
        int status = NKV_OK, named = 0;
        at->run = 0;
        if (own) status = look_own(a, stream, name, at, v);
        if (status != NKV_OK || at->run) return status;
        status = look_own(a, 0, name, at, v);
        if (status != NKV_OK || !at->run || !own) return status;
        named = view_own(a, v, stream, at->off);
        if (named < 0 || !still(a, v)) continue;
        if (named) at->run = 0;
        return NKV_OK;
    }
    return NKV_BUSY;
}

/* Whether a holder of the stream has the block; -1 where the view cannot be true. */
static int view_has(const nkv_arena *a, const nkv_view *v, uint32_t stream, uint32_t off) {
    const nkv_hold *holds = view_holds(a, v);
    if (!holds) return -1;
    for (uint32_t i = 0; i < v->r.hold_count; i++) {
        nkv_hold e = holds[i];
        const nkv_bits *bits = nkv_heap_at(a, e.bits);
        if (e.holder >= a->h->holders.capacity) return -1;
        if (off < e.lo || off >= e.hi || a->holders[e.holder].stream != stream) continue;
        if (__atomic_load_n(&a->holders[e.holder].state, __ATOMIC_ACQUIRE) != NKV_OPEN) continue;
        if (!e.bits) return 1;
        if (!in_heap(a, e.bits, sizeof *bits + (off / 64 + 1) * 8ULL)) return -1;
        if (nkv_bit(bits, off)) return 1;
    }
    return 0;
}

int nkv_key_of(const nkv_arena *a, uint32_t stream, uint64_t name, nkv_key *key) {
    for (int i = 0; i < TRIES; i++) {
        nkv_block at;
        nkv_view v;
        const nkv_key *found;
        int status = look_name(a, stream, name, &at, &v), has;
        if (status != NKV_OK) return status;
        if (!at.run) return 0;
        has = view_has(a, &v, stream, at.off);
        found = view_key(a, &v, at.off);
        if (found) *key = *found;
        if (has >= 0 && found && still(a, &v)) return has;
    }
    return NKV_BUSY;
}

/* How many names from `i` on are those of the run's blocks from its first one on. */
static int along(const nkv_arena *a, uint32_t stream, const uint64_t *names, uint32_t i,
                 uint32_t count, nkv_view *v, uint32_t *matched) {
    *matched = 1;
    while (i + *matched < count && *matched < v->r.len) {
        nkv_block at;
        nkv_view other;
        int status = look_name(a, stream, names[i + *matched], &at, &other);
        if (status != NKV_OK) return status;
        if (at.run != v->id || at.off != *matched) break;
        ++*matched;
    }
    return NKV_OK;
}

/* A view as of now, if no block left the run since the one at hand: looking up many names takes
 * longer than a busy run stays as it is. */
static int look_again(const nkv_arena *a, nkv_view *v) {
    uint32_t cuts = v->r.cuts;
    int status = look(a, v->id, v);
    return status == NKV_OK && v->r.cuts != cuts ? TORN : status;
}

int nkv_find_names(const nkv_arena *a, uint32_t stream, const uint64_t *names, uint32_t count,
                   nkv_segments *s) {
    nkv_step step = {0, 0, 0, 0, 0};
    nkv_block above = {0, 0};
    int tries = 0;
    s->count = s->end_count = 0;
    while (step.at < count) {
        nkv_block at;
        nkv_view v;
        int status = look_name(a, stream, names[step.at], &at, &v);
        if (status != NKV_OK) return status;
        if (!at.run || at.off || v.r.parent != above.run ||
            (above.run && v.r.parent_off != above.off))
            break;
        status = along(a, stream, names, step.at, count, &v, &step.matched);
        if (status == NKV_OK) status = look_again(a, &v);
        if (status == NKV_OK) status = take_run(a, &v, s, &step, stream);
        if (status < 0) return status;
        if (status == TORN) {
            if (++tries > TRIES) return NKV_BUSY;
            continue;
        }
        step.at += step.matched;
        above.run = v.id;
        above.off = step.matched - 1;
    }
    return NKV_OK;
}

int nkv_progress_get(const nkv_arena *a, uint32_t stream, nkv_stream *out) {
    const nkv_stream *s = &a->streams[stream];
    for (int i = 0; i < TRIES; i++) {
        uint32_t seen = await_even(&s->seq);
        memcpy(out, s, sizeof *out);
        if (nkv_same(&s->seq, seen)) return NKV_OK;
    }
    return NKV_BUSY;
}
