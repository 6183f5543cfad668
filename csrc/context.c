#include "context.h"

#include "asan.h"
#include "kernels_table.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#endif
#include <unistd.h>

enum { ALIGNMENT = 64, MAX_THREADS = 256 };

/* Why there is no context: the one piece of state that cannot hang on it. */
static _Thread_local char early_message[sizeof((h3f_context *)0)->message];

/* ---- errors ---- */

/* A cut in the middle of a UTF-8 sequence would make the whole message undecodable. */
static void drop_partial_character(char *text, size_t length) {
    size_t start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (length - (start - 1) < want)
        text[start - 1] = '\0';
}

int h3f_fail(h3f_context *ctx, int code, const char *format, ...) {
    char text[sizeof ctx->message]; /* apart from the message: an argument may point into it */
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length >= (int)sizeof text)
        drop_partial_character(text, sizeof text - 1);
    memcpy(ctx ? ctx->message : early_message, text, sizeof text);
    return code;
}

int h3f_check_fields(h3f_context *ctx, const char *network, const h3f_field *fields, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (fields[i].value < fields[i].least || fields[i].value > fields[i].most)
            return h3f_fail(ctx, H3F_EINVAL, "%s: %s is %d, expected %d to %d", network,
                            fields[i].name, fields[i].value, fields[i].least, fields[i].most);
    return H3F_OK;
}

const char *h3f_error(const h3f_context *ctx) {
    return ctx ? ctx->message : early_message;
}

const char *h3f_version(void) {
    return "0.1.0";
}

/* ---- memory ---- */

typedef struct block_header {
    void *base;  /* what calloc gave */
    size_t size; /* what was asked for */
} block_header;

bool h3f_mul_size(int64_t a, int64_t b, int64_t *product) {
    if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b))
        return false;
    *product = a * b;
    return true;
}

static void note_memory(h3f_context *ctx, long long bytes) {
    long long now = atomic_fetch_add(&ctx->memory_now, bytes) + bytes;
    long long peak = atomic_load(&ctx->memory_peak);
    while (now > peak && !atomic_compare_exchange_weak(&ctx->memory_peak, &peak, now)) {
    }
}

static bool this_one_fails(h3f_context *ctx) {
    return atomic_load(&ctx->fail_allocation) >= 0 &&
           atomic_fetch_sub(&ctx->fail_allocation, 1) == 0;
}

void *h3f_alloc(h3f_context *ctx, size_t bytes, const char *what) {
    /* The header fills the whole alignment unit before the block; calloc, since large fresh blocks
     * come zeroed from the system without being touched. */
    void *base = NULL;
    if (bytes <= SIZE_MAX - 3 * ALIGNMENT && !this_one_fails(ctx))
        base = calloc(1, bytes + 2 * ALIGNMENT);
    if (!base) {
        h3f_fail(ctx, H3F_ENOMEM, "not enough memory for %s (%zu bytes)", what, bytes);
        return NULL;
    }
    unsigned char *block = (unsigned char *)base + 2 * ALIGNMENT - (uintptr_t)base % ALIGNMENT;
    block_header header = {base, bytes};
    memcpy(block - ALIGNMENT, &header, sizeof header);
    ASAN_POISON_MEMORY_REGION(block - ALIGNMENT, ALIGNMENT);
    note_memory(ctx, (long long)bytes);
    return block;
}

void h3f_free(h3f_context *ctx, void *memory) {
    if (!memory)
        return;
    unsigned char *block = memory;
    block_header header;
    ASAN_UNPOISON_MEMORY_REGION(block - ALIGNMENT, ALIGNMENT);
    memcpy(&header, block - ALIGNMENT, sizeof header);
    atomic_fetch_sub(&ctx->memory_now, (long long)header.size);
    free(header.base);
}

int64_t h3f_memory_now(const h3f_context *ctx) {
    return atomic_load(&ctx->memory_now);
}

