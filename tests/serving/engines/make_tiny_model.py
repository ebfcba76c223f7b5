"""Write a tiny Llama (random weights at load time) with a real tokenizer: make_tiny_model.py DIR

Run with the Python of the vLLM environment. Then, for each engine:

    VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 vllm serve DIR --served-model-name tiny --load-format dummy \
        --dtype float32 --enforce-eager --max-model-len 2048 --port 18000

It is up in about 40 s and takes 1.5 GB. Its text is noise; its API, metrics, prefix cache, LoRA and KV events are vLLM's own.
"""

import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

directory = sys.argv[1]
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=1000, special_tokens=["<s>", "</s>", "<unk>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
)
bpe.train_from_iterator([pathlib.Path(__file__).read_text()] * 3, trainer)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
tokenizer.save_pretrained(directory)
LlamaConfig(
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    dtype="float32",
    architectures=["LlamaForCausalLM"],
).save_pretrained(directory)
