/* geometry.h - the shape of an engine's KV cache: what one token's keys and values are, layer by layer.
 *
 * A geometry is read from the live engine, never guessed from a model's name. It is a list of planes; a plane is the K or the V
 * of one layer. Planes stand in the order layer 0 K, layer 0 V, layer 1 K, ... (latent attention has one plane a layer). */
#ifndef IS_KV_GEOMETRY_H
#define IS_KV_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "kv/codec.h"

enum { IS_PAIR_NONE = 0, IS_PAIR_ADJACENT = 1 /* (2i, 2i+1) */, IS_PAIR_HALVES = 2 /* (i, i + rot_dim/2) */ };

/* Angles of one rotary embedding: pair i turns by w[i] radians per position. Scalings that are linear in the position (llama3
 * factors, linear and YaRN interpolation) are in w; a magnitude (YaRN's mscale) is apart, since it multiplies cos and sin. */
typedef struct is_freqs {
    uint32_t n_pairs;
    double mscale;      /* 1 where there is none */
    double *w;          /* [n_pairs], owned by the geometry */
} is_freqs;

typedef struct is_plane {
    uint32_t layer;     /* the engine's layer index */
    uint8_t is_v;       /* 0 K, 1 V */
    uint8_t pairing;    /* IS_PAIR_*; NONE for V and for layers without RoPE */
    uint16_t freq;      /* index into freqs; 0xffff = none */
    uint32_t n_heads;   /* KV heads */
    uint32_t head_dim;
    uint32_t rot_begin; /* first rotated dim of a head */
    uint32_t rot_dim;   /* rotated dims; 0 = none */
    uint32_t window;    /* sliding window in tokens (a key at p is seen by queries at p .. p + window - 1); 0 = full */
} is_plane;

typedef struct is_geometry {
    uint32_t n_layers, n_planes, n_freqs;
    is_plane *planes;   /* [n_planes] */
    is_freqs *freqs;    /* [n_freqs] */
} is_geometry;

static inline uint32_t is_plane_width(const is_plane *p) { return p->n_heads * p->head_dim; } /* elements of one token */
uint64_t is_geometry_width(const is_geometry *g);   /* elements of one token over all planes */
uint64_t is_geometry_token_bytes(const is_geometry *g, is_codec codec); /* of one token's rows over all planes */

/* A geometry with room for the given counts, zeroed; is_geometry_free frees it. NULL = out of memory. */
is_geometry *is_geometry_new(uint32_t n_planes, uint32_t n_freqs);
void is_geometry_free(is_geometry *g);              /* NULL is allowed */
is_geometry *is_geometry_copy(const is_geometry *g);
/* Adds a frequency table unless an equal one is there; returns its index or -1 (out of memory). w is copied. How many
 * there may be is checked by is_geometry_check. */
int is_geometry_add_freqs(is_geometry *g, uint32_t n_pairs, double mscale, const double *w);

/* Consistent and within limits (<= 4096 planes, head_dim <= 4096, ranges inside the head, pairs even ...). Used on everything
 * that comes from a file. */
is_status is_geometry_check(const is_geometry *g);
/* Little-endian serial form, byte-equal for equal geometries; the hash of it stands for the geometry. */
void is_geometry_write(const is_geometry *g, is_buf *out);
is_status is_geometry_read(const uint8_t *p, size_t n, is_geometry **out);  /* checks; E_CORRUPT */
bool is_geometry_equal(const is_geometry *a, const is_geometry *b);

#endif
