"""Run llama.cpp's HTTP server, from the xllamacpp wheel, on a loopback port until stopped.

Usage: llama_server.py MODEL.gguf PORT SLOTS [embeddings]
"""

import signal
import sys

import xllamacpp

# Room in each slot for an answer that goes on for ten seconds or more.
CONTEXT_PER_SLOT = 8192


def main(model, port, slots, embeddings):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.port = port
    params.n_parallel = slots
    params.n_ctx = CONTEXT_PER_SLOT * slots
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.warmup = False
    # The tests share a small machine with what they test.
    params.cpuparams.n_threads = 1
    if embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print("listening at", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "embeddings" in sys.argv[4:])
