"""Run llama.cpp's HTTP server, from the xllamacpp wheel, on a loopback port until stopped.

Usage: llama_server.py MODEL.gguf PORT SLOTS [--embeddings] [--context-total TOKENS] [--endless] [--figures]
With `--endless` every answer has all the tokens it may have: a random model ends one at any token.
With `--figures` it also logs the sizes of its buffers.
"""

import argparse
import signal

import xllamacpp

# Room in each slot for an answer that goes on for ten seconds or more.
CONTEXT_PER_SLOT = 8192
# llama.cpp's level from which on it logs its buffers.
VERBOSITY_OF_FIGURES = 4


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("model")
    arguments.add_argument("port", type=int)
    arguments.add_argument("slots", type=int)
    arguments.add_argument("--embeddings", action="store_true")
    arguments.add_argument("--context-total", type=int, metavar="TOKENS")
    arguments.add_argument("--endless", action="store_true")
    arguments.add_argument("--figures", action="store_true")
    given = arguments.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.port = given.port
    params.n_parallel = given.slots
    params.n_ctx = given.context_total or CONTEXT_PER_SLOT * given.slots
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.warmup = False
    # Neither fewer tokens nor other memory than what was asked for.
    params.fit_params = False
    params.cache_ram_mib = 0
    # The tests share a small machine with what they test.
    params.cpuparams.n_threads = 1
    params.sampling.ignore_eos = given.endless
    if given.figures:
        params.verbosity = VERBOSITY_OF_FIGURES
    if given.embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print("listening at", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
