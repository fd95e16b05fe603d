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
    $(shell pkg-config --cflags libzmq libprotobuf-c jansson zlib libzstd yaml-0.1 libmicrohttpd 2> /dev/null) \
    $(CFLAGS)
# C++17 for plugins whose library is C++: every warning except those of C only.
# The C headers that they include use "restrict".
CXXFLAGS_ALL = $(filter-out -std=c17 -Wstrict-prototypes -Wmissing-prototypes,\
    $(CFLAGS_ALL)) -std=c++17
PLUGIN_FLAGS := -fPIC -fvisibility=hidden
LIBS := -lzmq -lprotobuf-c -ljansson -llmdb -ldnnl -lgomp -lz -lzstd -lxxhash \
    -larchive -lisal -lyaml -lmicrohttpd -lm -ldl

# Against attackers, for compiling and linking: guards of the stack and of libc's
# buffers, branch targets and shadow stacks (CET: the startup files of some
# distributions lack its mark, so the linker gets it), no writable table of functions.
# Sanitizers do the first two themselves.
ifeq ($(SAN),)
  HARDENING := -fstack-protector-strong -fcf-protection=full
  CFLAGS_ALL += $(HARDENING) -Wl,-z,relro,-z,now,-z,noexecstack,-z,ibt,-z,shstk \
      $(if $(findstring -O0,$(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif

ifeq ($(SAN),address)
  CFLAGS_ALL += -fsanitize=address,undefined -fno-sanitize-recover=all \
      -fno-omit-frame-pointer
else ifeq ($(SAN),undefined)
  CFLAGS_ALL += -fsanitize=undefined -fno-sanitize-recover=all
else ifeq ($(SAN),thread)
  CFLAGS_ALL += -fsanitize=thread -fno-omit-frame-pointer
else ifeq ($(SAN),fuzz)
  # libFuzzer, of which gcc has none.
  CC = clang
  # An offset of 0 to NULL harms nobody.
  CFLAGS_ALL += -O1 -fsanitize=fuzzer-no-link,address,undefined \
      -fno-sanitize=pointer-overflow -fno-sanitize-recover=all \
      -fno-omit-frame-pointer -Wno-error
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
GPU_BENCH := $(BUILD)/bench/gpu_bench
CLICK_LOG := $(BUILD)/bench/click_log
# Outside the library, so that a new commit only relinks the program.
VERSION := $(BUILD)/core/base/version.o
BENCHES := $(filter-out $(GPU_BENCH),\
    $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*_bench.c)))
# One program for each folder of tests: build/tests/gate_test is a link to
# build/tests/room-unit-ps-consistency, which runs the tests of gate_test.c if it is
# called by that name (tests/lib/room.c). Each test in tests/gpu is a program linked
# with the kernels.
TEST_ROOMS := $(sort $(dir $(shell find tests/unit tests/cluster tests/simulation -name '*_test.c')))
room_program = $(BUILD)/tests/room-$(subst /,-,$(patsubst tests/%/,%,$(1)))
room_tests = $(patsubst $(1)%.c,$(BUILD)/tests/%,$(wildcard $(1)*_test.c))
TEST_PARTS := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %_test.c,\
    $(wildcard $(addprefix tests/,lib/*.c cluster/*.c simulation/*.c gpu/*.c \
        bench/click_log.c))))
CLUSTER_TESTS := $(call room_tests,tests/cluster/)
CUDA_TESTS := $(call room_tests,tests/gpu/)
UNIT_TESTS := $(CUDA_TESTS) $(foreach room,$(filter-out tests/cluster/,$(TEST_ROOMS)),$(call room_tests,$(room)))
TESTS := $(CLUSTER_TESTS) $(UNIT_TESTS)
# Tests that run alone: those that measure, and the second of two that use the same
# network namespaces. All others run in parallel.
LONE_TESTS := $(patsubst %,$(BUILD)/tests/cluster_%_test,bench compare \
    compare_command compare_members compare_net memory simulate)
# The slowest test starts first.
LONGEST := $(BUILD)/tests/collective_gloo_test
CROWD_TESTS := $(LONGEST) $(filter-out $(LONE_TESTS),$(CLUSTER_TESTS)) \
    $(filter-out $(LONGEST),$(UNIT_TESTS))

# A line for each file that is made: its number, of how many, and how long the rest
# takes at the rate so far.
START := $(shell date +%s)
TOTAL = $(eval TOTAL := $(shell $(MAKE) -n $(MAKEOVERRIDES) TOTAL=1 $(MAKECMDGOALS) \
    2> /dev/null | grep -c "^n=[0-9]*; echo"))$(TOTAL)
say = $(eval MADE += x)@n=$(words $(MADE)); echo "[$$n/$(TOTAL), $(left) s left] $(1) $@"
left = $$((($$(date +%s) - $(START)) * ($(TOTAL) - n) / n))

.PHONY: check-azureml check-docker check-fresh check-systemd check-python check-wheel wheel all help gpu-kernels gpu-check gpu-bench bundle generated deps deps-test deps-all deps-bundle deps-deb deps-lint deps-fuzz fuzz plugins no-nccl no-cuda build-tests demo demo-sparse check check-all unit mutants soak bench install uninstall deb check-deb format lint clean FORCE
.SECONDARY:
all: $(BUILD)/capstan $(BUILD)/libcapstan.so plugins ## build build/capstan, the library and the plugins

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12

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

# A plugin exports one symbol and contains the objects of core/ that it needs.
PLUGIN_LINK := -Wl,--version-script=worker/plugin.map
PLUGIN_COMMON := $(patsubst %,$(BUILD)/plugin/core/base/%.o,status time)
plugins: $(BUILD)/capstan-gloo.so $(BUILD)/capstan-bench.so

# NCCL needs CUDA, which Debian does not package: its folder, and both headers.
CUDA := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc)))
NCCL_HEADERS := $(foreach header,nccl.h cuda_runtime.h,$(firstword \
    $(wildcard $(addsuffix /$(header),$(CUDA:=/include) /usr/include))))
CUDA_LINK := $(foreach lib,$(wildcard $(CUDA:=/lib) $(CUDA:=/lib64)),\
    -L$(lib) -Wl$(comma)-rpath$(comma)$(lib))
ifeq ($(words $(NCCL_HEADERS)),2)
plugins: $(BUILD)/capstan-nccl.so
$(BUILD)/plugin/worker/collective/collective_nccl.o: CFLAGS_ALL += $(addprefix -isystem ,$(CUDA:=/include))
$(BUILD)/capstan-nccl.so: $(PLUGIN_COMMON) $(BUILD)/plugin/worker/collective/collective_nccl.o
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^ \
	    $(CUDA_LINK) -lnccl -lcudart
else
plugins: no-nccl
no-nccl:
	@echo "nccl $(BUILD)/capstan-nccl.so is left out: nccl.h and cuda_runtime.h are not both beside nvcc or in /usr/include$(if $(strip $(NCCL_HEADERS)), (there is $(strip $(NCCL_HEADERS))))"
endif

# Kernels: machine code for A100 and H100, for V100 if nvcc supports it (12.x), and
# PTX, which newer GPUs compile at first use. Products are rounded before they are
# added (-fmad=false), as on the CPU.
CUDA_SOURCES := $(wildcard worker/ops/cuda/*.cu)
ifneq ($(CUDA),)
NVCC = $(CUDA)/bin/nvcc
NVCC_MAJOR := $(shell $(CUDA)/bin/nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
CUDA_MACHINES := $(if $(filter 12,$(NVCC_MAJOR)),70) 80 90
NVCC_FLAGS := -std=c++17 -O3 -I. -fmad=false -Werror all-warnings \
    -Wno-deprecated-gpu-targets \
    $(foreach sm,$(CUDA_MACHINES),-gencode arch=compute_$(sm)$(comma)code=sm_$(sm)) \
    -gencode arch=compute_90$(comma)code=compute_90 \
    $(addprefix -Xcompiler ,-fPIC -fvisibility=hidden -Wall -Wextra -Werror \
        $(HARDENING))
CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(BUILD)/cuda/%.o)
plugins: $(CUDA_OBJECTS)
endif

# The CUDA device plugin. It opens cuBLAS at run time if there is a GPU.
ifneq ($(wildcard $(CUDA:=/include/cublas_v2.h)),)
plugins: $(BUILD)/capstan-cuda.so
CUDA_PARTS := $(patsubst %.c,$(BUILD)/plugin/%.o,$(wildcard worker/ops/cuda/*.c))
$(CUDA_PARTS): CFLAGS_ALL += -isystem $(CUDA)/include \
    -DCUDA_OLDEST=$(firstword $(CUDA_MACHINES))
$(BUILD)/capstan-cuda.so: $(PLUGIN_COMMON) $(CUDA_PARTS) $(CUDA_OBJECTS)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared $(PLUGIN_LINK) -Wl,--no-undefined \
	    -o $@ $^ $(CUDA_LINK) -lcudart
else
plugins: no-cuda
no-cuda:
	@echo "cuda $(BUILD)/capstan-cuda.so is left out: $(if $(CUDA),there is no $(CUDA)/include/cublas_v2.h,there is no nvcc)"
endif

$(BUILD)/cuda/%.o: %.cu | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,nvcc)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(BUILD)/capstan-gloo.so: $(PLUGIN_COMMON) \
    $(patsubst %,$(BUILD)/plugin/core/%.o,base/spin_policy \
        $(addprefix net/shm/,shm_connection shm_handshake ring shm_segment buffer)) \
    $(BUILD)/plugin/worker/collective/gloo_shm.o \
    $(patsubst %.cc,$(BUILD)/plugin/%.o,$(wildcard worker/collective/*.cc))
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^ -lgloo

# The baselines of capstan bench.
BASELINES := $(patsubst %,$(BUILD)/plugin/%.o,commands/measure/bench_iteration \
    $(addprefix tests/bench/,baseline_process bare_zmq plain_socket))
$(BASELINES): | generated
$(BUILD)/capstan-bench.so: $(PLUGIN_COMMON) $(BASELINES)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^ -lzmq -lm

# For tests: the program with a plugin whose GPU is the CPU
# (tests/gpu/fake_device.h).
FAKE := $(addprefix $(BUILD)/fake/,capstan capstan-cuda.so capstan-nccl.so \
    capstan-gloo.so capstan-bench.so libnvidia-ml.so.1 paused_disk.so)
$(addprefix $(BUILD)/fake/,capstan capstan-gloo.so capstan-bench.so): $(BUILD)/fake/%: $(BUILD)/%
	@mkdir -p $(@D)
	$(Q)cp $< $@

$(BUILD)/fake/capstan-cuda.so: $(PLUGIN_COMMON) \
    $(patsubst %,$(BUILD)/plugin/tests/gpu/%.o,fake_device fake_streams)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^

# Its use is reported by this library (tests/bench/gpu_use.h).
$(BUILD)/fake/libnvidia-ml.so.1: $(BUILD)/plugin/tests/bench/nvml_on_cpu.o
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,$(@F) -o $@ $^

$(BUILD)/fake/paused_disk.so: $(BUILD)/plugin/tests/cluster/preload/paused_disk.o
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -o $@ $^

$(BUILD)/fake/capstan-nccl.so: $(PLUGIN_COMMON) \
    $(patsubst %,$(BUILD)/plugin/%.o,core/base/plugin tests/gpu/fake_nccl tests/gpu/stream_collective)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^

# The program with the real plugin, whose kernels and CUDA libraries run on the CPU;
# their headers explain how. The emulated cuBLAS is loaded with the plugin, so that
# no other one is found.
ifneq ($(wildcard $(CUDA:=/include/cublas_v2.h)),)
EMULATED := $(addprefix $(BUILD)/emulated/,capstan capstan-cuda.so capstan-gloo.so \
    libcapstan.so.0 libcublas.so.$(NVCC_MAJOR) libcuda_on_cpu.so \
    $(if $(filter 2,$(words $(NCCL_HEADERS))),capstan-nccl.so))
EMULATED_LIBS := $(filter %/libcublas.so.$(NVCC_MAJOR) %/libcuda_on_cpu.so,$(EMULATED))
endif
$(addprefix $(BUILD)/emulated/,capstan capstan-gloo.so libcapstan.so.0): $(BUILD)/emulated/%: $(BUILD)/%
	@mkdir -p $(@D)
	$(Q)cp $< $@

$(BUILD)/emulated/capstan-cuda.so: $(PLUGIN_COMMON) $(CUDA_PARTS) \
    $(CUDA_SOURCES:%.cu=$(BUILD)/cuda_on_cpu/%.o) \
    $(patsubst %,$(BUILD)/cuda_on_cpu/tests/gpu/cuda_%.o,on_cpu fiber) $(EMULATED_LIBS)
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared $(PLUGIN_LINK) -Wl,-rpath,'$$ORIGIN' \
	    -Wl,--no-as-needed -o $@ $^

$(BUILD)/emulated/capstan-nccl.so: $(PLUGIN_COMMON) \
    $(BUILD)/plugin/worker/collective/collective_nccl.o \
    $(addprefix $(BUILD)/emulated/lib,nccl_on_cpu.so cuda_on_cpu.so)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -Wl,--no-undefined \
	    -Wl,-rpath,'$$ORIGIN' -o $@ $^

$(BUILD)/emulated/libnccl_on_cpu.so: $(BUILD)/cuda_on_cpu/tests/gpu/nccl_on_cpu.o \
    $(BUILD)/emulated/libcuda_on_cpu.so
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -o $@ $^

$(BUILD)/tests/ops_cuda_capture_test: | $(EMULATED)

$(BUILD)/emulated/libcublas.so.%: $(BUILD)/cuda_on_cpu/tests/gpu/cublas_on_cpu.o \
    $(BUILD)/emulated/libcuda_on_cpu.so
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -o $@ $^

$(BUILD)/emulated/libcuda_on_cpu.so: \
    $(patsubst %,$(BUILD)/cuda_on_cpu/tests/gpu/cuda_%.o,runtime_on_cpu streams ranges memory)
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared -Wl,-soname,$(@F) -o $@ $^

$(BUILD)/plugin/%.o: %.c | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) $(PLUGIN_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/plugin/%.o: %.cc | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(PLUGIN_FLAGS) -MMD -MP -c -o $@ $<

generated: $(BUILD)/packages $(GENERATED)

# Every object depends on the first file and every test on the second, so that the
# build stops with a list of missing packages. PACKAGES=other: the packages do not
# come from apt. The parts that programs for users share need no test framework.
USERS_PARTS := $(addprefix $(BUILD)/tests/,bench/click_log.o gpu/sync_device.o)
TEST_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(TEST_ROOMS:=*_test.c) tests/gpu/*_test.c))
$(filter-out $(USERS_PARTS),$(TEST_PARTS)) $(TEST_OBJECTS): | $(BUILD)/packages-test
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

# Tests count the allocations of Capstan's code (tests/lib/allocations.c).
COUNTED := $(addprefix -Wl$(comma)--wrap=,malloc calloc realloc aligned_alloc)
TEST_FLAGS = $(COUNTED) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(VERSION) $(LIBS) \
    -lcmocka
# cmocka 2 warns of functions that cmocka 1 has under no other name.
$(BUILD)/tests/%.o: private CFLAGS_ALL += -DCMOCKA_DISABLE_DEPRECATION_WARNINGS

define room_rules
$(call room_program,$(1)): $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(1)*_test.c)) \
    $(TEST_PARTS) $(BUILD)/libcapstan.a | $(VERSION)
	$$(call say,cc)
	$$(Q)$$(CC) $$(CFLAGS_ALL) $$(TEST_FLAGS)
$(call room_tests,$(1)): $(call room_program,$(1))
	@ln -sf $$(<F) $$@
endef
$(foreach room,$(TEST_ROOMS),$(eval $(call room_rules,$(room))))

# The kernels compiled for the CPU, with an emulation of the GPU that runs them: their
# tests need neither nvcc nor a GPU.
ON_CPU := $(patsubst %,$(BUILD)/cuda_on_cpu/%.o,\
    $(CUDA_SOURCES:.cu=) $(addprefix tests/gpu/cuda_,faults on_cpu fiber memory streams))
$(CUDA_TESTS): $(BUILD)/tests/%_test: $(BUILD)/tests/gpu/%_test.o $(TEST_PARTS) \
    $(ON_CPU) $(BUILD)/libcapstan.a | $(VERSION)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(TEST_FLAGS)

# The same tests with the real kernels on this machine's GPU.
ifneq ($(CUDA),)
GPU_TESTS := $(patsubst $(BUILD)/tests/%,$(BUILD)/gpu/%,\
    $(filter-out %/cuda_on_cpu_test %/cuda_streams_test,$(CUDA_TESTS)))
endif
$(BUILD)/gpu/%_test: $(BUILD)/tests/gpu/%_test.o $(TEST_PARTS) $(CUDA_OBJECTS) \
    $(BUILD)/gpu/cuda_on_gpu.o $(BUILD)/libcapstan.a | $(VERSION)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(TEST_FLAGS) $(CUDA_LINK) -lcudart

$(BUILD)/gpu/%.o: tests/gpu/%.cc | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(addprefix -isystem ,$(CUDA:=/include)) -MMD -MP -c -o $@ $<

gpu-kernels: $(GPU_TESTS) ## build and run the kernels' tests on this machine's GPU
	@tests/run.sh $(GPU_TESTS)

# The tests of deploy/gpu-check.sh, a script because a bundle may be without make.
GPU_CHECKED := $(addprefix $(BUILD)/tests/,\
    $(shell sed -n 's/^programs=(\(.*\))$$/\1/p' deploy/gpu-check.sh))
# 77: no test failed, but not all can run on this machine; the last lines say so.
gpu-check: all $(GPU_TESTS) $(GPU_CHECKED) ## run every test that uses this machine's GPU, and compute-sanitizer
	@deploy/gpu-check.sh $(BUILD) || [ $$? = 77 ]

gpu-bench: all $(GPU_BENCH) ## measure a training step on this machine's GPU
	@deploy/gpu-bench.sh $(BUILD) || [ $$? = 77 ]

$(BUILD)/cuda_on_cpu/%.o: %.cu | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -fPIC -include tests/gpu/cuda_on_cpu.h -MMD -MP -x c++ -c -o $@ $<

$(BUILD)/cuda_on_cpu/%.o: %.cc | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -fPIC $(addprefix -isystem ,$(CUDA:=/include)) -MMD -MP -c -o $@ $<

# A plugin may use symbols of the program.
$(GPU_BENCH): CFLAGS_ALL += -rdynamic
$(GPU_BENCH): $(patsubst %,$(BUILD)/tests/bench/gpu_%.o,cluster compute table use) \
    $(filter %/sync_device.o,$(USERS_PARTS))
$(CLICK_LOG): $(BUILD)/tests/bench/click_log_main.o
$(BUILD)/bench/%: $(BUILD)/tests/bench/%.o $(BUILD)/libcapstan.a | $(VERSION)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $(filter %.o,$^) $(VERSION) $(filter %.a,$^) $(LIBS)

deps: ## install the missing packages through apt
	@deploy/deps.sh

deps-test deps-all deps-bundle deps-deb deps-lint deps-fuzz: deps-%:
	@deploy/deps.sh $*

demo: deps ## install, build and train Fashion-MNIST on this machine
	@$(MAKE) --no-print-directory $(JOBS) all
	@deploy/demo.sh $(BUILD)/capstan

demo-sparse: deps ## the same with deepfm and linear on a click log, their tables on the ps
	@$(MAKE) --no-print-directory $(JOBS) all $(CLICK_LOG)
	@deploy/demo.sh $(BUILD)/capstan $(CLICK_LOG)

# Tests read the program's path from CAPSTAN, and from SOAK_COUNT how often a soak
# test repeats: 1 in check, 10 for the full promise.
export CAPSTAN := $(abspath $(BUILD)/capstan)
check: deps-test ## install the test framework, build and run every test; tests whose packages are missing are skipped
check-all: deps-all ## the same with the packages of all tests: installs Slurm, Open MPI, ...
check check-all:
	@$(MAKE) --no-print-directory $(JOBS) build-tests
	@SOAK_COUNT=1 tests/run.sh $(CROWD_TESTS) -- $(LONE_TESTS)

# A caller of the library, as one outside would be built.
CALLER := $(BUILD)/tests/caller $(BUILD)/tests/table_rates
$(CALLER): $(BUILD)/tests/%: tests/library/%.c library/capstan.h $(BUILD)/libcapstan.so
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $< -L$(BUILD) -lcapstan -lm -Wl,-rpath,'$$ORIGIN/..'

build-tests: all $(TESTS) $(FAKE) $(EMULATED) $(GPU_BENCH) $(BENCHES) $(CLICK_LOG) $(CALLER)

# ROOM=ps: the tests of tests/unit/ps and its folders; TEST=gate: gate_test.c.
UNIT_CHOSEN = $(if $(TEST),$(filter %/$(TEST)_test,$(UNIT_IN_ROOM)),$(UNIT_IN_ROOM))
UNIT_IN_ROOM = $(if $(ROOM),$(foreach room,$(filter tests/unit/$(ROOM)/%,$(TEST_ROOMS)),\
    $(call room_tests,$(room))),$(UNIT_TESTS))
unit: $(if $(ROOM)$(TEST),,plugins) $(UNIT_CHOSEN) ## build and run the tests that need no cluster; ROOM=ps TEST=gate: one file
	@$(if $(UNIT_CHOSEN),,echo "no test $(TEST) in tests/unit/$(ROOM)"; exit 1;) \
	SOAK_COUNT=1 tests/run.sh $(UNIT_CHOSEN)

# Which mistakes the tests find, of tests/mutants/mutants.txt. ONLY="ps gate_lead 17":
# those in a folder, in a function, of a number; EVERY=1: all tests that find each.
mutants: ## plant mistakes into a copy, and tell which the tests do not find; ONLY=ps: those of a room; EVERY=1: name all tests
	@APART="$(notdir $(LONE_TESTS)) $(patsubst %,cluster_%_test,build bundle demo docker kubernetes python)" \
	    tests/mutants/mutants.py $(if $(EVERY),--every) $(ONLY)

# A program for each parser, built with SAN=fuzz; FUZZ=job: one of them.
FUZZ ?= $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
RUNS ?= 100000
TIME ?= 25
fuzz: deps-fuzz ## feed each parser with RUNS=100000 random inputs, for at most TIME=25 s; FUZZ=job: one
	@$(MAKE) --no-print-directory $(JOBS) SAN=fuzz $(FUZZ:%=build-fuzz/fuzz/fuzz_%)
	@tests/fuzz/run.sh build-fuzz/fuzz $(RUNS) $(TIME) $(FUZZ)

$(BUILD)/fuzz/fuzz_%: $(addprefix $(BUILD)/tests/fuzz/,fuzz_%.o fuzz.o) \
    $(BUILD)/libcapstan.a | $(VERSION)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -fsanitize=fuzzer -o $@ $^ $(VERSION) $(LIBS)

# Environments of packages from PyPI, which only the targets here use; complete when
# the file "ready" is there.
$(BUILD)/python/ready: python/tests/requirements.txt
$(BUILD)/wheel/tools/ready: deploy/wheel-requirements.txt
$(BUILD)/azureml-v1/ready $(BUILD)/azureml-v2/ready: $(BUILD)/%/ready: tests/%-requirements.txt
$(BUILD)/%/ready:
	@echo "pypi $(@D)"
	$(Q)python3 -m venv --clear $(@D) && $(@D)/bin/pip install --quiet -r $< || { \
	    echo "$(@D): the packages of $< are not all installed, for the reason above." \
	        "They come from PyPI; python3 needs venv (apt: python3-venv)." >&2; \
	    exit 1; }
	@touch $@

# The largest file of tests starts first.
PYTHON_TESTS := $(patsubst python/tests/%.py,%,$(shell ls -S python/tests/test_*.py))
.PHONY: $(PYTHON_TESTS)
check-python: ## run the Python package's tests, with frameworks from PyPI; test_torch: one file
	@$(MAKE) --no-print-directory --keep-going --output-sync $(JOBS) $(PYTHON_TESTS)

$(PYTHON_TESTS): all $(BUILD)/python/ready
	CAPSTAN_LIBRARY=$(abspath $(BUILD)/libcapstan.so) PYTHONPATH=python \
	    $(BUILD)/python/bin/python -m unittest discover -v -s python/tests -p $@.py

wheel: all $(BUILD)/wheel/tools/ready ## pack the Python package with program, library and plugins; prints the file
	@deploy/wheel.sh $(BUILD)

check-wheel: wheel ## install the wheel as a user of another machine would, and train with it
	@tests/check_elf.sh $(BUILD)/capstan-*.whl
	@python3 python/tests/check_wheel.py $(BUILD)/capstan-*.whl

check-azureml: $(BUILD)/capstan $(BUILD)/azureml-v1/ready $(BUILD)/azureml-v2/ready ## read the jobs of deploy/azureml by Azure's clients from PyPI
	@for v in v1 v2; do $(BUILD)/azureml-$$v/bin/python tests/check_azureml.py $$v $(BUILD) || exit; done

COUNT ?= 10
SOAK_TESTS = $(patsubst %.c,$(BUILD)/tests/%,$(notdir \
    $(shell grep -rlE --include='*_test.c' 'SOAK_COUNT|cluster_fixture_repeats' tests)))
soak: build-tests ## run the repeating tests COUNT (10) times as often as check
	@SOAK_COUNT=$(COUNT) TEST_LIMIT=$$((900 * $(COUNT))) \
	    tests/run.sh $(filter-out $(LONE_TESTS),$(SOAK_TESTS)) -- \
	    $(filter $(LONE_TESTS),$(SOAK_TESTS))

bench: all $(BENCHES) ## measure, and print tables with the figures of other systems
	@for bench in $(BENCHES); do $$bench || exit; done

PACK ?= gz
BUNDLED = $(GPU_TESTS) $(if $(filter gpu%,$(PACK)),all $(GPU_CHECKED) $(GPU_BENCH) \
    $(CLICK_LOG),build-tests $(BENCHES))
bundle: deps-bundle ## pack the build for machines without compiler and network; PACK=xz: half as large; PACK=gpu: for gpu-check and gpu-bench
	@$(MAKE) --no-print-directory $(JOBS) $(BUNDLED)
	@LONE_TESTS="$(LONE_TESTS)" GPU_CHECKED="$(notdir $(GPU_CHECKED))" \
	    deploy/bundle.sh $(BUILD) $(PACK)

# The program searches plugins beside itself, so both are in lib/.
LIB := $(DESTDIR)$(PREFIX)/lib/capstan
# The library's link for the linker: LIBDIR=lib/x86_64-linux-gnu is Debian's.
LIBDIR := lib
LINKS := $(DESTDIR)$(PREFIX)/$(LIBDIR)
SHARE := $(DESTDIR)$(PREFIX)/share
# Not enabled; packages put them into /usr/lib.
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
UNIT_FILES := $(patsubst deploy/systemd/%,%,$(wildcard $(addprefix \
    deploy/systemd/,*.service *.target */*.conf)))
