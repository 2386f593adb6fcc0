# InferScale in C. `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
#
# BUILD=release (default) | asan | tsan | fuzz   one folder each under build/
# build/deps.mk is written by scripts/setup.sh: it says where libllama and the models are.

BUILD   ?= release
OUT     := build/$(BUILD)
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := 0.1.0
SOVER   := 0
JOBS    ?= $(shell nproc)

ifeq ($(origin CC),default)
CC      := gcc
endif
ifeq ($(origin CXX),default)
CXX     := g++
endif
WARN    := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter
SAN_asan := -fsanitize=address,undefined
SAN_tsan := -fsanitize=thread
SAN_fuzz := -fsanitize=fuzzer-no-link,address,undefined
SAN     := $(SAN_$(BUILD))
# What is compiled and linked with; the link lines take SAN alone.
OPT_release := -O2 -g
GUESSES     := -Wno-format-truncation -Wno-format-overflow # warnings that are, in instrumented code
OPT_asan    := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=undefined $(GUESSES)
OPT_tsan    := -O1 -g -fno-omit-frame-pointer $(GUESSES)
OPT_fuzz    := $(OPT_asan) -Wno-unknown-warning-option
MODE    := $(or $(OPT_$(BUILD)),$(error BUILD=$(BUILD) is not known; use release, asan, tsan or fuzz)) $(SAN)
ALL_CFLAGS   := -std=c11 -D_GNU_SOURCE -ffile-prefix-map=$(CURDIR)=. -fPIC -fvisibility=hidden -ffp-contract=off $(MODE) $(WARN) $(CFLAGS)
ALL_CXXFLAGS := -std=c++17 -ffile-prefix-map=$(CURDIR)=. -fPIC -fvisibility=hidden $(MODE) -Wall -Wextra $(CXXFLAGS)
override CPPFLAGS += -Iinclude -Isrc -MMD -MP

-include build/deps.mk
LLAMA_SEEN := $(LLAMA_DIR)
ifeq ($(origin LLAMA_DIR),undefined)
LLAMA_DIR = $(error libllama is not set up here; run `make setup` first)
endif
LLAMA_CPPFLAGS = -isystem $(LLAMA_DIR)/include -ffile-prefix-map=$(LLAMA_DIR)=libllama
LLAMA_LINK     = -L$(LLAMA_DIR)/lib -lllama -lggml -lggml-base -lggml-cpu
LLAMA_LIBS     = $(LLAMA_LINK) -Wl,-rpath,$(LLAMA_DIR)/lib
CORE_LIBS      := -lsqlite3 -lsodium -lxxhash -lstemmer -lpthread -lm -ldl
# What only the program needs: JSON, the server, clients of other servers.
BIN_LIBS       := -ljansson -lmicrohttpd -lcurl
# And what tests and fuzzers of the vLLM plug-in need.
VLLM_LIBS      := -lz

