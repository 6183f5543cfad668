/* Context, accounted memory, arena and pool. */
#include "arena.h"
#include "asan.h"
#include "harness.h"
#include "kernels_table.h"
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- context ---- */

static void test_defaults_are_best_and_one_thread_a_core(void) {
    h3f_context *ctx = NULL;
    CHECK_OK(NULL, h3f_context_new(NULL, &ctx));
    CHECK(h3f_threads(ctx) >= 1 && h3f_threads(ctx) <= sysconf(_SC_NPROCESSORS_ONLN));
    CHECK_TEXT(h3f_error(ctx), "");
    CHECK(strcmp(h3f_isa_name(ctx), "best") != 0);
    h3f_context_free(ctx);
    h3f_context_free(NULL);
}

static void test_options_out_of_range_are_refused_in_words(void) {
    static const struct {
        h3f_options options;
        const char *sentence;
    } cases[] = {
        {{.threads = -1}, "threads is -1, allowed are 0 (one per performance core) to 256"},
        {{.threads = 257}, "threads is 257, allowed are"},
        {{.isa = 17}, "does not have instruction set 17"},
        {{.isa = -3}, "does not have instruction set -3"},
#ifdef H3F_X86
        {{.isa = H3F_ISA_NEON}, "does not have instruction set 4 (neon)"},
#else
        {{.isa = H3F_ISA_AVX2}, "does not have instruction set 2 (avx2)"},
#endif
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        h3f_context *ctx = NULL;
        CHECK_INT(h3f_context_new(&cases[i].options, &ctx), H3F_EINVAL);
        CHECK(ctx == NULL);
        CHECK_HAS(h3f_error(NULL), cases[i].sentence);
    }
}

static void test_each_instruction_set_tells_its_name(void) {
    static const char *const names[] = {"", "scalar", "avx2", "avx512", "neon"};
    for (int32_t isa = H3F_ISA_SCALAR; isa <= H3F_ISA_NEON; isa++) {
        h3f_context *ctx = h_context(isa, 1);
        if (ctx)
            CHECK_TEXT(h3f_isa_name(ctx), names[isa]);
        h3f_context_free(ctx);
    }
}

static void *fail_elsewhere(void *argument) {
    (void)argument;
    h3f_fail(NULL, H3F_EINVAL, "of another thread");
    return NULL;
}

