#include "safetensors.h"

#include "json.h"
#include "kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The limit of the format's own implementation: a header of a million tensors is smaller. */
enum { LENGTH_BYTES = 8, MAX_HEADER = 100000000, MAX_DIMS = 8 };

/* ---- the file ---- */

static int map_file(h3f_context *ctx, h3f_safetensors *file) {
    const char *path = file->path;
    /* Not blocking: somebody may name a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT
                   ? h3f_fail(ctx, H3F_EIO, "%s: no such file", path)
                   : h3f_fail(ctx, H3F_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    struct stat info;
    int status = H3F_OK;
    if (fstat(fd, &info) != 0)
        status = h3f_fail(ctx, H3F_EIO, "%s: cannot be examined: %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode))
        status = h3f_fail(ctx, H3F_EIO, "%s: is a folder, not a safetensors file", path);
    else if (!S_ISREG(info.st_mode))
        status = h3f_fail(ctx, H3F_EIO, "%s: is not a regular file", path);
    else if (info.st_size < LENGTH_BYTES)
        status = h3f_fail(ctx, H3F_EFORMAT,
                          "%s: is truncated or not a safetensors file (%lld bytes long)", path,
                          (long long)info.st_size);
    if (status == H3F_OK) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            status = h3f_fail(ctx, H3F_EIO, "%s: cannot be mapped: %s", path, strerror(errno));
        } else {
            file->map = map;
            file->map_size = (size_t)info.st_size;
        }
    }
    close(fd);
    return status;
}

/* What people most often have instead of a safetensors file. */
static const char *guess_format(const h3f_safetensors *file) {
    static const struct {
        const char *magic, *words;
    } known[] = {
        {"GGUF", "a GGUF file"},
        {"PK\x03\x04", "a zip archive, such as torch.save writes"},
        {"version ", "a Git LFS pointer: the file itself was not downloaded"},
        {"<", "a web page"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (memcmp(file->map, known[i].magic, strlen(known[i].magic)) == 0)
            return known[i].words;
    return NULL;
}

static int find_header(h3f_context *ctx, const h3f_safetensors *file, uint64_t *length) {
    *length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        *length = *length << 8 | file->map[i];
    size_t left = file->map_size - LENGTH_BYTES;
    bool brace = left > 0 && file->map[LENGTH_BYTES] == '{';
    if (*length > MAX_HEADER || *length == 0 || (left > 0 && !brace)) {
        const char *guess = guess_format(file);
        if (guess)
            return h3f_fail(ctx, H3F_EFORMAT, "%s: is not a safetensors file but %s", file->path,
                            guess);
        return h3f_fail(ctx, H3F_EFORMAT,
                        "%s: is not a safetensors file (its header would be %" PRIu64
                        " bytes long%s)",
                        file->path, *length, brace ? "" : " and does not begin with '{'");
    }
    if (*length > left)
        return h3f_fail(ctx, H3F_EFORMAT,
                        "%s: is truncated: a header of %" PRIu64
                        " bytes is announced, %zu are there",
                        file->path, *length, left);
    return H3F_OK;
}

/* ---- the header ---- */

typedef struct header {
    h3f_context *ctx;
    h3f_safetensors *file;
    h3f_json json;
    int64_t room;           /* tensors that fit file->tensors */
    const char **meta_keys; /* of __metadata__ */
    int64_t meta_count, meta_room;
    bool has_metadata;
} header;

static int malformed(const header *h) {
    return h3f_fail(h->ctx, H3F_EFORMAT, "%s: has a malformed header: %s (at byte %zu)",
                    h->file->path, h->json.fault, h->json.at + LENGTH_BYTES);
}

/* Room for one more element of *array. */
static int grow(h3f_context *ctx, void **array, int64_t count, int64_t *room, size_t size) {
    if (count < *room)
        return H3F_OK;
    int64_t wanted = *room ? 2 * *room : 64;
    void *bigger = h3f_alloc(ctx, (size_t)wanted * size, "a list of tensors");
    if (!bigger)
        return H3F_ENOMEM;
    if (count)
        memcpy(bigger, *array, (size_t)count * size);
    h3f_free(ctx, *array);
    *array = bigger;
    *room = wanted;
    return H3F_OK;
}

static int parse_metadata(header *h) {
    h3f_json *json = &h->json;
    if (h->has_metadata)
        return h3f_fail(h->ctx, H3F_EFORMAT, "%s: has __metadata__ twice", h->file->path);
    h->has_metadata = true;
    if (!h3f_json_take(json, '{', "__metadata__ is not an object"))
        return malformed(h);
    if (h3f_json_try(json, '}'))
        return H3F_OK;
    do {
        void *keys = h->meta_keys;
        int status = grow(h->ctx, &keys, h->meta_count, &h->meta_room, sizeof *h->meta_keys);
        h->meta_keys = keys;
        if (status != H3F_OK)
            return status;
        const char *key = h3f_json_string(json);
        if (!key || !h3f_json_take(json, ':', "no ':' after a key") || !h3f_json_string(json))
            return malformed(h);
        h->meta_keys[h->meta_count++] = key;
    } while (h3f_json_try(json, ','));
    return h3f_json_take(json, '}', "no ',' or '}' after a value") ? H3F_OK : malformed(h);
}

/* [a, b, ...]: at most `most` integers. */
static bool parse_integers(h3f_json *json, int64_t *values, int32_t most, int32_t *count) {
    *count = 0;
    if (!h3f_json_take(json, '[', "no list where one is due"))
        return false;
    if (h3f_json_try(json, ']'))
        return true;
    do {
        if (*count == most)
            return h3f_json_fail(json, "a list that is too long");
        if (!h3f_json_integer(json, &values[(*count)++]))
            return false;
    } while (h3f_json_try(json, ','));
    return h3f_json_take(json, ']', "no ',' or ']' in a list");
}

typedef struct tensor_fields {
    const char *dtype; /* NULL: not seen */
    bool has_shape, has_offsets;
    int64_t offsets[2];
} tensor_fields;

static bool parse_field(h3f_json *json, tensor_fields *fields, h3f_tensor *tensor) {
    const char *key = h3f_json_string(json);
    if (!key || !h3f_json_take(json, ':', "no ':' after a key"))
        return false;
    if (strcmp(key, "dtype") == 0) {
        if (fields->dtype)
            return h3f_json_fail(json, "dtype is given twice");
        fields->dtype = h3f_json_string(json);
        return fields->dtype != NULL;
    }
    if (strcmp(key, "shape") == 0) {
        if (fields->has_shape)
            return h3f_json_fail(json, "shape is given twice");
        fields->has_shape = true;
        return parse_integers(json, tensor->shape, MAX_DIMS, &tensor->ndim);
    }
    if (strcmp(key, "data_offsets") == 0) {
        int32_t count;
        if (fields->has_offsets)
            return h3f_json_fail(json, "data_offsets is given twice");
        fields->has_offsets = true;
        return parse_integers(json, fields->offsets, 2, &count) &&
               (count == 2 || h3f_json_fail(json, "data_offsets are not two numbers"));
    }
    return h3f_json_fail(json, "a key other than dtype, shape and data_offsets");
}

static bool find_dtype(const char *word, int32_t *dtype) {
    for (*dtype = H3F_F32; *dtype <= H3F_F8_E5M2; ++*dtype)
        if (strcmp(h3f_dtype_word(*dtype), word) == 0)
            return true;
    return false;
}

static int parse_tensor(header *h, const char *name) {
    h3f_json *json = &h->json;
    const char *path = h->file->path;
    h3f_tensor tensor = {.name = name, .file = path};
    tensor_fields fields = {0};
    if (!h3f_json_take(json, '{', "a tensor's entry is not an object"))
        return malformed(h);
    if (!h3f_json_try(json, '}')) {
        do {
            if (!parse_field(json, &fields, &tensor))
                return malformed(h);
        } while (h3f_json_try(json, ','));
        if (!h3f_json_take(json, '}', "no ',' or '}' after a value"))
            return malformed(h);
    }
    if (!fields.dtype || !fields.has_shape || !fields.has_offsets)
        return h3f_fail(h->ctx, H3F_EFORMAT, "%s: tensor '%s' has no %s", path, name,
                        !fields.dtype       ? "dtype"
                        : !fields.has_shape ? "shape"
                                            : "data_offsets");
    if (!find_dtype(fields.dtype, &tensor.dtype))
        return h3f_fail(h->ctx, H3F_EDTYPE, "%s: tensor '%s' has the unknown type '%s'", path, name,
                        fields.dtype);
    int64_t bytes = (int64_t)h3f_dtype_size(tensor.dtype);
    for (int32_t i = 0; i < tensor.ndim; i++)
        if (!h3f_mul_size(bytes, tensor.shape[i], &bytes))
            return h3f_fail(h->ctx, H3F_EFORMAT, "%s: tensor '%s' has an impossible shape", path,
                            name);
    if (fields.offsets[1] < fields.offsets[0] || fields.offsets[1] - fields.offsets[0] != bytes)
        return h3f_fail(h->ctx, H3F_EFORMAT,
                        "%s: tensor '%s' lies at bytes %" PRId64 " to %" PRId64
                        ", its shape and type need %" PRId64 " bytes",
                        path, name, fields.offsets[0], fields.offsets[1], bytes);
    tensor.bytes = bytes;
    /* Where the data begins, as an offset until all are checked. */
    tensor.data = (const void *)(uintptr_t)fields.offsets[0];

    void *tensors = h->file->tensors;
    int status = grow(h->ctx, &tensors, h->file->count, &h->room, sizeof tensor);
    h->file->tensors = tensors;
    if (status == H3F_OK)
        h->file->tensors[h->file->count++] = tensor;
    return status;
}

static int parse_header(header *h) {
    h3f_json *json = &h->json;
    if (!h3f_json_take(json, '{', "the header is not an object"))
        return malformed(h);
    if (!h3f_json_try(json, '}')) {
        do {
            const char *key = h3f_json_string(json);
            if (!key || !h3f_json_take(json, ':', "no ':' after a key"))
                return malformed(h);
            int status =
                strcmp(key, "__metadata__") == 0 ? parse_metadata(h) : parse_tensor(h, key);
            if (status != H3F_OK)
                return status;
        } while (h3f_json_try(json, ','));
        h3f_json_take(json, '}', "no ',' or '}' after a value");
    }
    return h3f_json_end(json) ? H3F_OK : malformed(h);
}

/* ---- what only the whole header shows ---- */

static int compare_words(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const h3f_tensor *const *)a)->name, (*(const h3f_tensor *const *)b)->name);
}

