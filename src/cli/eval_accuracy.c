/* eval_accuracy.c - the verb `eval accuracy`: right answers from injected memory against right
 * answers from the same facts as text. */
#include "cli/eval_accuracy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/args.h"

static const char default_policies[] = IS_DEFAULT_POLICY ",F1:" IS_DEFAULT_REFINE;

static const cli_option options[] = {
    { "--k", "N", "facts retrieved a question (default: 10)" },
    { "--questions", "N", "at most so many questions (default: 8000)" },
    { "--all", NULL, "ask them all, also when the rule has decided" },
    { "--seed", "N", "of the questions (default: 1; invented ones below 1000: development)" },
    { "--data", "FILE", "questions of a LoCoMo file as published instead" },
    { "--results", "FILE", "keep each question's result there, and go on from it" },
    { "--method", "METHOD", "retrieval: fused (default), lexical or dense" },
    { "--tokens", "N", "longest answer in tokens (default: 32)" },
    { "--no-twins", NULL, "leave out the text twins of the injected arms' orders" },
    { "--plain", NULL, "add the prompt of a usual memory stack (arm plain)" },
    { "--best-first", NULL, "lay the best fact first, not last (plain does always)" },
    { "--judge", "URL", "an OpenAI endpoint that says whether answers are right, too" },
    { "--judge-model", "NAME", "its model (its key: $INFERSCALE_JUDGE_KEY)" },
    { "--print", "N", "print the first N questions and their facts instead" },
    CLI_ENGINE_ROWS,
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { NULL, NULL, NULL },
};

static const char details[] =
    "Asks each question with the same K facts in several ways: text, the facts as text\n"
    "in the order of retrieval; injected, from rows stored under each --policy (a list;\n"
    "default: " IS_DEFAULT_POLICY ", the first stage, and F1:" IS_DEFAULT_REFINE
    ", the second); twin, the text of\n"
    "that arm's own order; gold, only the facts that give the answer; none, no memory; with\n"
    "--plain also plain, the prompt of a usual memory stack: system text, the facts as\n"
    "plain lines, the best first, the question.\n"
    "\n"
    "An answer is greedy, and right if it names the right answer and no wrong choice\n"
    "before it. Beside it: LoCoMo's F1, the right answer's negative log-likelihood a\n"
    "token, and whether it is the likeliest of four choices (chance: 25%).\n"
    "\n"
    "Questions are about invented memories: single fact, two hops, time, update,\n"
    "negation, count. A type counts only where text beats no memory by 20 points. The\n"
    "rule: after 500, 1,000, 2,000, 4,000 and 8,000 questions Tango's test says\n"
    "whether an injected arm is worse than text by more than one point, or is not;\n"
    "5% error on each side over all looks. When every injected arm is decided it ends.\n"
    "With --data the --questions are drawn with the seed from all conversations, all are\n"
    "asked, and the margin is three points.\n"
    "\n"
    "--results keeps numbers only, no text, one line a question. The same command goes\n"
    "on where it stopped; Ctrl-C loses the question at hand.\n"
    "\n"
    "Examples:\n"
    "  inferscale eval accuracy --seed 1000 --results accuracy.jsonl\n"
    "  inferscale eval accuracy --print 6\n"
    "  inferscale eval accuracy --data locomo10.json --k 50 --questions 100 --json";

/* ---- Arguments ------------------------------------------------------------------------------- */

static int take_policies(const cli_args *a, accuracy_options *o)
{
    char *list = is_strdup(cli_str(a, "--policy", default_policies)), *save = NULL;
    int code = 0;

    for (char *s = list ? strtok_r(list, ",", &save) : NULL; s && code == 0;
         s = strtok_r(NULL, ",", &save)) {
        if (o->n_policies == ACCURACY_POLICIES)
            code = cli_usage(a, "--policy takes 1 to %d policies with commas between",
                             (int)ACCURACY_POLICIES);
        else if (fidelity_variant_parse(s, &o->policies[o->n_policies++]) != INFERSCALE_OK)
            code = cli_usage(a, "%s", is_error());
    }
    if (code == 0 && o->n_policies == 0)
        code = cli_usage(a, "--policy takes 1 to %d policies with commas between",
                         (int)ACCURACY_POLICIES);
    is_free(list);
    return code;
}

