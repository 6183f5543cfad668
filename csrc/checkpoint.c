#include "checkpoint.h"

#include "names.h"
#include "safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    h3f_tensor tensor; /* name: canonical */
    bool up_first;
} entry;

struct h3f_checkpoint {
    h3f_context *ctx;
    h3f_safetensors *files;
    int32_t file_count;
    int32_t component;
    entry *entries; /* in file order */
    const entry **by_name;
    int64_t count, bytes;
    char *names; /* of the entries, unless those of the files serve */
    const h3f_tensor *official,
        *diffusers; /* the first tensor spelt in the one way and the other */
};

/* ---- opening ---- */

static const char *component_word(int32_t component) {
    static const char *const words[] = {"any", "text encoder", "transformer", "video VAE",
                                        "audio VAE"};
    return words[component];
}

static size_t names_size(const h3f_checkpoint *checkpoint) {
    /* A canonical name is longer than the file's by less than this. */
    enum { LONGEST_GROWTH = 32 };
    size_t size = 0;
    for (int32_t i = 0; i < checkpoint->file_count; i++)
        for (int64_t j = 0; j < checkpoint->files[i].count; j++)
            size += strlen(checkpoint->files[i].tensors[j].name) + LONGEST_GROWTH;
    return size;
}

/* One layout a checkpoint: with shards of both, half of the tensors would be read wrongly. */
static int note_spelling(h3f_checkpoint *checkpoint, const h3f_tensor *tensor, int32_t spelling) {
    if (spelling == H3F_SPELT_OFFICIAL && !checkpoint->official)
        checkpoint->official = tensor;
    if (spelling == H3F_SPELT_DIFFUSERS && !checkpoint->diffusers)
        checkpoint->diffusers = tensor;
    const h3f_tensor *official = checkpoint->official, *diffusers = checkpoint->diffusers;
    if (!official || !diffusers)
        return H3F_OK;
    return h3f_fail(
        checkpoint->ctx, H3F_ETENSOR,
        "%s: tensor '%s' is named in diffusers' way, but '%s' in %s in the official one",
        diffusers->file, diffusers->name, official->name, official->file);
}

static int index_tensor(h3f_checkpoint *checkpoint, const h3f_tensor *tensor, char **names) {
    entry *next = &checkpoint->entries[checkpoint->count];
    *next = (entry){.tensor = *tensor};
    if (checkpoint->component != H3F_ANY) {
        h3f_name name;
        if (!h3f_canonical_name(checkpoint->component, tensor->name, &name))
            return h3f_fail(checkpoint->ctx, H3F_ETENSOR, "%s: tensor '%s' is not one of the %s's",
                            tensor->file, tensor->name, component_word(checkpoint->component));
        int status = note_spelling(checkpoint, tensor, name.spelling);
        if (status != H3F_OK)
            return status;
        size_t size = strlen(name.text) + 1;
        memcpy(*names, name.text, size);
        next->tensor.name = *names;
        next->up_first = name.up_first;
        *names += size;
    }
    checkpoint->bytes += tensor->bytes;
    checkpoint->count++;
    return H3F_OK;
}

static int compare_entries(const void *a, const void *b) {
    const entry *left = *(const entry *const *)a, *right = *(const entry *const *)b;
    return strcmp(left->tensor.name, right->tensor.name);
}

static int sort_entries(h3f_checkpoint *checkpoint) {
    for (int64_t i = 0; i < checkpoint->count; i++)
        checkpoint->by_name[i] = &checkpoint->entries[i];
    if (checkpoint->count > 1)
        qsort(checkpoint->by_name, (size_t)checkpoint->count, sizeof *checkpoint->by_name,
              compare_entries);
    for (int64_t i = 1; i < checkpoint->count; i++) {
        const h3f_tensor *a = &checkpoint->by_name[i - 1]->tensor,
                         *b = &checkpoint->by_name[i]->tensor;
        if (strcmp(a->name, b->name) == 0)
            return h3f_fail(checkpoint->ctx, H3F_ETENSOR, "%s: tensor '%s' is also in %s", b->file,
                            b->name, a->file);
    }
    return H3F_OK;
}

