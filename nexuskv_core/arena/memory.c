#define _GNU_SOURCE
#include "cells.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN (2ULL << 20)

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) & ~(ALIGN - 1); }

static uint64_t clamp(uint64_t value, uint64_t most) { return value < most ? value : most; }

static uint64_t place(uint64_t *at, uint64_t bytes) {
    uint64_t here = *at;
    *at += aligned(bytes);
    return here;
}

static void place_pool(nkv_pool *p, uint64_t *at, uint64_t capacity, size_t each) {
    p->capacity = (uint32_t)clamp(capacity, 0xffffff00u);
    p->at = place(at, (uint64_t)p->capacity * each);
    p->next = 1;
}

static void place_buckets(nkv_extent *e, uint64_t *at, uint64_t capacity, uint64_t buckets) {
    e->capacity = capacity;
    e->at = place(at, (capacity + NKV_SPARE_BUCKETS) * 64);
    e->buckets = buckets;
}

/* Address space is cheap and memory is taken when it is touched, so every part gets the room of the
 * worst case: a run, a page of keys and four pages of names for every block.
 */
static void layout(nkv_header *h, uint64_t max_blocks) {
    uint64_t at = NKV_HEADER_BYTES;
    uint64_t blocks = clamp(max_blocks, 0xf0000000u) + (1 << 16);
    uint64_t names = clamp(4 * blocks, 1ULL << 28);
    at = aligned(at);
    place_pool(&h->streams, &at, 1 << 22, sizeof(nkv_stream));
    place_pool(&h->holders, &at, 1 << 24, sizeof(nkv_holder));
    place_pool(&h->runs, &at, blocks, sizeof(nkv_run));
    place_pool(&h->key_pages, &at, clamp(blocks, 1ULL << 28), NKV_PAGE_BLOCKS * sizeof(nkv_key));
    place_pool(&h->name_pages, &at, clamp(names, (1ULL << 28) - 1), sizeof(nkv_name_page));
    h->heap_capacity = (uint32_t)clamp(8 * blocks + (1 << 20), 0xffffff00u);
    h->heap_at = place(&at, (uint64_t)h->heap_capacity * NKV_HEAP_UNIT);
    h->heap_next = 1;
    names = clamp(4 * blocks, 0xf0000000u);
    place_buckets(&h->heads.in, &at, blocks / 4 + 256, 16);
    place_buckets(&h->names.in, &at, names / 6 + NKV_CELLS_FEWEST, NKV_CELLS_FEWEST);
    place_buckets(&h->names.spill.in, &at, names / 32 + 256, 16);
    h->total_bytes = at;
}

void nkv_arena_point(nkv_arena *a) {
    a->h = (nkv_header *)a->base;
    a->runs = (nkv_run *)(a->base + a->h->runs.at);
    a->keys = (nkv_key *)(a->base + a->h->key_pages.at);
    a->name_pages = (nkv_name_page *)(a->base + a->h->name_pages.at);
    a->streams = (nkv_stream *)(a->base + a->h->streams.at);
    a->holders = (nkv_holder *)(a->base + a->h->holders.at);
    a->heap = a->base + a->h->heap_at;
}

/* ---- memory that is there before it is needed */

#define TOUCH_STEP (2ULL << 20)
#define TOUCH_LEAD (512ULL << 10)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void touch(nkv_arena *a, uint64_t at, uint64_t bytes) {
    if (madvise(a->base + at, bytes, MADV_POPULATE_WRITE) == 0) return;
    for (uint64_t i = 0; i < bytes; i += 4096) {
        volatile uint8_t *p = a->base + at + i;
        *p = *p;
    }
}

/* Of what it grows into next as much as it is filled: all is there when the growth begins. */
static uint64_t buckets_in_use(const nkv_extent *e, uint64_t full, uint64_t count, uint64_t part) {
    uint64_t ahead = nkv_extent_next(e, part) - e->buckets;
    if (e->wider) return (e->wider + NKV_SPARE_BUCKETS) * 64;
    return (e->buckets + NKV_SPARE_BUCKETS + ahead * count / (e->buckets * full)) * 64;
}

