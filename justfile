# Recipes for daily work; each is one plain command, so `just` itself is a convenience.

[private]
default:
    @just --list

# All that CI runs: fmt, clippy, plugins, every test, SDKs, llama.cpp
check:
    ./scripts/test

# Every cargo test; `just plugins` first builds the guests that some of them run
test:
    cargo test --workspace

# The core under a seeded clock
sim:
    cargo test -p infergate-core --test sim

# The gateway over real sockets
it:
    cargo test --test it

# House rules: imports, module docs, dead files
tidy:
    cargo test --test tidy

# The core's operations, in nanoseconds
bench:
    cargo bench --workspace --bench core

# Which model gets the card: the core's rule and two others on traces, and what a decision costs (seconds)
bench-swap:
    cargo bench -p infergate-core --bench swap -- --check

# A request's cost against an empty Pingora proxy (small, streams, refusals; under 5 minutes)
bench-proxy:
    cargo bench --bench proxy -- --quick

# What a proxy adds to a request's time, at one rate for all (3 minutes)
bench-latency:
    cargo bench --bench proxy -- --latency

# The proxies that the proxy bench measures beside us: HAProxy, nginx, Envoy, two routers
bench-peers:
    ./scripts/bench-peers

# Every must and scenario of the proxy bench (about 15 minutes)
bench-all:
    cargo bench --workspace --bench core --bench proxy

# What a plugin's call costs, and what hostile ones cost at most (targets T2, T10)
bench-plugin: plugins
    cargo bench --bench plugin -- --quick

# The acceptance table: overload, fairness, disconnects, reloads, exact events
accept:
    cargo bench --bench accept

# Instructions, allocations, copies, system calls and clock reads of a request (valgrind, strace)
count *ARGS:
    ./scripts/count {{ARGS}}

# Durable jobs: faults of disks, clocks and processes, files in S3, 10,000 under 200 kills, their rules (about 90 minutes)
accept-jobs:
    cargo build --quiet
    tests/jobs/faults.py --full
    tests/jobs/s3.py --mib 512
    tests/jobs/accept.py --jobs 10000 --kills 200 --run-ms 2000 --refusals-max 4 --limit 7200
    tests/jobs/rules.py --full

# The GPU host at full counts: 10^6 simulated events, mutated headers and states, storms, cold requests, reloads, trace C by processes, llama.cpp, the swap bench, a card if there is one (hours)
accept-gpu:
    cargo build --release --quiet
    INFERGATE_POOL_EVENTS=1000000 INFERGATE_LEDGER_EVENTS=1000000 INFERGATE_SWAP_STATES=1000000 INFERGATE_FUZZ_COUNT=1000000 \
        cargo test --quiet --release -p infergate-core --lib vram::
    tests/gpu/run --binary target/release/infergate --full
    tests/real/run target/release/infergate --host --full
    cargo bench -p infergate-core --bench swap -- --check
    scripts/gpu-check target/release/infergate

# Listeners for clients: wrong requests and frames, floods, thousands of slow ones, forms of 25 MB, 20 upgrades, a million answers, 10,000 WebSockets, mosec (25 minutes)
accept-edge:
    cargo build --release --quiet
    tests/edge/http1.py --binary target/release/infergate
    tests/edge/http2.py --binary target/release/infergate --full
    tests/edge/slow.py --binary target/release/infergate --full
    tests/edge/uploads.py --binary target/release/infergate --full
    tests/edge/upgrade.py --binary target/release/infergate --full
    tests/edge/upstream_http2.py --binary target/release/infergate --full
    tests/edge/nonces.py --binary target/release/infergate --requests 1000000
    INFERGATE_UPGRADES=10000 cargo test --quiet --test it websocket::upgrades_to_an_instant_server
    tests/mosec/run target/release/infergate --full
    tests/edge/tls_cost.py

# Programs that checks need, compiled once into target/tools: cargo-deny
tools:
    scripts/tools

# Parsers of what strangers send under libFuzzer, so many seconds each, as many at a time as there are processors (needs cargo-fuzz)
fuzz SECS='600':
    scripts/fuzz {{SECS}}

# Durable jobs: the store's cycles and CPU, submits and starts over HTTP, memory of a running job (under 5 minutes)
bench-jobs:
    cargo build --release --quiet
    cargo bench --bench jobs
    tests/jobs/speed.py --binary target/release/infergate

# The GPU host: gateways, keepers and models killed 200, 50, 100 and 100 times (about 20 minutes)
accept-gpu-storms:
    cargo build --quiet
    tests/gpu/storms.py --full

# Requests for a model that is not loaded: 500 at once, deadlines around the load, hopeless ones (a minute)
accept-gpu-cold:
    cargo build --quiet
    tests/gpu/cold.py --full

# The GPU host: 1,000 reloads under load, no failed request, no restart by unrelated keys (about 15 minutes)
accept-gpu-reloads:
    cargo build --quiet
    tests/gpu/reloads.py --full

# Three gateways and 20 leased commands on two simulated cards (10 minutes)
accept-gpu-ledger:
    cargo build --quiet
    tests/gpu/ledger.py --full

# Three nodes in network namespaces, under load and with faults (root, about 5 minutes)
fleet *ARGS:
    ./tests/fleet/run {{ARGS}}

# Every shipped plugin: checked, tested, and built from source into plugins/dist
plugins:
    ./scripts/plugins

# The gateway in front of two simulated containers
run:
    cargo run --release -- demo

# What is packaged: thin LTO, stripped; slower to build than `just run`
dist:
    cargo build --profile dist

# The quickstart's plugins, built anew with the digest of their sources
quickstart-plugins:
    ./scripts/quickstart-plugins

# The documentation of both packages
doc:
    cargo doc --workspace --no-deps
