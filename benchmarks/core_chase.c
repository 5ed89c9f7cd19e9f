/* What memory itself costs: dependent reads over a region that no cache holds, and a way to empty
 * the caches. Compiled by `benchmarks.core_limits` into `.bench/`. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LINE 64

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* One cycle through all lines of a new region in random order; NULL without memory. */
void *chase_make(size_t bytes, int huge) {
    size_t lines = bytes / LINE, i;
    uint64_t state = 88172645463325252u;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *order = malloc(lines * sizeof *order);
    if (at == MAP_FAILED || order == NULL)
        return NULL;
    madvise(at, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (i = 0; i < lines; i++)
        order[i] = (uint32_t)i;
    for (i = lines - 1; i > 0; i--) {
        size_t j = next_random(&state) % i;
        uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (i = 0; i < lines; i++)
        *(void **)(at + (size_t)order[i] * LINE) = at + (size_t)order[(i + 1) % lines] * LINE;
    free(order);
    return at;
}

/* Nanoseconds a read; `at` moves on. */
double chase_walk(void **at, size_t steps) {
    struct timespec begin, end;
    void *place = *at;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (size_t i = 0; i < steps; i++)
        place = *(void *volatile *)place;
    clock_gettime(CLOCK_MONOTONIC, &end);
    *at = place;
    return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / (double)steps;
}

/* Reads and writes so many bytes, so that nothing else is left in the caches. */
void chase_evict(size_t bytes) {
    static char *region;
    static size_t have;
    if (have < bytes) {
        free(region);
        region = malloc(bytes);
        have = region == NULL ? 0 : bytes;
    }
    for (size_t i = 0; i < have; i += LINE)
        ((volatile char *)region)[i]++;
}