/* Where a growing part begins, and how far it is in use. */
static uint64_t in_use(const nkv_arena *a, uint32_t part, uint64_t *at) {
    const nkv_header *h = a->h;
    switch (part) {
    case 0: *at = h->runs.at; return (uint64_t)h->runs.next * sizeof(nkv_run);
    case 1: *at = h->key_pages.at; return (uint64_t)h->key_pages.next * NKV_PAGE_BLOCKS * 16;
    case 2: *at = h->name_pages.at; return (uint64_t)h->name_pages.next * sizeof(nkv_name_page);
    case 3: *at = h->heap_at; return (uint64_t)h->heap_next * NKV_HEAP_UNIT;
    case 4:
        *at = h->heads.in.at;
        return buckets_in_use(&h->heads.in, NKV_BUCKET_SLOTS, h->heads.count, NKV_TABLE_GROWTH);
    case 5:
        *at = h->names.in.at;
        return buckets_in_use(&h->names.in, NKV_CELL_SLOTS, h->names.count, NKV_CELLS_GROWTH);
    default:
        *at = h->names.spill.in.at;
        return buckets_in_use(&h->names.spill.in, NKV_BUCKET_SLOTS, h->names.spill.count,
                              NKV_TABLE_GROWTH);
    }
}

void nkv_touch_ahead(nkv_arena *a) {
    for (int looked = 0; looked < NKV_GROWING; looked++) {
        uint32_t part = a->touched_next++ % NKV_GROWING;
        uint64_t at, used = in_use(a, part, &at);
        if (used + TOUCH_LEAD <= a->touched[part]) continue;
        if (a->touched[part] < (used & ~(TOUCH_STEP - 1)))
            a->touched[part] = used & ~(TOUCH_STEP - 1);
        if (at + a->touched[part] + TOUCH_STEP > a->bytes) continue;
        touch(a, at + a->touched[part], TOUCH_STEP);
        a->touched[part] += TOUCH_STEP;
        return;
    }
}

