/* mock_rows.c - states in rows: four bits an element, as -7.5 .. 7.5 in steps of 1, which every 16-bit format holds exactly and
 * a rotation forth and back leaves recognisable. The mean of n such rows (policy company) has steps of 1/n, by which it is known. */
#include "engine/mock/mock.h"

#include <math.h>
#include <string.h>

#include "kv/codec.h"

uint64_t mock_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Both pairings, a partial rotation at the end of the head with a magnitude, a layer without RoPE, a sliding window. */
static const struct layer { uint8_t pairing; uint32_t rot_begin, rot_dim, window; double base, mscale; } layers[MOCK_LAYERS] = {
    { IS_PAIR_ADJACENT, 0, 8, 0, 10000, 1 },
    { IS_PAIR_HALVES, 4, 4, 0, 500, 1.125 },
    { IS_PAIR_NONE, 0, 0, 0, 0, 0 },
    { IS_PAIR_HALVES, 0, 8, MOCK_WINDOW, 1000, 1 },
};

is_geometry *mock_geometry(void)
{
    is_geometry *g = is_geometry_new(MOCK_PLANES, 0);

    if (!g) return NULL;
    g->n_layers = MOCK_LAYERS;
    for (uint32_t i = 0; i < MOCK_PLANES; i++) {
        const struct layer *l = &layers[i / 2];
        is_plane *p = &g->planes[i];
        int freq = -1;

        *p = (is_plane){ .layer = i / 2, .is_v = i & 1, .freq = 0xffff, .n_heads = MOCK_HEADS, .head_dim = MOCK_HEAD_DIM,
                         .window = l->window };
        if (p->is_v || !l->rot_dim) continue;
        double w[MOCK_HEAD_DIM / 2];
        for (uint32_t k = 0; k < l->rot_dim / 2; k++) w[k] = pow(l->base, -2.0 * k / l->rot_dim);
        if ((freq = is_geometry_add_freqs(g, l->rot_dim / 2, l->mscale, w)) < 0) {
            is_geometry_free(g);
            return NULL;
        }
        p->pairing = l->pairing;
        p->freq = (uint16_t)freq;
        p->rot_begin = l->rot_begin;
        p->rot_dim = l->rot_dim;
    }
    return g;
}

/* Turns the pairs of one head by pos * w * dir; the magnitude multiplies forth and divides back. */
static void turn_head(const struct layer *l, uint32_t pos, int dir, float *head)
{
    uint32_t n = l->rot_dim / 2;

    for (uint32_t k = 0; k < n; k++) {
        double angle = dir * (double)pos * pow(l->base, -2.0 * k / l->rot_dim), mag = dir > 0 ? l->mscale : 1 / l->mscale;
        float *a = head + l->rot_begin + (l->pairing == IS_PAIR_ADJACENT ? 2 * k : k);
        float *b = l->pairing == IS_PAIR_ADJACENT ? a + 1 : a + n;
        double x = *a, y = *b;
        *a = (float)(mag * (x * cos(angle) - y * sin(angle)));
        *b = (float)(mag * (x * sin(angle) + y * cos(angle)));
    }
}

static void turn_row(uint32_t plane, uint32_t pos, int dir, float row[MOCK_WIDTH])
{
    if (plane & 1) return;
    for (int h = 0; h < MOCK_HEADS; h++) turn_head(&layers[plane / 2], pos, dir, row + h * MOCK_HEAD_DIM);
}

void mock_row(const mock *m, uint32_t plane, uint64_t state, uint32_t pos, float out[MOCK_WIDTH])
{
    uint64_t code = state ^ mock_mix(m->seed, plane);

    for (int i = 0; i < MOCK_WIDTH; i++) out[i] = (float)(code >> (4 * i) & 15) - 7.5f;
    turn_row(plane, pos, +1, out);
}

void mock_unrotate(const mock *m, uint32_t plane, uint32_t pos, float row[MOCK_WIDTH])
{
    turn_row(plane, pos, -1, row);
}

