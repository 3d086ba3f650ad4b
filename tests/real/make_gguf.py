"""Write a llama model of random weights, about a megabyte: real llama.cpp runs it in milliseconds.

Not a model anyone can talk to: its answers are noise, broken UTF-8 included, which is what stream
readers should meet. Without --vocabulary the vocabulary is our own. With --word all answers consist of
that word with numbers, so that it can be seen which model has answered.
"""

import argparse

import gguf
import numpy as np

LAYERS = 2
WIDTH = 64
HEADS = 4
CONTEXT_TOKENS = 16384
# Fixed, so that the file and with it every greedy answer is the same on each machine.
SEED = 20260

UNKNOWN, BEGIN, END = 0, 1, 2
NORMAL, UNKNOWN_TYPE, CONTROL, BYTE = 1, 2, 3, 6

WORDS = "gate queue slot token model node warm cold fast slow the a of and to is"
# How many numbers `--word` is followed by.
WORDS_OF_ONE = 64
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n"
    "{% endfor %}[assistant] "
)


def vocabulary(word):
    """SentencePiece's layout: three specials, every byte, printable ASCII, a few words or numbered ones."""
    tokens = [(b"<unk>", UNKNOWN_TYPE), (b"<s>", CONTROL), (b"</s>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>".encode(), BYTE) for byte in range(256)]
    pieces = ["\u2581"] + [chr(code) for code in range(33, 127)]
    words = [f"{word}{number}" for number in range(WORDS_OF_ONE)] if word else WORDS.split()
    pieces += ["\u2581" + word for word in words]
    tokens += [(piece.encode(), NORMAL) for piece in pieces]
    return tokens


def add_own_vocabulary(writer, word):
    """Returns how many tokens it has."""
    tokens = vocabulary(word)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    # Later pieces are rarer: SentencePiece merges the best score first.
    writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(True)
    return len(tokens)


def copy_vocabulary(writer, path):
    """Returns how many tokens it has."""
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer.") or key == "tokenizer.chat_template":
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), kind)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("path", metavar="OUT.gguf")
    arguments.add_argument("--vocabulary", metavar="VOCABULARY.gguf")
    arguments.add_argument("--word")
    arguments.add_argument("--layers", type=int, default=LAYERS)
    arguments.add_argument("--width", type=int, default=WIDTH)
    given = arguments.parse_args()
    width, feed_forward = given.width, 4 * given.width
    random = np.random.default_rng(SEED)

    def matrix(rows, columns, gain=1.0):
        scale = np.float32(gain / np.sqrt(columns))
        return random.standard_normal((rows, columns), np.float32) * scale

    writer = gguf.GGUFWriter(given.path, "llama")
    writer.add_name("infergate-noise")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(width)
    writer.add_block_count(given.layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // HEADS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if given.vocabulary:
        count = copy_vocabulary(writer, given.vocabulary)
    else:
        count = add_own_vocabulary(writer, given.word)
    writer.add_vocab_size(count)
    writer.add_chat_template(CHAT_TEMPLATE)

    writer.add_tensor("token_embd.weight", matrix(count, width))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    # Strong output weights keep the choice of the next token clear, so greedy answers repeat.
    output = matrix(count, width, gain=4.0)
    if given.word:
        # Other tokens have the same weight always, which is less than that of the best word.
        output[:-WORDS_OF_ONE] = 0
    writer.add_tensor("output.weight", output)
    for layer in range(given.layers):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", matrix(width, width, gain=0.5))
        writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{block}.ffn_gate.weight", matrix(feed_forward, width, gain=0.5))
        writer.add_tensor(f"{block}.ffn_up.weight", matrix(feed_forward, width, gain=0.5))
        writer.add_tensor(f"{block}.ffn_down.weight", matrix(width, feed_forward, gain=0.5))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