static uintptr_t offset_of(const h3f_tensor *tensor) {
    return (uintptr_t)tensor->data;
}

static int compare_places(const void *a, const void *b) {
    const h3f_tensor *left = *(const h3f_tensor *const *)a, *right = *(const h3f_tensor *const *)b;
    if (offset_of(left) != offset_of(right))
        return offset_of(left) < offset_of(right) ? -1 : 1;
    return left->bytes < right->bytes ? -1 : left->bytes > right->bytes;
}

/* The data is covered without overlap, hole or rest. */
static int check_places(const header *h, const h3f_tensor **order, uint64_t data_bytes) {
    const char *path = h->file->path;
    uint64_t end = 0;
    for (int64_t i = 0; i < h->file->count; i++) {
        uint64_t begin = offset_of(order[i]);
        if (begin < end)
            return h3f_fail(h->ctx, H3F_EFORMAT, "%s: tensor '%s' overlaps tensor '%s'", path,
                            order[i]->name, order[i - 1]->name);
        if (begin > end)
            return h3f_fail(h->ctx, H3F_EFORMAT,
                            "%s: %" PRIu64 " bytes before tensor '%s' belong to no tensor", path,
                            begin - end, order[i]->name);
        end = begin + (uint64_t)order[i]->bytes;
    }
    if (end > data_bytes)
        return h3f_fail(h->ctx, H3F_EFORMAT,
                        "%s: is truncated: its tensors take %" PRIu64 " bytes, %" PRIu64
                        " are there",
                        path, end, data_bytes);
    if (end < data_bytes)
        return h3f_fail(h->ctx, H3F_EFORMAT, "%s: has %" PRIu64 " bytes after the last tensor",
                        path, data_bytes - end);
    return H3F_OK;
}

