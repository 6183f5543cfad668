/* tensor_file: a safetensors file made on the spot, tensor by tensor. */
#ifndef H3F_TEST_TENSOR_FILE_H
#define H3F_TEST_TENSOR_FILE_H

#include "harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

enum { T_MOST = 256, T_AXES = 5 };

typedef struct t_tensor {
    char name[96];
    int32_t axes;
    int64_t shape[T_AXES];
    float *values;
} t_tensor;

typedef struct t_file {
    h_draw draw;
    int32_t count;
    t_tensor tensors[T_MOST];
} t_file;

static inline int64_t t_count(const t_tensor *tensor) {
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->axes; i++)
        count *= tensor->shape[i];
    return count;
}

/* Drawn values, `scale` x about normal + `offset`. */
static inline t_tensor *t_add(t_file *file, float scale, float offset, const char *name, int32_t axes,
                              const int64_t *shape) {
    t_tensor *tensor = &file->tensors[file->count++];
    snprintf(tensor->name, sizeof tensor->name, "%.95s", name);
    tensor->axes = axes;
    memcpy(tensor->shape, shape, (size_t)axes * sizeof *shape);
    tensor->values = malloc((size_t)(t_count(tensor) + 1) * sizeof(float));
    h_fill(&file->draw, tensor->values, t_count(tensor));
    for (int64_t i = 0; i < t_count(tensor); i++)
        tensor->values[i] = tensor->values[i] * scale + offset;
    return tensor;
}

static inline t_tensor *t_find(t_file *file, const char *name) {
    for (int32_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    h_failed(__FILE__, __LINE__, "the file has no tensor '%s'", name);
}

static inline void t_drop(t_file *file, const char *name) {
    t_tensor *tensor = t_find(file, name);
    free(tensor->values);
    *tensor = file->tensors[--file->count];
}

static inline void t_clear(t_file *file) {
    for (int32_t i = 0; i < file->count; i++)
        free(file->tensors[i].values);
    file->count = 0;
}

/* To the nearest, ties to even; no overflow among the values drawn here. */
static inline uint16_t t_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

/* Towards zero is near enough; what is too small becomes zero. */
static inline uint16_t t_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int32_t exponent = (int32_t)(bits >> 23 & 0xFFU) - 112;
    const uint32_t sign = bits >> 16 & 0x8000U;
    return (uint16_t)(exponent < 1 ? sign : sign | (uint32_t)exponent << 10 | (bits >> 13 & 0x3FFU));
}

static inline void t_round(t_file *file, int32_t dtype) {
    for (int32_t i = 0; i < file->count; i++)
        for (int64_t j = 0; j < t_count(&file->tensors[i]); j++) {
            float *value = &file->tensors[i].values[j];
            *value = dtype == H3F_BF16 ? h3f_bf16_to_f32(t_bf16(*value)) : h3f_f16_to_f32(t_f16(*value));
        }
}

static inline size_t t_header(const t_file *file, int32_t dtype, char *out, size_t room) {
    const char *type = dtype == H3F_F32 ? "F32" : dtype == H3F_F16 ? "F16" : "BF16";
    const int64_t element = dtype == H3F_F32 ? 4 : 2;
    size_t used = 0;
    int64_t begin = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const t_tensor *tensor = &file->tensors[i];
        const int64_t end = begin + t_count(tensor) * element;
        used += (size_t)snprintf(out + used, room - used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{",
                                 tensor->name, type);
        for (int32_t axis = 0; axis < tensor->axes; axis++)
            used += (size_t)snprintf(out + used, room - used, "%s%lld", axis ? "," : "",
                                     (long long)tensor->shape[axis]);
        used += (size_t)snprintf(out + used, room - used, "],\"data_offsets\":[%lld,%lld]}", (long long)begin,
                                 (long long)end);
        begin = end;
    }
    used += (size_t)snprintf(out + used, room - used, "}");
    while (used % 8 != 0)
        out[used++] = ' ';
    return used;
}

static inline void t_write(const t_file *file, int32_t dtype, const char *path) {
    static char header[1 << 16];
    FILE *out = fopen(path, "wb");
    CHECK(out);
    const uint64_t length = t_header(file, dtype, header, sizeof header);
    fwrite(&length, sizeof length, 1, out);
    fwrite(header, 1, (size_t)length, out);
    for (int32_t i = 0; i < file->count; i++)
        for (int64_t j = 0; j < t_count(&file->tensors[i]); j++) {
            const float value = file->tensors[i].values[j];
            const uint16_t half = dtype == H3F_BF16 ? t_bf16(value) : t_f16(value);
            if (dtype == H3F_F32)
                fwrite(&value, sizeof value, 1, out);
            else
                fwrite(&half, sizeof half, 1, out);
        }
    CHECK_INT(fclose(out), 0);
}

/* The file, written and mapped; `name` is of this program's folder. */
static inline h3f_checkpoint *t_open(h3f_context *ctx, const t_file *file, int32_t dtype, int32_t component,
                                     const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s", h_path(name));
    t_write(file, dtype, path);
    const char *paths[] = {path};
    h3f_checkpoint *checkpoint = NULL;
    CHECK_OK(ctx, h3f_checkpoint_open(ctx, component, paths, 1, &checkpoint));
    return checkpoint;
}

#endif