static int index_files(h3f_checkpoint *checkpoint) {
    h3f_context *ctx = checkpoint->ctx;
    int64_t count = 0;
    for (int32_t i = 0; i < checkpoint->file_count; i++)
        count += checkpoint->files[i].count;
    char *names = NULL;
    checkpoint->entries =
        h3f_alloc(ctx, (size_t)count * sizeof *checkpoint->entries, "the tensor index");
    if (!checkpoint->entries)
        return H3F_ENOMEM;
    checkpoint->by_name =
        h3f_alloc(ctx, (size_t)count * sizeof *checkpoint->by_name, "the tensor index");
    if (!checkpoint->by_name)
        return H3F_ENOMEM;
    if (checkpoint->component != H3F_ANY) {
        names = checkpoint->names = h3f_alloc(ctx, names_size(checkpoint), "tensor names");
        if (!names)
            return H3F_ENOMEM;
    }
    for (int32_t i = 0; i < checkpoint->file_count; i++) {
        for (int64_t j = 0; j < checkpoint->files[i].count; j++) {
            int status = index_tensor(checkpoint, &checkpoint->files[i].tensors[j], &names);
            if (status != H3F_OK)
                return status;
        }
    }
    return sort_entries(checkpoint);
}

int h3f_checkpoint_open(h3f_context *ctx, int32_t component, const char *const *paths,
                        int32_t count, h3f_checkpoint **result) {
    if (component < H3F_ANY || component > H3F_AUDIO_VAE)
        return h3f_fail(ctx, H3F_EINVAL, "component is %d, allowed are 0 to %d", component,
                        H3F_AUDIO_VAE);
    if (count < 1)
        return h3f_fail(ctx, H3F_EINVAL, "a checkpoint of %d files", count);
    h3f_checkpoint *checkpoint = h3f_alloc(ctx, sizeof *checkpoint, "a checkpoint");
    if (!checkpoint)
        return H3F_ENOMEM;
    checkpoint->ctx = ctx;
    checkpoint->component = component;
    int status = H3F_ENOMEM;
    checkpoint->files = h3f_alloc(ctx, (size_t)count * sizeof *checkpoint->files, "a checkpoint");
    if (!checkpoint->files)
        goto fail;
    for (int32_t i = 0; i < count; i++) {
        checkpoint->file_count++;
        status = h3f_safetensors_open(ctx, paths[i], &checkpoint->files[i]);
        if (status != H3F_OK)
            goto fail;
    }
    status = index_files(checkpoint);
    if (status != H3F_OK)
        goto fail;
    *result = checkpoint;
    return H3F_OK;
fail:
    h3f_checkpoint_close(checkpoint);
    return status;
}

void h3f_checkpoint_close(h3f_checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    h3f_context *ctx = checkpoint->ctx;
    h3f_free(ctx, checkpoint->names);
    h3f_free(ctx, checkpoint->by_name);
    h3f_free(ctx, checkpoint->entries);
    for (int32_t i = 0; i < checkpoint->file_count; i++)
        h3f_safetensors_close(ctx, &checkpoint->files[i]);
    h3f_free(ctx, checkpoint->files);
    h3f_free(ctx, checkpoint);
}

/* ---- asking ---- */

h3f_context *h3f_checkpoint_context(const h3f_checkpoint *checkpoint) {
    return checkpoint->ctx;
}

int32_t h3f_checkpoint_layout(const h3f_checkpoint *checkpoint) {
    return checkpoint->diffusers ? H3F_LAYOUT_DIFFUSERS : H3F_LAYOUT_OFFICIAL;
}

int64_t h3f_checkpoint_count(const h3f_checkpoint *checkpoint) {
    return checkpoint->count;
}

int64_t h3f_checkpoint_bytes(const h3f_checkpoint *checkpoint) {
    return checkpoint->bytes;
}

