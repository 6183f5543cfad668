/* context: what one engine instance owns, and how a failure gets its words.
 *
 * Everything that would otherwise be a global hangs here: threads, kernels chosen for this processor,
 * the cancel flag, the accounting allocator, the message of the last failure. */
#ifndef H3F_CONTEXT_H
#define H3F_CONTEXT_H

#include "h3f.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct h3f_pool h3f_pool;
typedef struct h3f_kernels h3f_kernels;

struct h3f_context {
    h3f_pool *pool;
    const h3f_kernels *kernels;
    atomic_int cancel;
    atomic_llong memory_now, memory_peak;
    h3f_progress_fn progress;
    void *progress_user;
    h3f_tap_fn tap;
    void *tap_user;
    /* Tests: the allocation with this number fails (counted down); negative: none does. */
    atomic_llong fail_allocation;
    char message[1024];
};

/* Sets the message and gives back `code`, so that a callee writes
 *     return h3f_fail(ctx, H3F_ETENSOR, "%s: tensor '%s' has shape %s, expected %s", ...);
 * Callees set, callers pass the code on. */
int h3f_fail(h3f_context *ctx, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Passes a callee's failure on. */
#define H3F_TRY(call)                                                                              \
    do {                                                                                           \
        const int h3f_code_ = (call);                                                              \
        if (h3f_code_ != H3F_OK)                                                                   \
            return h3f_code_;                                                                      \
    } while (0)

/* H3F_ECANCELLED (with its message) when a cancel is pending, else H3F_OK. */
int h3f_poll(h3f_context *ctx);

void h3f_progress(h3f_context *ctx, const char *stage, int64_t done, int64_t total);

/* A no-op when no tap is set. */
void h3f_tap(h3f_context *ctx, const char *name, int64_t row, int64_t rows, int64_t total_rows,
             int64_t cols, const float *data);

/* Accounted, 64-byte aligned, zeroed memory. NULL when there is none left: `what` goes into the message,
 * so the caller just returns H3F_ENOMEM. */
void *h3f_alloc(h3f_context *ctx, size_t bytes, const char *what);
void h3f_free(h3f_context *ctx, void *memory); /* NULL is allowed */

/* a * b, or false on overflow or a negative factor; for sizes that a file or a caller supplies. */
bool h3f_mul_size(int64_t a, int64_t b, int64_t *product);

static inline int64_t h3f_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t h3f_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* A number of a network's config and what it may be. */
typedef struct h3f_field {
    const char *name;
    int32_t value, least, most;
} h3f_field;

/* H3F_EINVAL names the network and the first field that is out of its range. The ranges keep
 * products of two fields far from overflow; what fits together, the tensors' shapes tell. */
int h3f_check_fields(h3f_context *ctx, const char *network, const h3f_field *fields, size_t count);

#endif

