# `make help` lists what there is. All targets but bench run without root.

GO         ?= go
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS    := -s -w -X main.version=$(VERSION)
BUILD      := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'
COMMAND    := ./appliance/cmd/millrace
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Packages with goroutines that share memory: their tests also run under the race detector.
RACE       ?= ./nvme/... ./appliance/object/... ./appliance/arena/... ./appliance/segment/... ./s3/gateway/... \
	./verbs/... ./s3/rdma/... ./s3/client/...
# What runs as arm64, by user-mode emulation: everything that touches bytes, drives or memory.
ARM64      ?= ./nvme/... ./s3/checksum/... ./s3/chunked/... ./s3/sigv4/... ./s3/wire/... ./s3/store/... \
	./appliance/arena/... ./appliance/erasure/... ./appliance/segment/... ./appliance/placement/... \
	./appliance/record/... ./appliance/object/... ./verbs/... ./s3/rdma/...
# Emulation is ten times slower. These tests are long, and what they test is the same on any processor.
ARM64_SKIP ?= TestHistory|TestReplace|TestFull|TestPowerCut|TestDamagedShardIsHealed|TestLostDrive|TestRepair|TestScrub|TestLargestSegment
# Programs with the libibverbs provider are linked to the C library.
ARM64_LIBC ?= /usr/aarch64-linux-gnu
QEMU       ?= $(firstword $(shell command -v qemu-aarch64-static qemu-aarch64))
FUZZTIME   ?= 5s
# How long make torture goes on: a Go duration.
TORTURE    ?= 10m

.DEFAULT_GOAL := help
.PHONY: help build build-arm64 run demo test lint unit race test-arm64 test-clients test-dpu fuzz torture bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/millrace for this machine
	$(BUILD) -o bin/millrace $(COMMAND)

build-arm64: ## build bin/millrace-arm64, for a DPU or an arm64 server
	GOARCH=arm64 $(BUILD) -o bin/millrace-arm64 $(COMMAND)

run: build ## serve a virtual JBOF of 6 drives under ./var/demo
	bin/millrace serve --dir ./var/demo --drives 6

demo: build ## put and get a checkpoint by HTTP and by RDMA, show what both sides counted (under a minute)
	$(GO) run ./appliance/demo -millrace bin/millrace $(DEMO_FLAGS)

test: lint unit race ## all that needs neither root nor other people's clients

lint: ## gofmt, go vet and staticcheck
	@test -z "$$(gofmt -l .)" || { echo 'not as gofmt writes it:'; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

unit: ## unit tests, with the rules of the house (appliance/tidy)
	$(GO) test ./...

race: ## tests of the concurrent packages under the race detector
	CGO_ENABLED=1 $(GO) test -race -short -timeout 30m $(RACE)

test-arm64: ## unit tests as arm64 programs, by user-mode emulation
	@test -n "$(QEMU)" || { echo 'needs qemu-aarch64-static (Debian: qemu-user-static)'; exit 1; }
	@test -d $(ARM64_LIBC) || { echo 'needs the C library for arm64 (Debian: libc6-arm64-cross)'; exit 1; }
	CGO_ENABLED=0 GOARCH=arm64 $(GO) test -short -timeout 30m -skip '$(ARM64_SKIP)' -exec '$(QEMU) -L $(ARM64_LIBC)' $(ARM64)

test-clients: build ## aws CLI, s3cmd, rclone, boto3, minio-go and aws-sdk-go-v2 against bin/millrace
	cd s3/clienttest && $(GO) vet ./... && MILLRACE_BIN=$(CURDIR)/bin/millrace $(GO) test -count=1 -timeout 20m ./...

# What the guests of make test-dpu need, as Debian names the packages.
DPU_NEEDS  := qemu-system-aarch64:qemu-system-arm qemu-system-x86_64:qemu-system-x86 depmod:kmod modprobe:kmod xz:xz-utils \
  gcc:gcc make:make
# And files: what compiles siw for a guest, and its peer.
DPU_FILES  := /usr/include/rdma/rdma_cma.h:librdmacm-dev /usr/include/infiniband/verbs.h:libibverbs-dev \
  /usr/lib/$(shell uname -m)-linux-gnu/libelf.so.1:libelf1

test-dpu: ## boot guests in QEMU: RDMA and NVMe on a real kernel (fetches Debian packages into var)
	@missing=; for need in $(DPU_NEEDS); do PATH=$$PATH:/usr/sbin:/sbin command -v $${need%%:*} >/dev/null || missing="$$missing $${need##*:}"; done; \
	  for need in $(DPU_FILES); do test -e $${need%%:*} || missing="$$missing $${need##*:}"; done; \
	  test -z "$$missing" || { echo "test-dpu needs these Debian packages:$$missing"; exit 1; }
	$(GO) test -count=1 -timeout 30m ./appliance/dputest -dpu $(DPU_FLAGS)

fuzz: ## run every fuzz test for FUZZTIME (5s)
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u); do \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$dir/*_test.go | cut -c6-); do \
	    $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$dir; \
	  done; done

torture: build ## kill -9, power cuts, absences, full pools, failing drives, histories for TORTURE (10m)
	$(GO) run ./appliance/torture/run -go $(GO) -millrace bin/millrace -for $(TORTURE) $(TORTURE_FLAGS)

bench: build ## measure; PEER_MINIO=path/to/minio measures that beside it (as root: on loop drives)
	$(GO) run ./appliance/bench -millrace bin/millrace $(if $(PEER_MINIO),-minio $(PEER_MINIO)) $(BENCH_FLAGS)

clean: ## remove bin and var
	rm -rf bin var