int h3f_checkpoint_tensor(const h3f_checkpoint *checkpoint, int64_t index, h3f_tensor *tensor) {
    if (index < 0 || index >= checkpoint->count)
        return h3f_fail(checkpoint->ctx, H3F_EINVAL,
                        "tensor %" PRId64 " of a checkpoint of %" PRId64, index, checkpoint->count);
    *tensor = checkpoint->entries[index].tensor;
    return H3F_OK;
}

static int compare_name(const void *name, const void *b) {
    return strcmp(name, (*(const entry *const *)b)->tensor.name);
}

static const entry *look_up(const h3f_checkpoint *checkpoint, const char *name) {
    const entry *const *found = NULL;
    if (checkpoint->count > 0)
        found = bsearch(name, checkpoint->by_name, (size_t)checkpoint->count,
                        sizeof *checkpoint->by_name, compare_name);
    return found ? *found : NULL;
}

static int missing(const h3f_checkpoint *checkpoint, const char *name) {
    const char *first = checkpoint->files[0].path;
    if (checkpoint->file_count == 1)
        return h3f_fail(checkpoint->ctx, H3F_ETENSOR, "%s: tensor '%s' is missing", first, name);
    return h3f_fail(
        checkpoint->ctx, H3F_ETENSOR, "tensor '%s' is in none of the %d files from %s to %s", name,
        checkpoint->file_count, first, checkpoint->files[checkpoint->file_count - 1].path);
}

int h3f_checkpoint_find(const h3f_checkpoint *checkpoint, const char *name, h3f_tensor *tensor) {
    const entry *found = look_up(checkpoint, name);
    if (!found)
        return missing(checkpoint, name);
    *tensor = found->tensor;
    return H3F_OK;
}

bool h3f_checkpoint_has(const h3f_checkpoint *checkpoint, const char *name) {
    return look_up(checkpoint, name) != NULL;
}

/* ---- views ---- */

static void format_name(char name[H3F_MAX_NAME], const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void format_name(char name[H3F_MAX_NAME], const char *format, va_list args) {
    vsnprintf(name, H3F_MAX_NAME, format, args);
}

static void show_shape(char *text, size_t room, int32_t axes, const int64_t *shape) {
    size_t used = 0;
    for (int32_t i = 0; i < axes && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRId64, i ? ", " : "", shape[i]);
}

static int wrong_shape(const h3f_checkpoint *checkpoint, const h3f_tensor *tensor,
                       const char *expected) {
    char found[8 * 24] = "";
    show_shape(found, sizeof found, tensor->ndim, tensor->shape);
    return h3f_fail(checkpoint->ctx, H3F_ETENSOR, "%s: tensor '%s' has shape [%s], expected [%s]",
                    tensor->file, tensor->name, found, expected);
}

int h3f_check_dtype(const h3f_checkpoint *checkpoint, const h3f_tensor *tensor) {
    if (tensor->dtype == H3F_F32 || tensor->dtype == H3F_F16 || tensor->dtype == H3F_BF16)
        return H3F_OK;
    return h3f_fail(checkpoint->ctx, H3F_EDTYPE,
                    "%s: tensor '%s' is stored as %s, this engine computes with F32, F16 and BF16",
                    tensor->file, tensor->name, h3f_dtype_word(tensor->dtype));
}

/* The tensor `name`, of shape [rows, cols, 1, ...]. */
static int find_shaped(const h3f_checkpoint *checkpoint, const char *name, int64_t rows,
                       int64_t cols, const entry **found) {
    *found = look_up(checkpoint, name);
    if (!*found)
        return missing(checkpoint, name);
    const h3f_tensor *tensor = &(*found)->tensor;
    bool good = tensor->ndim > 0;
    for (int32_t i = 0; i < tensor->ndim || i < 2; i++)
        good = good && (i < tensor->ndim ? tensor->shape[i] : 1) == (i == 0   ? rows
                                                                     : i == 1 ? cols
                                                                              : 1);
    if (!good) {
        char expected[64];
        snprintf(expected, sizeof expected, "%" PRId64 ", %" PRId64, rows, cols);
        return wrong_shape(checkpoint, tensor, expected);
    }
    return h3f_check_dtype(checkpoint, tensor);
}

/* The tensor `name`, of `count` values along one axis. */
static int find_vector(const h3f_checkpoint *checkpoint, const char *name, int64_t count,
                       const entry **found) {
    *found = look_up(checkpoint, name);
    if (!*found)
        return missing(checkpoint, name);
    const h3f_tensor *tensor = &(*found)->tensor;
    int64_t longest = 1, axes = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] != 1) {
            longest = tensor->shape[i];
            axes++;
        }
    }
    if (axes > 1 || longest != count) {
        char expected[32];
        snprintf(expected, sizeof expected, "%" PRId64, count);
        return wrong_shape(checkpoint, tensor, expected);
    }
    return h3f_check_dtype(checkpoint, tensor);
}