objs = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
CORE_SRC   := $(wildcard src/base/*.c src/kv/*.c src/bank/*.c src/embed/*.c src/recall/*.c src/engine/*.c src/plan/*.c src/encode/*.c src/api/*.c)
SHARED_SRC := $(wildcard src/base/*.c src/kv/*.c) src/engine/chat_pieces.c src/engine/entry.c
CLI_SRC    := $(wildcard src/cli/*.c src/eval/*.c src/serve/*.c src/exchange/*.c)
LLAMA_SRC  := $(wildcard src/engine/llama/*.c)
LLAMA_CXX  := $(wildcard src/engine/llama/*.cpp)
MOCK_SRC   := $(wildcard src/engine/mock/*.c)
HTTP_SRC   := $(wildcard src/embed/http/*.c)
VLLM_SRC   := $(wildcard src/engine/vllm/*.c)
TOOL_SRC   := $(wildcard src/tools/*.c)

LIB_SO  := $(OUT)/libinferscale.so.$(SOVER)
LIB_A   := $(OUT)/libinferscale.a
PLUGINS := $(if $(LLAMA_SRC),$(OUT)/libinferscale-llama.so) $(if $(MOCK_SRC),$(OUT)/libinferscale-mock.so) $(if $(HTTP_SRC),$(OUT)/libinferscale-embed-http.so) $(if $(VLLM_SRC),$(OUT)/libinferscale-vllm.so)
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

.PHONY: all lib plugins bin tools tests fuzzers examples clean help setup demo test test-turns install uninstall fuzz report check-static \
        test-build test-run test-tsan test-vllm soak models rivals
.DEFAULT_GOAL := all
all: lib plugins bin tools
lib: $(LIB_SO) $(LIB_A)
plugins: $(PLUGINS)
bin: $(BIN)
tools: $(TOOLS)
tests: $(TESTS)
fuzzers: $(FUZZERS)

$(OUT)/obj/src/engine/llama/%.o: CPPFLAGS += $(LLAMA_CPPFLAGS)
$(OUT)/obj/src/tools/%.o: CPPFLAGS += $(LLAMA_CPPFLAGS)
$(OUT)/obj/tests/llama/%.o: CPPFLAGS += $(LLAMA_CPPFLAGS)
$(OUT)/obj/tests/%.o $(OUT)/obj/fuzz/%.o: CPPFLAGS += -Itests

# Stamps that change with the flags and with the libllama in use: objects follow the first, what sees libllama the second.
stamp = $(shell mkdir -p $(dir $(1)); printf '%s\n' '$(2)' | cmp -s - $(1) || printf '%s\n' '$(2)' > $(1))$(1)
FLAGS_STAMP := $(call stamp,$(OUT)/.flags,$(CC) $(CXX) $(ALL_CFLAGS) $(ALL_CXXFLAGS))
LLAMA_STAMP := $(call stamp,$(OUT)/.llama,$(LLAMA_SEEN))
$(call objs,$(LLAMA_SRC) $(TOOL_SRC) $(LTEST_SRC)) $(patsubst %.cpp,$(OUT)/obj/%.o,$(LLAMA_CXX)): $(LLAMA_STAMP)

# The engine is named by its own version and by the package that set-up built it from.
LLAMA_FROM := $(shell sed -n 's/^llama-cpp-python==\([0-9.]*\) .*/\1/p' scripts/requirements-llama.txt)
LLAMA_FROM := $(if $(findstring llama-$(LLAMA_FROM)-,$(LLAMA_SEEN)),$(LLAMA_FROM))
$(OUT)/obj/src/engine/llama/model.o: CPPFLAGS += $(if $(LLAMA_FROM),-DIS_LLAMA_FROM='" (llama-cpp-python $(LLAMA_FROM))"')

# Every report names the commit that measured.
COMMIT := $(or $(shell git describe --always --dirty 2>/dev/null),unknown)
$(OUT)/obj/src/cli/report.o: CPPFLAGS += -DIS_COMMIT='"$(COMMIT)"'
$(OUT)/obj/src/cli/report.o: $(call stamp,$(OUT)/.commit,$(COMMIT))

$(OUT)/obj/%.o: %.c $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@
$(OUT)/obj/%.o: %.cpp $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(ALL_CXXFLAGS) -c $< -o $@

# A missing function is an error of the link, not of the load (the sanitizers' own are only there at run time).
WHOLE := $(if $(SAN),,-Wl,-z,defs)

$(LIB_A): $(call objs,$(CORE_SRC))
	@rm -f $@
	ar rcs $@ $^
$(LIB_SO): $(call objs,$(CORE_SRC)) src/libinferscale.map
	$(CC) $(SAN) -shared $(WHOLE) -Wl,-soname,libinferscale.so.$(SOVER) -Wl,--version-script=src/libinferscale.map -o $@ $(filter %.o,$^) $(CORE_LIBS)
	ln -sf libinferscale.so.$(SOVER) $(OUT)/libinferscale.so

# Plug-ins carry their own copy of base and kv (src/engine/engine.h says why).
PLUGIN_LINK   = $(CC) $(SAN) -shared $(WHOLE) -Wl,--version-script=src/plugin.map -o $@ $(filter %.o,$^)
PLUGIN_LIBS  := -lsodium -lxxhash -lpthread -lm
LLAMA_OBJS   := $(call objs,$(LLAMA_SRC) $(SHARED_SRC)) $(patsubst %.cpp,$(OUT)/obj/%.o,$(LLAMA_CXX))
$(OUT)/libinferscale-llama.so: $(LLAMA_OBJS) src/plugin.map $(LLAMA_STAMP)
	$(PLUGIN_LINK) $(LLAMA_LIBS) -lstdc++ $(PLUGIN_LIBS)
# The one that is installed finds libllama beside itself. (No folder here is called install: with build/release in PATH make would take
# it for the program.)
$(OUT)/staged/libinferscale-llama.so: $(LLAMA_OBJS) src/plugin.map $(LLAMA_STAMP)
	@mkdir -p $(@D)
	$(PLUGIN_LINK) $(LLAMA_LINK) -Wl,-rpath,'$$ORIGIN' -lstdc++ $(PLUGIN_LIBS)
$(OUT)/libinferscale-mock.so: $(call objs,$(MOCK_SRC) $(SHARED_SRC)) src/plugin.map
	$(PLUGIN_LINK) $(PLUGIN_LIBS)
$(OUT)/libinferscale-embed-http.so: $(call objs,$(HTTP_SRC) $(SHARED_SRC)) src/plugin.map
	$(PLUGIN_LINK) -lcurl -ljansson $(PLUGIN_LIBS)
$(OUT)/libinferscale-vllm.so: $(call objs,$(VLLM_SRC) $(SHARED_SRC)) src/plugin.map
	$(PLUGIN_LINK) -lcurl -ljansson -lz $(PLUGIN_LIBS)

# Files that the program carries (src/serve/embedded.h).
EMBEDDED     := $(wildcard docs/openapi.json src/serve/page/*)
EMBEDDED_OBJ := $(OUT)/obj/embedded.o
$(OUT)/embedded.c: scripts/embed.py $(EMBEDDED) $(call stamp,$(OUT)/.embedded,$(EMBEDDED))
	@mkdir -p $(@D)
	scripts/embed.py $(EMBEDDED) > $@.tmp && mv $@.tmp $@
$(EMBEDDED_OBJ): $(OUT)/embedded.c src/serve/embedded.h $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@

# All functions are found when the program starts: finding one later saves registers, with text in them, on a stack.
$(OUT)/inferscale: $(call objs,$(CLI_SRC)) $(EMBEDDED_OBJ) $(LIB_A)
	$(CC) $(SAN) -Wl,-z,relro,-z,now -o $@ $(filter %.o,$^) $(LIB_A) $(CORE_LIBS) $(BIN_LIBS)
$(OUT)/inferscale-models: $(call objs,$(TOOL_SRC) $(SHARED_SRC)) $(LLAMA_STAMP)
	$(CC) $(SAN) -o $@ $(filter %.o,$^) $(LLAMA_LIBS) -lstdc++ -ljansson $(PLUGIN_LIBS)

# Tests link the CLI's parts too (all but its main) and the tool's parser, so that these are tested directly.
# An archive, so that a test pulls in only what it uses.
PARTS := $(OUT)/libparts.a
$(PARTS): $(call objs,$(filter-out src/cli/main.c src/cli/wipe.c,$(CLI_SRC)) $(VLLM_SRC) src/tools/safetensors.c) $(EMBEDDED_OBJ)
	@rm -f $@
	ar rcs $@ $^
SUPPORT := $(OUT)/libsupport.a
$(SUPPORT): $(call objs,$(TSUP_SRC))
	@rm -f $@
	ar rcs $@ $^
$(OUT)/tests/%: $(OUT)/obj/tests/%.o $(SUPPORT) $(PARTS) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(SAN) $(TEST_LDFLAGS) -o $@ $(filter %.o,$^) $(SUPPORT) $(PARTS) $(LIB_A) -lcmocka $(BIN_LIBS) $(VLLM_LIBS) $(CORE_LIBS)
# Its WRAP lines name the functions that it stops threads in.
WRAP_LINES := 's/^WRAP(PED)?.[^,]*, ([a-z_]+),.*/-Wl,--wrap=\2/p'
$(OUT)/tests/test_forget_schedule: TEST_LDFLAGS = $(shell sed -nE $(WRAP_LINES) tests/test_forget_schedule.c)
# Those of plant.c name the functions that it plants faults in.
$(OUT)/tests/llama_test_quality: TEST_LDFLAGS = \
    $(shell sed -nE $(WRAP_LINES) tests/llama/support/plant.c)
LSUPPORT := $(OUT)/libsupport-llama.a
$(LSUPPORT): $(call objs,$(LTSUP_SRC))
	@rm -f $@
	ar rcs $@ $^
# These run the program.
$(OUT)/tests/test_config: | $(BIN) $(OUT)/libinferscale-mock.so
$(OUT)/tests/test_kill: | $(BIN) $(OUT)/libinferscale-mock.so
$(OUT)/tests/test_store_codec: | $(BIN) $(OUT)/libinferscale-mock.so
$(OUT)/tests/test_cli $(OUT)/tests/test_cli_store $(OUT)/tests/test_cli_first $(OUT)/tests/test_cli_maintain $(OUT)/tests/test_cli_change: | $(BIN) $(OUT)/libinferscale-mock.so
$(OUT)/tests/llama_%: $(OUT)/obj/tests/llama/%.o $(LSUPPORT) $(SUPPORT) $(PARTS) $(LIB_A) $(LLAMA_STAMP)
	@mkdir -p $(@D)
	$(CC) $(SAN) $(TEST_LDFLAGS) -o $@ $(filter %.o,$^) $(LSUPPORT) $(SUPPORT) $(PARTS) $(LIB_A) -lcmocka $(BIN_LIBS) $(VLLM_LIBS) $(LLAMA_LIBS) -lstdc++ $(CORE_LIBS)

# With BUILD=fuzz clang's libFuzzer has the main function, else fuzz/replay.c.
FUZZ_MAIN := $(if $(filter fuzz,$(BUILD)),,$(OUT)/obj/fuzz/replay.o)
FUZZ_LINK := $(if $(filter fuzz,$(BUILD)),-fsanitize=fuzzer)
$(OUT)/fuzz/%: $(OUT)/obj/fuzz/%.o $(FUZZ_MAIN) $(PARTS) $(LIB_A)
	@mkdir -p $(@D)
	$(CC) $(SAN) $(FUZZ_LINK) -o $@ $(filter %.o,$^) $(PARTS) $(LIB_A) $(BIN_LIBS) $(VLLM_LIBS) $(CORE_LIBS)

examples: $(patsubst examples/%.c,$(OUT)/examples/%,$(wildcard examples/*.c))
$(OUT)/examples/%: examples/%.c $(LIB_SO)
	@mkdir -p $(@D)
	$(CC) -std=c11 -Iinclude $(MODE) -Wall -Wextra -o $@ $< -L$(OUT) -linferscale -Wl,-rpath,'$$ORIGIN/..'

# ---- For people ----------------------------------------------------------------------------------------------------------

help:
	@echo 'make demo              set up, build, and see memory answered without prefilling it'
	@echo 'make test              set up, build, run all tests (release, ASan+UBSan, fuzz corpora, checks of the source)'
	@echo 'make                   build (after make setup): library, plug-ins, inferscale; in build/release'
	@echo 'make setup             Debian packages, libllama and models; a second run takes a second'
	@echo 'make models            larger models for the evaluation (1.9 GB to fetch); ARGS="NAME" for one'
	@echo 'make install           to PREFIX=$(PREFIX), under DESTDIR= if given; make uninstall removes it'
	@echo 'make report            docs/results/index.html and its plots, from the results there'
	@echo 'make fuzz              libFuzzer (clang) on each parser, FUZZ_SECONDS=60 each'
	@echo 'make check-static      shellcheck, cppcheck and clang-tidy, those that are there'
	@echo 'make test-tsan         the tests under ThreadSanitizer'
	@echo 'make test-vllm         the vLLM connector, against a vLLM for the CPU (6 GB in the cache); ARGS="-k NAME"'
	@echo 'make rivals            Mem0 and other rivals beside this, on the same facts and model; ARGS="--model NAME"'
	@echo 'make soak              power loss, failing memory and disks, kill -9 for SECONDS=600; one line of JSON a test'
	@echo 'make clean             removes build/* but what set-up wrote'
	@echo 'BUILD=release|asan|tsan|fuzz   TEST_ONLY=REGEX   TEST_TIMEOUT=SECONDS   JOBS=N   TEST_JOBS=N'

setup:
	@scripts/setup.sh

# Models that only the evaluation uses.
models: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=release tools
	@scripts/setup-models.sh $(ARGS)

# The page of the results that are kept, and its plots. Those that no plot is made of stay out.
REPORT_OUT := $(addprefix docs/results/,compose.json scale.json encode-% remember-% rivals-%)
REPORT_OF  := $(filter-out $(REPORT_OUT),$(sort $(wildcard docs/results/*.json docs/results/*.jsonl)))
report: $(BIN)
	@$(BIN) eval report $(REPORT_OF) --out docs/results

# What was measured is kept in docs/results, and gone on with (bench/rivals.sh).
rivals: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=release lib plugins bin
	@bench/rivals.sh $(ARGS)

# deps.mk is read when make starts, so what needs it is made by a make of its own after set-up.
demo: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=release lib plugins bin
	@build/release/inferscale demo

test: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=release all test-build
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=asan plugins test-build fuzzers
	@$(MAKE) --no-print-directory -s test-run

test-build: tests plugins tools bin examples

# Tests in both builds. ASAN_SKIP: what cannot run under the sanitizers (a reason beside each).
# llama_test_quality compares numbers, which takes minutes there; what it calls of ours, other
# programs run under the sanitizers.
ASAN_SKIP := llama_test_quality
TEST_NAMES := $(notdir $(TESTS))
# Once more with the mock as an engine that computes elsewhere.
TEST_REMOTE := test_api test_audit test_complete test_complete_ends test_forget test_live test_openai test_openai_ends test_own_api test_prove
# The longest first, so that none is left to end alone. Those that compute models get a CPU each (scripts/run-tests.sh), all but one.
TEST_LONG  := llama_test_identity llama_test_batching llama_test_quality llama_test_capture llama_test_stitching test_backup test_encode test_faults test_crash_points \
    test_forget_schedule test_background test_live llama_test_complete llama_test_engine_basic \
    llama_test_openai llama_test_under_load test_audit test_fsck
TEST_ORDER := $(filter $(TEST_NAMES),$(TEST_LONG)) $(filter-out $(TEST_LONG),$(TEST_NAMES))
on_cpus     = $(if $(filter-out build/release/tests/llama_test_engine_basic,$(if $(findstring /llama_,$(1)),$(1))),"CPUS=1 $(1)",$(1))
TEST_ITEMS := "CPUS=1 tests/clients.sh" "CPUS=1 tests/example.sh" \
    scripts/check-layers.py scripts/check-source.py scripts/check-symbols.py scripts/check-sql.py scripts/check-openapi.py tests/runner.sh tests/setup.sh tests/readme.sh \
    $(foreach t,$(TEST_ORDER),$(foreach i,build/release/tests/$(t) $(if $(filter $(ASAN_SKIP),$(t)),,build/asan/tests/$(t)),$(call on_cpus,$(i)))) \
    $(foreach t,$(TEST_REMOTE),"INFERSCALE_MOCK=remote build/release/tests/$(t)")
FUZZ_NAMES := $(patsubst fuzz/fuzz_%.c,%,$(FUZZ_SRC))
FUZZ_N     ?= 20000
test-run:
	@scripts/run-tests.sh $(TEST_ITEMS) $(foreach f,$(FUZZ_NAMES),"build/asan/fuzz/fuzz_$(f) -n $(FUZZ_N) fuzz/corpus/$(f)")

# Other points than make test tries: by the day's number, so that the same day tries the same. Bounded: these programs, once.
TEST_TURNS := llama_test_faults test_crash_points test_faults test_forget_property
test-turns:
	@INFERSCALE_SEED=$${INFERSCALE_SEED:-$$(date -u +%Y%m%d)} scripts/run-tests.sh $(foreach t,$(TEST_TURNS),$(call on_cpus,build/release/tests/$(t)))

# Power loss, failing memory and disks, kill -9: as long as told, in a folder under TMPDIR.
SECONDS    ?= 600
SOAK_TESTS := test_crash_points test_faults test_kill test_serve_kill test_serve_soak
soak: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=$(BUILD) plugins bin $(addprefix build/$(BUILD)/tests/,$(SOAK_TESTS))
	@scripts/soak.py $(SECONDS) $(addprefix build/$(BUILD)/tests/,$(SOAK_TESTS))

# vLLM for the CPU and the default model for it (scripts/setup-vllm.sh), then tests/vllm by pytest. ARGS=: its arguments.
test-vllm: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=release lib plugins bin
	@tests/vllm.sh $(ARGS)

test-tsan: setup
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=tsan plugins tests
	@scripts/run-tests.sh $(addprefix build/tsan/tests/,$(filter-out $(ASAN_SKIP),$(TEST_NAMES)))

FUZZ_SECONDS ?= 60
fuzz:
	@command -v clang >/dev/null || { echo 'make fuzz needs clang: apt-get install clang' >&2; exit 1; }
	@$(MAKE) --no-print-directory -s -j$(JOBS) BUILD=fuzz CC=clang CXX=clang++ fuzzers
	@for f in $(FUZZ_NAMES); do \
	    mkdir -p build/fuzz/corpus/$$f; echo "== $$f"; \
	    build/fuzz/fuzz/fuzz_$$f -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 -max_len=65536 \
	        -artifact_prefix=build/fuzz/$$f- build/fuzz/corpus/$$f fuzz/corpus/$$f || exit 1; \
	done

check-static:
	@scripts/check-static.sh $(CPPFLAGS) $(LLAMA_CPPFLAGS)

# ---- Install -------------------------------------------------------------------------------------------------------------

BINDIR  := $(DESTDIR)$(PREFIX)/bin
LIBDIR  := $(DESTDIR)$(PREFIX)/lib
PLUGDIR := $(LIBDIR)/inferscale
INCDIR  := $(DESTDIR)$(PREFIX)/include
MANDIR  := $(DESTDIR)$(PREFIX)/share/man/man1
COMPDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSHDIR  := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISHDIR := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
DATADIR := $(DESTDIR)$(PREFIX)/share/inferscale
DOCDIR  := $(DESTDIR)$(PREFIX)/share/doc/inferscale
UNITDIR := $(DESTDIR)$(PREFIX)/lib/systemd/system
LLAMA_SONAMES := libllama.so.0 libggml.so.0 libggml-base.so.0 libggml-cpu.so.0

$(OUT)/staged/inferscale.1: $(BIN)
	@mkdir -p $(@D)
	$(BIN) man > $@.tmp && mv $@.tmp $@
$(OUT)/staged/inferscale.bash $(OUT)/staged/inferscale.zsh $(OUT)/staged/inferscale.fish: $(BIN)
	@mkdir -p $(@D)
	$(BIN) completion $(patsubst .%,%,$(suffix $@)) > $@.tmp && mv $@.tmp $@
$(OUT)/staged/inferscale.pc: scripts/inferscale.pc.in Makefile
	@mkdir -p $(@D)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@.tmp && mv $@.tmp $@
$(OUT)/staged/inferscale.service: packaging/inferscale.service
	@mkdir -p $(@D)
	sed -e 's|/usr/local/|$(PREFIX)/|g' $< > $@.tmp && mv $@.tmp $@
.PHONY: $(OUT)/staged/inferscale.pc $(OUT)/staged/inferscale.service

INSTALL := install
install: all $(OUT)/staged/libinferscale-llama.so $(OUT)/staged/inferscale.1 $(OUT)/staged/inferscale.bash \
         $(OUT)/staged/inferscale.zsh $(OUT)/staged/inferscale.fish $(OUT)/staged/inferscale.pc $(OUT)/staged/inferscale.service
	@rm -rf $(OUT)/install # what older trees left there: see above
	$(INSTALL) -d $(BINDIR) $(PLUGDIR) $(LIBDIR)/pkgconfig $(INCDIR) $(MANDIR) $(COMPDIR) $(ZSHDIR) $(FISHDIR) $(DATADIR) $(DOCDIR)/docs/results $(UNITDIR)
	$(INSTALL) -m 755 $(BIN) $(BINDIR)/
	$(INSTALL) -m 755 $(LIB_SO) $(LIBDIR)/
	ln -sf libinferscale.so.$(SOVER) $(LIBDIR)/libinferscale.so
	$(INSTALL) -m 644 $(LIB_A) $(LIBDIR)/
	$(INSTALL) -m 755 $(OUT)/staged/libinferscale-llama.so $(filter-out %/libinferscale-llama.so,$(PLUGINS)) $(PLUGDIR)/
	for l in $(LLAMA_SONAMES); do $(INSTALL) -m 755 $(LLAMA_DIR)/lib/$$l $(PLUGDIR)/ || exit 1; done
	$(INSTALL) -m 644 include/inferscale.h $(INCDIR)/
	$(INSTALL) -m 644 $(OUT)/staged/inferscale.pc $(LIBDIR)/pkgconfig/
	$(INSTALL) -m 644 $(OUT)/staged/inferscale.1 $(MANDIR)/
	$(INSTALL) -m 644 $(OUT)/staged/inferscale.bash $(COMPDIR)/inferscale
	$(INSTALL) -m 644 $(OUT)/staged/inferscale.zsh $(ZSHDIR)/_inferscale
	$(INSTALL) -m 644 $(OUT)/staged/inferscale.fish $(FISHDIR)/
	$(INSTALL) -m 644 LICENSE NOTICE THIRD-PARTY.md CHANGELOG.md README.md $(DOCDIR)/
	$(INSTALL) -m 644 $(wildcard docs/*.md docs/*.svg) $(DOCDIR)/docs/
	$(INSTALL) -m 644 $(wildcard docs/results/*) $(DOCDIR)/docs/results/
	$(INSTALL) -m 644 data/demo.jsonl data/demo-questions.txt packaging/grafana.json packaging/alerts.yml $(DATADIR)/
	$(INSTALL) -m 644 $(OUT)/staged/inferscale.service $(UNITDIR)/
	@# The loader's cache, where it is ours to make; under DESTDIR that is the package's business.
	@if [ -n '$(DESTDIR)' ]; then echo 'Installed under $(DESTDIR). Run ldconfig when it has come to its place.'; \
	elif ldconfig 2>/dev/null && ldconfig -p | grep -qF '$(LIBDIR)/libinferscale.so'; then echo 'Installed. Programs linked with -linferscale find it.'; \
	else echo 'Installed. The loader does not look in $(LIBDIR): link with -Wl,-rpath,$(LIBDIR), or add it to ld.so.conf and run ldconfig.'; fi

uninstall:
	rm -f $(BINDIR)/inferscale $(LIBDIR)/libinferscale.so $(LIBDIR)/libinferscale.so.$(SOVER) $(LIBDIR)/libinferscale.a
	rm -f $(INCDIR)/inferscale.h $(LIBDIR)/pkgconfig/inferscale.pc $(MANDIR)/inferscale.1 $(COMPDIR)/inferscale
	rm -f $(ZSHDIR)/_inferscale $(FISHDIR)/inferscale.fish $(UNITDIR)/inferscale.service
	rm -rf $(PLUGDIR) $(DATADIR) $(DOCDIR)

clean:
	rm -rf build/release build/asan build/tsan build/fuzz

-include $(shell find $(OUT)/obj -name '*.d' 2>/dev/null)
.SECONDARY:
