#include "json.h"

bool h3f_json_fail(h3f_json *json, const char *fault) {
    if (!json->fault)
        json->fault = fault;
    return false;
}

static void skip_space(h3f_json *json) {
    while (json->at < json->size) {
        unsigned char c = json->text[json->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return;
        json->at++;
    }
}

bool h3f_json_try(h3f_json *json, char c) {
    if (json->fault)
        return false;
    skip_space(json);
    if (json->at == json->size || json->text[json->at] != (unsigned char)c)
        return false;
    json->at++;
    return true;
}

bool h3f_json_take(h3f_json *json, char c, const char *otherwise) {
    return h3f_json_try(json, c) || h3f_json_fail(json, otherwise);
}

bool h3f_json_end(h3f_json *json) {
    if (json->fault)
        return false;
    skip_space(json);
    return json->at == json->size || h3f_json_fail(json, "text after the end");
}

bool h3f_json_integer(h3f_json *json, int64_t *value) {
    if (json->fault)
        return false;
    skip_space(json);
    size_t begin = json->at;
    int64_t sum = 0;
    while (json->at < json->size && json->text[json->at] >= '0' && json->text[json->at] <= '9') {
        int digit = json->text[json->at] - '0';
        if (sum > (INT64_MAX - digit) / 10)
            return h3f_json_fail(json, "a number beyond 2^63");
        sum = sum * 10 + digit;
        json->at++;
    }
    size_t digits = json->at - begin;
    if (digits == 0)
        return h3f_json_fail(json, "not a non-negative whole number");
    if (digits > 1 && json->text[begin] == '0')
        return h3f_json_fail(json, "a number with a leading zero");
    unsigned char next = json->at < json->size ? json->text[json->at] : ' ';
    if (next == '.' || next == 'e' || next == 'E')
        return h3f_json_fail(json, "not a non-negative whole number");
    *value = sum;
    return true;
}

/* ---- strings ---- */

static void put(h3f_json *json, unsigned char byte) {
    json->strings[json->strings_used++] = (char)byte;
}

static void put_character(h3f_json *json, uint32_t code) {
    if (code < 0x80) {
        put(json, (unsigned char)code);
    } else if (code < 0x800) {
        put(json, (unsigned char)(0xC0 | code >> 6));
        put(json, (unsigned char)(0x80 | (code & 0x3F)));
    } else if (code < 0x10000) {
        put(json, (unsigned char)(0xE0 | code >> 12));
        put(json, (unsigned char)(0x80 | (code >> 6 & 0x3F)));
        put(json, (unsigned char)(0x80 | (code & 0x3F)));
    } else {
        put(json, (unsigned char)(0xF0 | code >> 18));
        put(json, (unsigned char)(0x80 | (code >> 12 & 0x3F)));
        put(json, (unsigned char)(0x80 | (code >> 6 & 0x3F)));
        put(json, (unsigned char)(0x80 | (code & 0x3F)));
    }
}

static bool take_hex4(h3f_json *json, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++) {
        if (json->at == json->size)
            return h3f_json_fail(json, "a string without end");
        unsigned char c = json->text[json->at];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = c - (uint32_t)'0';
        else if (c >= 'a' && c <= 'f')
            digit = c - (uint32_t)'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - (uint32_t)'A' + 10;
        else
            return h3f_json_fail(json, "a bad \\u escape");
        *code = *code << 4 | digit;
        json->at++;
    }
    return true;
}

static bool take_unicode_escape(h3f_json *json) {
    uint32_t code, low;
    if (!take_hex4(json, &code))
        return false;
    if (code == 0)
        return h3f_json_fail(json, "a NUL in a string");
    if (code >= 0xDC00 && code <= 0xDFFF)
        return h3f_json_fail(json, "half a surrogate pair");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (json->size - json->at < 2 || json->text[json->at] != '\\' ||
            json->text[json->at + 1] != 'u')
            return h3f_json_fail(json, "half a surrogate pair");
        json->at += 2;
        if (!take_hex4(json, &low))
            return false;
        if (low < 0xDC00 || low > 0xDFFF)
            return h3f_json_fail(json, "half a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    put_character(json, code);
    return true;
}

static bool take_escape(h3f_json *json) {
    if (json->at == json->size)
        return h3f_json_fail(json, "a string without end");
    switch (json->text[json->at++]) {
    case '"':
        put(json, '"');
        return true;
    case '\\':
        put(json, '\\');
        return true;
    case '/':
        put(json, '/');
        return true;
    case 'b':
        put(json, '\b');
        return true;
    case 'f':
        put(json, '\f');
        return true;
    case 'n':
        put(json, '\n');
        return true;
    case 'r':
        put(json, '\r');
        return true;
    case 't':
        put(json, '\t');
        return true;
    case 'u':
        return take_unicode_escape(json);
    default:
        return h3f_json_fail(json, "a bad escape in a string");
    }
}

/* A sequence of two to four bytes: the shortest one for its character, and no surrogate. */
static bool take_utf8(h3f_json *json) {
    unsigned char lead = json->text[json->at];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (lead < 0xC2 || lead > 0xF4 || json->size - json->at < length)
        return h3f_json_fail(json, "text that is not UTF-8");
    uint32_t code = lead & (0x7FU >> length);
    for (size_t i = 1; i < length; i++) {
        unsigned char c = json->text[json->at + i];
        if ((c & 0xC0) != 0x80)
            return h3f_json_fail(json, "text that is not UTF-8");
        code = code << 6 | (c & 0x3F);
    }
    if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return h3f_json_fail(json, "text that is not UTF-8");
    for (size_t i = 0; i < length; i++)
        put(json, json->text[json->at++]);
    return true;
}

const char *h3f_json_string(h3f_json *json) {
    if (!h3f_json_take(json, '"', "no string where one is due"))
        return NULL;
    const char *begin = json->strings + json->strings_used;
    while (json->at < json->size) {
        unsigned char c = json->text[json->at];
        bool good = true;
        if (c == '"') {
            json->at++;
            put(json, '\0');
            return begin;
        }
        if (c < 0x20) {
            good = h3f_json_fail(json, "a control character in a string");
        } else if (c == '\\') {
            json->at++;
            good = take_escape(json);
        } else if (c >= 0x80) {
            good = take_utf8(json);
        } else {
            put(json, c);
            json->at++;
        }
        if (!good)
            return NULL;
    }
    h3f_json_fail(json, "a string without end");
    return NULL;
}