static const void *at_row(const h3f_tensor *tensor, int64_t row, int64_t cols) {
    return (const unsigned char *)tensor->data +
           (size_t)(row * cols) * h3f_dtype_size(tensor->dtype);
}

static h3f_mat plain_matrix(const h3f_tensor *tensor, int64_t first_row, int64_t rows,
                            int64_t cols) {
    return (h3f_mat){.data = at_row(tensor, first_row, cols),
                     .dtype = tensor->dtype,
                     .rows = rows,
                     .cols = cols,
                     .group = rows > 0 ? rows : 1,
                     .group_stride = rows};
}

int h3f_find_matrix(const h3f_checkpoint *checkpoint, int64_t rows, int64_t cols, h3f_mat *matrix,
                    const char *format, ...) {
    char name[H3F_MAX_NAME];
    va_list args;
    va_start(args, format);
    format_name(name, format, args);
    va_end(args);
    const entry *found;
    int status = find_shaped(checkpoint, name, rows, cols, &found);
    if (status == H3F_OK)
        *matrix = plain_matrix(&found->tensor, 0, rows, cols);
    return status;
}

int h3f_find_tensor(const h3f_checkpoint *checkpoint, int32_t axes, const int64_t *shape,
                    h3f_tensor *tensor, const char *format, ...) {
    char name[H3F_MAX_NAME], expected[8 * 24] = "";
    va_list args;
    va_start(args, format);
    format_name(name, format, args);
    va_end(args);
    const entry *found = look_up(checkpoint, name);
    if (!found)
        return missing(checkpoint, name);
    bool good = found->tensor.ndim == axes;
    for (int32_t i = 0; good && i < axes; i++)
        good = found->tensor.shape[i] == shape[i];
    if (!good) {
        show_shape(expected, sizeof expected, axes, shape);
        return wrong_shape(checkpoint, &found->tensor, expected);
    }
    H3F_TRY(h3f_check_dtype(checkpoint, &found->tensor));
    *tensor = found->tensor;
    return H3F_OK;
}

int h3f_read_vector(const h3f_checkpoint *checkpoint, int64_t count, float *out, const char *format,
                    ...) {
    char name[H3F_MAX_NAME];
    va_list args;
    va_start(args, format);
    format_name(name, format, args);
    va_end(args);
    const entry *found;
    int status = find_vector(checkpoint, name, count, &found);
    if (status == H3F_OK)
        h3f_widen(found->tensor.dtype, found->tensor.data, count, out);
    return status;
}

/* Joined, so that names of modules and leaves cannot run out of room unnoticed: a name cut short is
 * not found. */
static const char *join(char name[2 * H3F_MAX_NAME], const char *module, const char *leaf) {
    snprintf(name, 2 * H3F_MAX_NAME, "%s.%s", module, leaf);
    return name;
}