static int take_options(const cli_args *a, accuracy_options *o)
{
    static const char *const methods[] = { "fused", "lexical", "dense", NULL };

    o->k = (uint32_t)cli_int(a, "--k", 10, 1, 1000);
    o->n_tokens = (uint32_t)cli_int(a, "--tokens", 32, 1, 1024);
    o->method = cli_choice(a, "--method", methods, INFERSCALE_FUSED); /* in that order */
    o->no_twins = cli_flag(a, "--no-twins");
    o->plain = cli_flag(a, "--plain");
    o->best_first = cli_flag(a, "--best-first");
    o->results = cli_str(a, "--results", NULL);
    o->rule = cli_flag(a, "--all") || o->quiz->data ? &paired_fixed : &paired_sequential;
    o->judge.url = cli_str(a, "--judge", NULL);
    o->judge.model = cli_str(a, "--judge-model", NULL);
    o->judge.key = getenv("INFERSCALE_JUDGE_KEY");
    if (!o->judge.url != !o->judge.model)
        return cli_usage(a, "--judge and --judge-model go together; give both or none");
    return take_policies(a, o);
}

/* ---- The verb -------------------------------------------------------------------------------- */

static int report(const cli_args *a, lab *l, const accuracy_options *o, const accuracy *r)
{
    inferscale_model_info info;
    is_status st = inferscale_model(l->is, &info);

    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_wants_json(a)) return accuracy_print_json(&info, o, r);
    accuracy_print_table(&info, o, r);
    return 0;
}

/* What is done is shown, and where it is; the code is that of the failure. */
static int interrupted(const cli_args *a, lab *l, const accuracy_options *o, const accuracy *r)
{
    if (r->n > 0 && !cli_wants_json(a)) (void)report(a, l, o, r);
    if (o->results)
        return cli_fail_msg(
            a, "stopped; %zu questions are in %s, and the same command goes on from there", r->n,
            o->results);
    return cli_fail_msg(a, "stopped after %zu questions; with --results FILE they would be kept",
                        r->n);
}

static int measure(const cli_args *a, accuracy_options *o)
{
    inferscale_options store;
    cli_progress bar;
    accuracy *r = NULL;
    lab *l = NULL;
    is_status st;
    int code;

    cli_options(a, &store);
    cli_engine(a, &store);
    store.embedder = cli_str(a, "--embedder", NULL);
    store.policy = NULL; /* a list here, and the lab's own store serves none */
    o->cancel = cli_interrupt();
    o->on_progress = cli_progress_at;
    o->progress_ctx = &bar;
    cli_progress_start(&bar, "asking", o->n_questions);
    st = lab_open(&store, "accuracy", &l);
    if (st == INFERSCALE_OK) st = accuracy_run(l, o, &r);
    cli_progress_end(&bar);
    if (st == INFERSCALE_E_CANCELLED && r) code = interrupted(a, l, o, r);
    else code = st == INFERSCALE_OK ? report(a, l, o, r) : cli_fail_as(a, st);
    accuracy_free(r);
    lab_close(l);
    return code;
}

static int cmd_eval_accuracy(const cli_args *a)
{
    const char *path = cli_str(a, "--data", NULL);
    const size_t print = (size_t)cli_int(a, "--print", 0, 1, 1000000);
    const size_t most = (size_t)cli_int(a, "--questions", ACCURACY_QUESTIONS, 1, 1000000);
    const uint64_t seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX);
    accuracy_options o = { 0 };
    locomo *data = NULL;
    quiz q;
    is_status st;
    int code;

    if (cli_n(a) > 0)
        return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    st = path ? locomo_load(path, &data) : INFERSCALE_OK;
    if (st == INFERSCALE_OK)
        st = path ? quiz_locomo(data, seed, print ? print : most, &q) : quiz_synthetic(seed, &q);
    o.quiz = &q;
    o.n_questions = path && st == INFERSCALE_OK ? q.n : most;
    if (st != INFERSCALE_OK) code = cli_fail_as(a, st);
    else if (print) code = accuracy_print_questions(a, &q, print);
    else code = take_options(a, &o);
    if (code == 0 && !print) code = measure(a, &o);
    locomo_free(data);
    return code;
}

const cli_verb cli_verb_eval_accuracy = {
    "eval accuracy",   "",      "Measure right answers from injected memory against text",
    details,           options, CLI_MODEL | CLI_JSON,
    cmd_eval_accuracy,
};
