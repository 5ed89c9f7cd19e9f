/* Everything that must hold between two calls of the writer. */
#include <stdlib.h>
#include <string.h>

#include "index.h"

#define MUST(condition, what) do { if (!(condition)) return what; } while (0)

typedef struct {
    uint64_t runs, blocks, names, key_pages, name_pages, childless;
    uint64_t *held;            /* a holder */
    uint64_t *own_names;       /* a stream */
} nkv_sums;

static const char *check_keys(const nkv_arena *a, uint32_t run, nkv_sums *sums) {
    const nkv_run *r = &a->runs[run];
    uint32_t pages = (r->len + NKV_PAGE_BLOCKS - 1) / NKV_PAGE_BLOCKS;
    MUST(pages <= r->pages_cap, "a run with fewer pages than it needs");
    for (uint32_t i = 0; i < pages; i++)
        MUST(nkv_run_page(a, r, i) && nkv_run_page(a, r, i) < a->h->key_pages.next,
             "a run without one of its pages");
    MUST(r->last_page == nkv_run_page(a, r, pages - 1), "a run that misplaces its last page");
    MUST(nkv_head_find(a, nkv_run_key(a, r, 0)) == run, "a run that is not found by its key");
    sums->key_pages += pages;
    sums->blocks += r->len;
    return NULL;
}

static const char *check_holds(const nkv_arena *a, const nkv_run *r, nkv_sums *sums) {
    const nkv_hold *holds = nkv_holds(a, r);
    for (uint32_t i = 0; i < r->hold_count; i++) {
        const nkv_hold *e = &holds[i];
        uint32_t held = e->hi - e->lo;
        MUST(i == 0 || holds[i - 1].holder < e->holder, "holders out of order");
        MUST(e->lo < e->hi && e->hi <= r->len, "a holder beyond the run");
        if (e->bits) {
            const nkv_bits *bits = nkv_heap_at(a, e->bits);
            MUST(bits->words * 64 >= e->hi, "a bitmap that is too short");
            MUST(nkv_bit(bits, e->lo) && nkv_bit(bits, e->hi - 1), "a holder with loose ends");
            for (uint32_t at = e->lo; at < e->hi; at++) held -= !nkv_bit(bits, at);
            MUST(held < e->hi - e->lo, "a bitmap without a hole");
        }
        sums->held[e->holder] += held;
    }
    return NULL;
}

static const char *check_naming(const nkv_arena *a, uint32_t run, const nkv_naming *n,
                                nkv_sums *sums) {
    int some = 0;
    for (uint32_t index = 0; index < n->cap; index++) {
        uint32_t page = n->cap > 1 ? ((uint32_t *)nkv_heap_at(a, n->dir))[index] : n->dir;
        const nkv_name_page *p = &a->name_pages[page];
        if (!page) continue;
        some = 1;
        sums->name_pages++;
        MUST(p->run == run && p->index == index && p->stream == n->stream, "a page of another run");
        for (uint32_t i = 0; i < NKV_PAGE_BLOCKS; i++) {
            nkv_block found;
            if (!(p->set >> i & 1)) continue;
            sums->names++;
            sums->own_names[n->stream]++;
            MUST(index * NKV_PAGE_BLOCKS + i < a->runs[run].len, "a name beyond the run");
            found = nkv_own_name(a, n->stream, p->name[i]);
            MUST(found.run == run && found.off == index * NKV_PAGE_BLOCKS + i,
                 "a name that leads elsewhere");
        }
    }
    MUST(some, "a stream that names nothing");
    return NULL;
}

static const char *check_tree(const nkv_arena *a, uint32_t run) {
    const nkv_run *r = &a->runs[run], *p = &a->runs[r->parent];
    uint32_t children = 0, last = 0, len = nkv_run_held(a, r);
    if (r->parent) {
        MUST(r->parent_off < p->len, "a run that hangs on nothing");
        MUST(r->depth == p->depth + r->parent_off + 1, "a run at a wrong depth");
    } else {
        MUST(r->depth == 0, "a first run that is not at the beginning");
    }
    for (uint32_t c = r->first_child; c; c = a->runs[c].next_sibling) {
        MUST(a->runs[c].parent == run && a->runs[c].len, "a child of another run");
        if (a->runs[c].parent_off > last) last = a->runs[c].parent_off;
        children++;
    }
    MUST(children == r->children, "children counted wrongly");
    MUST(!children || last == r->last_child_off, "a last child that is not the last");
    if (children && last + 1 > len) len = last + 1;
    MUST(len == r->len, "a run that ends in blocks that nobody has");
    return NULL;
}

static const char *check_run(const nkv_arena *a, uint32_t run, nkv_sums *sums) {
    const nkv_run *r = &a->runs[run];
    const char *found;
    if (!r->len) return NULL;
    MUST(!(r->seq & 1), "a run that changes");
    sums->runs++;
    sums->childless += !r->children;
    if ((found = check_keys(a, run, sums)) || (found = check_holds(a, r, sums)) ||
        (found = check_tree(a, run)))
        return found;
    for (uint32_t i = 0; i < r->naming_count; i++) {
        const nkv_naming *n = nkv_namings(a, r) + i;
        MUST(i == 0 || n[-1].stream < n->stream, "streams out of order");
        if ((found = check_naming(a, run, n, sums))) return found;
    }
    return NULL;
}

static const char *check_list(const nkv_arena *a, const nkv_sums *sums) {
    uint64_t n = 0;
    uint32_t newer = 0;
    for (uint32_t run = a->h->newest; run; run = a->runs[run].older) {
        MUST(a->runs[run].newer == newer && a->runs[run].len && !a->runs[run].children,
             "a list that leads astray");
        newer = run;
        MUST(++n <= sums->childless, "a list that is too long");
    }
    MUST(newer == a->h->oldest && n == sums->childless, "a list that ends early");
    return NULL;
}

static const char *check_sums(const nkv_arena *a, const nkv_sums *sums) {
    const nkv_header *h = a->h;
    uint64_t heads, names;
    const char *found;
    if ((found = nkv_table_check(a, &h->heads, &heads)) ||
        (found = nkv_cells_check(a, &h->names, &names)))
        return found;
    MUST(heads == sums->runs && h->runs.used == sums->runs, "runs counted wrongly");
    MUST(names == sums->names, "names counted wrongly");
    MUST(h->blocks == sums->blocks && h->blocks <= h->max_blocks, "blocks counted wrongly");
    MUST(h->key_pages.used == sums->key_pages, "pages of keys counted wrongly");
    MUST(h->name_pages.used == sums->name_pages, "pages of names counted wrongly");
    for (uint32_t o = 1; o < h->holders.next; o++)
        MUST(a->holders[o].state != NKV_OPEN || a->holders[o].held == sums->held[o],
             "held blocks counted wrongly");
    for (uint32_t s = 1; s < h->streams.next; s++)
        MUST(a->streams[s].own_names == sums->own_names[s], "own names counted wrongly");
    return check_list(a, sums);
}

const char *nkv_check(const nkv_arena *a) {
    nkv_sums sums;
    const char *found = NULL;
    memset(&sums, 0, sizeof sums);
    sums.held = calloc(a->h->holders.next, sizeof *sums.held);
    sums.own_names = calloc(a->h->streams.next, sizeof *sums.own_names);
    if (!sums.held || !sums.own_names) found = "no memory to check";
    for (uint32_t run = 1; run < a->h->runs.next && !found; run++)
        found = check_run(a, run, &sums);
    if (!found) found = check_sums(a, &sums);
    free(sums.held);
    free(sums.own_names);
    return found;
}
