/* names: from what files call a tensor to the one name the engine knows it by. */
#ifndef H3F_NAMES_H
#define H3F_NAMES_H

#include "h3f.h"

#include <stdbool.h>

enum { H3F_MAX_NAME = 256 };

/* Which distributions spell a tensor this way. */
typedef enum h3f_spelling {
    H3F_SPELT_BY_ALL,
    H3F_SPELT_OFFICIAL,
    H3F_SPELT_DIFFUSERS
} h3f_spelling;

typedef struct h3f_name {
    char text[H3F_MAX_NAME];
    int32_t spelling; /* h3f_spelling */
    bool up_first;    /* a fused feed-forward projection stored [up; gate] */
} h3f_name;

/* False when the component has no tensor of that name, used or known to be unused. Tensors that
 * diffusers splits keep its leaf on the official path: "blocks.3.attn.to_q.weight". component: any
 * but H3F_ANY. */
bool h3f_canonical_name(int32_t component, const char *name, h3f_name *canonical);

#endif