# A job's relative paths start at its folder, where users may not write after
# installation, so the installed jobs have no keys for output files.
WRITING := checkpoint\|tensorboard\|export
RELEASE := $(shell sed -n 's/^.define VERSION_TEXT "\(.*\)"/\1/p' core/base/version.h)
# The pages of the manual, bash's completion and the job's schema are the program's.
install: all ## install to DESTDIR/PREFIX (PREFIX=/usr/local)
	install -d $(LIB) $(LINKS)/pkgconfig $(addprefix $(DESTDIR)$(PREFIX)/,bin include) \
	    $(SHARE)/doc/capstan/docs $(SHARE)/capstan/jobs
	for page in $$($(BUILD)/capstan manual); do \
	    case $$page in \
	    bash-completion) to=bash-completion/completions/capstan ;; \
	    capstan-job) to=man/man5/$$page.5 ;; \
	    *) to=man/man1/$$page.1 ;; \
	    esac; \
	    $(BUILD)/capstan manual $$page | \
	        install -D -m 644 /dev/stdin $(SHARE)/$$to || exit; done
	$(BUILD)/capstan schema | install -m 644 /dev/stdin $(SHARE)/capstan/job.schema.json
	install $(BUILD)/capstan $(BUILD)/$(SONAME) $(wildcard $(BUILD)/capstan-*.so) $(LIB)
	ln -sfr $(LIB)/capstan $(DESTDIR)$(PREFIX)/bin/capstan
	ln -sfr $(LIB)/$(SONAME) $(LINKS)/$(SONAME)
	ln -sf $(SONAME) $(LINKS)/libcapstan.so
	install -m 644 library/capstan.h $(DESTDIR)$(PREFIX)/include
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(RELEASE)|' \
	    library/capstan.pc.in > $(LINKS)/pkgconfig/capstan.pc
	install -m 644 README.md CHANGELOG.md LICENSE $(SHARE)/doc/capstan
	install -m 644 $(wildcard docs/*.md) $(SHARE)/doc/capstan/docs
	install -d $(UNITS)/capstan-.service.d $(SHARE)/capstan/{slurm,mpi,systemd}
	for unit in $(UNIT_FILES); do \
	    sed 's|/usr/bin/capstan|$(PREFIX)/bin/capstan|' deploy/systemd/$$unit | \
	    install -m 644 /dev/stdin $(UNITS)/$$unit || exit; done
	install -m 644 deploy/systemd/cluster.env $(SHARE)/capstan/systemd
	install -m 644 deploy/slurm/*.sbatch $(SHARE)/capstan/slurm
	install -m 644 deploy/mpi/hostfile $(SHARE)/capstan/mpi
	install deploy/mpi/run.sh $(SHARE)/capstan/mpi
	for job in $(notdir $(wildcard deploy/*.json)); do \
	    sed -z 's/,\n  "\($(WRITING)\)": {[^\n]*}//g' deploy/$$job | \
	    install -m 644 /dev/stdin $(SHARE)/capstan/jobs/$$job || exit; done

deb: deps-deb all ## pack packages for this release of Debian or Ubuntu; prints their files
	@deploy/deb.sh $(BUILD)

# For the other releases they are built there, from the commit.
HERE := $(shell sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2> /dev/null)
DEBS = $(addprefix $(BUILD)/,$(addsuffix _$(RELEASE)-1_*.deb,capstan libcapstan-dev))
check-deb: deb ## install, try and remove the packages in fresh root file systems of Debian 12 and 13 and Ubuntu 24.04 and 26.04
	@for suite in bookworm trixie noble resolute; do \
	    mirror=http://deb.debian.org/debian; \
	    [[ $$suite == [bt]* ]] || mirror=http://archive.ubuntu.com/ubuntu; \
	    debs=(); [[ $$suite != "$(HERE)" ]] || debs=($(DEBS)); \
	    tests/check_deb.sh $(BUILD)/$$suite $$suite $$mirror "$${debs[@]}" || exit; \
	done

check-fresh: ## type what README.md says in a fresh root file system of Debian 12
	@tests/check_fresh.sh $(BUILD)/fresh bookworm http://deb.debian.org/debian

# ENGINE="podman --runtime runc": another command than docker or podman, as they are.
check-docker: ## build the image of deploy/docker and try it, by docker, podman or a root file system
	@tests/check_docker.sh $(BUILD)/docker || [ $$? = 77 ]

check-systemd: deb ## boot systemd in a fresh Debian 12 and try the units there
	@tests/check_systemd.sh $(BUILD)/systemd bookworm http://deb.debian.org/debian \
	    $(filter-out $(BUILD)/lib%,$(DEBS))

# What install would put there, of the program that is installed, then Capstan's own
# folders if they are empty.
uninstall: ## remove what install put into DESTDIR/PREFIX
	@[[ -x $(LIB)/capstan ]] || { \
	    echo "$(LIB)/capstan is not there: nothing is installed in $(DESTDIR)$(PREFIX) (PREFIX=...)" >&2; \
	    exit 1; }
	@stage=$$(mktemp -d) && trap 'rm -rf "$$stage"' EXIT && \
	$(MAKE) -s -o all install BUILD="$(LIB)" DESTDIR="$$stage" && cd "$$stage" && \
	find . ! -type d -printf '%P\0' | (cd "$(abspath $(DESTDIR))/" && xargs -0 rm -fv) && \
	find . -depth -type d -path '*/capstan*' -printf '%P\0' | (cd "$(abspath $(DESTDIR))/" && \
	    xargs -0 rmdir --ignore-fail-on-non-empty)

format: deps-lint ## format the source with clang-format
	git ls-files '*.c' '*.h' '*.cc' '*.cu' | xargs clang-format -i

lint: deps-lint ## check format, includes and names
	git ls-files '*.c' '*.h' '*.cc' '*.cu' | xargs clang-format -n -Werror
	tests/lint.sh

clean: ## remove build and build-*
	rm -rf build build-*

# Not of trees that packages are made of or tried in.
-include $(shell find $(BUILD) -name usr -prune -o -type f -name '*.d' -print 2>/dev/null)