static int check_header(header *h, uint64_t data_bytes) {
    h3f_safetensors *file = h->file;
    if (h->meta_count > 1)
        qsort(h->meta_keys, (size_t)h->meta_count, sizeof *h->meta_keys, compare_words);
    for (int64_t i = 1; i < h->meta_count; i++) {
        if (strcmp(h->meta_keys[i - 1], h->meta_keys[i]) == 0)
            return h3f_fail(h->ctx, H3F_EFORMAT, "%s: has the metadata key '%s' twice", file->path,
                            h->meta_keys[i]);
    }
    if (file->count == 0)
        return check_places(h, NULL, data_bytes);
    const h3f_tensor **order =
        h3f_alloc(h->ctx, (size_t)file->count * sizeof *order, "a list of tensors");
    if (!order)
        return H3F_ENOMEM;
    for (int64_t i = 0; i < file->count; i++)
        order[i] = &file->tensors[i];
    int status = H3F_OK;
    qsort(order, (size_t)file->count, sizeof *order, compare_names);
    for (int64_t i = 1; i < file->count && status == H3F_OK; i++)
        if (strcmp(order[i - 1]->name, order[i]->name) == 0)
            status = h3f_fail(h->ctx, H3F_EFORMAT, "%s: has tensor '%s' twice", file->path,
                              order[i]->name);
    if (status == H3F_OK) {
        qsort(order, (size_t)file->count, sizeof *order, compare_places);
        status = check_places(h, order, data_bytes);
    }
    h3f_free(h->ctx, order);
    return status;
}

