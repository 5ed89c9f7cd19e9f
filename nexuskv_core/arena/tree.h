/* Runs on runs: where a chain goes on, what hangs on what, and what is forgotten first. */
#ifndef NKV_TREE_H
#define NKV_TREE_H

#include "run.h"

static inline uint32_t nkv_head_tag(const nkv_key *key) { return (uint32_t)(key->hi >> 32); }

/* Fetch ahead where the run of this key is found. */
static inline __attribute__((always_inline)) void nkv_head_prefetch(const nkv_arena *a,
                                                                    const nkv_key *key) {
    nkv_table_prefetch(a, &a->h->heads, nkv_head_tag(key));
}
/* The run that begins with this key, or 0. */
uint32_t nkv_head_find(const nkv_arena *a, const nkv_key *key);
/* A new run of these keys that hangs on a block (run 0: on none); 0 without memory. */
uint32_t nkv_run_new(nkv_arena *a, nkv_block above, const nkv_key *keys, uint32_t count);
/* Take out of the run, and of those above it, what nobody has and nothing hangs on; `pinned` is
 * left as it is, and is to be settled later. */
void nkv_settle(nkv_arena *a, uint32_t run, uint32_t pinned, int forgetting);
/* The run was stored or confirmed now. */
void nkv_touch(nkv_arena *a, uint32_t run);
/* Forget what was stored longest ago until so many blocks have room; NKV_FULL when it cannot. */
int nkv_make_room(nkv_arena *a, uint32_t blocks, uint32_t pinned);

#endif
