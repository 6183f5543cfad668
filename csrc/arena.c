#include "arena.h"

#include "asan.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT = 64 };
#ifdef H3F_WITH_ASAN
enum { RED_ZONE = 64 };
#else
enum { RED_ZONE = 0 };
#endif

void *h3f_arena_take(h3f_arena *arena, size_t bytes) {
    size_t begin = arena->used;
    /* On overflow the count sticks at the top, and the reservation fails. */
    if (bytes > SIZE_MAX - begin - RED_ZONE - ALIGNMENT) {
        assert(!arena->base);
        arena->used = SIZE_MAX - RED_ZONE - ALIGNMENT;
        return NULL;
    }
    arena->used = (begin + bytes + RED_ZONE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!arena->base)
        return NULL;
    assert(arena->used <= arena->size); /* the layout took more than it counted */
    ASAN_UNPOISON_MEMORY_REGION(arena->base + begin, bytes);
    return arena->base + begin;
}

int h3f_arena_reserve(h3f_context *ctx, h3f_arena *arena, const char *phase) {
    assert(!arena->base);
    arena->base = h3f_alloc(ctx, arena->used, phase);
    if (!arena->base)
        return H3F_ENOMEM;
    arena->size = arena->used;
    arena->used = 0;
    ASAN_POISON_MEMORY_REGION(arena->base, arena->size);
    return H3F_OK;
}

void h3f_arena_release(h3f_context *ctx, h3f_arena *arena) {
    if (arena->base)
        ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->size);
    h3f_free(ctx, arena->base);
    memset(arena, 0, sizeof *arena);
}
