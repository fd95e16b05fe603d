# SPDX-License-Identifier: Apache-2.0
# The plugins: Gloo, NCCL, CUDA and the baselines of bench. The Makefile includes this.
.PHONY: plugins no-nccl no-cuda

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
NVTX := $(wildcard $(CUDA)/include/nvtx3/nvToolsExt.h)
CUDA_PARTS := $(patsubst %.c,$(BUILD)/plugin/%.o,$(filter-out \
    worker/ops/cuda/ops_cuda_$(if $(NVTX),no_nvtx,nvtx).c,$(wildcard worker/ops/cuda/*.c)))
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
    $(patsubst %,$(BUILD)/plugin/core/%.o,base/spin_policy base/proof \
        $(addprefix net/shm/,shm_connection ring shm_segment buffer)) \
    $(BUILD)/plugin/worker/collective/gloo_shm.o \
    $(patsubst %.cc,$(BUILD)/plugin/%.o,$(wildcard worker/collective/*.cc))
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^ -lgloo -lsodium

# The baselines of capstan bench.
BASELINES := $(patsubst %,$(BUILD)/plugin/%.o,commands/measure/bench_iteration \
    $(addprefix tests/bench/,baseline_process bare_zmq plain_socket))
$(BASELINES): | generated
$(BUILD)/capstan-bench.so: $(PLUGIN_COMMON) $(BASELINES)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -shared $(PLUGIN_LINK) -o $@ $^ -lzmq -lm

$(BUILD)/plugin/%.o: %.c | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) $(PLUGIN_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/plugin/%.o: %.cc | $(BUILD)/packages
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) $(CXXFLAGS_ALL) $(PLUGIN_FLAGS) -MMD -MP -c -o $@ $<
