# People and CI use this repository through the targets below, and in no other way.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
# Everything that is built or downloaded is kept here; delete it to start afresh.
export CACHE := $(CURDIR)/.cache
BIN := $(CACHE)/bin

# All lanes compile with the same flags, so that they share the build cache: a cold build
# takes minutes, a quarter of them for debug information (-dwarf). go test would also run
# vet, which takes a minute in each lane; the linter runs it on all files.
OURS := -trimpath -vet=off -gcflags=all=-dwarf=false
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out $(OURS),$(shell $(GO) env GOFLAGS)) $(OURS)

# Parameters, as in: make unit PKG=./ops/... RUN=TestLaws
PKG ?= ./...
RUN ?= .
# LONG=1 is the long form of tests that have one, the build tag soak.
LONG ?=
TAGS = $(if $(LONG),-tags soak)
KERNELS ?= stable backports$(if $(LONG), oldstable)
KERNEL_PKG ?= ./cmd/... ./integration/kernel ./reconcile/agent ./reconcile/kernel/... ./reconcile/watch
# The packages of which the short form runs tests on one kernel only.
ONE_KERNEL_PKG := ./cmd/... ./reconcile/agent ./reconcile/watch
OTHER_KERNEL_PKG := ./reconcile/kernel/...
# The short form runs most tests that take seconds on one kernel only: here those that test our
# code rather than the kernel, below the others.
ONE_KERNEL := ^Test(KilledBetweenChanges|EveryChangeFailsOnce|FailureAtEveryChange|KilledInRepairAndUpdate|Update(Killed|FailsAnywhere)|Drift|AnotherWriter|Restart|NothingGrows|Storm|(Kernel)?Sessions|Run|Interrupt|SupportBundle|Random(TwoTopologies)?|LinkStateFollowsLACP|PartnerOfPort|DeviceKnownByIndex|Unplugged|SlowAttach(Killed)?|StackedPairs|PathReused|NetworkOfFunction|Shares|CleanOnReturn|Function(Rebound|Open)|HiddenUpper|ApplyTwiceRelease|NamespaceDies|Tunnel|Order|OtherWriters|PersistentSquatter|Neighbors|BridgeKeepsMAC|CarrierComesLater|Squatter|IgnoredRouters|DHCPBehindGuard|ForgedFrames|RequiredGID|EightRails|PodNetworkMarked(Killed|Fails)?|Update|(Many)?HostPorts|LoopbackPorts)$$
OTHER_KERNEL := ^Test(Backoff|GuardOfTwoTopologies|DHCP(ServerAway|Killed|Failure|OverIPVLAN|AddressInUse|Options)?|NoSandboxWaits|ManyFilters|ServiceOnBridge|SharedUplink|(Forged)?LLDP|PodEndsOnFullDisk|HostileDHCP|HostRoutes|PodRoutes|RoutedPods|LostPorts|Masquerade|PodNetwork(Routed|Refuses|Killed|sAtOnce)?|Loopback|MultiNIC|HostilePod|ForgedIdentity|Autoconfiguration|RouterAdvertisement|DuplicateAddressDetection|EditedTopology|RateO(fUserspace|nPF)|DeviceIsHeld|FullSandbox|PairWriteFails|CostOfCleaning|Belongings|PodNetwork(Limited|Edited)|UplinkIsTheNodes|EditedUnderTraffic|EditTakesLinkDown)$$
# Tests of ./cmd/... that take seconds and change no kernel: the short form leaves them to unit.
NO_KERNEL := ^Test(Sessions|Terminal|Examples(Together)?|LinesOf.*)$$
# Of the tests that take longest the short form runs every third one, of which the first is drawn: runs together go through all.
# Neighbors in a list test similar things, or take as long.
IN_TURN := LoopbackPorts HostPorts ForgedFrames LinkStateFollowsLACP OtherWriters ManyHostPorts DHCPBehindGuard KernelSessions \
	NothingGrows RequiredGID Restart Tunnel PartnerOfPort AnotherWriter BridgeKeepsMAC NetworkOfFunction PathReused NamespaceDies \
	RandomTwoTopologies EightRails PodNetworkMarked PodNetworkMarkedFails HostileRDMAPod CleanOnReturn Unplugged Shares \
	DHCPServerAway DHCP Backoff HostileDHCP PodNetworksAtOnce PodRoutes PodNetwork HostRoutes DHCPAddressInUse DHCPOverIPVLAN \
	Masquerade DuplicateAddressDetection NoSandboxWaits Autoconfiguration PodNetworkKilled PodNetworkRouted DHCPKilled DHCPFailure \
	LostPorts UpperProbe ForgedLLDP ForgedIdentity VLANBeforeClearToSend BondBeforeClearToSend SettingsAreRestored CardEthtool Marks Limits
