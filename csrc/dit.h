/* dit: the weights of the transformer, as dit_open.c finds them and dit_run.c uses them. */
#ifndef H3F_DIT_H
#define H3F_DIT_H

#include "block.h"

enum { H3F_TAGS = 3 };

struct h3f_dit {
    h3f_context *ctx;
    h3f_dit_config config;
    h3f_block_shape shape, refiner_shape; /* the refiner's rows are not rotated */
    h3f_linear video_in, audio_in, text_in;
    h3f_linear time_in, time_out;
    h3f_block *refiner, *blocks;
    h3f_linear *adaln; /* [layers]: [tags][6][hidden] outputs from the time embedding */
    float *refiner_norm, *final_norm;
    h3f_linear final_adaln; /* [shift; scale][hidden] */
    h3f_linear video_out, audio_out;
    h3f_arena vectors;
};

#endif
