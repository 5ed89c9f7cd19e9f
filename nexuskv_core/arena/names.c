/* What streams call blocks. A name is found by the table of names, whose number is a cell: a place
 * in a page of names; the page says which stream and which blocks of which run it is of. Streams
 * share the names of stream 0 for blocks that they have, unless they have one of their own for it.
 */
#include <string.h>

#include "run_parts.h"

static uint32_t place_of(const nkv_arena *a, const nkv_run *r, uint32_t stream) {
    const nkv_naming *namings = nkv_namings(a, r);
    uint32_t lo = 0, hi = r->naming_count;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (namings[mid].stream < stream) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static nkv_naming *naming_of(nkv_arena *a, nkv_run *r, uint32_t stream) {
    uint32_t at = place_of(a, r, stream);
    nkv_naming *namings = nkv_namings(a, r);
    if (at < r->naming_count && namings[at].stream == stream) return &namings[at];
    if (nkv_room_for_one(a, &r->naming_room, &r->names, &r->naming, r->naming_count) != NKV_OK)
        return NULL;
    namings = nkv_namings(a, r);
    memmove(namings + at + 1, namings + at, (size_t)(r->naming_count - at) * sizeof *namings);
    memset(&namings[at], 0, sizeof *namings);
    namings[at].stream = stream;
    r->naming_count++;
    return &namings[at];
}

static uint32_t page_at(const nkv_arena *a, const nkv_naming *n, uint32_t index) {
    if (index >= n->cap) return 0;
    return n->cap > 1 ? ((const uint32_t *)nkv_heap_at(a, n->dir))[index] : n->dir;
}

static void set_page(nkv_arena *a, nkv_naming *n, uint32_t index, uint32_t page) {
    if (n->cap > 1) ((uint32_t *)nkv_heap_at(a, n->dir))[index] = page;
    else n->dir = page;
}

static int reserve_dir(nkv_arena *a, nkv_naming *n, uint32_t pages) {
    uint32_t cap = n->cap, dir;
    if (pages <= cap) return NKV_OK;
    if (cap == 0 && pages == 1) {
        n->cap = 1;
        return NKV_OK;
    }
    while (cap < pages) cap = cap < 4 ? 4 : cap * 2;
    dir = nkv_heap_take(a, cap * sizeof(uint32_t));
    if (!dir) return NKV_NO_MEMORY;
    memset(nkv_heap_at(a, dir), 0, cap * sizeof(uint32_t));
    if (n->cap == 1) {
        *(uint32_t *)nkv_heap_at(a, dir) = n->dir;
    } else if (n->cap > 1) {
        memcpy(nkv_heap_at(a, dir), nkv_heap_at(a, n->dir), n->cap * sizeof(uint32_t));
        nkv_heap_give(a, n->dir, n->cap * sizeof(uint32_t));
    }
    n->dir = dir;
    n->cap = cap;
    return NKV_OK;
}

static uint32_t page_for(nkv_arena *a, nkv_naming *n, uint32_t run, uint32_t index) {
    uint32_t page = page_at(a, n, index);
    nkv_name_page *p;
    if (page) return page;
    if (reserve_dir(a, n, index + 1) != NKV_OK) return 0;
    page = nkv_pool_take(a, &a->h->name_pages, sizeof(nkv_name_page), 0);
    if (!page) return 0;
    p = &a->name_pages[page];
    p->run = run;
    p->index = index;
    p->stream = n->stream;
    __atomic_store_n(&p->set, 0, __ATOMIC_RELEASE);
    set_page(a, n, index, page);
    return page;
}

uint32_t nkv_name_tag(const nkv_arena *a, uint32_t stream, uint64_t name) {
    uint64_t x = (name ^ a->h->secret[0]) + stream * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 32)) * (a->h->secret[1] | 1);
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ULL;
    return (uint32_t)(x >> 32);
}

