/* What lies where in the arena. Everything refers to everything by number, never by address, so the
 * same bytes are valid at any address, in any process, and in a file. Number 0 is "none".
 */
#ifndef NKV_LAYOUT_H
#define NKV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define NKV_MAGIC 0x31424b56584e4b56ULL
#define NKV_VERSION 2u

enum {
    NKV_PAGE_BLOCKS = 16,      /* blocks a page of keys or names */
    NKV_BUCKET_SLOTS = 8,
    NKV_SPARE_BUCKETS = 64,    /* behind the last one, for what does not fit into it */
    NKV_HEAP_UNIT = 16,        /* bytes */
    NKV_HEAP_CLASSES = 64,
    NKV_MAX_RUN_BLOCKS = 1 << 17,
    NKV_MAX_RUN_HOLDERS = 1 << 16,
    NKV_PIECE_BLOCKS = 64,     /* stored under one version */
    NKV_FORKS = 3,             /* of a run that are at hand without a search */
    NKV_HEADER_BYTES = 1 << 16,
    NKV_GROWING = 7,           /* parts that grow: see memory.c */
};

/* Results of calls; counts are not negative. */
enum {
    NKV_OK = 0,
    NKV_FULL = -3,             /* nothing can be forgotten to make room */
    NKV_NO_MEMORY = -4,
    NKV_BAD_KEY = -6,          /* a caller's key that is none */
    NKV_BUSY = -5,             /* a reader met a writer that did not finish */
};

typedef struct { uint64_t lo, hi; } nkv_key;

/* Buckets in the order of the hashes, which can become more where they are. */
typedef struct {
    uint64_t buckets;
    uint64_t wider;            /* what it is growing to; 0: it is not */
    uint64_t border;           /* hashes of buckets from here on lie as with `wider` buckets */
    uint64_t capacity;         /* buckets there is room for */
    uint64_t at;               /* bytes from the arena's start */
} nkv_extent;

/* A table of (32 bits of hash, number): see table.h. */
typedef struct {
    uint32_t seq;              /* odd while entries move */
    uint32_t spare;
    uint64_t count;
    nkv_extent in;
} nkv_table;

/* The same with less memory and one place to look at: see cells.h. */
enum { NKV_CELL_SLOTS = 10 };
typedef struct {
    uint32_t number[NKV_CELL_SLOTS];   /* 0: free */
    uint16_t low[NKV_CELL_SLOTS];      /* of the hash */
    uint16_t spilled;                  /* entries of this bucket that are in `spill`, */
    uint16_t sieve;                    /* and the lowest four bits of their hashes, a bit each */
} nkv_bucket;
typedef struct {
    uint32_t seq;              /* odd while entries move, in `spill` too */
    uint32_t spare;
    uint64_t count;            /* with what is in `spill` */
    nkv_extent in;
    nkv_table spill;
} nkv_cells;

/* Numbers 1 .. next - 1 are given out or on the free list. */
typedef struct {
    uint64_t at;               /* bytes from the arena's start */
    uint32_t next, capacity;
    uint32_t free, used;
} nkv_pool;

/* Blocks lo .. hi - 1 of a run are at a holder; with a bitmap, those of them whose bit is set. */
typedef struct { uint32_t holder, lo, hi, bits; } nkv_hold;
typedef struct { uint32_t words, spare; uint64_t word[]; } nkv_bits;

/* What a stream calls the blocks of a run: a page, or with cap > 1 a list of pages, 0 for none.
 * Stream 0 has the names that all streams share. */
typedef struct { uint32_t stream, dir, cap, spare; } nkv_naming;
typedef struct {
    uint64_t name[NKV_PAGE_BLOCKS];
    uint32_t run, index;       /* the page has blocks 16 * index and on */
    uint32_t stream;
    uint32_t set;              /* a bit a name */
} nkv_name_page;

/* A stretch of blocks, each the child of the one before it: two cache lines, since a find that
 * nothing is in the cache for waits for every piece of memory that another one leads to. */
