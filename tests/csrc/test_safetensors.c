/* safetensors files: what must be read, and everything that must be refused in words. */
#include "harness.h"
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static h3f_context *ctx;

/* The bytes of a file: announced length, header, `data_bytes` bytes of data. Freed by the caller.
 */
static unsigned char *file_bytes(const char *header, size_t data_bytes, size_t *size) {
    size_t length = strlen(header);
    *size = 8 + length + data_bytes;
    unsigned char *bytes = calloc(1, *size + 1);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    return bytes;
}

static const char *write_file(const char *name, const char *header, size_t data_bytes) {
    size_t size;
    unsigned char *bytes = file_bytes(header, data_bytes, &size);
    const char *path = h_path(name);
    h_write(path, bytes, size);
    free(bytes);
    return path;
}

static int open_and_close(const char *path) {
    int64_t before = h3f_memory_now(ctx);
    h3f_safetensors file = {0};
    int status = h3f_safetensors_open(ctx, path, &file);
    h3f_safetensors_close(ctx, &file);
    CHECK_INT(h3f_memory_now(ctx), before);
    return status;
}

/* ---- what is read ---- */

static void test_tensors_are_found_with_type_shape_and_place(void) {
    const char *path =
        write_file("good.safetensors",
                   "{\"__metadata__\":{\"format\":\"pt\",\"other\":\"\\u00e9\"},\n"
                   " \"b\" : {\"dtype\":\"F32\", \"shape\":[2,3], \"data_offsets\":[4,28]},\t"
                   "\"a\":{\"shape\":[2],\"data_offsets\":[0,4],\"dtype\":\"BF16\"},"
                   "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[28,36]},"
                   "\"empty\":{\"dtype\":\"U8\",\"shape\":[5,0,7],\"data_offsets\":[28,28]}}   ",
                   36);
    h3f_safetensors file = {0};
    CHECK_OK(ctx, h3f_safetensors_open(ctx, path, &file));
    CHECK_INT(file.count, 4);
    const h3f_tensor *b = &file.tensors[0], *a = &file.tensors[1], *scalar = &file.tensors[2];
    CHECK_TEXT(b->name, "b");
    CHECK_TEXT(b->file, path);
    CHECK(b->dtype == H3F_F32 && b->ndim == 2 && b->shape[0] == 2 && b->shape[1] == 3 &&
          b->bytes == 24);
    CHECK(((const unsigned char *)b->data)[0] == 4 && ((const unsigned char *)b->data)[23] == 27);
    CHECK(a->dtype == H3F_BF16 && a->bytes == 4 && ((const unsigned char *)a->data)[0] == 0);
    CHECK(scalar->ndim == 0 && scalar->bytes == 8);
    CHECK(file.tensors[3].bytes == 0 && file.tensors[3].ndim == 3);
    h3f_safetensors_close(ctx, &file);
}

static void test_a_file_without_tensors_is_a_file(void) {
    CHECK_OK(ctx, open_and_close(write_file("empty.safetensors", "{}", 0)));
    CHECK_OK(ctx, open_and_close(write_file("empty.safetensors", "{\"__metadata__\":{}}", 0)));
}

static void test_every_element_type_is_known(void) {
    static const struct {
        const char *word;
        int32_t dtype;
        int bytes;
    } types[] = {
        {"F32", H3F_F32, 4},   {"F16", H3F_F16, 2},         {"BF16", H3F_BF16, 2},
        {"F64", H3F_F64, 8},   {"I8", H3F_I8, 1},           {"U8", H3F_U8, 1},
        {"I16", H3F_I16, 2},   {"U16", H3F_U16, 2},         {"I32", H3F_I32, 4},
        {"U32", H3F_U32, 4},   {"I64", H3F_I64, 8},         {"U64", H3F_U64, 8},
        {"BOOL", H3F_BOOL, 1}, {"F8_E4M3", H3F_F8_E4M3, 1}, {"F8_E5M2", H3F_F8_E5M2, 1},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[200];
        int bytes = types[i].bytes * 3;
        sprintf(header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}",
                types[i].word, bytes);
        h3f_safetensors file = {0};
        CHECK_OK(ctx, h3f_safetensors_open(ctx, write_file("type", header, (size_t)bytes), &file));
        CHECK_INT(file.tensors[0].dtype, types[i].dtype);
        h3f_safetensors_close(ctx, &file);
    }
}