void mock_stored_row(const is_segment *s, uint32_t plane, uint32_t token, float out[MOCK_WIDTH])
{
    is_codec codec = is_segment_info(s)->codec;

    for (uint32_t h = 0; h < MOCK_HEADS; h++) {
        const char *from = (const char *)is_segment_head(s, plane, h) + token * is_codec_row_bytes(codec, MOCK_HEAD_DIM);

        is_codec_decode(codec, from, out + h * MOCK_HEAD_DIM, MOCK_HEAD_DIM);
    }
}

/* Can the row be the mean of n captured ones? Values all alike would be the mean of some, but are what damage looks like. */
static bool is_mean(const float row[MOCK_WIDTH], uint32_t n)
{
    bool alike = true;

    for (int i = 0; i < MOCK_WIDTH; i++) {
        double sum = (row[i] + 7.5) * n, r = nearbyint(sum);

        if (!(r >= 0 && r <= 15.0 * n && fabs(sum - r) <= 0.25)) return false;
        alike = alike && row[i] == row[0];
    }
    return !alike || n == 1;
}

uint32_t mock_passes(const is_segment *s)
{
    for (uint32_t n = 1; n <= MOCK_PASSES; n++) {
        bool fits = true;

        for (uint32_t t = 0; t < is_segment_info(s)->n_tokens && fits; t++)
            for (uint32_t p = 0; p < MOCK_PLANES && fits; p++) {
                float row[MOCK_WIDTH];

                mock_stored_row(s, p, t, row);
                fits = is_mean(row, n);
            }
        if (fits) return n;
    }
    return 0;
}

/* The sums of the n rows, whatever rounding made of their mean: the same rows give the same state at every position. */
static bool state_of_mean(const mock *m, const float row[MOCK_WIDTH], uint32_t n, uint64_t *state)
{
    bool ours = true;

    *state = mock_mix(m->seed, n);
    for (int i = 0; i < MOCK_WIDTH; i++) {
        double sum = nearbyint((row[i] + 7.5) * n);

        if (!(sum >= 0 && sum <= 15.0 * n)) ours = false, sum = 0;
        *state = mock_mix(*state, (uint64_t)sum);
    }
    return ours;
}

bool mock_state(const mock *m, uint32_t plane, const float row[MOCK_WIDTH], uint32_t n_passes, uint64_t *state)
{
    if (n_passes > 1) return state_of_mean(m, row, n_passes, state);
    uint64_t code = 0, hash = m->seed;
    bool ours = true;

    for (int i = 0; i < MOCK_WIDTH; i++) {
        double v = row[i] + 7.5, r = nearbyint(v);
        if (!(r >= 0 && r <= 15 && fabs(v - r) <= 0.25)) ours = false;
        else code |= (uint64_t)r << (4 * i);
        int64_t rounded = isfinite(row[i]) ? (int64_t)nearbyint(fmax(-1e6, fmin(1e6, (double)row[i])) * 4) : INT64_MIN;
        hash = mock_mix(hash, (uint64_t)rounded);
    }
    *state = ours ? code ^ mock_mix(m->seed, plane) : hash;
    return ours;
}

uint64_t mock_see(uint64_t seen, uint32_t plane, uint64_t first, uint64_t state)
{
    if (plane == 0) return state;
    return state != first ? mock_mix(seen, state) : seen;
}

is_status mock_check_segment(const mock *m, const is_segment *s, const int32_t *tokens, uint32_t n)
{
    const is_segment_desc *d = is_segment_info(s);

    if (memcmp(d->fingerprint, m->fingerprint, IS_HASH_BYTES) != 0 || !is_geometry_equal(d->geometry, m->geometry))
        return is_fail(INFERSCALE_E_INVALID, "a segment is of another model; encode the fact again with this one");
    if (d->n_tokens != n || memcmp(d->tokens, tokens, n * sizeof *tokens) != 0)
        return is_fail(INFERSCALE_E_INVALID, "a segment holds other tokens than its place in the prompt; encode the fact again");
    return INFERSCALE_OK;
}
