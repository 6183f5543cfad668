#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#if defined(__APPLE__)
#include <pthread/qos.h>
#endif

typedef struct helper {
    pthread_t thread;
    h3f_pool *pool;
    int32_t index;
} helper;

struct h3f_pool {
    int32_t threads; /* the caller's included: it has scratch[0], helper i has scratch[i + 1] */
    int32_t started;
    helper *helpers;
    void **scratch;
    size_t scratch_size;

    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    uint64_t round; /* counts runs: a helper works once in each */
    int32_t busy;   /* helpers that have not finished this round */
    bool stop;

    /* The run at hand: written under the lock before `round` moves on. */
    h3f_item_fn fn;
    void *argument;
    int64_t items;
    atomic_llong next;
    const atomic_int *cancel;
};

static void work(h3f_pool *pool, void *scratch) {
    while (!atomic_load_explicit(pool->cancel, memory_order_relaxed)) {
        int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->items)
            return;
        pool->fn(pool->argument, item, scratch);
    }
}

static void *helper_main(void *argument) {
    const helper *self = argument;
    h3f_pool *pool = self->pool;
    uint64_t seen = 0;
#if defined(__APPLE__)
    pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0); /* performance cores */
#endif
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->stop)
            pthread_cond_wait(&pool->begin, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        work(pool, pool->scratch[self->index + 1]);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->end);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Helpers take no signals: Ctrl-C and its kin belong to the threads of the program we are part of.
 */
static int start_helpers(h3f_context *ctx, h3f_pool *pool) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (pool->started < pool->threads - 1) {
        helper *next = &pool->helpers[pool->started];
        *next = (helper){.pool = pool, .index = pool->started};
        error = pthread_create(&next->thread, NULL, helper_main, next);
        if (error)
            break;
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? h3f_fail(ctx, H3F_ENOMEM, "cannot start thread %d of %d: %s", pool->started + 2,
                            pool->threads, strerror(error))
                 : H3F_OK;
}

int h3f_pool_new(h3f_context *ctx, int32_t threads, h3f_pool **result) {
    h3f_pool *pool = h3f_alloc(ctx, sizeof *pool, "the thread pool");
    if (!pool)
        return H3F_ENOMEM;
    pool->threads = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begin, NULL);
    pthread_cond_init(&pool->end, NULL);
    int status = H3F_ENOMEM;
    pool->helpers = h3f_alloc(ctx, (size_t)threads * sizeof *pool->helpers, "the thread pool");
    if (!pool->helpers)
        goto fail;
    pool->scratch = h3f_alloc(ctx, (size_t)threads * sizeof *pool->scratch, "the thread pool");
    if (!pool->scratch)
        goto fail;
    status = start_helpers(ctx, pool);
    if (status != H3F_OK)
        goto fail;
    *result = pool;
    return H3F_OK;
fail:
    h3f_pool_free(ctx, pool);
    return status;
}

void h3f_pool_free(h3f_context *ctx, h3f_pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->started; i++)
        pthread_join(pool->helpers[i].thread, NULL);
    pthread_cond_destroy(&pool->end);
    pthread_cond_destroy(&pool->begin);
    pthread_mutex_destroy(&pool->lock);
    for (int32_t i = 0; pool->scratch && i < pool->threads; i++)
        h3f_free(ctx, pool->scratch[i]);
    h3f_free(ctx, pool->scratch);
    h3f_free(ctx, pool->helpers);
    h3f_free(ctx, pool);
}

int32_t h3f_pool_threads(const h3f_pool *pool) {
    return pool->threads;
}

static int grow_scratch(h3f_context *ctx, h3f_pool *pool, size_t bytes) {
    if (bytes <= pool->scratch_size)
        return H3F_OK;
    pool->scratch_size = 0; /* should one of them fail, all are asked for again */
    for (int32_t i = 0; i < pool->threads; i++) {
        h3f_free(ctx, pool->scratch[i]);
        pool->scratch[i] = h3f_alloc(ctx, bytes, "a thread's scratch buffer");
        if (!pool->scratch[i])
            return H3F_ENOMEM;
    }
    pool->scratch_size = bytes;
    return H3F_OK;
}

int h3f_pool_run(h3f_context *ctx, int64_t items, size_t scratch_bytes, h3f_item_fn fn,
                 void *argument) {
    h3f_pool *pool = ctx->pool;
    int status = h3f_poll(ctx);
    if (status == H3F_OK)
        status = grow_scratch(ctx, pool, scratch_bytes);
    if (status != H3F_OK)
        return status;
    /* One item is not worth waking anybody. */
    bool together = items > 1 && pool->threads > 1;

    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->argument = argument;
    pool->items = items;
    pool->cancel = &ctx->cancel;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    if (together) {
        pool->busy = pool->threads - 1;
        pool->round++;
        pthread_cond_broadcast(&pool->begin);
    }
    pthread_mutex_unlock(&pool->lock);

    work(pool, pool->scratch[0]);

    if (together) {
        pthread_mutex_lock(&pool->lock);
        while (pool->busy > 0)
            pthread_cond_wait(&pool->end, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
    return h3f_poll(ctx);
}
