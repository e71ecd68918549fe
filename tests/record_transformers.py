"""Record what `transformers` says on the two real models, for `tests/runtime/test_real_models.py`.

    PYTHONPATH=src python tests/record_transformers.py smollm2 tests/data/transformers_smollm2.json
    PYTHONPATH=src python tests/record_transformers.py gemma3-270m tests/data/transformers_gemma3.json

`transformers` reads the same GGUF file through its own dequantizer, in float32 with eager attention, and continues
each prompt greedily past any end of sequence. For every token the two runners-up and how far their logits lie behind
are kept, so that a first difference can be judged. Needs torch, transformers and gguf; takes a minute or two.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

from mansard.loading.packaged import packaged_gguf
from mansard.loading.tokenizer import Tokenizer
from mansard.loading.weights import Weights

TURN = "<|im_start|>"
SMOLLM2_PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at 100 degrees Celsius because",
    "1, 1, 2, 3, 5, 8, 13,",
    "La tour Eiffel est",
    "Der schnellste Weg nach Berlin",
    "import numpy as np\n\nclass Matrix:\n    def __init__(self, rows, cols):\n",
    "Q: What is 17 + 25?\nA:",
    "The three laws of thermodynamics are:\n1.",
    f"{TURN}user\nWhat is the capital of Japan?<|im_end|>\n{TURN}assistant\n",
    f"{TURN}user\nWrite a haiku about the sea.<|im_end|>\n{TURN}assistant\n",
    f"{TURN}system\nBe brief.<|im_end|>\n{TURN}user\nWhy is the sky blue?<|im_end|>\n{TURN}assistant\n",
    f"{TURN}user\nTranslate 'good morning' to Spanish.<|im_end|>\n{TURN}assistant\n",
    f"{TURN}user\nList three prime numbers above 20.<|im_end|>\n{TURN}assistant\n",
    f"{TURN}user\nExplain recursion to a child. 🙂<|im_end|>\n{TURN}assistant\n",
    "<html>\n<head><title>Café ☕</title></head>\n<body>\n",
    "SELECT name, COUNT(*) FROM users WHERE",
    "In 1969, Neil Armstrong",
    "To be, or not to be, that is the question: " * 6,
)
_LONG = " ".join(
    f"Item {i} on the list is a box of {c} that costs {i * 3 % 17} coins."
    for i, c in enumerate(["apples", "nails", "candles", "paper", "salt", "wool", "tea", "ink"] * 5)
)
GEMMA_PROMPTS = (
    "The capital of France is",
    "The chemical symbol for gold is",
    "Le soleil se lève à l'est et se couche",
    'def is_prime(n):\n    """Return whether n is prime."""\n',
    _LONG + " Item 40 on the list is",
)
JOBS = {"smollm2": (SMOLLM2_PROMPTS, 64), "gemma3-270m": (GEMMA_PROMPTS, 48)}


def transformers_model(path: Path) -> Any:
    """Return the model that `transformers` makes of a GGUF file, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def continuation(model: Any, token_ids: list[int], num_tokens: int) -> dict[str, Any]:
    """Continue greedily; returns the tokens and, for each, the runners-up as [token, logits behind]."""
    import torch

    output: list[int] = []
    runners: list[list[list[Any]]] = []
    given, cache = torch.tensor([token_ids]), None
    with torch.no_grad():
        for _ in range(num_tokens):
            answer = model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = answer.past_key_values
            top = answer.logits[0, -1].float().topk(3)
            values, ids = top.values.tolist(), top.indices.tolist()
            output.append(ids[0])
            runners.append([[i, round(values[0] - v, 4)] for i, v in zip(ids[1:], values[1:], strict=True)])
            given = torch.tensor([[ids[0]]])
    return {"output_token_ids": output, "runners_up": runners}


def main(name: str, target: str) -> None:
    """Record one model's continuations."""
    import torch
    import transformers

    path = packaged_gguf(name)
    gguf = Weights.open(path).gguf
    assert gguf is not None
    tokenizer = Tokenizer.from_gguf(gguf.metadata, path)
    model = transformers_model(path)
    prompts, num_tokens = JOBS[name]
    entries = []
    for text in prompts:
        ids = list(tokenizer.encode_prompt(text))
        found = continuation(model, ids, num_tokens)
        output = tokenizer.decode(found["output_token_ids"], skip_special_tokens=False)
        entries.append({"prompt": text, "output": output, "prompt_token_ids": ids, **found})
        print(f"{len(ids)} tokens: {output!r}", flush=True)
    record = {
        "command": f"python tests/record_transformers.py {name} {target}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "python": platform.python_version(),
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "continuations": entries,
    }
    lines = json.dumps(record, ensure_ascii=False).replace('{"prompt"', '\n{"prompt"')
    Path(target).write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
