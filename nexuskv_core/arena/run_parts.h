/* What the files of a run call of one another; under the run's version. */
#ifndef NKV_RUN_PARTS_H
#define NKV_RUN_PARTS_H

#include <string.h>

#include "run.h"

/* Room for one more of `count` entries of 16 bytes, that are at `inside` with room 0 and else in the
 * heap. 0, or NKV_NO_MEMORY. */
static inline int nkv_room_for_one(nkv_arena *a, uint8_t *room, uint32_t *unit, const void *inside,
                                   uint32_t count) {
    enum { EACH = sizeof(nkv_hold) };
    uint32_t made;
    if (count < 1u << *room) return NKV_OK;
    made = nkv_heap_take(a, (size_t)EACH << (*room + 1));
    if (!made) return NKV_NO_MEMORY;
    memcpy(nkv_heap_at(a, made), *room ? nkv_heap_at(a, *unit) : inside, (size_t)count * EACH);
    if (*room) nkv_heap_give(a, *unit, (size_t)EACH << *room);
    *unit = made;
    *room += 1;
    return NKV_OK;
}

/* Of what has no entry any more. */
static inline void nkv_no_room(nkv_arena *a, uint8_t *room, uint32_t *unit) {
    if (*room) nkv_heap_give(a, *unit, sizeof(nkv_hold) << *room);
    *unit = *room = 0;
}

void nkv_holds_cut(nkv_arena *a, nkv_run *r, uint32_t len);
void nkv_holds_purge(nkv_arena *a, nkv_run *r);
void nkv_names_cut(nkv_arena *a, nkv_run *r, uint32_t len);
void nkv_names_purge(nkv_arena *a, nkv_run *r);

#endif
