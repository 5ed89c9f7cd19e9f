/* What the files of a run call of one another; under the run's version. */
#ifndef NKV_RUN_PARTS_H
#define NKV_RUN_PARTS_H

#include "run.h"

void nkv_holds_cut(nkv_arena *a, nkv_run *r, uint32_t len);
void nkv_holds_purge(nkv_arena *a, nkv_run *r);
void nkv_names_cut(nkv_arena *a, nkv_run *r, uint32_t len);
void nkv_names_purge(nkv_arena *a, nkv_run *r);

#endif