/* The cell of a name, or 0. */
static uint32_t cell_of(const nkv_arena *a, uint32_t stream, uint64_t name, uint32_t tag) {
    nkv_cell_probe probe;
    uint32_t cell;
    nkv_cells_start(&probe, a, &a->h->names, tag);
    while ((cell = nkv_cells_next(&probe)) != 0) {
        const nkv_name_page *p = &a->name_pages[cell / NKV_PAGE_BLOCKS];
        uint32_t i = cell % NKV_PAGE_BLOCKS;
        if (cell / NKV_PAGE_BLOCKS < a->h->name_pages.capacity && p->name[i] == name &&
            p->stream == stream && (__atomic_load_n(&p->set, __ATOMIC_ACQUIRE) >> i & 1))
            return cell;
    }
    return 0;
}

nkv_block nkv_own_name(const nkv_arena *a, uint32_t stream, uint64_t name) {
    nkv_block found = {0, 0};
    uint32_t cell = cell_of(a, stream, name, nkv_name_tag(a, stream, name));
    if (cell) {
        const nkv_name_page *p = &a->name_pages[cell / NKV_PAGE_BLOCKS];
        found.run = p->run;
        found.off = p->index * NKV_PAGE_BLOCKS + cell % NKV_PAGE_BLOCKS;
    }
    return found;
}

/* The page of a stream's names of a run, 0 where it has none. */
static uint32_t page_if(const nkv_arena *a, const nkv_run *r, uint32_t stream, uint32_t index) {
    uint32_t at = place_of(a, r, stream);
    const nkv_naming *n = nkv_namings(a, r) + at;
    return at < r->naming_count && n->stream == stream ? page_at(a, n, index) : 0;
}

static int has_own(const nkv_arena *a, nkv_block block, uint32_t stream) {
    uint32_t page;
    if (!a->streams[stream].own_names) return 0;
    page = page_if(a, &a->runs[block.run], stream, block.off / NKV_PAGE_BLOCKS);
    return page && (a->name_pages[page].set >> block.off % NKV_PAGE_BLOCKS & 1);
}

/* By its own name, or the shared one; it need not have the block. */
static nkv_block known(const nkv_arena *a, uint32_t stream, uint64_t name) {
    nkv_block found = {0, 0}, none = {0, 0};
    if (a->streams[stream].own_names) found = nkv_own_name(a, stream, name);
    if (found.run) return found;
    found = nkv_own_name(a, 0, name);
    return found.run && has_own(a, found, stream) ? none : found;
}

nkv_block nkv_name_find(const nkv_arena *a, uint32_t stream, uint64_t name) {
    nkv_block found = known(a, stream, name), none = {0, 0};
    return found.run && nkv_stream_has(a, found, stream) ? found : none;
}

static void clear_cell(nkv_arena *a, uint32_t page, uint32_t i) {
    nkv_name_page *p = &a->name_pages[page];
    nkv_cells_drop(a, &a->h->names, nkv_name_tag(a, p->stream, p->name[i]),
                   page * NKV_PAGE_BLOCKS + i);
    __atomic_store_n(&p->set, p->set & ~(1u << i), __ATOMIC_RELEASE);
    if (p->stream) a->streams[p->stream].own_names--;
}

static void give_page(nkv_arena *a, nkv_naming *n, uint32_t index) {
    uint32_t page = page_at(a, n, index);
    set_page(a, n, index, 0);
    /* The link lies in the names, which are not read while `set` is 0. */
    nkv_pool_give(a, &a->h->name_pages, sizeof(nkv_name_page), 0, page);
}

/* The page of the stream's names for a block; 0 without memory. */
static uint32_t page_of(nkv_arena *a, uint32_t run, uint32_t stream, uint32_t index) {
    nkv_run *r = &a->runs[run];
    uint32_t at = place_of(a, r, stream), page = 0;
    const nkv_naming *found = nkv_namings(a, r) + at;
    nkv_naming *n;
    if (at < r->naming_count && found->stream == stream) page = page_at(a, found, index);
    if (page) return page;
    nkv_begin(&r->seq);
    n = naming_of(a, r, stream);
    page = n ? page_for(a, n, run, index) : 0;
    nkv_end(&r->seq);
    return page;
}

