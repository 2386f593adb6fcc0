#include <inferscale.h>
#include <stdio.h>

static int print(void *out, const char *text, size_t len) { return fwrite(text, 1, len, out) != len; } // a piece; 0 = go on

int main(int argc, char **argv)
{
    inferscale *is = NULL;
    inferscale_options opt = INFERSCALE_OPTIONS_INIT;
    inferscale_scope anna = { .user = "anna" };
    inferscale_fact fact = { .text = "Anna is allergic to peanuts." };
    inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *answer = NULL;

    if (argc < 2) return fprintf(stderr, "Usage: remember FOLDER [MODEL.gguf]\n"), 2;
    opt.home = argv[1];                              // a folder of its own
    opt.model = argc > 2 ? argv[2] : NULL;           // a GGUF file; NULL = the default model
    ask.on_text = print;
    ask.text_ctx = stdout;
    int failed = inferscale_open(&is, &opt) || inferscale_remember(is, &anna, &fact, 1, NULL) ||
                 inferscale_encode(is, &anna, NULL) || // compute the fact's keys and values once
                 inferscale_ask(is, &anna, "Which food is Anna allergic to?", &ask, &answer);
    if (failed) fprintf(stderr, "%s\n", inferscale_error());
    else printf("\n(%u tokens computed, %u injected)\n", answer->tokens_computed, answer->tokens_injected);
    inferscale_answer_free(answer);
    inferscale_close(is);
    return failed;
}
