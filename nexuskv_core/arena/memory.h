/* The arena's address range, its pools of equal pieces and its heap of others. */
#ifndef NKV_MEMORY_H
#define NKV_MEMORY_H

#include "layout.h"

/* A new arena, in a memfd when `shared`; 0, or NKV_NO_MEMORY. */
int nkv_arena_open(nkv_arena *a, uint64_t max_blocks, uint64_t max_bytes, int shared,
                   uint64_t secret0, uint64_t secret1);
/* Another process's arena, to read. */
int nkv_arena_attach(nkv_arena *a, int fd);
void nkv_arena_close(nkv_arena *a);
/* Put the pointers right after the header's content changed. */
void nkv_arena_point(nkv_arena *a);

/* Have memory ready that will be needed soon, for one part at most: getting a huge page takes half
 * a millisecond and more, and several at once would stall a call. */
void nkv_touch_ahead(nkv_arena *a);

/* 0 when there is none. */
uint32_t nkv_pool_take(nkv_arena *a, nkv_pool *p, size_t each, size_t link);
void nkv_pool_give(nkv_arena *a, nkv_pool *p, size_t each, size_t link, uint32_t number);

uint32_t nkv_heap_take(nkv_arena *a, size_t bytes);
void nkv_heap_give(nkv_arena *a, uint32_t unit, size_t bytes);
size_t nkv_heap_fits(size_t bytes);    /* bytes that a piece of at least so many really has */

uint64_t nkv_used_bytes(const nkv_arena *a);

/* The stretches of the arena that hold something, for a copy: at most NKV_REGIONS of them. */
enum { NKV_REGIONS = 10 };
typedef struct { uint64_t at, bytes; } nkv_region;
int nkv_regions(const nkv_arena *a, nkv_region *out);

#endif
