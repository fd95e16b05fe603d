# SPDX-License-Identifier: Apache-2.0
# Tests, benches and checks. The Makefile includes this.
.PHONY: check-azureml check-docker check-fresh check-metrics check-mlflow check-page check-systemd check-python \
    check-wheel gpu-kernels gpu-check gpu-bench fuzz drill build-tests check check-all unit mutants soak \
    bench check-deb format lint

GPU_BENCH := $(BUILD)/bench/gpu_bench
CLICK_LOG := $(BUILD)/bench/click_log
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
    compare_command compare_members compare_net memory simulate waits)
# The slowest test starts first.
LONGEST := $(BUILD)/tests/collective_gloo_test
CROWD_TESTS := $(LONGEST) $(filter-out $(LONE_TESTS),$(CLUSTER_TESTS)) \
    $(filter-out $(LONGEST),$(UNIT_TESTS))

# The parts that programs for users share need no test framework.
USERS_PARTS := $(addprefix $(BUILD)/tests/,bench/click_log.o gpu/sync_device.o)
TEST_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(TEST_ROOMS:=*_test.c) tests/gpu/*_test.c))
$(filter-out $(USERS_PARTS),$(TEST_PARTS)) $(TEST_OBJECTS): | $(BUILD)/packages-test

# For tests: the program with a plugin whose GPU is the CPU
# (tests/gpu/fake_device.h).
PRELOADED := $(addsuffix .so,failing_memory jumping_clock paused_disk shifted_clock slow_names \
    traced_disk)
FAKE := $(addprefix $(BUILD)/fake/,capstan capstan-cuda.so capstan-gloo.so \
    capstan-bench.so libnvidia-ml.so.1 $(PRELOADED))
$(addprefix $(BUILD)/fake/,capstan capstan-gloo.so capstan-bench.so): $(BUILD)/fake/%: $(BUILD)/%
	@mkdir -p $(@D)
	$(Q)cp $< $@

$(BUILD)/fake/capstan-cuda.so: $(PLUGIN_COMMON) \
    $(patsubst %,$(BUILD)/plugin/tests/gpu/%.o,fake_device fake_streams)
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^

# Its use is reported by this library (worker/ops/nvml.h).
$(BUILD)/fake/libnvidia-ml.so.1: $(BUILD)/plugin/tests/bench/nvml_on_cpu.o
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,$(@F) -o $@ $^

$(addprefix $(BUILD)/fake/,$(PRELOADED)): $(BUILD)/fake/%.so: \
    $(BUILD)/plugin/tests/cluster/preload/%.o
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -o $@ $^

# The program with the real plugin, whose kernels and CUDA libraries run on the CPU;
# their headers explain how. The emulated cuBLAS is loaded with the plugin, so that
# no other one is found.
ifneq ($(wildcard $(CUDA:=/include/cublas_v2.h)),)
EMULATED := $(addprefix $(BUILD)/emulated/,capstan capstan-cuda.so capstan-gloo.so \
    libcapstan.so.0 libcublas.so.$(NVCC_MAJOR) libcuda_on_cpu.so \
    $(if $(filter 2,$(words $(NCCL_HEADERS))),capstan-nccl.so) \
    $(if $(NVTX),nvtx_counter.so))
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

$(BUILD)/plugin/tests/cluster/preload/nvtx_counter.o: CFLAGS_ALL += -isystem $(CUDA)/include
$(BUILD)/emulated/nvtx_counter.so: $(BUILD)/plugin/tests/cluster/preload/nvtx_counter.o
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -o $@ $^

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

# Tests read the program's path from CAPSTAN, and from SOAK_COUNT how often a soak
# test repeats: once in check if nothing else is set, 10 times for the full promise.
export CAPSTAN := $(abspath $(BUILD)/capstan)
check: deps-test ## install the test framework, build and run every test; tests whose packages are missing are skipped
check-all: deps-all ## the same with the packages of all tests: installs Slurm, Open MPI, ...
check check-all:
	@$(MAKE) --no-print-directory $(JOBS) build-tests
	@SOAK_COUNT=$${SOAK_COUNT:-1} tests/run.sh $(CROWD_TESTS) -- $(LONE_TESTS)

# A caller of the library, as one outside would be built.
CALLER := $(addprefix $(BUILD)/tests/,caller round_times table_rates)
$(CALLER): $(BUILD)/tests/%: tests/library/%.c library/capstan.h $(BUILD)/libcapstan.so
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $< -L$(BUILD) -lcapstan -lm -Wl,-rpath,'$$ORIGIN/..'

build-tests: all $(TESTS) $(FAKE) $(EMULATED) $(GPU_BENCH) $(BENCHES) $(CLICK_LOG) $(CALLER)

# What has one thread, and takes minutes with the thread sanitizer: kernels on the CPU,
# and a simulated cluster.
ONE_THREAD := $(if $(filter thread,$(SAN)),$(addprefix $(BUILD)/tests/,$(addsuffix _test,\
    $(addprefix cuda_,half layer loss norm rows rule on_cpu) ops_cuda_capture \
    simulator_report simulation update_core_histories rule_loops job)))
# ROOM=ps: the tests of tests/unit/ps and its folders; TEST=gate: gate_test.c.
UNIT_CHOSEN = $(if $(TEST),$(filter %/$(TEST)_test,$(UNIT_IN_ROOM)),$(UNIT_IN_ROOM))
UNIT_IN_ROOM = $(if $(ROOM),$(foreach room,$(filter tests/unit/$(ROOM)/%,$(TEST_ROOMS)),\
    $(call room_tests,$(room))),$(filter-out $(ONE_THREAD),$(UNIT_TESTS)))
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

# The largest file of tests starts first.
PYTHON_TESTS := $(patsubst python/tests/%.py,%,$(shell ls -S python/tests/test_*.py)) test_keras2
.PHONY: $(PYTHON_TESTS)
# What needs NumPy only is in check (cluster_python_test).
check-python: ## run the Python package's tests with frameworks from PyPI; test_torch: one file
	@$(MAKE) --no-print-directory --keep-going --output-sync $(JOBS) \
	    $(filter-out test_numpy,$(PYTHON_TESTS))

UNITTEST = CAPSTAN_LIBRARY=$(abspath $(BUILD)/libcapstan.so) PYTHONPATH=python \
    $(BUILD)/$(1)/bin/python -m unittest discover -v -s python/tests -p
$(filter-out test_keras2,$(PYTHON_TESTS)): all $(BUILD)/python/ready
	$(call UNITTEST,python) $@.py

# The tests of Keras in which versions differ, with TensorFlow 2.15 and its Keras 2.
test_keras2: all $(if $(PYTHON_OF_KERAS_2),$(BUILD)/keras2/ready)
ifneq ($(PYTHON_OF_KERAS_2),)
	$(call UNITTEST,keras2) 'test*_keras.py' -k one_process -k tutorial -k named
else
	@echo "$@ is skipped: TensorFlow 2.15 needs Python 3.9 to 3.11, as the command python3.11"
endif

check-wheel: wheel ## install the wheel as a user of another machine would, and train with it
	@tests/check_elf.sh $(BUILD)/capstan-*.whl
	@python3 python/tests/check_wheel.py $(BUILD)/capstan-*.whl

check-azureml: $(BUILD)/capstan $(BUILD)/azureml-v1/ready $(BUILD)/azureml-v2/ready ## read the jobs of deploy/azureml by Azure's clients from PyPI
	@for v in v1 v2; do $(BUILD)/azureml-$$v/bin/python tests/check_azureml.py $$v $(BUILD) || exit; done

check-metrics: all $(FAKE) $(BUILD)/tensorboard/ready ## judge metrics, alerts and board by Prometheus, HParams by TensorBoard from PyPI
	@tests/metrics/check_metrics.py $(BUILD) || [ $$? = 77 ]
	@$(BUILD)/tensorboard/bin/python tests/metrics/check_hparams.py $(BUILD)

check-mlflow: $(BUILD)/capstan $(BUILD)/mlflow/ready ## tell MLflow's server from PyPI of two runs, and ask it what stands there
	@$(BUILD)/mlflow/bin/python tests/metrics/check_mlflow.py $(BUILD)

# Of docs/failures.md; at one kill a minute: EVERY=60 LEAST=95.
MINUTES ?= 2
EVERY ?= 15
LEAST ?= 85
drill: $(BUILD)/capstan ## train for MINUTES=2 while a process is killed each EVERY=15 s: LEAST=85 % of the samples that its rate between kills gives are to count
	@rm -rf $(BUILD)/drill
	@python3 tests/cluster/drill_figures.py $(BUILD)/capstan $(BUILD)/drill goodput $(MINUTES) $(EVERY) $(LEAST)

COUNT ?= 10
SOAK_TESTS = $(patsubst %.c,$(BUILD)/tests/%,$(notdir \
    $(shell grep -rlE --include='*_test.c' 'SOAK_COUNT|cluster_fixture_repeats' tests)))
soak: build-tests ## run the repeating tests COUNT (10) times as often as check, fuzz with 100,000,000 inputs, and drill for 2 hours
	@SOAK_COUNT=$(COUNT) TEST_LIMIT=$$((900 * $(COUNT))) \
	    tests/run.sh $(filter-out $(LONE_TESTS),$(SOAK_TESTS)) -- \
	    $(filter $(LONE_TESTS),$(SOAK_TESTS))
	@$(MAKE) --no-print-directory fuzz RUNS=100000000 TIME=3600
	@$(MAKE) --no-print-directory drill MINUTES=120
	@$(MAKE) --no-print-directory drill MINUTES=120 EVERY=60 LEAST=95

bench: all $(BENCHES) ## measure, and print tables with the figures of other systems
	@for bench in $(BENCHES); do $$bench || exit; done

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

PICTURES ?=
check-page: $(BUILD)/capstan ## open the page of runs in chromium; PICTURES=folder: keep what it looks like
	@tests/check_page.py $(BUILD)/capstan $(PICTURES) || [ $$? = 77 ]

check-systemd: deb ## boot systemd in a fresh Debian 12 and try the units there
	@tests/check_systemd.sh $(BUILD)/systemd bookworm http://deb.debian.org/debian \
	    $(filter-out $(BUILD)/lib%,$(DEBS))

format: deps-lint ## format the source with clang-format
	git ls-files '*.c' '*.h' '*.cc' '*.cu' | xargs clang-format -i

lint: deps-lint ## check format, includes and names
	git ls-files '*.c' '*.h' '*.cc' '*.cu' | xargs clang-format -n -Werror
	tests/lint.sh