IN_TURN_OVN := Raft Nodes SameObject Fragments BesideOVNKubernetes Localnet Restarts Marks RuleCounters Limits Layer2 SilentMember
RACELESS := k8s.io/client-go/rest
GOROUTINES := ^\s*go |\.Go\(|"sync(/atomic)?"|RunParallel
FUZZTIME ?= 20s
SOAK ?= 10m
SEED ?=
REGISTRY ?= ghcr.io/plumbline
# The database of vulnerabilities.
VULNDB ?=
# The source of CRI-O.
CRIO ?=
# Of Kubernetes' own tests, those whose name it matches.
SPECS ?=
IMAGE ?= $(REGISTRY)/plumbline:0.1.0
# Of a release: by default the tag of the commit.
VERSION ?=
# What make release writes to, and make push reads from: an empty folder, or one with an earlier release.
RELEASE_DIR ?= $(CACHE)/release

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' |
	while IFS=$$'\t' read -r target text; do printf '  make %-16s %s\n' "$$target" "$$text"; done

# --- Using it ---------------------------------------------------------------------

.PHONY: build
build: ## the binaries, static: .cache/bin/plumbline, with its names as a plugin of kubectl, and .cache/bin/plumbline-cni
	@$(GO) build -ldflags="-s -w" -o $(BIN)/ ./cmd/plumbline ./cmd/plumbline-cni
	ln -sf plumbline $(BIN)/kubectl-plumbline
	ln -sf plumbline $(BIN)/kubectl_complete-plumbline

.PHONY: demo
demo: ## the flagship topology on real SR-IOV VFs, in a virtual machine
	@. .ci/lib
	begin 'building plumbline'
	$(MAKE) build
	$(GO) build -ldflags="-s -w" -o $(BIN)/ ./integration/demo
	end
	begin 'the demo, in a virtual machine'
	integration/vm --nics quad --rdma -- $(BIN)/demo $(BIN)/plumbline docs/flagship.yaml integration/demo/peer.yaml </dev/null
	end

.PHONY: image
image: build ## the container image, an archive for ctr images import: .cache/image/plumbline.tar (IMAGE=NAME:TAG)
	@$(GO) run ./integration/image/save -o $(CACHE)/image/plumbline.tar $(IMAGE) $(BIN)/plumbline $(BIN)/plumbline-cni

.PHONY: release
release: $(BIN)/helm ## all that is installed of a version, below .cache/release: programs, image, chart, install.yaml, SBOM (VERSION=v0.1.0 REGISTRY=ghcr.io/plumbline RELEASE_DIR=/tmp/release)
	@. .ci/lib
	version='$(VERSION)'
	[[ -n $$version ]] || version=$$(git describe --tags --exact-match 2>/dev/null) || true
	begin "building release $$version"
	$(GO) run ./integration/release build -version "$$version" -registry '$(REGISTRY)' -helm $(BIN)/helm \
		-revision "$$(git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null || echo unknown)" '$(RELEASE_DIR)'
	end

.PHONY: push
push: release ## push image and chart of a release, with docker's credentials (VERSION=v0.1.0 REGISTRY=registry.example.com/net)
	@$(GO) run ./integration/release push '$(RELEASE_DIR)'

.PHONY: demo-cluster
demo-cluster: ## from kubectl apply to a pod with its network, on a Kubernetes with a node in a virtual machine
	@. .ci/lib
	begin 'the demo on a cluster'
	# The first run: beside the download of modules, which leaves the processors idle. The demo waits for it.
	setpriv --pdeathsig TERM integration/machine/root cluster >/dev/null &
	$(GO) run ./integration/cluster/demo </dev/null
	end

# --- Testing it -------------------------------------------------------------------

.PHONY: test
# Two machines, see .ci/run.
test: ## unit and test-kernel, side by side
	@.ci/lanes machine compile -- $(firstword $(KERNELS:%=test-kernel-%)) '$(wordlist 2,$(words $(KERNELS)),$(KERNELS:%=test-kernel-%)) unit'

.PHONY: test-all
# The nodes of test-cluster are virtual machines too, so that lane runs after test-kernel.
test-all: LONG = 1
test-all: ## every test in its long form, lint, verify and fuzz: hours (LANES='unit lint')
	@LONG=1 .ci/lanes $(or $(LANES),'machine machine-cluster' compile -- $(firstword $(KERNELS:%=test-kernel-%)) $(if $(word 2,$(KERNELS)),'$(wordlist 2,$(words $(KERNELS)),$(KERNELS:%=test-kernel-%))') -- 'test-cluster test-versions test-conformance' 'unit lint verify test-reports test-examples test-imports test-network-status test-arm64 test-ovn fuzz')

.PHONY: compile
# Two lanes that start together would both compile their common packages. Nothing is
# linked, since go does not cache linked binaries.
compile:
	@. .ci/lib
	begin 'compiling'
	$(GO) list -tags 'cluster $(if $(LONG),soak)' -test -deps -export $(or $(COMPILE),./...) >/dev/null
	end

.PHONY: machine machine-cluster
machine machine-cluster: machine%:
	@. .ci/lib
	begin 'the root file system of the virtual machines'
	integration/machine/root $(or $(*:-%=%),rdma) >/dev/null # on top of the one without
	end

.PHONY: unit
# With -race, packages that use RACELESS need most of client-go compiled a second time, which takes
# minutes on a bare machine: the short form tests them without -race, unless PKG names them, and so it does ops/all
# and packages that start no goroutine. Packages without tests are left out, since go test would compile them too.
unit: ## tests that need neither root nor network (PKG=./ops/... RUN=TestLaws LONG=1)
	@. .ci/lib
	packages='$(PKG)' raceless=
	if [[ -z '$(LONG)' && $$packages = ./... ]]; then
		packages=''
		clients=$$($(GO) list -test -f '{{ range .Deps }}{{ if eq . "$(RACELESS)" }}{{ $$.ImportPath }} {{ end }}{{ end }}' ./...)
		while read -r package folder; do
			if [[ $$clients =~ (^|[[:space:]])"$$package.test"[[:space:]] || $$package = */ops/all ]] || ! grep -qE '$(GOROUTINES)' "$$folder"/*.go; then
				raceless+=" $$package"
			else
				packages+=" $$package"
			fi
		done < <($(GO) list -f '{{ if or .TestGoFiles .XTestGoFiles }}{{ .ImportPath }} {{ .Dir }}{{ end }}' ./...)
	fi
	race=-race
	if ! need gcc gcc libc6-dev; then
		say 'no C compiler, so no -race'
		race=
	fi
	begin "unit tests$${race:+ with $$race}"
	CGO_ENABLED=$$(( $${#race} > 0 )) env -u PLUMBLINE_LANE $(GO) test $$race $(TAGS) -timeout 40m -shuffle=on -run '$(RUN)' $$packages
	end
	if [[ -n $$raceless ]]; then
		begin 'unit tests without -race'
		env -u PLUMBLINE_LANE $(GO) test -timeout 40m -shuffle=on -run '$(RUN)' $$raceless
		end
	fi

.PHONY: test-kernel
test-kernel: ## tests that change a kernel, in a virtual machine, on two kernels, on three with LONG=1 (KERNELS=stable)
	@COMPILE='$(KERNEL_PKG)' .ci/lanes machine compile -- $(firstword $(KERNELS:%=test-kernel-%)) $(if $(word 2,$(KERNELS)),'$(wordlist 2,$(words $(KERNELS)),$(KERNELS:%=test-kernel-%))')

.PHONY: $(KERNELS:%=test-kernel-%)
# A machine has one CPU, since virtual ones wait for one another where several machines share
# the processors; in the long form that with the stable kernel has two. The short form leaves out
# ONE_KERNEL on backports, and OTHER_KERNEL on stable, unless RUN names a test.
$(KERNELS:%=test-kernel-%): test-kernel-%:
	@. .ci/lib
	left='$(if $(LONG)$(filter-out .,$(RUN)),,$(if $(filter backports,$*),$(ONE_KERNEL),$(OTHER_KERNEL))|$(NO_KERNEL))'
	[[ -z $$left ]] || left+="|$$(but_one_in 3 $(IN_TURN))"
	begin "kernel tests, Debian's $* kernel$${left:+, without $${left##*|^}}"
	integration/vm test --kernel $* --with rdma --cpus $(if $(and $(LONG),$(filter stable,$*)),2,1) --nics quad --timeout $(if $(LONG),14400,4500) -- $(TAGS) -timeout $(if $(LONG),4h,60m) -run '$(RUN)' $${left:+-skip "$$left"} $(filter-out $(if $(LONG)$(filter-out .,$(RUN))$(filter-out file,$(origin KERNEL_PKG)),,$(if $(filter backports,$*),$(ONE_KERNEL_PKG),$(OTHER_KERNEL_PKG))),$(KERNEL_PKG)) </dev/null 2>&1 | sed -u '/\[no test files\]/d'
	[[ -z '$(LONG)' || '$(RUN)' != . ]] || for iommu in off shared; do
		integration/vm test --kernel $* --iommu $$iommu --nics quad -- -run TestUnconfined ./integration/kernel </dev/null
	done
	end

.PHONY: test-reports
test-reports: ## cases from public bug reports, by the command line in a virtual machine (RUN='alternative name')
	@. .ci/lib
	$(MAKE) build
	begin 'cases from bug reports'
	integration/vm --nics quad --cpus 1 --timeout 3600 -- integration/reports/run $(BIN)/plumbline '$(RUN)' </dev/null
	end

.PHONY: test-examples
test-examples: ## the examples of docs/examples, applied on SR-IOV functions in a virtual machine (RUN='bond|vlan' PAIRS=10)
	@. .ci/lib
	$(MAKE) build
	begin 'examples'
	integration/vm --nics quad --cpus 1 --timeout 3600 -- integration/examples/run $(BIN)/plumbline '$(RUN)' $(PAIRS) </dev/null
	end

.PHONY: test-imports
test-imports: ## imported networks beside what CNI plugins make of them, in a virtual machine (PLUGINS=folder RUN='bridge|ptp')
	@. .ci/lib
	begin 'ranges of whereabouts'
	(cd integration/whereabouts && $(GO) test -count=1 ./...)
	end
	$(MAKE) build
	begin 'imported networks'
	integration/vm --nics quad --cpus 1 --timeout 7200 -- integration/imports/run $(BIN)/plumbline $(or $(PLUGINS),/usr/lib/cni) '$(RUN)' </dev/null
	end

.PHONY: test-network-status
# A module of its own: the packages that read the annotation need hundreds of others.
test-network-status: ## the annotation network-status, read by the packages of KubeVirt, Multus and others
	@. .ci/lib
	begin 'network-status, as others read it'
	cd integration/networkstatus && $(GO) test -count=1 ./...
	end

.PHONY: test-arm64
test-arm64: ## quick start, drift, kills, the flagship and a power cut in an emulated arm64 machine
	@. .ci/lib
	begin 'building for arm64'
	GOARCH=arm64 $(GO) build -ldflags='-s -w' -o $(CACHE)/arm64/plumbline ./cmd/plumbline
	end
	begin 'emulated arm64 machine'
	integration/arm64/run $(CACHE)/arm64/plumbline
	end

.PHONY: test-ovn
test-ovn: ## rows in Debian's OVN, and packets through it, in a virtual machine
	@. .ci/lib
	left=$(if $(LONG)$(filter-out .,$(RUN)),,$$(but_one_in 3 $(IN_TURN_OVN)))
	begin "tests with OVN$${left:+, without $$left}"
	integration/vm test --with ovn --cpus 1 --nics none --timeout 4500 -- $(TAGS) -timeout 60m -run '$(RUN)' $${left:+-skip "$$left"} ./reconcile/openvswitch ./integration/chassis </dev/null
	end

.PHONY: soak
soak: ## crashes and faults, everywhere and at random (SOAK=10m SEED=number of a run to repeat, KERNELS=stable)
	@. .ci/lib
	for kernel in $(KERNELS); do
		begin "crashes and faults, Debian's $$kernel kernel"
		PLUMBLINE_SOAK=$(SOAK) PLUMBLINE_SEED=$(SEED) integration/vm test --kernel $$kernel --with rdma --nics quad --timeout 0 -- -tags soak -timeout 0 -run '$(RUN)' -v ./integration/kernel </dev/null
		end
	done

.PHONY: test-apiserver
test-apiserver: ## most of test-cluster that needs no node: ten minutes to build, ten to run
	@$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster/controlplane
	$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster RUN='^(TestChart|TestEdges)$$'
	$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster/monitoring RUN='^Test(Rules|Names)$$'

.PHONY: test-story
test-story: ## the part of test-cluster that CI runs on a node
	@$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster/story

.PHONY: test-cluster
test-cluster: ## tests on a real Kubernetes, its nodes virtual machines (CLUSTER_PKG=./integration/cluster)
	@. .ci/lib
	begin 'tests on a cluster'
	env -u PLUMBLINE_LANE $(GO) test -tags 'cluster $(if $(LONG),soak)' -count=1 -p 1 -timeout 240m -run '$(RUN)' $(or $(CLUSTER_PKG),$$(packages_with '^//go:build cluster' | grep -v /conformance)) </dev/null
	end

.PHONY: test-versions
# What a server lacks is off, with a reason. A version is built from its own list of modules.
test-versions: ## the node's story and what an older API server lacks, on earlier versions of Kubernetes (KUBERNETES=1.36)
	@for version in $(or $(KUBERNETES),1.35 1.36); do
		export PLUMBLINE_KUBERNETES=$$version
		$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster RUN='^Test(Chart|APIServerOnly)$$'
		# The controller's tests share devices, which 1.35 cannot by default.
		controller='|ControlPlane|Scheduled'
		[[ $$version != 1.35 ]] || controller=
		$(MAKE) test-install
		$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster/controlplane RUN="^Test(ServerLacks|WithoutFeatures$$controller)\$$"
		$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster/story
	done

.PHONY: test-conformance
# Not in test-cluster, since it takes hours.
test-conformance: ## Kubernetes' own conformance tests of networks and of DRA on two nodes whose pods' network is plumbline's (SPECS='DNS|HostPort')
	@. .ci/lib
	begin "Kubernetes' own tests of networks"
	PLUMBLINE_SPECS='$(SPECS)' env -u PLUMBLINE_LANE $(GO) test -tags 'cluster soak' -count=1 -timeout 240m -v -run '^TestConformance$$' ./integration/cluster/conformance </dev/null
	end

.PHONY: test-crio
# CRI-O's source has the modules that it needs. Without cgo it has no seccomp.
test-crio: ## the node's story with CRI-O in place of containerd (CRIO=folder with its source)
	@. .ci/lib
	if [[ ! -d '$(CRIO)/cmd/crio' ]]; then
		say 'CRIO=FOLDER is needed: the source of CRI-O, such as its tag v1.36.3'
		exit 1
	fi
	need gcc gcc libc6-dev
	begin 'building CRI-O'
	mkdir -p $(CACHE)/crio
	(cd '$(CRIO)' && $(GO) build -mod=vendor -ldflags='-s -w' -tags 'containers_image_ostree_stub containers_image_openpgp exclude_graphdriver_btrfs' -o $(CACHE)/crio/crio ./cmd/crio)
	gcc -std=c99 -Os -static -o $(CACHE)/crio/pinns '$(CRIO)'/pinns/src/*.c
	end
	PLUMBLINE_CRIO=$(CACHE)/crio $(MAKE) test-cluster CLUSTER_PKG=./integration/cluster/story

.PHONY: test-install
test-install: ## the commands of docs/install.md and docs/start.md on a node without cards: a release, pods, an upgrade, a rollback, nothing left
	@$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster RUN='^TestNodeWithoutCards$$'

.PHONY: test-multus
test-multus: ## the commands of docs/from-multus.md on an API server with the types and objects of Multus and whereabouts (LONG=1: and on a node with both)
	@$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster RUN='^TestMultus'

.PHONY: test-upgrade
test-upgrade: ## an upgrade from an earlier commit and a rollback, below running pods; needs the history
	@$(MAKE) test-cluster CLUSTER_PKG=./integration/cluster RUN='^TestUpgrade$$'

.PHONY: fuzz
# Minimizing a new input takes up to a minute, longer than FUZZTIME, so it is limited.
fuzz: ## every fuzz target for FUZZTIME (20s)
	@. .ci/lib
	for package in $$(packages_with '^func Fuzz'); do
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do
			begin "$$target in $$package"
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$package
			end
		done
	done

.PHONY: mutants
# The planner's tests are in ops/all, and those of reconcile in reconcile/node.
mutants: $(BIN)/gremlins ## find changes that no test notices: slow, so take a sample (PKG=./ops/... TESTS='./ops ./ops/all' SAMPLE=10)
	@. .ci/lib
	begin 'mutants'
	TESTS='$(TESTS)' SAMPLE='$(SAMPLE)' SEED='$(SEED)' .ci/mutants $< $(PKG)
	end

.PHONY: bench
# PLUGINS=folder adds a chain of CNI binaries to the comparison: sriov, bond, vlan,
# tuning and static.
bench: ## benchmarks: of packages here, of the engine in a virtual machine (BENCH='-n 5 -only apply')
	@. .ci/lib
	begin 'benchmarks of packages'
	packages_with '^func Benchmark' | xargs -r $(GO) test -run '^$$' -bench '$(RUN)' -benchmem
	end
	$(MAKE) build
	$(GO) build -o $(BIN)/benchmark ./integration/benchmark
	begin 'benchmark of the engine, in a virtual machine: only ratios count'
	integration/vm --with ovn --nics hub -- $(BIN)/benchmark $(if $(PLUGINS),-plugins $(abspath $(PLUGINS))) $(BENCH) </dev/null
	end

.PHONY: bench-scale
bench-scale: ## benchmark of the controller, and of one of another commit, on a large cluster (PART=10 BEFORE=commit, or ADDRESSES=1 AWAY=1h, or RULES=1)
	@. .ci/lib
	begin 'benchmark of the controller: only ratios count'
	$(GO) run ./integration/cluster/scale -part $(or $(PART),1) $(if $(ADDRESSES),-addresses) $(if $(RULES),-rules) $(if $(AWAY),-away $(AWAY)) $(if $(BEFORE),-before $(BEFORE)) </dev/null
	end

.PHONY: bench-throughput
bench-throughput: ## benchmark between two nodes: pods beside hosts, and routes that are deleted (BENCH='-n 20')
	@. .ci/lib
	begin 'benchmark between two nodes: only ratios count'
	$(GO) run ./integration/cluster/throughput $(BENCH) </dev/null
	end

# --- Keeping it in order ----------------------------------------------------------

.PHONY: lint
lint: lint-selftest ## golangci-lint, types on the other architecture, and shellcheck
	@. .ci/lib
	begin 'golangci-lint'
	$(BIN)/golangci-lint run ./...
	end
	for architecture in $(filter-out $(shell $(GO) env GOARCH),amd64 arm64); do
		begin "types on $$architecture"
		$(GO) run ./.ci/architectures $$architecture
		end
	done
	if need shellcheck shellcheck; then
		begin 'shellcheck'
		git grep -lE '^#!/bin/(ba)?sh' | xargs shellcheck .ci/lib integration/probes
		end
	fi

.PHONY: lint-selftest
lint-selftest: $(BIN)/golangci-lint ## check that each lint rule of ours finds what it forbids
	@.ci/lint/run $<
	{ ! $(GO) run ./.ci/architectures arm64 .ci/architectures/testdata 2>&1; } | grep -q 'arm64.go.*overflows'

.PHONY: vulncheck
# The database cannot be had without the network, and changes daily.
vulncheck: $(BIN)/govulncheck ## look for known vulnerabilities in what is linked into the programs (VULNDB=vulndb.zip, or its folder)
	@. .ci/lib
	database='$(VULNDB)'
	if [[ ! -e $$database ]]; then
		say "VULNDB=FILE is needed: the database of Go, as https://vuln.go.dev/vulndb.zip or the folder that it unpacks to$${database:+; there is no $$database}"
		exit 1
	fi
	begin 'known vulnerabilities'
	if [[ -f $$database ]]; then
		need unzip unzip
		rm -rf $(CACHE)/vulndb
		unzip -q "$$database" -d $(CACHE)/vulndb
		database=$(CACHE)/vulndb
	fi
	$< -db "file://$$(realpath "$$database")" ./cmd/...
	end

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## format all Go files
	@$< fmt ./...

.PHONY: generate
generate: build ## rewrite generated files: deep copies, pages and pictures in docs
	@$(GO) generate ./...
	$(GO) test ./docs -count=1 -update >/dev/null
	.ci/cli-page $(BIN)/plumbline >docs/cli.md

.PHONY: picture
picture: ## the picture of the dashboard in docs, from pods, drift and a fight on a cluster
	@. .ci/lib
	begin 'the dashboard, from a cluster'
	$(GO) test -tags cluster -count=1 -timeout 40m -run '^TestDashboard$$' ./integration/cluster/monitoring -picture $(CURDIR)/docs/dashboard.svg </dev/null
	end

.PHONY: verify
# In a copy, since lanes beside this one read the files that it writes anew.
verify: ## check that make generate changes nothing
	@copy=$(CACHE)/verify
	rm -rf $$copy
	mkdir -p $$copy
	git ls-files -coz --exclude-standard | tar -c --null -T - --ignore-failed-read --warning=no-failed-read | tar -xC $$copy
	unset $$(git rev-parse --local-env-vars) # which a hook of git sets
	git init -q $$copy
	git -C $$copy add -Af
	$(MAKE) -C $$copy generate
	changed=$$(git -C $$copy ls-files -dmo --exclude-standard | sort -u)
	[[ -z $$changed ]] || { git -C $$copy --no-pager diff -- $$changed; echo "make generate changed what should have been committed:" $$changed; exit 1; }
	rm -rf $$copy

.PHONY: golden
golden: ## rewrite the golden files: read the diff before you commit it
	@. .ci/lib
	$(GO) test $$(packages_with 'flag\.Bool\("update"|ops/optest"') -count=1 -update
	git status --short

# --- Tools ------------------------------------------------------------------------

# A module list of its own: gremlins needs a later viper than golangci-lint.
$(BIN)/gremlins: .ci/gremlins.mod .ci/gremlins.sum
	@. .ci/lib
	begin 'building gremlins'
	$(GO) build -modfile=.ci/gremlins.mod -o $@ github.com/go-gremlins/gremlins/cmd/gremlins
	end

$(BIN)/govulncheck: .ci/govulncheck.mod .ci/govulncheck.sum
	@. .ci/lib
	begin 'building govulncheck'
	$(GO) build -modfile=.ci/govulncheck.mod -ldflags='-s -w' -o $@ golang.org/x/vuln/cmd/govulncheck
	end

$(BIN)/helm: chart/helm.mod chart/helm.sum
	@. .ci/lib
	begin 'building helm'
	$(GO) build -modfile=chart/helm.mod -ldflags='-s -w' -o $@ helm.sh/helm/v3/cmd/helm
	end

$(BIN)/golangci-lint: tools.mod tools.sum
	@. .ci/lib
	begin 'building golangci-lint'
	$(GO) build -modfile=tools.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	end
