# InferScale in C. `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
#
# BUILD=release (default) | asan | tsan   one folder each under build/
# deps.mk is written by scripts/setup.sh: it says where libllama and the models are.

BUILD   ?= release
OUT     := build/$(BUILD)
PREFIX  ?= /usr/local
VERSION := 0.1.0
SOVER   := 0

CC      ?= gcc
CXX     ?= g++
WARN    := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter
CFLAGS_release := -O2 -g
CFLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
CFLAGS_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
SAN     := $(filter -fsanitize%,$(CFLAGS_$(BUILD)))
CFLAGS  += -std=c11 -D_GNU_SOURCE -fPIC -fvisibility=hidden -ffp-contract=off $(CFLAGS_$(BUILD)) $(WARN)
CPPFLAGS += -Iinclude -Isrc -MMD -MP

-include build/deps.mk
LLAMA_CPPFLAGS := -isystem $(LLAMA_DIR)/include
LLAMA_LIBS     := -L$(LLAMA_DIR)/lib -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath,$(LLAMA_DIR)/lib
CORE_LIBS      := -lsqlite3 -lsodium -lxxhash -lstemmer -lpthread -lm -ldl

objs = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
CORE_SRC   := $(wildcard src/base/*.c src/kv/*.c src/bank/*.c src/embed/*.c src/recall/*.c src/engine/*.c src/plan/*.c src/encode/*.c src/api/*.c)
SHARED_SRC := $(wildcard src/base/*.c src/kv/*.c)
CLI_SRC    := $(wildcard src/cli/*.c src/eval/*.c)
LLAMA_SRC  := $(wildcard src/engine/llama/*.c)
LLAMA_CXX  := $(wildcard src/engine/llama/*.cpp)
MOCK_SRC   := $(wildcard src/engine/mock/*.c)
HTTP_SRC   := $(wildcard src/embed/http/*.c)
TOOL_SRC   := $(wildcard src/tools/*.c)

LIB_SO  := $(OUT)/libinferscale.so.$(SOVER)
LIB_A   := $(OUT)/libinferscale.a
PLUGINS := $(if $(LLAMA_SRC),$(OUT)/libinferscale-llama.so) $(if $(MOCK_SRC),$(OUT)/libinferscale-mock.so) $(if $(HTTP_SRC),$(OUT)/libinferscale-embed-http.so)
BIN     := $(if $(CLI_SRC),$(OUT)/inferscale)
TOOLS   := $(if $(TOOL_SRC),$(OUT)/inferscale-models)

# Tests: tests/test_NAME.c is one program; tests/llama/test_NAME.c sees llama.h too. tests/support/*.c is linked to all.
TEST_SRC   := $(wildcard tests/test_*.c)
LTEST_SRC  := $(wildcard tests/llama/test_*.c)
TSUP_SRC   := $(wildcard tests/support/*.c)
LTSUP_SRC  := $(wildcard tests/llama/support/*.c)
TESTS      := $(patsubst tests/%.c,$(OUT)/tests/%,$(TEST_SRC)) $(patsubst tests/llama/%.c,$(OUT)/tests/llama_%,$(LTEST_SRC))
# Fuzz targets: fuzz/fuzz_NAME.c with LLVMFuzzerTestOneInput; fuzz/replay.c runs them over a corpus with any compiler.
FUZZ_SRC   := $(wildcard fuzz/fuzz_*.c)
FUZZERS    := $(patsubst fuzz/%.c,$(OUT)/fuzz/%,$(FUZZ_SRC))

.PHONY: all lib plugins bin tests fuzzers clean
all: lib plugins bin $(TOOLS)
lib: $(LIB_SO) $(LIB_A)
plugins: $(PLUGINS)
bin: $(BIN)
tests: $(TESTS)
fuzzers: $(FUZZERS)

$(OUT)/obj/src/engine/llama/%.o: CPPFLAGS += $(LLAMA_CPPFLAGS)
$(OUT)/obj/src/tools/%.o: CPPFLAGS += $(LLAMA_CPPFLAGS)
$(OUT)/obj/tests/llama/%.o: CPPFLAGS += $(LLAMA_CPPFLAGS)
$(OUT)/obj/tests/%.o $(OUT)/obj/fuzz/%.o: CPPFLAGS += -Itests

$(OUT)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(OUT)/obj/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) -std=c++17 -fPIC -fvisibility=hidden $(CFLAGS_$(BUILD)) -Wall -Wextra -c $< -o $@

$(LIB_A): $(call objs,$(CORE_SRC))
	@rm -f $@
	ar rcs $@ $^
$(LIB_SO): $(call objs,$(CORE_SRC)) src/libinferscale.map
	$(CC) $(SAN) -shared -Wl,-soname,libinferscale.so.$(SOVER) -Wl,--version-script=src/libinferscale.map -o $@ $(filter %.o,$^) $(CORE_LIBS)
	ln -sf libinferscale.so.$(SOVER) $(OUT)/libinferscale.so

# Plug-ins carry their own copy of base and kv (src/engine/engine.h says why).
PLUGIN_LINK = $(CC) $(SAN) -shared -Wl,--version-script=src/plugin.map -o $@ $(filter %.o,$^)
$(OUT)/libinferscale-llama.so: $(call objs,$(LLAMA_SRC) $(SHARED_SRC)) $(patsubst %.cpp,$(OUT)/obj/%.o,$(LLAMA_CXX)) src/plugin.map
	$(PLUGIN_LINK) $(LLAMA_LIBS) -lstdc++ -lsodium -lxxhash -lpthread -lm
$(OUT)/libinferscale-mock.so: $(call objs,$(MOCK_SRC) $(SHARED_SRC)) src/plugin.map
	$(PLUGIN_LINK) -lsodium -lxxhash -lpthread -lm
$(OUT)/libinferscale-embed-http.so: $(call objs,$(HTTP_SRC) $(SHARED_SRC)) src/plugin.map
	$(PLUGIN_LINK) -lcurl -ljansson -lsodium -lxxhash -lpthread -lm

$(OUT)/inferscale: $(call objs,$(CLI_SRC)) $(LIB_A)
	$(CC) $(SAN) -o $@ $(filter %.o,$^) $(LIB_A) $(CORE_LIBS) -ljansson
$(OUT)/inferscale-models: $(call objs,$(TOOL_SRC) $(SHARED_SRC))
	$(CC) $(SAN) -o $@ $^ $(LLAMA_LIBS) -lstdc++ -ljansson -lsodium -lxxhash -lpthread -lm

# Tests link the CLI's parts too (all but its main), so that parsers living there are tested directly.
CLI_PARTS := $(filter-out src/cli/main.c,$(CLI_SRC))
$(OUT)/tests/%: $(OUT)/obj/tests/%.o $(call objs,$(TSUP_SRC) $(CLI_PARTS)) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(SAN) -o $@ $(filter %.o,$^) $(LIB_A) -lcmocka -ljansson $(CORE_LIBS)
$(OUT)/tests/llama_%: $(OUT)/obj/tests/llama/%.o $(call objs,$(TSUP_SRC) $(LTSUP_SRC) $(CLI_PARTS)) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(SAN) -o $@ $(filter %.o,$^) $(LIB_A) -lcmocka -ljansson $(LLAMA_LIBS) -lstdc++ $(CORE_LIBS)
$(OUT)/fuzz/%: $(OUT)/obj/fuzz/%.o $(OUT)/obj/fuzz/replay.o $(call objs,$(CLI_PARTS)) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(SAN) -o $@ $(filter %.o,$^) $(LIB_A) -ljansson $(CORE_LIBS)

clean:
	rm -rf build/release build/asan build/tsan

-include $(shell find build -name '*.d' 2>/dev/null)
.SECONDARY:
