/* The keys of a run, and cutting it. */
#include <string.h>

#include "run_parts.h"

static uint32_t pages_for(uint32_t blocks) {
    return (blocks + NKV_PAGE_BLOCKS - 1) / NKV_PAGE_BLOCKS;
}

uint32_t nkv_run_equal(const nkv_arena *a, const nkv_run *r, uint32_t off, const nkv_key *keys,
                       uint32_t most) {
    uint32_t n = 0;
    /* A key stands for all before it. */
    if (most && nkv_key_equal(nkv_run_key(a, r, off + most - 1), &keys[most - 1])) return most;
    while (n < most && nkv_key_equal(nkv_run_key(a, r, off + n), &keys[n])) n++;
    return n;
}

/* Room for `pages` in the list of pages. */
static int reserve_dir(nkv_arena *a, nkv_run *r, uint32_t pages) {
    uint32_t cap = r->pages_cap, dir;
    if (pages <= cap) return NKV_OK;
    if (cap == 0 && pages == 1) {
        r->pages_cap = 1;
        r->dir = 0;
        return NKV_OK;
    }
    while (cap < pages) cap = cap < 4 ? 4 : cap * 2;
    dir = nkv_heap_take(a, cap * sizeof(uint32_t));
    if (!dir) return NKV_NO_MEMORY;
    memset(nkv_heap_at(a, dir), 0, cap * sizeof(uint32_t));
    if (r->pages_cap == 1) {
        *(uint32_t *)nkv_heap_at(a, dir) = r->dir;
    } else if (r->pages_cap > 1) {
        memcpy(nkv_heap_at(a, dir), nkv_heap_at(a, r->dir), r->pages_cap * sizeof(uint32_t));
        nkv_heap_give(a, r->dir, r->pages_cap * sizeof(uint32_t));
    }
    r->dir = dir;
    r->pages_cap = cap;
    return NKV_OK;
}

static void set_page(nkv_arena *a, nkv_run *r, uint32_t index, uint32_t page) {
    if (r->pages_cap > 1)
        ((uint32_t *)nkv_heap_at(a, r->dir))[index] = page;
    else
        r->dir = page;
}

static void give_pages(nkv_arena *a, nkv_run *r, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++) {
        nkv_pool_give(a, &a->h->key_pages, NKV_PAGE_BLOCKS * sizeof(nkv_key), 0,
                      nkv_run_page(a, r, i));
        set_page(a, r, i, 0);
    }
}

int nkv_run_append(nkv_arena *a, uint32_t run, const nkv_key *keys, uint32_t count) {
    nkv_run *r = &a->runs[run];
    uint32_t have = pages_for(r->len), want = pages_for(r->len + count);
    int status;
    nkv_begin(&r->seq);
    status = reserve_dir(a, r, want);
    for (uint32_t i = have; i < want && status == NKV_OK; i++) {
        uint32_t page = nkv_pool_take(a, &a->h->key_pages, NKV_PAGE_BLOCKS * sizeof(nkv_key), 0);
        if (!page) {
            give_pages(a, r, have, i);
            status = NKV_NO_MEMORY;
        } else {
            set_page(a, r, i, page);
        }
    }
    if (status == NKV_OK) {
        for (uint32_t done = 0; done < count;) {
            uint32_t off = r->len + done, room = NKV_PAGE_BLOCKS - off % NKV_PAGE_BLOCKS;
            uint32_t some = count - done < room ? count - done : room;
            memcpy(nkv_run_key(a, r, off), keys + done, some * sizeof *keys);
            done += some;
        }
        r->len += count;
        r->last_page = nkv_run_page(a, r, want - 1);
        a->h->blocks += count;
    }
    nkv_end(&r->seq);
    return status;
}

static void cut_keys(nkv_arena *a, nkv_run *r, uint32_t len) {
    give_pages(a, r, pages_for(len), pages_for(r->len));
    a->h->blocks -= r->len - len;
    r->len = len;
    if (len == 0 && r->pages_cap > 1) nkv_heap_give(a, r->dir, r->pages_cap * sizeof(uint32_t));
    if (len == 0) r->dir = r->pages_cap = 0;
    r->last_page = len ? nkv_run_page(a, r, pages_for(len) - 1) : 0;
}

void nkv_run_cut(nkv_arena *a, uint32_t run, uint32_t len) {
    nkv_run *r = &a->runs[run];
    while (r->len > len) {
        uint32_t next = r->len - len > NKV_PIECE_BLOCKS ? r->len - NKV_PIECE_BLOCKS : len;
        nkv_begin(&r->seq);
        r->cuts++;
        nkv_holds_cut(a, r, next);
        nkv_names_cut(a, r, next);
        cut_keys(a, r, next);
        nkv_end(&r->seq);
    }
}

void nkv_run_purge(nkv_arena *a, uint32_t run) {
    nkv_run *r = &a->runs[run];
    nkv_begin(&r->seq);
    nkv_holds_purge(a, r);
    nkv_names_purge(a, r);
    nkv_end(&r->seq);
}
