/* arena: one block of memory for a phase, laid out before the phase begins.
 *
 * The same code counts and lays out: with `base` NULL h3f_arena_take only adds up, so a phase writes its
 * buffers once, as
 *     static void layout(h3f_arena *a, buffers *b, shape) { b->q = h3f_arena_take(a, n * sizeof *b->q); ... }
 * and runs it twice: to measure, and after h3f_arena_reserve to place. */
#ifndef H3F_ARENA_H
#define H3F_ARENA_H

#include "context.h"

typedef struct h3f_arena {
    unsigned char *base; /* NULL while counting */
    size_t size;         /* bytes owned */
    size_t used;         /* bytes taken, or counted so far */
} h3f_arena;

/* 64-byte aligned; NULL while counting. Red zones between the pieces under AddressSanitizer. */
void *h3f_arena_take(h3f_arena *arena, size_t bytes);
/* [a, b] floats. What overflows is counted as more than there is, so that the reservation fails. */
static inline float *h3f_take_floats(h3f_arena *arena, int64_t a, int64_t b) {
    int64_t count = 0;
    const bool fits = h3f_mul_size(a, b, &count) && count <= INT64_MAX / (int64_t)sizeof(float);
    return h3f_arena_take(arena, fits ? (size_t)count * sizeof(float) : SIZE_MAX);
}
/* Allocates what was counted and starts over. H3F_ENOMEM names `phase` and the size. */
int h3f_arena_reserve(h3f_context *ctx, h3f_arena *arena, const char *phase);
void h3f_arena_release(h3f_context *ctx, h3f_arena *arena);

#endif
