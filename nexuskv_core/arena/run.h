/* One run: its keys, who has which of its blocks, and what streams call them. */
#ifndef NKV_RUN_H
#define NKV_RUN_H

#include "cells.h"

typedef struct { uint32_t run, off; } nkv_block;    /* run 0: none */

static inline uint32_t nkv_run_page(const nkv_arena *a, const nkv_run *r, uint32_t index) {
    return r->pages_cap > 1 ? ((const uint32_t *)nkv_heap_at(a, r->dir))[index] : r->dir;
}
static inline nkv_key *nkv_run_key(const nkv_arena *a, const nkv_run *r, uint32_t off) {
    return nkv_key_page(a, nkv_run_page(a, r, off / NKV_PAGE_BLOCKS)) + off % NKV_PAGE_BLOCKS;
}
static inline nkv_hold *nkv_holds(const nkv_arena *a, const nkv_run *r) {
    return r->hold_room ? nkv_heap_at(a, r->holds) : (nkv_hold *)&r->hold;
}
static inline nkv_naming *nkv_namings(const nkv_arena *a, const nkv_run *r) {
    return r->naming_room ? nkv_heap_at(a, r->names) : (nkv_naming *)&r->naming;
}
static inline int nkv_bit(const nkv_bits *bits, uint32_t at) {
    return (int)(bits->word[at / 64] >> (at % 64) & 1);
}

/* How many of `keys` equal the run's from block `off` on, at most `most`. */
uint32_t nkv_run_equal(const nkv_arena *a, const nkv_run *r, uint32_t off, const nkv_key *keys,
                       uint32_t most);
/* Put keys behind the last one; the caller has made sure of room. */
int nkv_run_append(nkv_arena *a, uint32_t run, const nkv_key *keys, uint32_t count);
/* Keep the first `len` blocks only, of keys, holds and names. */
void nkv_run_cut(nkv_arena *a, uint32_t run, uint32_t len);

/* Blocks lo .. hi - 1 are at the holder; how many were not before, or NKV_NO_MEMORY. */
int64_t nkv_hold_add(nkv_arena *a, uint32_t run, uint32_t holder, uint32_t lo, uint32_t hi);
/* Whether the block was at the holder. */
int nkv_hold_drop(nkv_arena *a, uint32_t run, uint32_t holder, uint32_t off);
/* Remove what is of holders and streams that are closed. */
void nkv_run_purge(nkv_arena *a, uint32_t run);
/* The block behind the last one that any holder has. */
uint32_t nkv_run_held(const nkv_arena *a, const nkv_run *r);

/* Whether a holder has the block; whether any of the stream's has. */
int nkv_run_has(const nkv_arena *a, const nkv_run *r, uint32_t holder, uint32_t off);
int nkv_stream_has(const nkv_arena *a, nkv_block block, uint32_t stream);

uint32_t nkv_name_tag(const nkv_arena *a, uint32_t stream, uint64_t name);
/* The block that a stream calls so; that no stream but 0 calls so by a name of its own. */
nkv_block nkv_own_name(const nkv_arena *a, uint32_t stream, uint64_t name);
/* The block that a stream calls so, by its own name or the shared one, and has. */
nkv_block nkv_name_find(const nkv_arena *a, uint32_t stream, uint64_t name);
/* The stream calls these blocks so from now on (at most NKV_PIECE_BLOCKS of them). How many were
 * done: it stops before one whose name is another block's that the stream has, which is in
 * `other`, and where there is no memory (run 0 in `other`). */
uint32_t nkv_names_put(nkv_arena *a, nkv_block first, uint32_t stream, const uint64_t *names,
                       uint32_t count, nkv_block *other);
/* No longer by a name of its own. */
void nkv_name_drop(nkv_arena *a, uint32_t stream, uint64_t name);
/* Fetch ahead what `nkv_name_find` looks at. */
static inline __attribute__((always_inline)) void nkv_name_prefetch(
    const nkv_arena *a, uint32_t stream, uint64_t name) {
    nkv_cells_prefetch(a, &a->h->names, nkv_name_tag(a, 0, name));
    if (a->streams[stream].own_names)
        nkv_cells_prefetch(a, &a->h->names, nkv_name_tag(a, stream, name));
}

#endif