/* NKV_OK, NKV_NO_MEMORY, or 1 where another block of the stream has the name. */
static int put_new(nkv_arena *a, uint32_t page, uint32_t at, uint64_t name, uint32_t tag) {
    nkv_name_page *p = &a->name_pages[page];
    nkv_cells *t = &a->h->names;
    nkv_bucket *b;
    uint32_t vacant, cell = page * NKV_PAGE_BLOCKS + at;
    nkv_cells_grow(a, t);
    b = nkv_bucket_at(a, t, nkv_home(&t->in, tag));
    vacant = nkv_bucket_free(b);
    if (((nkv_bucket_match(b, (uint16_t)tag) & ~vacant) || nkv_bucket_sieve(b, tag)) &&
        cell_of(a, p->stream, name, tag))
        return 1;
    p->name[at] = name;
    __atomic_store_n(&p->set, p->set | 1u << at, __ATOMIC_RELEASE);
    if (vacant) {
        nkv_bucket_put(b, vacant, tag, cell);
    } else if (nkv_cells_spill(a, t, tag, cell) != NKV_OK) {
        __atomic_store_n(&p->set, p->set & ~(1u << at), __ATOMIC_RELEASE);
        return NKV_NO_MEMORY;
    }
    t->count++;
    if (p->stream) a->streams[p->stream].own_names++;
    return NKV_OK;
}

static int put_own(nkv_arena *a, nkv_block block, uint32_t stream, uint64_t name) {
    uint32_t page = page_of(a, block.run, stream, block.off / NKV_PAGE_BLOCKS);
    if (!page) return NKV_NO_MEMORY;
    return put_new(a, page, block.off % NKV_PAGE_BLOCKS, name, nkv_name_tag(a, stream, name));
}

static void drop_own(nkv_arena *a, nkv_block block, uint32_t stream) {
    uint32_t page = page_if(a, &a->runs[block.run], stream, block.off / NKV_PAGE_BLOCKS);
    clear_cell(a, page, block.off % NKV_PAGE_BLOCKS);
}

/* A name of which something has to be settled: 1 with `other` where the stream has another block of
 * this name, or is about to have: the run's blocks from `since` on. */
static int put_slowly(nkv_arena *a, nkv_block block, uint32_t since, uint32_t stream,
                      uint64_t name, uint32_t shared_page, nkv_block *other) {
    const nkv_name_page *shared = &a->name_pages[shared_page];
    uint32_t at = block.off % NKV_PAGE_BLOCKS;
    int set = shared->set >> at & 1, status;
    *other = known(a, stream, name);
    if (other->run && (other->run != block.run || other->off != block.off)) {
        int soon = other->run == block.run && other->off >= since && other->off < block.off;
        if (soon || nkv_stream_has(a, *other, stream)) return 1;
    }
    other->run = 0;
    if (has_own(a, block, stream)) {
        nkv_block mine = nkv_own_name(a, stream, name);
        if (mine.run == block.run && mine.off == block.off) return NKV_OK;
        drop_own(a, block, stream);
    }
    nkv_name_drop(a, stream, name);
    if (set && shared->name[at] == name) return NKV_OK;
    if (!set) {
        status = put_new(a, shared_page, at, name, nkv_name_tag(a, 0, name));
        if (status <= 0) return status;
    }
    return put_own(a, block, stream, name);
}

/* Which of the names are not there yet, as bits; the buckets that they go to are fetched. */
static uint64_t missing(const nkv_arena *a, nkv_block first, const uint64_t *names, uint32_t count,
                        uint32_t *tags) {
    uint64_t found = 0;
    uint32_t page = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t off = first.off + i, at = off % NKV_PAGE_BLOCKS;
        const nkv_name_page *p;
        if (i == 0 || !at) page = page_if(a, &a->runs[first.run], 0, off / NKV_PAGE_BLOCKS);
        p = &a->name_pages[page];
        if (page && (p->set >> at & 1) && p->name[at] == names[i]) continue;
        found |= 1ULL << i;
        tags[i] = nkv_name_tag(a, 0, names[i]);
        nkv_cells_prefetch(a, &a->h->names, tags[i]);
    }
    return found;
}

