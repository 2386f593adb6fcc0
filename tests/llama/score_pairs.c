/* score_pairs.c - what the score of a question's best hit is computed from, one JSON line each, for
 * bench/fit_scores.py:
 *
 *   make build/release/tests/llama_score_pairs
 *   build/release/tests/llama_score_pairs SEED MEMORIES > pairs.jsonl
 *
 * of memories (tests/support/score_sets.h) of one person with 1, 2, 4, 8 and all facts, and of ten
 * people. The embedder is the default one. Nothing is stored. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "embed/calibrate.h"
#include "inferscale.h"
#include "recall/lexical.h"
#include "recall/score.h"
#include "support/score_sets.h"

static void must(is_status st, const char *what)
{
    if (st == INFERSCALE_OK) return;
    fprintf(stderr, "score_pairs: %s\n", what);
    exit(1);
}

typedef struct place {
    is_embedder *e;
    is_calibration c;
    uint32_t dim;
} place;

static void print_best(const place *p, const score_set *s, const char *name,
                       const score_question *q, const is_lexical *words, const float *vecs)
{
    const char *text = q->text;
    float *vec = is_malloc(p->dim * sizeof *vec), dense[SCORE_FACTS];
    double scores[SCORE_FACTS], shares[SCORE_FACTS], grounds[SCORE_FACTS];
    uint32_t companies[SCORE_FACTS], best;
    is_ranked *ranked = NULL;
    bool keep[SCORE_FACTS], right = false;
    size_t n;

    must(is_embedder_embed(p->e, &text, 1, vec), "the question cannot be embedded");
    for (size_t i = 0; i < s->n_facts; i++) {
        double sum = 0;

        for (uint32_t k = 0; k < p->dim; k++) sum += (double)vec[k] * (double)vecs[i * p->dim + k];
        dense[i] = (float)sum;
        keep[i] = true;
    }
    must(is_lexical_score(words, text, scores, shares, companies), "words");
    must(is_score_grounds(dense, companies, s->n_facts, &p->c, grounds), "grounds");
    must(is_fuse(scores, dense, keep, s->n_facts, INFERSCALE_FUSED, 1, &ranked, &n), "ranking");
    best = ranked[0].item;
    for (size_t i = 0; i < q->n_answers; i++) right = right || q->answers[i] == best;
    printf("{\"memory\": \"%s\", \"kind\": \"%s\", \"right\": %s, \"cosine\": %.4f, ", name,
           score_kind_names[q->kind], right ? "true" : "false", (double)dense[best]);
    printf("\"ground\": %.4f, \"share\": %.4f, \"low\": %.4f, \"high\": %.4f, ", grounds[best],
           shares[best], p->c.low, p->c.high);
    printf("\"question\": \"%s\", \"hit\": \"%s\"}\n", text, s->facts[best]);
    is_free(ranked);
    is_free(vec);
}

static void print_set(const place *p, uint64_t seed, uint32_t number, size_t person, size_t size)
{
    score_set *s = score_set_make(seed, number, person, size);
    char name[32] = "ten people";
    is_lexical *words;
    float *vecs;

    if (!s) must(INFERSCALE_E_NOMEM, "out of memory");
    if (size == SCORE_ONE_PERSON) snprintf(name, sizeof name, "one person");
    else if (size) snprintf(name, sizeof name, "%zu", size);
    vecs = is_malloc(s->n_facts * p->dim * sizeof *vecs);
    must(is_embedder_embed(p->e, s->facts, s->n_facts, vecs), "the facts cannot be embedded");
    must(is_lexical_new(&words), "out of memory");
    for (size_t i = 0; i < s->n_facts; i++)
        must(is_lexical_add(words, 0, &s->facts[i], 1), "words");
    for (size_t i = 0; i < s->n_questions; i++)
        print_best(p, s, name, &s->questions[i], words, vecs);
    is_lexical_free(words);
    is_free(vecs);
    score_set_free(s);
}

static const char embedder[] = "all-minilm-l6-v2-f16.gguf";

/* Next to this program is tests/.., where plug-ins are built. */
static void open_embedder(place *p)
{
    const char *models = getenv("INFERSCALE_MODELS"), *home = getenv("HOME");
    char dir[4096], model[4200];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);

    must(n > 0 ? INFERSCALE_OK : INFERSCALE_E_IO, "/proc/self/exe cannot be read");
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    *strrchr(dir, '/') = 0;
    if (models && *models) snprintf(model, sizeof model, "%s/%s", models, embedder);
    else snprintf(model, sizeof model, "%s/.cache/inferscale/models/%s", home ? home : ".", embedder);
    must(is_embedder_open(dir, "llama", model, NULL, 1, &p->e), "the embedder cannot be opened");
    p->dim = is_embedder_dim(p->e);
    must(is_calibration_built_in(p->e, &p->c) ? INFERSCALE_OK : INFERSCALE_E_NOTFOUND,
         "the embedder has no figures of its own");
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = { 1, 2, 4, 8, SCORE_ONE_PERSON, SCORE_TEN_PEOPLE };
    place p;

    if (argc != 3) {
        fprintf(stderr, "usage: llama_score_pairs SEED MEMORIES\n");
        return 2;
    }
    open_embedder(&p);
    for (uint32_t m = 0; m < (uint32_t)strtoul(argv[2], NULL, 10); m++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t person = 0; person < (sizes[i] == SCORE_TEN_PEOPLE ? 2 : 3); person++)
                print_set(&p, strtoull(argv[1], NULL, 10), m, person, sizes[i]);
    is_embedder_close(p.e);
    return 0;
}