int h3f_safetensors_open(h3f_context *ctx, const char *path, h3f_safetensors *file) {
    size_t path_size = strlen(path) + 1;
    file->path = h3f_alloc(ctx, path_size, "a path");
    if (!file->path)
        return H3F_ENOMEM;
    memcpy(file->path, path, path_size);
    uint64_t length;
    int status = map_file(ctx, file);
    if (status == H3F_OK)
        status = find_header(ctx, file, &length);
    if (status != H3F_OK)
        return status;

    /* Decoded, no string is longer than in the file, its NUL taking the place of a quote. */
    file->strings = h3f_alloc(ctx, (size_t)length + 1, "tensor names");
    if (!file->strings)
        return H3F_ENOMEM;
    header h = {.ctx = ctx, .file = file};
    h.json = (h3f_json){
        .text = file->map + LENGTH_BYTES, .size = (size_t)length, .strings = file->strings};
    const unsigned char *data = file->map + LENGTH_BYTES + length;
    status = parse_header(&h);
    if (status == H3F_OK)
        status = check_header(&h, file->map_size - LENGTH_BYTES - length);
    for (int64_t i = 0; i < file->count; i++)
        file->tensors[i].data = status == H3F_OK ? data + offset_of(&file->tensors[i]) : NULL;
    h3f_free(ctx, h.meta_keys);
    return status;
}

void h3f_safetensors_close(h3f_context *ctx, h3f_safetensors *file) {
    if (file->map) {
        /* munmap has no const in its signature; nothing is written. */
        void *map = (void *)(uintptr_t)file->map;
        munmap(map, file->map_size);
    }
    h3f_free(ctx, file->tensors);
    h3f_free(ctx, file->strings);
    h3f_free(ctx, file->path);
    memset(file, 0, sizeof *file);
}