static void test_messages_without_a_context_are_kept_per_thread(void) {
    pthread_t thread;
    h3f_fail(NULL, H3F_EINVAL, "of this thread");
    CHECK_INT(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    CHECK_TEXT(h3f_error(NULL), "of this thread");
}

static void test_a_message_may_quote_the_one_before_and_is_cut_between_characters(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    CHECK_INT(h3f_fail(ctx, H3F_EIO, "inner %d", 5), H3F_EIO);
    h3f_fail(ctx, H3F_EIO, "outer: %s", h3f_error(ctx));
    CHECK_TEXT(h3f_error(ctx), "outer: inner 5");
    for (int shift = 0; shift < 4; shift++) {
        char text[4096] = "", *end = text + sprintf(text, "%.*s", shift, "aaa");
        for (int i = 0; i < 400; i++)
            end += sprintf(end, "\xF0\x9F\xA6\x8A");
        h3f_fail(ctx, H3F_EIO, "%s", text);
        size_t length = strlen(h3f_error(ctx));
        CHECK(length > 1018 && length < 1024 && (length - (size_t)shift) % 4 == 0);
    }
    h3f_context_free(ctx);
}

static void *cancel_it(void *argument) {
    h3f_cancel(argument);
    return NULL;
}

static void test_cancel_sticks_until_cleared(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    pthread_t thread;
    CHECK_INT(h3f_poll(ctx), H3F_OK);
    CHECK_INT(pthread_create(&thread, NULL, cancel_it, ctx), 0);
    pthread_join(thread, NULL);
    CHECK_INT(h3f_poll(ctx), H3F_ECANCELLED);
    CHECK_INT(h3f_poll(ctx), H3F_ECANCELLED);
    CHECK_INT(h3f_cancelled(ctx), 1);
    h3f_cancel_clear(ctx);
    CHECK_INT(h3f_poll(ctx), H3F_OK);
    h3f_context_free(ctx);
}

static void note_progress(void *user, const char *stage, int64_t done, int64_t total) {
    sprintf(user, "%s %lld/%lld", stage, (long long)done, (long long)total);
}

static void note_tap(void *user, const char *name, int64_t row, int64_t rows, int64_t total_rows,
                     int64_t cols, const float *data) {
    sprintf(user, "%s %lld+%lld of %lld x %lld: %g", name, (long long)row, (long long)rows,
            (long long)total_rows, (long long)cols, (double)data[0]);
}

static void test_progress_and_tap_reach_their_functions(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    char seen[100] = "nothing";
    const float value = 2.5F;
    h3f_progress(ctx, "denoise", 1, 2);
    h3f_tap(ctx, "block.0", 0, 1, 2, 3, &value);
    CHECK_TEXT(seen, "nothing");
    h3f_on_progress(ctx, note_progress, seen);
    h3f_progress(ctx, "denoise", 1, 2);
    CHECK_TEXT(seen, "denoise 1/2");
    h3f_on_tap(ctx, note_tap, seen);
    h3f_tap(ctx, "block.0", 4, 1, 9, 3, &value);
    CHECK_TEXT(seen, "block.0 4+1 of 9 x 3: 2.5");
    h3f_context_free(ctx);
}

/* ---- memory ---- */

static void test_memory_is_aligned_zeroed_and_accounted(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    int64_t before = h3f_memory_now(ctx);
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        unsigned char *memory = h3f_alloc(ctx, bytes, "a test");
        CHECK(memory && (uintptr_t)memory % 64 == 0);
        for (size_t i = 0; i < bytes; i++)
            CHECK(memory[i] == 0);
        memset(memory, 1, bytes);
        CHECK_INT(h3f_memory_now(ctx) - before, bytes);
        h3f_free(ctx, memory);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    h3f_memory_peak_reset(ctx);
    void *a = h3f_alloc(ctx, 1000, "a test"), *b = h3f_alloc(ctx, 500, "a test");
    h3f_free(ctx, a);
    h3f_free(ctx, b);
    h3f_free(ctx, NULL);
    CHECK_INT(h3f_memory_peak(ctx) - before, 1500);
    h3f_memory_peak_reset(ctx);
    CHECK_INT(h3f_memory_peak(ctx), before);
    h3f_context_free(ctx);
}

static void test_memory_that_is_not_there_is_said_in_words(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    CHECK(!h3f_alloc(ctx, SIZE_MAX, "everything"));
    CHECK_TEXT(h3f_error(ctx), "not enough memory for everything (18446744073709551615 bytes)");
    atomic_store(&ctx->fail_allocation, 1);
    void *first = h3f_alloc(ctx, 10, "the first"), *second = h3f_alloc(ctx, 10, "the second");
    void *third = h3f_alloc(ctx, 10, "the third");
    CHECK(first && !second && third);
    CHECK_TEXT(h3f_error(ctx), "not enough memory for the second (10 bytes)");
    h3f_free(ctx, first);
    h3f_free(ctx, third);
    h3f_context_free(ctx);
}

static void test_products_of_sizes_are_checked(void) {
    int64_t product = -1;
    CHECK(h3f_mul_size(3, 4, &product) && product == 12);
    CHECK(h3f_mul_size(0, INT64_MAX, &product) && product == 0);
    CHECK(h3f_mul_size(INT64_MAX, 1, &product) && product == INT64_MAX);
    CHECK(!h3f_mul_size(INT64_MAX / 2 + 1, 2, &product) && product == INT64_MAX);
    CHECK(!h3f_mul_size(-1, 2, &product) && !h3f_mul_size(2, -1, &product));
}

/* ---- arena ---- */

typedef struct layout {
    float *a;
    char *b, *c;
} layout;

static void lay_out(h3f_arena *arena, layout *l) {
    l->a = h3f_arena_take(arena, 10 * sizeof *l->a);
    l->b = h3f_arena_take(arena, 1);
    l->c = h3f_arena_take(arena, 100);
}

static void test_an_arena_places_what_it_counted(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    int64_t before = h3f_memory_now(ctx);
    h3f_arena arena = {0};
    layout l;
    lay_out(&arena, &l);
    CHECK(!l.a && !l.b && !l.c);
    CHECK_OK(ctx, h3f_arena_reserve(ctx, &arena, "a phase"));
    CHECK_INT(h3f_memory_now(ctx) - before, arena.size);
    lay_out(&arena, &l);
    CHECK((uintptr_t)l.a % 64 == 0 && (uintptr_t)l.b % 64 == 0 && (uintptr_t)l.c % 64 == 0);
    CHECK((char *)l.a + 64 <= l.b && l.b + 64 <= l.c);
    memset(l.a, 1, 10 * sizeof *l.a);
    memset(l.c, 1, 100);
#ifdef H3F_WITH_ASAN
    CHECK(__asan_address_is_poisoned(l.b + 1) && __asan_address_is_poisoned(l.c + 100));
    CHECK(!__asan_address_is_poisoned(l.b) && !__asan_address_is_poisoned(l.c + 99));
#endif
    h3f_arena_release(ctx, &arena);
    CHECK_INT(h3f_memory_now(ctx), before);
    CHECK(arena.base == NULL && arena.used == 0);
    h3f_context_free(ctx);
}

static void test_an_arena_too_large_names_its_phase(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    h3f_arena arena = {0};
    h3f_arena_take(&arena, SIZE_MAX / 2);
    h3f_arena_take(&arena, SIZE_MAX / 2);
    h3f_arena_take(&arena, SIZE_MAX / 2);
    CHECK_INT(h3f_arena_reserve(ctx, &arena, "the denoiser"), H3F_ENOMEM);
    CHECK_HAS(h3f_error(ctx), "not enough memory for the denoiser (");
    h3f_arena_release(ctx, &arena);
    h3f_context_free(ctx);
}

/* ---- pool ---- */

enum { ITEMS = 1000 };

typedef struct tally {
    h3f_context *ctx;
    atomic_int counts[ITEMS];
    atomic_int bad_scratch;
    int64_t cancel_at; /* the item that cancels; -1: none */
} tally;

static void count_item(void *argument, int64_t item, void *scratch) {
    tally *t = argument;
    atomic_fetch_add(&t->counts[item], 1);
    if (!scratch || (uintptr_t)scratch % 64 != 0)
        atomic_fetch_add(&t->bad_scratch, 1);
    else
        memset(scratch, (int)item, 500); /* another thread's would be a race */
    if (item == t->cancel_at)
        h3f_cancel(t->ctx);
}

static void test_every_item_runs_once_on_any_number_of_threads(void) {
    for (int32_t threads = 1; threads <= 5; threads++) {
        h3f_context *ctx = h_context(H3F_ISA_SCALAR, threads);
        CHECK_INT(h3f_threads(ctx), threads);
        for (int64_t items = 0; items <= ITEMS; items = items * 3 + 1) {
            tally t = {.ctx = ctx, .cancel_at = -1};
            CHECK_OK(ctx, h3f_pool_run(ctx, items, 500, count_item, &t));
            for (int64_t i = 0; i < ITEMS; i++)
                CHECK_INT(t.counts[i], i < items);
            CHECK_INT(t.bad_scratch, 0);
        }
        h3f_context_free(ctx);
    }
}

static void test_a_cancel_ends_a_run_and_the_next_one_works(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 3);
    for (int64_t at = 0; at < ITEMS; at += 333) {
        tally t = {.ctx = ctx, .cancel_at = at};
        CHECK_INT(h3f_pool_run(ctx, ITEMS, 500, count_item, &t), H3F_ECANCELLED);
        CHECK_INT(t.counts[at], 1);
        tally none = {.ctx = ctx, .cancel_at = -1};
        CHECK_INT(h3f_pool_run(ctx, ITEMS, 500, count_item, &none), H3F_ECANCELLED);
        for (int64_t i = 0; i < ITEMS; i++)
            CHECK_INT(none.counts[i], 0);
        h3f_cancel_clear(ctx);
        CHECK_OK(ctx, h3f_pool_run(ctx, ITEMS, 500, count_item, &none));
    }
    h3f_context_free(ctx);
}

