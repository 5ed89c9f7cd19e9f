#include "tree.h"

#include <string.h>

enum {
    NAME_PAGES_A_PIECE = NKV_PIECE_BLOCKS / NKV_PAGE_BLOCKS + 2,
    HEAP_RESERVE_UNITS = 1 << 18,   /* more than any call takes between two checks */
    BLOCK_BYTES = 96,
};

uint32_t nkv_head_find(const nkv_arena *a, const nkv_key *key) {
    nkv_probe probe;
    uint32_t run;
    nkv_probe_start(&probe, a, &a->h->heads, nkv_head_tag(key));
    while ((run = nkv_probe_next(&probe)) != 0) {
        const nkv_run *r = &a->runs[run];
        if (r->len && nkv_key_equal(nkv_run_key(a, r, 0), key)) return run;
    }
    return 0;
}

/* ---- runs without children, by when they were stored */

static void unlist(nkv_arena *a, uint32_t run) {
    nkv_run *r = &a->runs[run];
    if (r->newer) a->runs[r->newer].older = r->older;
    else a->h->newest = r->older;
    if (r->older) a->runs[r->older].newer = r->newer;
    else a->h->oldest = r->newer;
    r->newer = r->older = 0;
}

static void list_newest(nkv_arena *a, uint32_t run) {
    nkv_run *r = &a->runs[run];
    r->newer = 0;
    r->older = a->h->newest;
    if (r->older) a->runs[r->older].newer = run;
    else a->h->oldest = run;
    a->h->newest = run;
}

static void list_oldest(nkv_arena *a, uint32_t run) {
    nkv_run *r = &a->runs[run];
    r->older = 0;
    r->newer = a->h->oldest;
    if (r->newer) a->runs[r->newer].older = run;
    else a->h->newest = run;
    a->h->oldest = run;
}

void nkv_touch(nkv_arena *a, uint32_t run) {
    if (a->runs[run].children || a->h->newest == run) return;
    unlist(a, run);
    list_newest(a, run);
}

/* ---- what hangs on what */

/* Readers take it for a hint, so it needs no version and may be out of date. */
static void note_fork(nkv_run *p, uint32_t off) {
    for (uint32_t i = 0; i < p->forks && i < NKV_FORKS; i++)
        if (p->fork[i] == off) return;
    if (p->forks < NKV_FORKS) p->fork[p->forks] = off;
    if (p->forks <= NKV_FORKS) p->forks++;
}

static void hang(nkv_arena *a, uint32_t run, nkv_block above) {
    nkv_run *r = &a->runs[run], *p = &a->runs[above.run];
    if (!above.run) return;
    if (!p->children) {
        unlist(a, above.run);
        p->forks = 0;
    }
    note_fork(p, above.off);
    if (!p->children || above.off > p->last_child_off) p->last_child_off = above.off;
    p->children++;
    r->next_sibling = p->first_child;
    if (r->next_sibling) a->runs[r->next_sibling].prev_sibling = run;
    p->first_child = run;
}

static void find_last_child(nkv_arena *a, nkv_run *p) {
    uint32_t last = 0;
    for (uint32_t c = p->first_child; c; c = a->runs[c].next_sibling) {
        if (a->runs[c].parent_off > last) last = a->runs[c].parent_off;
        if (last == p->last_child_off) break;   /* none hangs further down */
    }
    p->last_child_off = last;
}

/* Of a run that lost its last child nobody knows when it was stored last: long ago where the child
 * was the oldest of all. */
static void unhang(nkv_arena *a, uint32_t run, int forgetting) {
    nkv_run *r = &a->runs[run], *p = &a->runs[r->parent];
    if (!r->parent) return;
    if (r->prev_sibling) a->runs[r->prev_sibling].next_sibling = r->next_sibling;
    else p->first_child = r->next_sibling;
    if (r->next_sibling) a->runs[r->next_sibling].prev_sibling = r->prev_sibling;
    p->children--;
    if (!p->children) {
        p->last_child_off = 0;
        if (forgetting) list_oldest(a, r->parent);
        else list_newest(a, r->parent);
    } else if (r->parent_off == p->last_child_off) {
        find_last_child(a, p);
    }
}

