/* inferscale-models - makes models ready for use; scripts/setup.sh calls it. Exit codes: 0 done, 1 failed, 2 wrong usage. */
#include <stdio.h>
#include <string.h>

#include "tools/tools.h"

static const char usage[] =
    "Usage: inferscale-models quantize IN.gguf OUT.gguf q4_0|q4_1|q8_0|f16|bf16|f32\n"
    "       inferscale-models convert-minilm MODEL_DIR OUT.gguf\n"
    "\n"
    "quantize        rewrite a GGUF model with other weights\n"
    "convert-minilm  all-MiniLM-L6-v2 (model.safetensors, tokenizer.json) as GGUF, f16\n"
    "\n"
    "OUT appears whole or not at all.\n";

int main(int argc, char **argv)
{
    is_status st;

    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")))
        return fputs(usage, stdout) < 0;
    if (argc == 2 && !strcmp(argv[1], "--version"))
        return printf("inferscale-models %s\n", INFERSCALE_VERSION) < 0;
    if (argc == 5 && !strcmp(argv[1], "quantize")) {
        st = tool_quantize(argv[2], argv[3], argv[4]);
    } else if (argc == 4 && !strcmp(argv[1], "convert-minilm")) {
        st = tool_convert_minilm(argv[2], argv[3]);
    } else {
        fputs(usage, stderr);
        return 2;
    }
    if (st != INFERSCALE_OK) fprintf(stderr, "inferscale-models: %s\n", is_error());
    return st != INFERSCALE_OK;
}
