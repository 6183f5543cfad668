/* harness: checks, drawn numbers and temporary files for the C tests.
 *
 * One program a file: main runs its tests with RUN and returns H_END(). A failed check prints the
 * place and ends the test at hand, not the program. */
#ifndef H3F_TEST_HARNESS_H
#define H3F_TEST_HARNESS_H

#include "context.h"

#include <setjmp.h>
#include <string.h>

extern jmp_buf h_escape;

void h_begin(const char *name);
#define H_END() h_finish(__FILE__) /* the exit status of the program */
int h_finish(const char *file);
__attribute__((format(printf, 3, 4), noreturn)) void h_failed(const char *file, int line,
                                                              const char *format, ...);

#define RUN(test)                  \
    do {                           \
        h_begin(#test);            \
        if (setjmp(h_escape) == 0) \
            test();                \
    } while (0)

#define CHECK(condition)                                    \
    do {                                                    \
        if (!(condition))                                   \
            h_failed(__FILE__, __LINE__, "%s", #condition); \
    } while (0)
#define CHECK_INT(actual, expected)                                                \
    do {                                                                           \
        long long a_ = (long long)(actual), e_ = (long long)(expected);            \
        if (a_ != e_)                                                              \
            h_failed(__FILE__, __LINE__, "%s is %lld, not %lld", #actual, a_, e_); \
    } while (0)
/* The call succeeds on ctx. */
#define CHECK_OK(ctx, call)                                                        \
    do {                                                                           \
        int s_ = (call);                                                           \
        if (s_ != H3F_OK)                                                          \
            h_failed(__FILE__, __LINE__, "%s: %d, %s", #call, s_, h3f_error(ctx)); \
    } while (0)
#define CHECK_TEXT(actual, expected)                                                             \
    do {                                                                                         \
        const char *a_ = (actual), *e_ = (expected);                                             \
        if (strcmp(a_, e_) != 0)                                                                 \
            h_failed(__FILE__, __LINE__, "%s is\n    \"%s\", not\n    \"%s\"", #actual, a_, e_); \
    } while (0)
#define CHECK_HAS(actual, part)                                                                 \
    do {                                                                                        \
        const char *a_ = (actual), *e_ = (part);                                                \
        if (!strstr(a_, e_))                                                                    \
            h_failed(__FILE__, __LINE__, "%s is\n    \"%s\", without\n    \"%s\"", #actual, a_, \
                     e_);                                                                       \
    } while (0)

/* Numbers that are the same in every run. */
typedef struct h_draw {
    uint64_t state;
} h_draw;
uint32_t h_bits(h_draw *draw);
int64_t h_between(h_draw *draw, int64_t least, int64_t most);
float h_normal(h_draw *draw); /* roughly: enough to be unlike each other */
void h_fill(h_draw *draw, float *values, int64_t count);

/* Contexts of every instruction set this processor has; the rest are NULL. Indexed by h3f_isa, 1
 * .. 4. */
h3f_context *h_context(int32_t isa, int32_t threads); /* NULL when the processor lacks it */

/* Largest |a - b| / (1 + |b|); NaN against NaN and equal infinities are no difference. */
double h_difference(const float *actual, const float *expected, int64_t count);

/* A path in this program's own folder, which H_END removes. Valid until the next call. */
const char *h_path(const char *name);
void h_write(const char *path, const void *data, size_t size);

#endif