static void test_names_are_decoded(void) {
    const char *path = write_file("names",
                                  "{\"a\\u0041\\n\\\"\\\\\\/\\ud83e\\udd8a\\u00df\\u20ac\xC3\xA9\":"
                                  "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                                  1);
    h3f_safetensors file = {0};
    CHECK_OK(ctx, h3f_safetensors_open(ctx, path, &file));
    CHECK_TEXT(file.tensors[0].name, "aA\n\"\\/\xF0\x9F\xA6\x8A\xC3\x9F\xE2\x82\xAC\xC3\xA9");
    h3f_safetensors_close(ctx, &file);
}

static void test_paths_with_spaces_and_other_letters_work(void) {
    CHECK_OK(ctx,
             open_and_close(write_file("mod\xC3\xA8le \xE6\xA8\xA1 (1).safetensors", "{}", 0)));
}

/* ---- what is refused ---- */

#define T(offsets) "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *sentence;
} malformed[] = {
    {"{", 0, "has a malformed header: no string where one is due (at byte 9)"},
    {"{\"a\"", 0, "no ':' after a key"},
    {"{\"a\":", 0, "a tensor's entry is not an object"},
    {"{\"a\":[]}", 0, "a tensor's entry is not an object"},
    {"{\"a\":{}}", 0, "tensor 'a' has no dtype"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor 'a' has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "tensor 'a' has no data_offsets"},
    {"{\"a\":{\"dtype\":5}}", 0, "no string where one is due"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "dtype is given twice"},
    {"{\"a\":{\"shape\":[],\"shape\":[]}}", 0, "shape is given twice"},
    {"{\"a\":{\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 0, "data_offsets is given twice"},
    {"{\"a\":{\"device\":\"cpu\"}}", 0, "a key other than dtype, shape and data_offsets"},
    {"{\"a\":{\"shape\":2}}", 0, "no list where one is due"},
    {"{\"a\":{\"shape\":[[2]]}}", 0, "not a non-negative whole number"},
    {"{\"a\":{\"shape\":[-2]}}", 0, "not a non-negative whole number"},
    {"{\"a\":{\"shape\":[2.0]}}", 0, "not a non-negative whole number"},
    {"{\"a\":{\"shape\":[2e1]}}", 0, "not a non-negative whole number"},
    {"{\"a\":{\"shape\":[null]}}", 0, "not a non-negative whole number"},
    {"{\"a\":{\"shape\":[007]}}", 0, "a number with a leading zero"},
    {"{\"a\":{\"shape\":[9223372036854775808]}}", 0, "a number beyond 2^63"},
    {"{\"a\":{\"shape\":[99999999999999999999999]}}", 0, "a number beyond 2^63"},
    {"{\"a\":{\"shape\":[1,]}}", 0, "not a non-negative whole number"},
    {"{\"a\":{\"shape\":[1 2]}}", 0, "no ',' or ']' in a list"},
    {"{\"a\":{\"shape\":[1,1,1,1,1,1,1,1,1]}}", 0, "a list that is too long"},
    {"{\"a\":{\"data_offsets\":[0]}}", 0, "data_offsets are not two numbers"},
    {"{\"a\":{\"data_offsets\":[0,1,2]}}", 0, "a list that is too long"},
    {"{\"a\":" T("[0,8]") ",}", 8, "no string where one is due"},
    {"{\"a\":" T("[0,8]") " \"b\":" T("[8,16]") "}", 16, "no ',' or '}' after a value"},
    {"{\"a\":" T("[0,8]") "} x", 8, "text after the end"},
    {"{\"a\":" T("[0,8]") "}{}", 8, "text after the end"},
    {"{\"a\":" T("[0,8]") ",\"a\":" T("[8,16]") "}", 16, "has tensor 'a' twice"},
    {"{\"a\":" T("[0,8]") ",\"\\u0061\":" T("[8,16]") "}", 16, "has tensor 'a' twice"},
    {"{\"a\":" T("[0,8]") ",\"b\":" T("[0,8]") "}", 8, "overlaps tensor"},
    {"{\"a\":" T("[0,8]") ",\"b\":" T("[4,12]") "}", 12, "tensor 'b' overlaps tensor 'a'"},
    {"{\"a\":" T("[0,8]") ",\"b\":" T("[12,20]") "}", 20,
     "4 bytes before tensor 'b' belong to no tensor"},
    {"{\"a\":" T("[4,12]") "}", 12, "4 bytes before tensor 'a' belong to no tensor"},
    {"{\"a\":" T("[0,8]") "}", 9, "has 1 bytes after the last tensor"},
    {"{}", 3, "has 3 bytes after the last tensor"},
    {"{\"a\":" T("[0,8]") "}", 7, "is truncated: its tensors take 8 bytes, 7 are there"},
    {"{\"a\":" T("[0,9]") "}", 9, "lies at bytes 0 to 9, its shape and type need 8 bytes"},
    {"{\"a\":" T("[8,0]") "}", 8, "lies at bytes 8 to 0, its shape and type need 8 bytes"},
    {"{\"a\":" T("[9223372036854775800,9223372036854775807]") "}", 8,
     "its shape and type need 8 bytes"},
    {"{\"a\":" T("[9223372036854775799,9223372036854775807]") "}", 8,
     "before tensor 'a' belong to no tensor"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
     "tensor 'a' has an impossible shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,0,9223372036854775807],\"data_"
     "offsets\":[0,0]}}",
     0, "tensor 'a' has an impossible shape"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":5}}", 0, "no string where one is due"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "no string where one is due"},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "has the metadata key 'a' twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "has __metadata__ twice"},
    {"{\"a\x01\":{}}", 0, "a control character in a string"},
    {"{\"a\\x\":{}}", 0, "a bad escape in a string"},
    {"{\"a\\u12G4\":{}}", 0, "a bad \\u escape"},
    {"{\"a\\u0000\":{}}", 0, "a NUL in a string"},
    {"{\"a\\ud83e\":{}}", 0, "half a surrogate pair"},
    {"{\"a\\ud83e\\u0041\":{}}", 0, "half a surrogate pair"},
    {"{\"a\\udd8a\":{}}", 0, "half a surrogate pair"},
    {"{\"a\\", 0, "a string without end"},
    {"{\"a\\u00", 0, "a string without end"},
    {"{\"a", 0, "a string without end"},
    {"{\"a\x80\":{}}", 0, "text that is not UTF-8"},
    {"{\"a\xC0\xAF\":{}}", 0, "text that is not UTF-8"},
    {"{\"a\xE0\x80\xAF\":{}}", 0, "text that is not UTF-8"},
    {"{\"a\xED\xA0\x80\":{}}", 0, "text that is not UTF-8"},
    {"{\"a\xF4\x90\x80\x80\":{}}", 0, "text that is not UTF-8"},
    {"{\"a\xF8\x88\x80\x80\x80\":{}}", 0, "text that is not UTF-8"},
    {"{\"a\xC3", 0, "text that is not UTF-8"},
    {"{a:1}", 0, "no string where one is due"},
    {"{'a':1}", 0, "no string where one is due"},
    {"{/* */}", 0, "no string where one is due"},
};

static void test_malformed_headers_are_refused_in_words(void) {
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        const char *path =
            write_file("bad file.safetensors", malformed[i].header, malformed[i].data_bytes);
        int status = open_and_close(path);
        if (status != H3F_EFORMAT || !strstr(h3f_error(ctx), malformed[i].sentence))
            h_failed(__FILE__, __LINE__, "header %s\n    gives %d \"%s\", not \"%s\"",
                     malformed[i].header, status, h3f_error(ctx), malformed[i].sentence);
        CHECK(strncmp(h3f_error(ctx), path, strlen(path)) == 0);
    }
}

