# Everything here is plain Go; the only thing that is not is the servers that
# the tests start, which .ci/servers installs where it can.

LINTER := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# Nested modules keep what only they need out of everybody's go.mod.
MODULES := $(dir $(shell git ls-files '*go.mod'))

.DEFAULT_GOAL := help
.PHONY: help test lint check fuzz chaos stress drill bench-pg bench-pg-growth cover servers

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: servers ## Run all tests, with the race detector and in random order
	@for module in $(MODULES); do \
		echo "go test -race ./... in $$module" && (cd $$module && go test -race -shuffle=on -count=1 ./...) || exit 1; \
	done

lint: ## Run golangci-lint
	@for module in $(MODULES); do \
		echo "golangci-lint in $$module" && (cd $$module && $(LINTER) run -c $(CURDIR)/.golangci.yml) || exit 1; \
	done

check: test lint ## Run what CI runs

fuzz: ## Fuzz every parser for 20 s each
	.ci/fuzz 20s

chaos: servers ## Run the long storm: 2,000 operations with each of three seeds, about 5 min
	go test -race -count=1 -timeout 30m -v -run '^TestChaos$$' ./server/cmd/refserver -chaos.ops 2000 -chaos.seeds 1,2,3

stress: servers ## Run the long stress test of pgstore: 4,000 operations with every kind of store, about 5 min
	go test -race -count=1 -timeout 60m -v -run '^TestStress$$' ./server/pgstore -stress.keys 4000

drill: servers ## Run the long drills of pgstore: ten failovers, and cleanup beside claims that are timed, about 5 min
	go test -race -count=1 -timeout 30m -v -run '^TestFailoverDrill$$' ./server/pgstore -drill.ops 1000 -drill.rounds 10
	go test -count=1 -timeout 30m -v -run '^TestCleanupBesideClaims$$' ./server/pgstore -cleanup.records 100000 -cleanup.timed

bench-pg: servers ## Measure what the guarantees of pgstore cost, about 20 min; docs/performance.md has one run
	cd bench && go run .

bench-pg-growth: servers ## Measure pgstore among 10 million records, and cleanup; takes 20 GB of disk and about 12 min
	cd bench && go run . -regimes none -wal=false -growth 10000000 -settle 1000000 -cleanup 1000000

cover: servers ## Show the test coverage of each package, and write cover.out
	go test -count=1 -coverprofile=cover.out -coverpkg=./... ./... | grep -v 'no test files'
	go tool cover -func=cover.out | tail -n 1

servers: ## Install the servers that the tests start, where that is possible
	@.ci/servers
