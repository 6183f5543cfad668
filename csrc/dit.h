/* dit: the transformer. dit_open.c finds its weights, dit_begin.c and dit_tables.c prepare a
 * request, dit_step.c runs it. */
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

/* One request: what stays the same over its steps, and the memory of a step. */
struct h3f_dit_run {
    h3f_dit *dit;
    h3f_sequence sequence; /* its arrays are ours, positions are none */
    int32_t times;
    int32_t *entry_of;        /* [times][tags] entry in a block's table, -1: no row has this pair */
    int32_t entries;          /* ordered by tag, then time */
    float *tables;            /* [layers][entries][6][hidden] */
    float *final_tables;      /* [times][2][hidden]: shift, scale */
    float *cosine, *sine;     /* [rows, pairs] */
    float *text;              /* [text_rows, hidden], refined */
    float *x;                 /* [rows, hidden] */
    const float **modulation; /* [rows]: into the running block's table */
    float *both;              /* [2 * pairs]: a row of the rotary tap */
    void *scratch;            /* for the projections in and out */
    h3f_block_buffers block;
    h3f_arena arena;
};

/* Numbers the (time, tag) pairs that the masks ask for. entry_of: [count][H3F_TAGS] or NULL. The
 * number of entries. */
int32_t h3f_dit_number_entries(const h3f_time *times, int32_t count, int32_t *entry_of);
/* run->cosine, run->sine. positions: [rows, 3]. */
int h3f_dit_fill_rotary(h3f_dit_run *run, const double *positions);
/* run->entry_of, run->tables, run->final_tables. times: [run->times]. */
int h3f_dit_fill_modulation(const h3f_dit_run *run, const h3f_time *times);

#endif