static void test_an_unknown_type_is_refused(void) {
    const char *path =
        write_file("type", "{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1);
    CHECK_INT(open_and_close(path), H3F_EDTYPE);
    CHECK_HAS(h3f_error(ctx), "tensor 'a' has the unknown type 'F4'");
}

static void test_a_file_cut_at_any_byte_is_refused_with_its_path(void) {
    size_t size;
    unsigned char *bytes = file_bytes(
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":" T("[0,8]") ",\"b\":" T("[8,16]") "}  ", 16, &size);
    for (size_t cut = 0; cut < size; cut++) {
        const char *path = h_path("cut.safetensors");
        h_write(path, bytes, cut);
        CHECK_INT(open_and_close(path), H3F_EFORMAT);
        CHECK(strncmp(h3f_error(ctx), path, strlen(path)) == 0);
        CHECK_HAS(h3f_error(ctx), "truncated");
    }
    h_write(h_path("cut.safetensors"), bytes, size);
    CHECK_OK(ctx, open_and_close(h_path("cut.safetensors")));
    free(bytes);
}

/* Any single byte changed: refused or read, but never a crash, a leak or memory out of bounds. */
static void test_a_file_with_any_byte_changed_does_no_harm(void) {
    size_t size;
    unsigned char *bytes =
        file_bytes("{\"__metadata__\":{\"k\":\"\\u00e9\"},\"a\":" T("[0,8]") "}", 8, &size);
    static const unsigned char values[] = {0, 1, '"', '{', '}', '\\', '9', ',', 0x80, 0xC3, 0xFF};
    for (size_t at = 0; at < size; at++) {
        unsigned char kept = bytes[at];
        for (size_t i = 0; i < sizeof values; i++) {
            bytes[at] = values[i];
            h_write(h_path("changed"), bytes, size);
            int status = open_and_close(h_path("changed"));
            CHECK(status == H3F_OK || status == H3F_EFORMAT || status == H3F_EDTYPE);
        }
        bytes[at] = kept;
    }
    free(bytes);
}

static void test_what_is_not_a_safetensors_file_is_named(void) {
    static const struct {
        const char *bytes;
        size_t size;
        const char *sentence;
    } cases[] = {
        {"", 0, "is truncated or not a safetensors file (0 bytes long)"},
        {"GGUF\x03\0\0\0\0\0\0\0", 12, "is not a safetensors file but a GGUF file"},
        {"PK\x03\x04\0\0\x08\x08\0\0", 10, "but a zip archive, such as torch.save writes"},
        {"version https://git-lfs.github.com/spec/v1\n", 43,
         "but a Git LFS pointer: the file itself was not"},
        {"<!DOCTYPE html><html></html>", 28, "but a web page"},
        {"\x02\0\0\0\0\0\0\0[]", 10,
         "is not a safetensors file (its header would be 2 bytes long and does not"},
        {"\0\0\0\0\0\0\0\0{}", 10, "is not a safetensors file (its header would be 0 bytes long)"},
        {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10,
         "its header would be 18446744073709551615 bytes"},
        {"\x01\xE1\xF5\x05\0\0\0\0{}", 10, "its header would be 100000001 bytes"},
        {"\0\xE1\xF5\x05\0\0\0\0{}", 10,
         "truncated: a header of 100000000 bytes is announced, 2 are there"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = h_path("other");
        h_write(path, cases[i].bytes, cases[i].size);
        CHECK_INT(open_and_close(path), H3F_EFORMAT);
        CHECK_HAS(h3f_error(ctx), cases[i].sentence);
    }
}

static void test_what_cannot_be_opened_is_named(void) {
    char folder[1024], sentence[1100];
    snprintf(folder, sizeof folder, "%s", h_path("a folder"));
    CHECK_INT(open_and_close(folder), H3F_EIO);
    snprintf(sentence, sizeof sentence, "%s: no such file", folder);
    CHECK_TEXT(h3f_error(ctx), sentence);
    CHECK_INT(mkdir(folder, 0700), 0);
    CHECK_INT(open_and_close(folder), H3F_EIO);
    snprintf(sentence, sizeof sentence, "%s: is a folder, not a safetensors file", folder);
    CHECK_TEXT(h3f_error(ctx), sentence);
    CHECK_INT(rmdir(folder), 0);
    CHECK_INT(mkfifo(folder, 0600), 0);
    CHECK_INT(open_and_close(folder), H3F_EIO);
    CHECK_HAS(h3f_error(ctx), "is not a regular file");
    CHECK_INT(unlink(folder), 0);
    CHECK_INT(open_and_close(""), H3F_EIO);
}

static void test_any_allocation_may_fail(void) {
    const char *path =
        write_file("oom", "{\"__metadata__\":{\"k\":\"v\"},\"a\":" T("[0,8]") "}", 8);
    int64_t before = h3f_memory_now(ctx);
    int status = H3F_ENOMEM, failures = 0;
    for (int64_t n = 0; status != H3F_OK; n++) {
        h3f_safetensors file = {0};
        atomic_store(&ctx->fail_allocation, n);
        status = h3f_safetensors_open(ctx, path, &file);
        atomic_store(&ctx->fail_allocation, -1);
        CHECK(status == H3F_OK || status == H3F_ENOMEM);
        failures += status != H3F_OK;
        h3f_safetensors_close(ctx, &file);
        CHECK_INT(h3f_memory_now(ctx), before);
    }
    CHECK(failures >= 4);
}

int main(void) {
    ctx = h_context(H3F_ISA_SCALAR, 1);
    RUN(test_tensors_are_found_with_type_shape_and_place);
    RUN(test_a_file_without_tensors_is_a_file);
    RUN(test_every_element_type_is_known);
    RUN(test_names_are_decoded);
    RUN(test_paths_with_spaces_and_other_letters_work);
    RUN(test_malformed_headers_are_refused_in_words);
    RUN(test_an_unknown_type_is_refused);
    RUN(test_a_file_cut_at_any_byte_is_refused_with_its_path);
    RUN(test_a_file_with_any_byte_changed_does_no_harm);
    RUN(test_what_is_not_a_safetensors_file_is_named);
    RUN(test_what_cannot_be_opened_is_named);
    RUN(test_any_allocation_may_fail);
    h3f_context_free(ctx);
    return H_END();
}
