/* safetensors: one mapped file and the list of what is in it.
 *
 * The header is written by strangers: everything in it is checked before anything is believed. */
#ifndef H3F_SAFETENSORS_H
#define H3F_SAFETENSORS_H

#include "context.h"

typedef struct h3f_safetensors {
    char *path;
    const unsigned char *map; /* the whole file */
    size_t map_size;
    h3f_tensor *tensors; /* in the header's order; `name` as in the file, `file` is path */
    int64_t count;
    char *strings; /* what the names point into */
} h3f_safetensors;

/* H3F_EIO: not there, a folder, not readable. H3F_EFORMAT: not a safetensors file, truncated or
 * malformed; H3F_EDTYPE: an element type we have no name for. The message begins with the path.
 * `file` is zeroed by the caller, and to be closed whatever the result. */
int h3f_safetensors_open(h3f_context *ctx, const char *path, h3f_safetensors *file);
void h3f_safetensors_close(h3f_context *ctx, h3f_safetensors *file);

#endif
