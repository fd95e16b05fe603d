# SPDX-License-Identifier: Apache-2.0
# make help lists the targets; V=1 shows the commands whole.
SHELL := /bin/bash
CC = gcc
CXX = g++
SAN ?=
BUILD := build$(if $(SAN),-$(SAN))
PREFIX ?= /usr/local
comma := ,
Q := $(if $(V),,@)
# One job for each core unless make was given -j.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

CFLAGS_ALL := -std=c17 -D_GNU_SOURCE -O3 -g -pthread -fPIC -I. -I$(BUILD) \
    -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra \
    -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror \
    $(shell pkg-config --cflags libzmq libprotobuf-c jansson zlib libzstd yaml-0.1 libmicrohttpd libsodium 2> /dev/null) \
    $(CFLAGS)
# C++17 for plugins whose library is C++: every warning except those of C only.
# The C headers that they include use "restrict".
CXXFLAGS_ALL = $(filter-out -std=c17 -Wstrict-prototypes -Wmissing-prototypes,\
    $(CFLAGS_ALL)) -std=c++17
PLUGIN_FLAGS := -fPIC -fvisibility=hidden
LIBS := -lzmq -lprotobuf-c -ljansson -llmdb -ldnnl -lgomp -lz -lzstd -lxxhash \
    -larchive -lisal -lyaml -lmicrohttpd -lsodium -lm -ldl

