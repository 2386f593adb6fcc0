/* calibrate.c - see calibrate.h.
 *
 * Every question of the list is held against every fact. 32 pairs belong together, 992 do not.
 * low is 4.5 standard deviations above the mean of those that do not: the best of some hundred
 * facts comes near it, also where they are about the same kind of life as the question. high is
 * the median of those that do. The sentences are about invented people and are used for nothing
 * else. */
#include "embed/calibrate.h"

#include <math.h>
#include <string.h>

#include "base/sort.h"

const char *const is_calibration_texts[IS_CALIBRATION_TEXTS] = {
    "Which instrument does Clara play?",
    "Clara practises the violin for an hour every evening.",
    "Where does Marek work?",
    "Marek is an engineer at the waterworks in Lublin.",
    "What is my sister allergic to?",
    "My sister cannot eat shellfish; it makes her throat swell.",
    "When is the rent due?",
    "The landlord expects the money on the third day of each month.",
    "What pet does Yuki have?",
    "Yuki adopted a grey cat from the animal shelter.",
    "How does Paul get to the office?",
    "Paul cycles to work unless it snows.",
    "Which language is Fatima learning?",
    "Fatima takes Portuguese lessons on Tuesdays.",
    "What did Tom break last winter?",
    "Tom broke his ankle while skiing in January.",
    "Who is Elena married to?",
    "Elena and Victor had their wedding in a small chapel.",
    "Which colour does Ingrid want for her kitchen?",
    "Ingrid is going to paint the kitchen walls dark green.",
    "What is the name of Ruben's boat?",
    "Ruben called his sailing boat Albatross.",
    "Does Priya drink coffee?",
    "Priya prefers black tea and never touches coffee.",
    "What does Leo want to study?",
    "Leo hopes to read physics at university next year.",
    "Which film did we see on Friday?",
    "On Friday evening we watched an old western at the cinema.",
    "Where are the spare keys?",
    "The spare keys hang behind the boiler in the cellar.",
    "What is Oskar's favourite dessert?",
    "Oskar loves warm apple strudel above all other sweets.",
    "Which medicine does grandmother take?",
    "Grandmother takes a pill against high blood pressure each morning.",
    "What is wrong with the car?",
    "The brakes of the car squeal and the mechanic will look at them.",
    "Where did Amara grow up?",
    "Amara spent her childhood in a fishing village near Dakar.",
    "What sport does Kenji play?",
    "Kenji is the goalkeeper of his school's handball team.",
    "Which book did Nadia recommend?",
    "Nadia said that everybody should read the novel about the lighthouse.",
    "What time does the shop close?",
    "The bakery on the corner shuts at six in the evening.",
    "How old is Hugo's daughter?",
    "Hugo's little girl turned seven in March.",
    "What is the plan for the summer holidays?",
    "They will spend August hiking through the Pyrenees.",
    "Which phone should I buy for my father?",
    "My father needs a telephone with large buttons, as he sees badly.",
    "Why did Greta quit her job?",
    "Greta resigned because her boss shouted at everybody.",
    "What grows in Samuel's garden?",
    "Samuel planted tomatoes, beans and a row of sunflowers.",
    "Who repairs the roof?",
    "A carpenter from the next village is mending the tiles on the roof.",
    "Is Lena afraid of flying?",
    "Lena takes the train, because aeroplanes frighten her.",
    "What does the contract say about overtime?",
    "Under the agreement every extra hour is paid one and a half times.",
    "Which band is Diego in?",
    "Diego plays the drums with a jazz quartet called Blue Heron.",
    "How much does the flat cost?",
    "They pay nine hundred a month for two rooms by the river.",
};

/* all-minilm-l6-v2-f16 as set-up makes it. `build/release/tests/llama_test_score` measures it
 * again, prints both figures, and fails where these differ. */
static const struct { const char *fingerprint; is_calibration c; } built_in[] = {
    { "c3c0acee85026cee262b8ff66e49b1b0f9e68a34d97a5fa651a0bb5b5daa96a1", { 0.4647, 0.6560 } },
};

static const double DEVIATIONS = 4.5, LEAST_SPREAD = 0.02;

static double dot(const float *a, const float *b, uint32_t dim)
{
    double sum = 0;

    for (uint32_t i = 0; i < dim; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

is_calibration is_calibration_of(const float *vecs, uint32_t dim)
{
    const size_t n = IS_CALIBRATION_PAIRS;
    double related[IS_CALIBRATION_PAIRS], sum = 0, squares = 0, mean;
    is_calibration c;

    for (size_t q = 0; q < n; q++)
        for (size_t f = 0; f < n; f++) {
            const double d = dot(vecs + 2 * q * dim, vecs + (2 * f + 1) * dim, dim);

            if (q == f) related[q] = d;
            else sum += d, squares += d * d;
        }
    mean = sum / (double)(n * (n - 1));
    c.low = mean + DEVIATIONS * sqrt(fmax(0, squares / (double)(n * (n - 1)) - mean * mean));
    is_sort(related, n, sizeof *related, by_value);
    c.high = (related[n / 2 - 1] + related[n / 2]) / 2;
    /* An embedder that does not tell them apart: hardly anything is near. */
    if (c.high < c.low + LEAST_SPREAD) c.high = c.low + LEAST_SPREAD;
    return c;
}

bool is_calibration_valid(const is_calibration *c)
{
    return isfinite(c->low) && isfinite(c->high) && c->low < c->high;
}

bool is_calibration_built_in(is_embedder *e, is_calibration *out)
{
    char hex[2 * IS_HASH_BYTES + 1];

    is_hex(is_embedder_fingerprint(e), IS_HASH_BYTES, hex);
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
        if (strcmp(hex, built_in[i].fingerprint) != 0) continue;
        *out = built_in[i].c;
        return true;
    }
    return is_embedder_scale(e, &out->low, &out->high);
}
