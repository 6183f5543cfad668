/* json: a scanner for the little JSON that a safetensors header is.
 *
 * Strict: no comments, no trailing commas, no number but a plain non-negative integer, UTF-8
 * throughout. After a failure `fault` says what is wrong and `at` where; every function then fails.
 */
#ifndef H3F_JSON_H
#define H3F_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct h3f_json {
    const unsigned char *text;
    size_t size, at;
    const char *fault; /* NULL: none so far */
    char *strings; /* where decoded strings go, one after the other: room for `size` + 1 bytes */
    size_t strings_used;
} h3f_json;

/* Skips white space and takes `c`; without it, the fault is `otherwise`. */
bool h3f_json_take(h3f_json *json, char c, const char *otherwise);
/* Skips white space; true, and takes it, when `c` comes next. No fault. */
bool h3f_json_try(h3f_json *json, char c);
/* A string, decoded and NUL-terminated, in json->strings; NULL on a fault. */
const char *h3f_json_string(h3f_json *json);
/* 0 .. INT64_MAX. */
bool h3f_json_integer(h3f_json *json, int64_t *value);
/* Only white space is left. */
bool h3f_json_end(h3f_json *json);
bool h3f_json_fail(h3f_json *json, const char *fault);

#endif
