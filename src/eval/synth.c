/* synth.c - see synth.h. Sentences are drawn from templates over closed word lists; two equal ones are drawn again. */
#include "eval/synth.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "eval/stats.h"

static const char *const people[] = { "Alma", "Boris", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Irene", "Jonas",
                                      "Karin", "Leo", "Mira", "Nils", "Olga", "Pavel", "Rosa", "Simon", "Tessa", "Viktor" };
static const char *const towns[] = { "Lisbon", "Oslo", "Dublin", "Prague", "Vienna", "Genoa", "Bergen", "Seville", "Krakow",
                                     "Leeds", "Turin", "Ghent", "Malmo", "Porto", "Basel", "Riga" };
static const char *const things[] = { "bicycle", "telescope", "violin", "sailing boat", "bread oven", "map collection",
                                      "greenhouse", "camera", "chess set", "old radio", "garden wall", "piano", "bookshelf",
                                      "tent", "loom", "workshop", "beehive", "canoe", "record player", "stamp album" };
static const char *const seasons[] = { "spring", "summer", "autumn", "winter" };

/* {A} and {B} are two people, {T} a town, {X} a thing, {S} a season. */
static const char *const facts[] = {
    "{A} told {B} that the {X} in {T} would be repaired before {S}.",
    "{A} moved the {X} to {T}, and {B} will look after it until {S}.",
    "{A} and {B} met in {T} and shared the cost of a new {X}.",
    "{A} sold the {X} in {T} because {B} no longer wanted it.",
    "{A} learned from {B} how to repair a {X} during a long {S} in {T}.",
    "{A} lost the key of the {X} in {T}, and {B} found it.",
    "{A} promised {B} a trip to {T} in {S} to see the {X}.",
    "{A} wrote to {B} from {T} that the {X} had won a prize.",
    "{A} gave {B} the {X} after they spent the {S} in {T}.",
    "{A} fears that the {X} in {T} will not survive the {S} without {B}.",
    "{A} will paint the {X} alone, although {B} offered help from {T}.",
    "{A} borrowed a {X} from {B} and returned it in {T} in {S}.",
};
static const char question[] = "When did {A} and {B} mention the {X} in {T}, and why?";

#define COUNT(list) (sizeof (list) / sizeof (list)[0])
#define PICK(list, r) (list)[rng_below((r), COUNT(list))]

enum { LINE = 192, FACTS_MAX = 10000, DAY = 86400 };
static const int64_t first_day = 1672567200; /* 1 January 2023, 10:00 UTC */

static void fill(const char *template, rng *r, char *out, size_t cap)
{
    size_t n = 0, first = (size_t)rng_below(r, COUNT(people)), second = (size_t)rng_below(r, COUNT(people) - 1);
    const char *words[5] = { people[first], people[second + (second >= first)], PICK(towns, r), PICK(things, r),
                             PICK(seasons, r) };
    static const char names[] = "ABTXS";

    while (*template && n + 1 < cap) {
        const char *slot = *template == '{' ? strchr(names, template[1]) : NULL;

        if (slot) {
            n += (size_t)snprintf(out + n, cap - n, "%s", words[slot - names]);
            template += 3;
        } else out[n++] = *template++;
    }
    out[n < cap ? n : cap - 1] = 0;
}

static bool is_known(char *const *texts, size_t n, const char *line)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(texts[i], line) == 0) return true;
    return false;
}

is_status synth_facts(uint64_t seed, size_t n, char **texts, int64_t *times)
{
    rng r = rng_stream(seed, 0xfac7, 0);

    memset(texts, 0, n * sizeof *texts);
    if (n > FACTS_MAX) return is_fail(INFERSCALE_E_INVALID, "at most %d facts can be invented", (int)FACTS_MAX);
    for (size_t i = 0; i < n; i++) {
        char line[LINE];

        do fill(PICK(facts, &r), &r, line, sizeof line);
        while (is_known(texts, i, line));
        texts[i] = is_strdup(line);
        times[i] = first_day + (int64_t)(i * 730 / n) * DAY;
        if (texts[i]) continue;
        for (size_t j = 0; j < i; j++) is_free(texts[j]);
        memset(texts, 0, n * sizeof *texts);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory while inventing %zu facts", n);
    }
    return INFERSCALE_OK;
}

void synth_question(uint64_t seed, char out[SYNTH_QUESTION])
{
    rng r = rng_stream(seed, 0xa5c, 1);

    fill(question, &r, out, SYNTH_QUESTION);
}