uint32_t nkv_run_new(nkv_arena *a, nkv_block above, const nkv_key *keys, uint32_t count) {
    uint32_t run = nkv_pool_take(a, &a->h->runs, sizeof(nkv_run), offsetof(nkv_run, newer));
    uint32_t seq, cuts;
    nkv_run *r;
    if (!run) return 0;
    r = &a->runs[run];
    nkv_begin(&r->seq);
    seq = r->seq;
    cuts = r->cuts;
    memset(r, 0, sizeof *r);
    r->seq = seq;
    r->cuts = cuts;
    r->parent = above.run;
    r->parent_off = above.off;
    r->depth = above.run ? a->runs[above.run].depth + above.off + 1 : 0;
    nkv_end(&r->seq);
    if (nkv_run_append(a, run, keys, count) != NKV_OK ||
        nkv_table_add(a, &a->h->heads, nkv_head_tag(keys), run) != NKV_OK) {
        nkv_run_cut(a, run, 0);
        nkv_pool_give(a, &a->h->runs, sizeof(nkv_run), offsetof(nkv_run, newer), run);
        return 0;
    }
    hang(a, run, above);
    list_newest(a, run);
    return run;
}

static void free_run(nkv_arena *a, uint32_t run, int forgetting) {
    nkv_run *r = &a->runs[run];
    nkv_table_drop(a, &a->h->heads, nkv_head_tag(nkv_run_key(a, r, 0)), run);
    unlist(a, run);
    nkv_run_cut(a, run, 0);
    unhang(a, run, forgetting);
    nkv_pool_give(a, &a->h->runs, sizeof(nkv_run), offsetof(nkv_run, newer), run);
}

void nkv_settle(nkv_arena *a, uint32_t run, uint32_t pinned, int forgetting) {
    while (run && run != pinned) {
        nkv_run *r = &a->runs[run];
        uint32_t len, above = r->parent;
        if (!r->len) return;
        len = nkv_run_held(a, r);
        if (r->children && r->last_child_off + 1 > len) len = r->last_child_off + 1;
        if (len) {
            if (len < r->len) nkv_run_cut(a, run, len);
            return;
        }
        free_run(a, run, forgetting);
        run = above;
    }
}

/* ---- forgetting */

static uint32_t left_in(const nkv_pool *p) { return p->capacity - 1 - p->used; }

static int has_room(const nkv_arena *a, uint32_t blocks) {
    const nkv_header *h = a->h;
    return h->blocks + blocks <= h->max_blocks &&
           (!h->max_bytes || nkv_used_bytes(a) + (uint64_t)blocks * BLOCK_BYTES <= h->max_bytes) &&
           left_in(&h->runs) > 1 && left_in(&h->key_pages) > NAME_PAGES_A_PIECE &&
           left_in(&h->name_pages) > NAME_PAGES_A_PIECE &&
           h->heap_next + HEAP_RESERVE_UNITS < h->heap_capacity;
}

static int forget_piece(nkv_arena *a, uint32_t pinned) {
    uint32_t run = a->h->oldest;
    nkv_run *r;
    uint32_t cut;
    if (run == pinned && run) run = a->runs[run].newer;
    if (!run) return 0;
    r = &a->runs[run];
    cut = r->len < NKV_PIECE_BLOCKS ? r->len : NKV_PIECE_BLOCKS;
    a->h->forgotten += cut;
    if (cut < r->len) {
        nkv_run_cut(a, run, r->len - cut);
        nkv_settle(a, run, pinned, 1);
    } else {
        uint32_t above = r->parent;
        free_run(a, run, 1);
        nkv_settle(a, above, pinned, 1);
    }
    return 1;
}

int nkv_make_room(nkv_arena *a, uint32_t blocks, uint32_t pinned) {
    while (!has_room(a, blocks))
        if (!forget_piece(a, pinned)) return NKV_FULL;
    return NKV_OK;
}