typedef struct {
    uint32_t seq;              /* odd while the run changes; goes on when the number is used again */
    uint32_t len;              /* blocks; 0: not in use */
    uint32_t parent;           /* run and block that the first one hangs on */
    uint32_t parent_off;
    uint32_t depth;            /* blocks before the first one */
    uint32_t dir;              /* the one page of keys; with pages_cap > 1, a list of them */
    uint32_t pages_cap;
    uint32_t last_page;        /* of them, where the last key is */
    uint32_t holds, hold_count;        /* nkv_hold, by rising holder, as many as there is room for */
    uint32_t names, naming_count;      /* nkv_naming, by rising stream, likewise */
    uint8_t hold_room, naming_room;    /* powers of two; 0: one, which is in the run itself */
    uint8_t forks;             /* in `fork`; one more than it has room for: there are others */
    uint8_t spare;
    uint32_t cuts;             /* changes whenever a block leaves; goes on likewise */
    uint32_t fork[NKV_FORKS];  /* blocks that something hangs on, or did; the first ones */
    nkv_hold hold;
    nkv_naming naming;
    /* The writer's own. */
    uint32_t first_child, next_sibling, prev_sibling, children;
    uint32_t last_child_off;   /* the last block that a child hangs on, when there are children */
    uint32_t newer, older;     /* of the runs without children, by when they were stored */
} nkv_run;

enum { NKV_UNUSED = 0, NKV_OPEN = 1, NKV_CLOSED = 2 };

typedef struct {
    uint32_t seq;
    uint32_t state;
    uint64_t sequence, at_us;
    uint32_t progress_state;
    uint32_t label, label_bytes;
    uint32_t last_holder;      /* holders of a stream are a list */
    uint32_t own_names;        /* that it does not share */
    uint32_t spare[3];
} nkv_stream;

typedef struct {
    uint32_t stream;
    uint32_t state;
    uint64_t held;             /* blocks */
    uint32_t label, label_bytes;
    uint32_t before;           /* the next of the stream's list */
    uint32_t spare;
} nkv_holder;

typedef struct {
    uint64_t magic;
    uint32_t version, spare;
    uint64_t total_bytes;      /* of the address range */
    uint64_t secret[2];
    uint64_t max_blocks, max_bytes;
    uint64_t blocks;           /* that are there */
    uint64_t forgotten, collisions, refused;
    uint64_t heap_at;
    uint32_t heap_next, heap_capacity, heap_used, heap_spare;   /* in units */
    uint32_t heap_free[NKV_HEAP_CLASSES];
    nkv_pool runs, key_pages, name_pages, streams, holders;
    nkv_table heads;
    nkv_cells names;
    uint32_t newest, oldest;   /* of the runs without children */
    uint32_t open_streams, open_holders;
    uint32_t sweep_at;         /* the run to be swept next */
    uint32_t sweep_left;       /* runs that may still have something of what was closed */
    uint64_t changes;          /* calls that changed something */
} nkv_header;

/* One process's view of an arena. */
typedef struct {
    uint8_t *base;
    uint64_t bytes;
    int fd;                    /* -1: the memory is this process's own */
    int writable;
    nkv_header *h;
    nkv_run *runs;
    nkv_key *keys;             /* a page is 16 of them */
    nkv_name_page *name_pages;
    nkv_stream *streams;
    nkv_holder *holders;
    uint8_t *heap;
    uint64_t touched[NKV_GROWING];       /* of each growing part, how far its memory is there already */
    uint32_t touched_next;     /* of them, the one to look at next */
    void *scratch;             /* of a table that grows */
    size_t scratch_bytes;
} nkv_arena;

typedef struct { uint32_t holder, start, end; } nkv_segment;

static inline nkv_key *nkv_key_page(const nkv_arena *a, uint32_t page) {
    return a->keys + (size_t)page * NKV_PAGE_BLOCKS;
}
static inline void *nkv_heap_at(const nkv_arena *a, uint32_t unit) {
    return a->heap + (size_t)unit * NKV_HEAP_UNIT;
}
static inline int nkv_key_equal(const nkv_key *a, const nkv_key *b) {
    return a->lo == b->lo && a->hi == b->hi;
}

/* A version counter around a change: odd while it lasts. Readers that saw an odd number, or another
 * one afterwards, read again. One writer, so it needs no more than ordered stores.
 */
static inline void nkv_begin(uint32_t *seq) {
    __atomic_store_n(seq, *seq + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void nkv_end(uint32_t *seq) {
    __atomic_store_n(seq, *seq + 1, __ATOMIC_RELEASE);
}
static inline uint32_t nkv_seen(const uint32_t *seq) {
    return __atomic_load_n(seq, __ATOMIC_ACQUIRE);
}
static inline int nkv_same(const uint32_t *seq, uint32_t seen) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return !(seen & 1) && __atomic_load_n(seq, __ATOMIC_RELAXED) == seen;
}

#endif