int64_t h3f_memory_peak(const h3f_context *ctx) {
    return atomic_load(&ctx->memory_peak);
}

void h3f_memory_peak_reset(h3f_context *ctx) {
    atomic_store(&ctx->memory_peak, atomic_load(&ctx->memory_now));
}

/* ---- making one ---- */

/* Efficiency cores would hold up every join of the pool; processors we may not use are none of
 * ours. */
static int32_t performance_cores(void) {
    long cores = 0;
#if defined(__APPLE__)
    int32_t count = 0;
    size_t size = sizeof count;
    if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, NULL, 0) == 0)
        cores = count;
#elif defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        cores = CPU_COUNT(&allowed);
#endif
    if (cores <= 0)
        cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int32_t)cores;
}

void h3f_options_default(h3f_options *options) {
    *options = (h3f_options){.threads = 0, .isa = H3F_ISA_BEST};
}

int h3f_context_new(const h3f_options *options, h3f_context **result) {
    h3f_options chosen;
    h3f_options_default(&chosen);
    if (options)
        chosen = *options;
    if (chosen.threads < 0 || chosen.threads > MAX_THREADS)
        return h3f_fail(NULL, H3F_EINVAL,
                        "threads is %d, allowed are 0 (one per performance core) to %d",
                        chosen.threads, MAX_THREADS);
    const h3f_kernels *kernels = h3f_kernels_for(chosen.isa);
    if (!kernels)
        return h3f_fail(NULL, H3F_EINVAL,
                        "this processor or build does not have instruction set %d (%s)", chosen.isa,
                        h3f_isa_word(chosen.isa));

    h3f_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return h3f_fail(NULL, H3F_ENOMEM, "not enough memory for a context");
    ctx->kernels = kernels;
    atomic_init(&ctx->fail_allocation, -1);
    int status =
        h3f_pool_new(ctx, chosen.threads ? chosen.threads : performance_cores(), &ctx->pool);
    if (status != H3F_OK) {
        h3f_fail(NULL, status, "%s", ctx->message);
        free(ctx);
        return status;
    }
    *result = ctx;
    return H3F_OK;
}

void h3f_context_free(h3f_context *ctx) {
    if (!ctx)
        return;
    h3f_pool_free(ctx, ctx->pool);
    free(ctx);
}

int32_t h3f_threads(const h3f_context *ctx) {
    return h3f_pool_threads(ctx->pool);
}

const char *h3f_isa_name(const h3f_context *ctx) {
    return h3f_isa_word(ctx->kernels->isa);
}

/* ---- cancel, progress, tap ---- */

void h3f_cancel(h3f_context *ctx) {
    atomic_store(&ctx->cancel, 1);
}

void h3f_cancel_clear(h3f_context *ctx) {
    atomic_store(&ctx->cancel, 0);
}

int32_t h3f_cancelled(const h3f_context *ctx) {
    return atomic_load(&ctx->cancel);
}

int h3f_poll(h3f_context *ctx) {
    return atomic_load(&ctx->cancel) ? h3f_fail(ctx, H3F_ECANCELLED, "cancelled") : H3F_OK;
}

void h3f_on_progress(h3f_context *ctx, h3f_progress_fn fn, void *user) {
    ctx->progress = fn;
    ctx->progress_user = user;
}

void h3f_progress(h3f_context *ctx, const char *stage, int64_t done, int64_t total) {
    if (ctx->progress)
        ctx->progress(ctx->progress_user, stage, done, total);
}

void h3f_on_tap(h3f_context *ctx, h3f_tap_fn fn, void *user) {
    ctx->tap = fn;
    ctx->tap_user = user;
}

void h3f_tap(h3f_context *ctx, const char *name, int64_t row, int64_t rows, int64_t total_rows,
             int64_t cols, const float *data) {
    if (ctx->tap)
        ctx->tap(ctx->tap_user, name, row, rows, total_rows, cols, data);
}
