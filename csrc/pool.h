/* pool: the threads of a context.
 *
 * Work is a numbered list of items, split by shape and never by the number of threads, so that results do
 * not depend on how many there are or how loaded the machine is. */
#ifndef H3F_POOL_H
#define H3F_POOL_H

#include "context.h"

/* Runs one item. `scratch` is this thread's own buffer of the size asked for, 64-byte aligned,
 * contents undefined. */
typedef void (*h3f_item_fn)(void *argument, int64_t item, void *scratch);

int h3f_pool_new(h3f_context *ctx, int32_t threads, h3f_pool **pool);
void h3f_pool_free(h3f_context *ctx, h3f_pool *pool);
int32_t h3f_pool_threads(const h3f_pool *pool);

/* fn for 0 .. items-1, in any order, on all threads, the caller's included. Polls the cancel flag between
 * items: H3F_ECANCELLED, with the items that had begun finished. scratch_bytes may be 0; the buffers grow
 * to the largest size asked for and stay (H3F_ENOMEM). Not re-entrant. */
int h3f_pool_run(h3f_context *ctx, int64_t items, size_t scratch_bytes, h3f_item_fn fn, void *argument);

#endif
