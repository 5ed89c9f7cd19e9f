/* What the index does, for its Python face. Numbers below 0 are the results of layout.h. */
#ifndef NKV_INDEX_H
#define NKV_INDEX_H

#include "tree.h"

/* ---- writing */
int64_t nkv_stream_open(nkv_arena *a, const void *label, uint32_t label_bytes);
int64_t nkv_holder_open(nkv_arena *a, uint32_t stream, const void *label, uint32_t label_bytes);
int nkv_stream_close(nkv_arena *a, uint32_t stream);
int nkv_holder_close(nkv_arena *a, uint32_t holder);
/* Look at so many runs for what is of closed ones; 1 when nothing is left. */
int nkv_sweep(nkv_arena *a, uint64_t runs);
void nkv_progress_set(nkv_arena *a, uint32_t stream, uint64_t sequence, uint64_t at_us,
                      uint32_t state);

/* `above`: of the parent, run 0 for a first block. How many blocks were not there before. */
int64_t nkv_store_blocks(nkv_arena *a, uint32_t holder, nkv_block above, const uint64_t *names,
                  const nkv_key *keys, uint32_t count);
/* How many names are not known. */
int64_t nkv_hold_names(nkv_arena *a, uint32_t holder, const uint64_t *names, uint32_t count);
/* How many were there. */
int64_t nkv_remove_names(nkv_arena *a, uint32_t holder, const uint64_t *names, uint32_t count);

/* ---- reading: of any process, at any time */
typedef struct {
    nkv_segment *found;
    uint32_t count, capacity;
    uint32_t *ends;            /* scratch: of the stretches that may go on */
    uint32_t end_count, end_capacity;
} nkv_segments;

void nkv_segments_free(nkv_segments *s);
/* Every stretch that an open holder has of the chain; NKV_OK, NKV_BUSY, NKV_NO_MEMORY. */
int nkv_find(const nkv_arena *a, const nkv_key *keys, uint32_t count, nkv_segments *out);
/* Only those from the first block on: one a holder. */
int nkv_reach(const nkv_arena *a, const nkv_key *keys, uint32_t count, nkv_segments *out);
/* The same with keys that are asked for one by one; only some are. NULL is a bad key. */
typedef const nkv_key *(*nkv_key_at)(void *context, uint32_t i);
int nkv_reach_at(const nkv_arena *a, nkv_key_at at, void *context, uint32_t count,
                 nkv_segments *out);
int nkv_find_names(const nkv_arena *a, uint32_t stream, const uint64_t *names, uint32_t count,
                   nkv_segments *out);
/* 1 with the key, 0 without. */
int nkv_key_of(const nkv_arena *a, uint32_t stream, uint64_t name, nkv_key *key);
int nkv_progress_get(const nkv_arena *a, uint32_t stream, nkv_stream *out);

/* NULL, or what does not add up. */
const char *nkv_check(const nkv_arena *a);

#endif
