#include "harness.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

jmp_buf h_escape;

static int failures, tests;
static const char *running;
static char folder[256];

void h_begin(const char *name) {
    running = name;
    tests++;
}

void h_failed(const char *file, int line, const char *format, ...) {
    va_list args;
    fprintf(stderr, "%s:%d: %s: ", file, line, running);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    failures++;
    longjmp(h_escape, 1);
}

static void remove_folder(void) {
    DIR *dir = folder[0] ? opendir(folder) : NULL;
    if (!dir)
        return;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove(path);
    }
    closedir(dir);
    rmdir(folder);
}

int h_finish(const char *file) {
    remove_folder();
    printf("%s: %d tests, %d failed\n", file, tests, failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- numbers ---- */

uint32_t h_bits(h_draw *draw) {
    /* splitmix64 */
    uint64_t z = draw->state += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return (uint32_t)(z >> 32);
}

int64_t h_between(h_draw *draw, int64_t least, int64_t most) {
    return least + (int64_t)(h_bits(draw) % (uint64_t)(most - least + 1));
}

float h_normal(h_draw *draw) {
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)h_bits(draw) / 4294967296.0 - 0.5;
    return (float)(sum * 1.7320508);
}

void h_fill(h_draw *draw, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = h_normal(draw);
}

double h_difference(const float *actual, const float *expected, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double a = (double)actual[i], b = (double)expected[i];
        if ((isnan(a) && isnan(b)) || a == b)
            continue;
        double difference = fabs(a - b) / (1 + fabs(b));
        if (!(difference <= worst)) /* a NaN on one side only is the worst there is */
            worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}

/* ---- contexts ---- */

h3f_context *h_context(int32_t isa, int32_t threads) {
    h3f_options options = {.threads = threads, .isa = isa};
    h3f_context *ctx = NULL;
    return h3f_context_new(&options, &ctx) == H3F_OK ? ctx : NULL;
}

/* ---- files ---- */

const char *h_path(const char *name) {
    static char path[1024];
    if (!folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/h3f-test-XXXXXX", base ? base : "/tmp");
        if (!mkdtemp(folder)) {
            perror(folder);
            exit(EXIT_FAILURE);
        }
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

void h_write(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}