uint32_t nkv_names_put(nkv_arena *a, nkv_block first, uint32_t stream, const uint64_t *names,
                       uint32_t count, nkv_block *other) {
    uint32_t tags[NKV_PIECE_BLOCKS], page = 0, page_index = 0;
    uint64_t todo = missing(a, first, names, count, tags);
    other->run = other->off = 0;
    if (a->streams[stream].own_names) todo = count < 64 ? (1ULL << count) - 1 : ~0ULL;
    while (todo) {
        uint32_t i = (uint32_t)__builtin_ctzll(todo);
        nkv_block block = {first.run, first.off + i};
        uint32_t at = block.off % NKV_PAGE_BLOCKS;
        int status = 1;
        todo &= todo - 1;
        if (!page || page_index != block.off / NKV_PAGE_BLOCKS) {
            page_index = block.off / NKV_PAGE_BLOCKS;
            page = page_of(a, first.run, 0, page_index);
        }
        if (!page) return i;
        if (!a->streams[stream].own_names && !(a->name_pages[page].set >> at & 1))
            status = put_new(a, page, at, names[i], tags[i]);
        if (status == 1)
            status = put_slowly(a, block, first.off, stream, names[i], page, other);
        if (status != NKV_OK) return i;
    }
    return count;
}

void nkv_name_drop(nkv_arena *a, uint32_t stream, uint64_t name) {
    uint32_t cell = cell_of(a, stream, name, nkv_name_tag(a, stream, name));
    if (cell) clear_cell(a, cell / NKV_PAGE_BLOCKS, cell % NKV_PAGE_BLOCKS);
}

/* Remove the names of blocks from `len` on; whether any is left. */
static int cut_naming(nkv_arena *a, nkv_naming *n, uint32_t len, uint32_t end) {
    int left = 0;
    uint32_t last = (end + NKV_PAGE_BLOCKS - 1) / NKV_PAGE_BLOCKS;
    for (uint32_t index = len / NKV_PAGE_BLOCKS; index < last && index < n->cap; index++) {
        uint32_t page = page_at(a, n, index);
        uint32_t first = index * NKV_PAGE_BLOCKS;
        if (!page) continue;
        for (uint32_t i = len > first ? len - first : 0; i < NKV_PAGE_BLOCKS; i++)
            if (a->name_pages[page].set >> i & 1) clear_cell(a, page, i);
        if (a->name_pages[page].set) left = 1;
        else give_page(a, n, index);
    }
    for (uint32_t index = 0; !left && index < len / NKV_PAGE_BLOCKS && index < n->cap; index++)
        left = page_at(a, n, index) != 0;
    return left;
}

static void drop_naming(nkv_arena *a, nkv_run *r, uint32_t at) {
    nkv_naming *namings = nkv_namings(a, r);
    if (namings[at].cap > 1) nkv_heap_give(a, namings[at].dir, namings[at].cap * sizeof(uint32_t));
    r->naming_count--;
    memmove(&namings[at], &namings[at + 1], (size_t)(r->naming_count - at) * sizeof *namings);
    if (r->naming_count == 0) nkv_no_room(a, &r->naming_room, &r->names);
}

void nkv_names_cut(nkv_arena *a, nkv_run *r, uint32_t len) {
    for (uint32_t at = r->naming_count; at-- > 0;)
        if (!cut_naming(a, nkv_namings(a, r) + at, len, r->len)) drop_naming(a, r, at);
}

void nkv_names_purge(nkv_arena *a, nkv_run *r) {
    for (uint32_t at = r->naming_count; at-- > 0;) {
        nkv_naming *n = nkv_namings(a, r) + at;
        if (!n->stream || a->streams[n->stream].state == NKV_OPEN) continue;
        cut_naming(a, n, 0, r->len);
        drop_naming(a, r, at);
    }
}