/* Three matrices and biases of their own. */
static int find_split_qkv(const h3f_checkpoint *checkpoint, int64_t rows, int64_t cols,
                          h3f_mat parts[3], float *bias, const char *module) {
    static const char *const leaves[3][2] = {
        {"to_q.weight", "to_q.bias"}, {"to_k.weight", "to_k.bias"}, {"to_v.weight", "to_v.bias"}};
    char name[2 * H3F_MAX_NAME];
    for (int i = 0; i < 3; i++) {
        const entry *found;
        int status = find_shaped(checkpoint, join(name, module, leaves[i][0]), rows, cols, &found);
        if (status != H3F_OK)
            return status;
        parts[i] = plain_matrix(&found->tensor, 0, rows, cols);
        if (!bias)
            continue;
        status = find_vector(checkpoint, join(name, module, leaves[i][1]), rows, &found);
        if (status != H3F_OK)
            return status;
        h3f_widen(found->tensor.dtype, found->tensor.data, rows, bias + i * rows);
    }
    return H3F_OK;
}

/* One tensor, head by head: q, k and v of head 0, then of head 1, ... */
static int find_interleaved_qkv(const h3f_checkpoint *checkpoint, int64_t heads, int64_t head_dim,
                                int64_t cols, h3f_mat parts[3], float *bias, const char *module) {
    bool of_vae = checkpoint->component == H3F_VIDEO_VAE;
    const char *weight_leaf = of_vae ? "to_qkv.weight" : "qkv_proj.weight";
    const char *bias_leaf = of_vae ? "to_qkv.bias" : "qkv_proj.bias";
    char name[2 * H3F_MAX_NAME];
    const entry *found;
    int status = find_shaped(checkpoint, join(name, module, weight_leaf), 3 * heads * head_dim,
                             cols, &found);
    if (status != H3F_OK)
        return status;
    for (int64_t i = 0; i < 3; i++) {
        parts[i] = plain_matrix(&found->tensor, i * head_dim, heads * head_dim, cols);
        parts[i].group = head_dim;
        parts[i].group_stride = 3 * head_dim;
    }
    if (!bias)
        return H3F_OK;
    status = find_vector(checkpoint, join(name, module, bias_leaf), 3 * heads * head_dim, &found);
    if (status != H3F_OK)
        return status;
    for (int64_t i = 0; i < 3; i++)
        for (int64_t head = 0; head < heads; head++)
            h3f_widen(found->tensor.dtype, at_row(&found->tensor, (head * 3 + i) * head_dim, 1),
                      head_dim, bias + (i * heads + head) * head_dim);
    return H3F_OK;
}

int h3f_find_qkv(const h3f_checkpoint *checkpoint, int32_t heads, int32_t head_dim, int64_t cols,
                 h3f_mat parts[3], float *bias, const char *format, ...) {
    char module[H3F_MAX_NAME];
    va_list args;
    va_start(args, format);
    format_name(module, format, args);
    va_end(args);
    if (checkpoint->diffusers)
        return find_split_qkv(checkpoint, (int64_t)heads * head_dim, cols, parts, bias, module);
    return find_interleaved_qkv(checkpoint, heads, head_dim, cols, parts, bias, module);
}

int h3f_find_gate_up(const h3f_checkpoint *checkpoint, int64_t ffn, int64_t cols, h3f_mat parts[2],
                     float *bias, const char *format, ...) {
    char module[H3F_MAX_NAME], name[2 * H3F_MAX_NAME];
    va_list args;
    va_start(args, format);
    format_name(module, format, args);
    va_end(args);
    const entry *found;
    int status = find_shaped(checkpoint, join(name, module, "weight"), 2 * ffn, cols, &found);
    if (status != H3F_OK)
        return status;
    int64_t gate = found->up_first ? ffn : 0;
    parts[0] = plain_matrix(&found->tensor, gate, ffn, cols);
    parts[1] = plain_matrix(&found->tensor, ffn - gate, ffn, cols);
    if (!bias)
        return H3F_OK;
    status = find_vector(checkpoint, join(name, module, "bias"), 2 * ffn, &found);
    if (status != H3F_OK)
        return status;
    h3f_widen(found->tensor.dtype, at_row(&found->tensor, gate, 1), ffn, bias);
    h3f_widen(found->tensor.dtype, at_row(&found->tensor, ffn - gate, 1), ffn, bias + ffn);
    return H3F_OK;
}