# Against attackers, for compiling and linking: guards of the stack and of libc's
# buffers, branch targets and shadow stacks (CET: the startup files of some
# distributions lack its mark, so the linker gets it), no writable table of functions.
# Sanitizers do the first two themselves.
ifeq ($(SAN),)
  HARDENING := -fstack-protector-strong -fcf-protection=full
  CFLAGS_ALL += $(HARDENING) -Wl,-z,relro,-z,now,-z,noexecstack,-z,ibt,-z,shstk \
      $(if $(findstring -O0,$(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif

# With -O1 they compile twice as fast; its warnings are not those of -O3.
ifneq ($(SAN),)
  CFLAGS_ALL += -O1 -Wno-error
endif
ifeq ($(SAN),address)
  # vptr, of C++, needs a pipe, which a process without descriptors has not.
  CFLAGS_ALL += -fsanitize=address,undefined -fno-sanitize=vptr \
      -fno-sanitize-recover=all -fno-omit-frame-pointer
else ifeq ($(SAN),undefined)
  CFLAGS_ALL += -fsanitize=undefined -fno-sanitize-recover=all
else ifeq ($(SAN),thread)
  CFLAGS_ALL += -fsanitize=thread -fno-omit-frame-pointer
else ifeq ($(SAN),fuzz)
  # libFuzzer, of which gcc has none.
  CC = clang
  # An offset of 0 to NULL harms nobody.
  CFLAGS_ALL += -fsanitize=fuzzer-no-link,address,undefined \
      -fno-sanitize=pointer-overflow -fno-sanitize-recover=all \
      -fno-omit-frame-pointer
else ifneq ($(SAN),)
  $(error SAN=$(SAN): address, undefined, thread or fuzz)
endif

# The library's sources. main.c goes only into the program; the sources of a
# plugin are listed with it.
ROOMS := commands core proto ps worker chief simulator
SOURCES := $(filter-out core/base/version.c core/tensor/rule_loops.c \
    worker/collective/collective_nccl.c worker/ops/cuda/%,\
    $(sort $(shell find $(ROOMS) -name '*.c')))
VARIANTS := plain avx2 avx512
GENERATED := $(patsubst %.proto,$(BUILD)/%.pb-c.c,$(shell find $(ROOMS) -name '*.proto'))
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(GENERATED:.c=.o) \
    $(VARIANTS:%=$(BUILD)/core/tensor/rule_loops.%.o)
# Outside the library, so that a new commit only relinks the program.
VERSION := $(BUILD)/core/base/version.o

# A line for each file that is made: its number, of how many, and how long the rest
# takes at the rate so far.
START := $(shell date +%s)
TOTAL = $(eval TOTAL := $(shell $(MAKE) -n $(MAKEOVERRIDES) TOTAL=1 $(MAKECMDGOALS) \
    2> /dev/null | grep -c "^n=[0-9]*; echo"))$(TOTAL)
say = $(eval MADE += x)@n=$(words $(MADE)); echo "[$$n/$(TOTAL), $(left) s left] $(1) $@"
left = $$((($$(date +%s) - $(START)) * ($(TOTAL) - n) / n))

.PHONY: all help generated clean FORCE
.SECONDARY:
all: $(BUILD)/capstan $(BUILD)/libcapstan.so plugins ## build build/capstan, the library and the plugins

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BUILD)/capstan: $(BUILD)/main.o $(VERSION) $(BUILD)/libcapstan.a
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -rdynamic -o $@ $^ $(LIBS)

$(BUILD)/libcapstan.a: $(OBJECTS)
	$(call say,ar)
	@rm -f $@
	$(Q)ar rcs $@ $^

# The library for models of one's own: library/capstan.h.
LIBRARY := $(patsubst %.c,$(BUILD)/%.o,$(wildcard library/*.c))
SONAME := libcapstan.so.0
$(BUILD)/$(SONAME): $(LIBRARY) $(VERSION) $(BUILD)/libcapstan.a library/capstan.map
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,$(SONAME) -Wl,-Bsymbolic \
	    -Wl,--version-script=library/capstan.map $(if $(SAN),,-Wl,--no-undefined) \
	    -o $@ $(filter %.o %.a,$^) $(LIBS)
$(BUILD)/libcapstan.so: $(BUILD)/$(SONAME)
	@ln -sf $(<F) $@

# The commit that is built: that of the checkout, else the one that git archive wrote
# into deploy/commit.txt, else unknown.
$(VERSION): $(BUILD)/core/base/commit.h
$(BUILD)/core/base/commit.h: FORCE
	@mkdir -p $(@D)
	@commit=$$([[ -e .git ]] && git describe --always --dirty --abbrev=12 \
	    --exclude='*' 2> /dev/null || \
	    sed -n 's/^\([0-9a-f]\{12\}\)[0-9a-f]*$$/\1/p' deploy/commit.txt); \
	line="#define VERSION_COMMIT \"$${commit:-unknown}\""; \
	cmp -s $@ - <<< "$$line" || echo "$$line" > $@

$(BUILD)/%.o: %.c | generated
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# The pages of a run and of a comparison as text of C, with the hashes of their styles
# and scripts.
PAGE := $(BUILD)/commands/page_text.h $(BUILD)/commands/measure/compare_page_text.h
$(PAGE): $(BUILD)/%_text.h: %.html commands/page.sh
	@mkdir -p $(@D)
	$(Q)commands/page.sh $< > $@.new && mv $@.new $@

# The differences of the pairs of examples as text of C.
HOW := $(BUILD)/commands/how_text.h
$(HOW): commands/how.sh $(wildcard python/capstan/examples/*.py)
	@mkdir -p $(@D)
	$(Q)commands/how.sh python/capstan/examples > $@.new && mv $@.new $@

generated: $(BUILD)/packages $(GENERATED) $(PAGE) $(HOW)

# Every object depends on the first file and every object of tests on the second, so
# that the build stops with a list of missing packages. PACKAGES=other: the packages
# do not come from apt.
$(BUILD)/packages $(BUILD)/packages-test: deploy/packages.txt
	@mkdir -p $(@D)
	@$(if $(filter other,$(PACKAGES)),,deploy/deps.sh --list \
	    $(filter test,$(subst -, ,$(@F))) >&2 || { \
	    echo "(Where they come from elsewhere than apt: make PACKAGES=other)"; \
	    exit 1; } >&2)
	@touch $@

$(BUILD)/%.pb-c.c $(BUILD)/%.pb-c.h: %.proto | $(BUILD)/packages
	@mkdir -p $(BUILD)
	$(Q)protoc-c --c_out=$(BUILD) $<

$(BUILD)/%.pb-c.o: $(BUILD)/%.pb-c.c
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# One source, three builds with the same bits (-ffp-contract=off).
FLAGS_plain :=
FLAGS_avx2 := -mavx2
FLAGS_avx512 := -mavx512f -mavx512dq -mavx512vl -mavx512bw -mprefer-vector-width=512
$(VARIANTS:%=$(BUILD)/core/tensor/rule_loops.%.o): \
    $(BUILD)/core/tensor/rule_loops.%.o: core/tensor/rule_loops.c | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) $(FLAGS_$*) -DVARIANT=$* -MMD -MP -c -o $@ $<

clean: ## remove build and build-*
	rm -rf build build-*

# What a tree without tests, or a copy of this file alone, lacks.
-include worker/plugins.mk deploy/packages.mk tests/checks.mk

# Not of trees that packages are made of or tried in.
-include $(shell find $(BUILD) -name usr -prune -o -type f -name '*.d' -print 2>/dev/null)
