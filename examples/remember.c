#include <inferscale.h>
#include <stdio.h>

static int print(void *ctx, const char *text, size_t len)      // one piece of the answer; 0 = go on
{
    (void)ctx;
    return fwrite(text, 1, len, stdout) != len;
}

int main(int argc, char **argv)
{
    inferscale *is = NULL;
    inferscale_options opt = INFERSCALE_OPTIONS_INIT;
    inferscale_scope anna = { .user = "anna" };
    inferscale_fact fact = { .text = "Anna is allergic to peanuts.", .event_time = 1714521600 };
    inferscale_event event;
    inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *answer = NULL;

    opt.home = argv[1];                                         // a folder of its own
    opt.model = argc > 2 ? argv[2] : NULL;                      // a GGUF file; NULL = the default model
    ask.on_text = print;
    if (inferscale_open(&is, &opt) != INFERSCALE_OK ||
        inferscale_remember(is, &anna, &fact, 1, &event) != INFERSCALE_OK ||
        inferscale_encode(is, &anna, NULL) != INFERSCALE_OK ||  // compute the fact's keys and values once
        inferscale_ask(is, &anna, "Which food is Anna allergic to?", &ask, &answer) != INFERSCALE_OK)
        fprintf(stderr, "%s\n", inferscale_error());
    else
        printf("\n(%u tokens computed, %u injected)\n", answer->tokens_computed, answer->tokens_injected);
    inferscale_answer_free(answer);
    inferscale_close(is);
    return 0;
}