static void test_scratch_grows_and_stays(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 2);
    int64_t before = h3f_memory_now(ctx);
    tally t = {.ctx = ctx, .cancel_at = -1};
    CHECK_OK(ctx, h3f_pool_run(ctx, 10, 1000, count_item, &t));
    CHECK_INT(h3f_memory_now(ctx) - before, 2000);
    CHECK_OK(ctx, h3f_pool_run(ctx, 10, 500, count_item, &t));
    CHECK_INT(h3f_memory_now(ctx) - before, 2000);
    CHECK_OK(ctx, h3f_pool_run(ctx, 10, 3000, count_item, &t));
    CHECK_INT(h3f_memory_now(ctx) - before, 6000);
    for (int64_t n = 0; n < 2; n++) {
        atomic_store(&ctx->fail_allocation, n);
        CHECK_INT(h3f_pool_run(ctx, 10, 10000 * (size_t)(n + 1), count_item, &t), H3F_ENOMEM);
        CHECK_HAS(h3f_error(ctx), "not enough memory for a thread's scratch buffer");
    }
    CHECK_OK(ctx, h3f_pool_run(ctx, 10, 500, count_item, &t));
    CHECK_INT(t.bad_scratch, 0);
    h3f_context_free(ctx);
}

static void test_a_pool_without_memory_leaves_nothing_behind(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 1);
    int64_t before = h3f_memory_now(ctx);
    int status = H3F_ENOMEM;
    for (int64_t n = 0; status != H3F_OK; n++) {
        h3f_pool *pool = NULL;
        atomic_store(&ctx->fail_allocation, n);
        status = h3f_pool_new(ctx, 3, &pool);
        CHECK(status == H3F_OK || (status == H3F_ENOMEM && !pool));
        atomic_store(&ctx->fail_allocation, -1);
        if (status == H3F_OK)
            CHECK(n == 3);
        h3f_pool_free(ctx, pool);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    h3f_context_free(ctx);
}

