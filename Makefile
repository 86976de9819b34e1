# bam: a thin wrapper around scripts/ and CMake. `make` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

MODEL ?= demo
PREFIX ?= /usr/local
ARGS ?=
FUZZ_SECONDS ?= 300
BASE ?= HEAD
TEST_JOBS ?= $(shell nproc)
STEP := scripts/timed.sh
SOURCES = $(shell git ls-files -co --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh')
SHELL_SCRIPTS = $(shell git ls-files -co --exclude-standard -- '*.sh' .ci/run)

.PHONY: help setup build serve install deb test quick stressed sanitize web-test bench soak fuzz format lint docker-test cuda cluster asan tsan debug clean

help: ## this list
	@echo 'bam: inference server for BAM language models'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  make serve MODEL=DIR ARGS="--port 9000"   another model, more flags (build/bam serve --help)'

setup: ## install packages, build Drogon if the machine has none (silent when done)
	@scripts/setup.sh

build: setup ## build everything into build/
	@$(STEP) 'build' scripts/build.sh release

serve: setup ## build and serve the demo model on 127.0.0.1:8000 (MODEL=DIR, ARGS="…")
	@$(STEP) 'build build/bam' scripts/build.sh release bam
	@echo '==> build/bam serve --model $(MODEL) $(ARGS)' >&2
	@exec build/bam serve --model '$(MODEL)' $(ARGS)

install: setup ## build and install into PREFIX=/usr/local (DESTDIR=…): program, demo model, man pages, unit
	@$(STEP) 'build build/bam' scripts/build.sh release bam
	@$(STEP) 'install' cmake --install build --prefix '$(PREFIX)'

deb: setup ## build the Debian package build/bam-server_VERSION_ARCH.deb
	@$(STEP) 'build build/bam' scripts/build.sh release bam
	@$(STEP) 'package' scripts/deb.sh

test: ## set up, build, run all tests (TEST_JOBS=N, ARGS="-R name")
	@scripts/setup.sh --tests --fuzz
	@$(STEP) 'build' scripts/build.sh release
	@$(STEP) 'fuzzing' scripts/fuzz.sh $(FUZZ_SECONDS)
	@echo '==> tests' >&2
	@ctest --test-dir build -j $(TEST_JOBS) --output-on-failure --no-tests=error -LE soak $(ARGS)

quick: setup ## build and run the unit tests of what changed (BASE=main: since then)
	@scripts/quick.py $(BASE)

stressed: build ## all tests RUNS=3 times beside LOAD=8 loops that want a core each (ARGS="-R name")
	@scripts/stressed.sh $(ARGS)

sanitize: ## ASan and UBSan over unit and HTTP suites, TSan over engine and server
	@scripts/setup.sh --tests
	@scripts/sanitize.sh

soak: build ## the long tests: hours of load, 500K and 1M tokens
	@$(STEP) 'soak tests' ctest --test-dir build --output-on-failure --no-tests=error -L soak $(ARGS)

bench: ## benchmarks: kernels, prefill, decode, streams; writes bench/results/
	@scripts/setup.sh --bench
	@$(STEP) 'build' scripts/build.sh release
	@$(STEP) 'benchmarks' bench/run.sh $(ARGS)

web-test: build ## the page in a headless browser (installs chromium)
	@scripts/setup.sh --tests --browser
	@$(STEP) 'browser tests' ctest --test-dir build --output-on-failure --no-tests=error -R 'http.test_web' $(ARGS)

fuzz: ## run all fuzzers under ASan and UBSan, FUZZ_SECONDS together
	@scripts/setup.sh --fuzz
	@$(STEP) 'fuzzing' scripts/fuzz.sh $(FUZZ_SECONDS)

asan: ## build and test with the address and undefined-behaviour sanitizers
	@scripts/setup.sh --tests
	@$(STEP) 'build build-asan' scripts/build.sh asan
	@$(STEP) 'tests under ASan and UBSan' ctest --test-dir build-asan -j $(TEST_JOBS) --output-on-failure --no-tests=error -LE soak $(ARGS)

tsan: ## build and test with the thread sanitizer
	@BAM_DROGON_SANITIZE=thread scripts/setup.sh --tests
	@$(STEP) 'build build-tsan' scripts/build.sh tsan
	@$(STEP) 'tests under TSan' ctest --test-dir build-tsan -j $(TEST_JOBS) --output-on-failure --no-tests=error -LE soak $(ARGS)

debug: setup ## build into build-debug/ without optimisation
	@$(STEP) 'build build-debug' scripts/build.sh debug

cuda: setup ## build into build-cuda/ with the CUDA plugin (needs nvcc)
	@$(STEP) 'build build-cuda' scripts/build.sh cuda

cluster: ## build with the transports for several machines (installs Gloo, Open MPI, hiredis)
	@scripts/setup.sh --cluster
	@$(STEP) 'build' scripts/build.sh release bam bam_gloo bam_mpi

docker-test: ## build the CPU image, run the server from it, check the deployment files
	@$(STEP) 'docker test' docker/test.sh $(ARGS)

format: ## format all C++ and CUDA sources in place
	@scripts/setup.sh --lint
	@$(STEP) 'clang-format' clang-format -i $(SOURCES)

lint: ## check formatting, shell scripts, and clang-tidy
	@scripts/setup.sh --lint
	@$(STEP) 'clang-format' clang-format --dry-run -Werror $(SOURCES)
	@$(STEP) 'shellcheck' shellcheck -x -P SCRIPTDIR $(SHELL_SCRIPTS)
	@$(STEP) 'build' scripts/build.sh release
	@$(STEP) 'clang-tidy' scripts/tidy.sh $(ARGS)

clean: ## remove all build folders (the cached Drogon stays)
	@$(STEP) 'clean' rm -rf build build-debug build-asan build-tsan build-fuzz build-cuda
