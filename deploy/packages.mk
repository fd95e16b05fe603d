# SPDX-License-Identifier: Apache-2.0
# Installing, packages and the demo. The Makefile includes this.
.PHONY: wheel bundle deps deps-test deps-all deps-bundle deps-deb deps-lint deps-fuzz \
    demo demo-sparse install uninstall deb

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

# Environments of packages from PyPI, which only the targets here use; complete when
# the file "ready" is there.
$(BUILD)/python/ready: python/tests/requirements.txt
$(BUILD)/keras2/ready: python/tests/keras2-requirements.txt
# TensorFlow 2.15 needs Python 3.9 to 3.11.
$(BUILD)/keras2/ready: PYTHON = $(or $(PYTHON_OF_KERAS_2),python3)
PYTHON_OF_KERAS_2 := $(firstword $(shell for v in 11 10 9; do command -v python3.$$v; done))
$(BUILD)/wheel/tools/ready: deploy/wheel-requirements.txt
$(BUILD)/tensorboard/ready: tests/metrics/requirements.txt
$(BUILD)/mlflow/ready: tests/metrics/mlflow-requirements.txt
$(BUILD)/azureml-v1/ready $(BUILD)/azureml-v2/ready: $(BUILD)/%/ready: tests/%-requirements.txt
PYTHON = python3
$(BUILD)/%/ready:
	@echo "pypi $(@D)"
	$(Q)$(PYTHON) -m venv --clear $(@D) && $(@D)/bin/pip install --quiet -r $< || { \
	    echo "$(@D): the packages of $< are not all installed, for the reason above." \
	        "They come from PyPI; python3 needs venv (apt: python3-venv)." >&2; \
	    exit 1; }
	@touch $@

wheel: all $(BUILD)/wheel/tools/ready ## pack the Python package with program, library and plugins; prints the file
	@deploy/wheel.sh $(BUILD)

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
	install -d $(UNITS)/capstan-.service.d $(SHARE)/capstan/{slurm,mpi,systemd,prometheus}
	for unit in $(UNIT_FILES); do \
	    sed 's|/usr/bin/capstan|$(PREFIX)/bin/capstan|' deploy/systemd/$$unit | \
	    install -m 644 /dev/stdin $(UNITS)/$$unit || exit; done
	install -m 644 deploy/systemd/cluster.env $(SHARE)/capstan/systemd
	install -m 644 deploy/slurm/*.sbatch $(SHARE)/capstan/slurm
	install -m 644 deploy/mpi/hostfile $(SHARE)/capstan/mpi
	install deploy/mpi/run.sh $(SHARE)/capstan/mpi
	install -m 644 deploy/prometheus/* $(SHARE)/capstan/prometheus
	for job in $(notdir $(wildcard deploy/*.json)); do \
	    sed -z 's/,\n  "\($(WRITING)\)": {[^\n]*}//g' deploy/$$job | \
	    install -m 644 /dev/stdin $(SHARE)/capstan/jobs/$$job || exit; done

deb: deps-deb all ## pack packages for this release of Debian or Ubuntu; prints their files
	@deploy/deb.sh $(BUILD)

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