int nkv_arena_open(nkv_arena *a, uint64_t max_blocks, uint64_t max_bytes, int shared,
                   uint64_t secret0, uint64_t secret1) {
    nkv_header made;
    memset(&made, 0, sizeof made);
    layout(&made, max_blocks);
    made.magic = NKV_MAGIC;
    made.version = NKV_VERSION;
    made.max_blocks = max_blocks;
    made.max_bytes = max_bytes;
    made.secret[0] = secret0;
    made.secret[1] = secret1;
    memset(a, 0, sizeof *a);
    a->fd = -1;
    a->writable = 1;
    a->bytes = made.total_bytes;
    if (shared) {
        a->fd = memfd_create("nexuskv-index", MFD_CLOEXEC);
        if (a->fd < 0 || ftruncate(a->fd, (off_t)a->bytes) != 0) goto failed;
    }
    /* Room to begin at a huge page. */
    a->base = mmap(NULL, a->bytes + ALIGN, PROT_READ | PROT_WRITE,
                   (shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE, a->fd, 0);
    if (a->base == MAP_FAILED) goto failed;
    if (!shared) {
        uint8_t *begin = (uint8_t *)aligned((uint64_t)a->base);
        if (begin > a->base) munmap(a->base, (size_t)(begin - a->base));
        if (begin - a->base < (ptrdiff_t)ALIGN)
            munmap(begin + a->bytes, ALIGN - (size_t)(begin - a->base));
        a->base = begin;
        madvise(a->base, a->bytes, MADV_HUGEPAGE);   /* as well without */
    } else {
        munmap(a->base + a->bytes, ALIGN);
    }
    memcpy(a->base, &made, sizeof made);
    nkv_arena_point(a);
    touch(a, a->h->streams.at, 4096);
    touch(a, a->h->holders.at, 4096);
    for (int part = 0; part < NKV_GROWING; part++) nkv_touch_ahead(a);
    return NKV_OK;
failed:
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
    a->base = NULL;
    return NKV_NO_MEMORY;
}

int nkv_arena_attach(nkv_arena *a, int fd) {
    struct stat about;
    memset(a, 0, sizeof *a);
    a->fd = -1;
    if (fstat(fd, &about) != 0 || about.st_size < NKV_HEADER_BYTES) return NKV_NO_MEMORY;
    a->bytes = (uint64_t)about.st_size;
    a->base = mmap(NULL, a->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (a->base == MAP_FAILED) {
        a->base = NULL;
        return NKV_NO_MEMORY;
    }
    nkv_arena_point(a);
    if (a->h->magic != NKV_MAGIC || a->h->version != NKV_VERSION || a->h->total_bytes > a->bytes) {
        nkv_arena_close(a);
        return NKV_NO_MEMORY;
    }
    return NKV_OK;
}

void nkv_arena_close(nkv_arena *a) {
    if (a->base != NULL) munmap(a->base, a->bytes);
    if (a->fd >= 0) close(a->fd);
    free(a->scratch);
    a->base = NULL;
    a->scratch = NULL;
    a->scratch_bytes = 0;
    a->fd = -1;
}

uint32_t nkv_pool_take(nkv_arena *a, nkv_pool *p, size_t each, size_t link) {
    uint32_t number = p->free;
    if (number) {
        memcpy(&p->free, a->base + p->at + (size_t)number * each + link, sizeof p->free);
    } else {
        if (p->next >= p->capacity) return 0;
        number = p->next++;
    }
    p->used++;
    return number;
}

void nkv_pool_give(nkv_arena *a, nkv_pool *p, size_t each, size_t link, uint32_t number) {
    memcpy(a->base + p->at + (size_t)number * each + link, &p->free, sizeof p->free);
    p->free = number;
    p->used--;
}

/* Classes of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... units. */
static int heap_class(size_t units, size_t *fits) {
    size_t step = 1;
    int class = 0;
    if (units <= 1) {
        *fits = 1;
        return 0;
    }
    while (step * 2 < units) {
        step *= 2;
        class += 2;
    }
    /* step < units <= 2 * step, with 1.5 * step between them where that is whole. */
    if (step >= 2 && units <= step + step / 2) {
        *fits = step + step / 2;
        return class + 1;
    }
    *fits = step * 2;
    return class + 2;
}

static size_t units_of(size_t bytes) { return (bytes + NKV_HEAP_UNIT - 1) / NKV_HEAP_UNIT; }

size_t nkv_heap_fits(size_t bytes) {
    size_t fits;
    heap_class(units_of(bytes), &fits);
    return fits * NKV_HEAP_UNIT;
}

uint32_t nkv_heap_take(nkv_arena *a, size_t bytes) {
    size_t fits;
    int class = heap_class(units_of(bytes), &fits);
    uint32_t unit = a->h->heap_free[class];
    if (unit) {
        memcpy(&a->h->heap_free[class], nkv_heap_at(a, unit), sizeof(uint32_t));
    } else {
        if ((uint64_t)a->h->heap_next + fits > a->h->heap_capacity) return 0;
        unit = a->h->heap_next;
        a->h->heap_next += (uint32_t)fits;
    }
    a->h->heap_used += (uint32_t)fits;
    return unit;
}

void nkv_heap_give(nkv_arena *a, uint32_t unit, size_t bytes) {
    size_t fits;
    int class = heap_class(units_of(bytes), &fits);
    memcpy(nkv_heap_at(a, unit), &a->h->heap_free[class], sizeof(uint32_t));
    a->h->heap_free[class] = unit;
    a->h->heap_used -= (uint32_t)fits;
}

static uint64_t bucket_bytes(const nkv_extent *e) {
    return (nkv_extent_end(e) + NKV_SPARE_BUCKETS) * 64;
}

/* Few names have not touched all of their buckets. */
uint64_t nkv_used_bytes(const nkv_arena *a) {
    const nkv_header *h = a->h;
    return (uint64_t)h->runs.used * sizeof(nkv_run) +
           (uint64_t)h->key_pages.used * NKV_PAGE_BLOCKS * sizeof(nkv_key) +
           (uint64_t)h->name_pages.used * sizeof(nkv_name_page) +
           (uint64_t)h->heap_used * NKV_HEAP_UNIT + bucket_bytes(&h->heads.in) +
           clamp(bucket_bytes(&h->names.in), 64 * h->names.count) +
           bucket_bytes(&h->names.spill.in) + (uint64_t)h->streams.used * sizeof(nkv_stream) +
           (uint64_t)h->holders.used * sizeof(nkv_holder);
}

static void region(nkv_region *out, int *count, uint64_t at, uint64_t bytes) {
    out[*count].at = at;
    out[*count].bytes = bytes;
    *count += 1;
}

int nkv_regions(const nkv_arena *a, nkv_region *out) {
    const nkv_header *h = a->h;
    int n = 0;
    region(out, &n, 0, sizeof(nkv_header));
    region(out, &n, h->streams.at, (uint64_t)h->streams.next * sizeof(nkv_stream));
    region(out, &n, h->holders.at, (uint64_t)h->holders.next * sizeof(nkv_holder));
    region(out, &n, h->runs.at, (uint64_t)h->runs.next * sizeof(nkv_run));
    region(out, &n, h->key_pages.at,
           (uint64_t)h->key_pages.next * NKV_PAGE_BLOCKS * sizeof(nkv_key));
    region(out, &n, h->name_pages.at, (uint64_t)h->name_pages.next * sizeof(nkv_name_page));
    region(out, &n, h->heap_at, (uint64_t)h->heap_next * NKV_HEAP_UNIT);
    region(out, &n, h->heads.in.at, bucket_bytes(&h->heads.in));
    region(out, &n, h->names.in.at, bucket_bytes(&h->names.in));
    region(out, &n, h->names.spill.in.at, bucket_bytes(&h->names.spill.in));
    return n;
}