/* Signals are for the host's threads: a helper must not be the one that gets Ctrl-C. */
static void note_mask(void *argument, int64_t item, void *scratch) {
    (void)scratch;
    tally *t = argument;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    atomic_fetch_add(&t->counts[sigismember(&blocked, SIGINT) ? 1 : 0], 1);
    while (item < 2 && atomic_load(&t->counts[0]) + atomic_load(&t->counts[1]) < 2)
        sched_yield(); /* until both threads have an item */
}

static void test_helpers_take_no_signals(void) {
    h3f_context *ctx = h_context(H3F_ISA_SCALAR, 2);
    tally t = {.ctx = ctx, .cancel_at = -1};
    CHECK_OK(ctx, h3f_pool_run(ctx, 2, 0, note_mask, &t));
    CHECK_INT(t.counts[0], 1);
    CHECK_INT(t.counts[1], 1);
    h3f_context_free(ctx);
}

int main(void) {
    RUN(test_defaults_are_best_and_one_thread_a_core);
    RUN(test_options_out_of_range_are_refused_in_words);
    RUN(test_each_instruction_set_tells_its_name);
    RUN(test_messages_without_a_context_are_kept_per_thread);
    RUN(test_a_message_may_quote_the_one_before_and_is_cut_between_characters);
    RUN(test_cancel_sticks_until_cleared);
    RUN(test_progress_and_tap_reach_their_functions);
    RUN(test_memory_is_aligned_zeroed_and_accounted);
    RUN(test_memory_that_is_not_there_is_said_in_words);
    RUN(test_products_of_sizes_are_checked);
    RUN(test_an_arena_places_what_it_counted);
    RUN(test_an_arena_too_large_names_its_phase);
    RUN(test_every_item_runs_once_on_any_number_of_threads);
    RUN(test_a_cancel_ends_a_run_and_the_next_one_works);
    RUN(test_scratch_grows_and_stays);
    RUN(test_a_pool_without_memory_leaves_nothing_behind);
    RUN(test_helpers_take_no_signals);
    return H_END();
}
