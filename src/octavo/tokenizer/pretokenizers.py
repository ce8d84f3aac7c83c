"""The pre-tokenisers that `tokenizer.ggml.pre` may name: how text is cut into words before byte-level BPE.

The expressions are those of each model's published tokenizer.json.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from octavo.errors import LoadError

_LOGGER = logging.getLogger(__name__)

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", contraction: str = _CONTRACTION) -> str:
    """Words with one leading non-letter, digit groups, symbol runs with their line ends, white space."""
    others = r"\s\p{N}" + letters
    return rf"{contraction}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^{others}]+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, ending: str) -> str:
    """As `_words`, but a word also ends where lower case turns to upper case."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    cased = rf"{lead}{_UPPER}*{_LOWER}+{ending}|{lead}{_UPPER}+{_LOWER}*{ending}"
    return rf"{cased}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


# Letters with case, as DeepSeek's first tokeniser lists them; escaped where an editor's normalisation would change one.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)

Steps = Callable[[], list[pre_tokenizers.PreTokenizer]]


def _byte_level(*, words: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)


def _splits(*patterns: str) -> Steps:
    def build() -> list[pre_tokenizers.PreTokenizer]:
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        return [*cuts, _byte_level(words=False)]

    return build


def _gpt2() -> list[pre_tokenizers.PreTokenizer]:
    return [_byte_level(words=True)]


def _single_digits_gpt2() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Digits(individual_digits=True), _byte_level(words=True)]


def _falcon() -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Punctuation(behavior="contiguous"),
        _byte_level(words=True),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
    ]


@dataclass(frozen=True)
class PreTokenizerSpec:
    """One named pre-tokeniser and the defaults that go with the name."""

    steps: Steps
    add_bos: bool = False
    ignore_merges: bool = False  # a word that is a token is taken whole

    def build(self) -> pre_tokenizers.PreTokenizer:
        """A fresh `tokenizers` pre-tokeniser."""
        return pre_tokenizers.Sequence(self.steps())


_THREE_DIGITS = _splits(_words(r"\p{N}{1,3}"))
_ONE_DIGIT = _splits(_words(r"\p{N}"))
_GPT_4O = PreTokenizerSpec(_splits(_cased_words(r"\p{N}{1,3}", f"{_CONTRACTION}?")))
_LLAMA_3 = PreTokenizerSpec(_THREE_DIGITS, add_bos=True, ignore_merges=True)
_QWEN_2 = PreTokenizerSpec(_ONE_DIGIT)
_GPT_2 = PreTokenizerSpec(_gpt2)
_STARCODER = PreTokenizerSpec(_single_digits_gpt2)

PRE_TOKENIZERS: dict[str, PreTokenizerSpec] = {
    "chatglm-bpe": PreTokenizerSpec(_THREE_DIGITS),
    "command-r": _STARCODER,
    "dbrx": PreTokenizerSpec(_THREE_DIGITS),
    "deepseek-coder": PreTokenizerSpec(
        _splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"),
    ),
    "deepseek-llm": PreTokenizerSpec(
        _splits(
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}",
        ),
    ),
    "deepseek-r1-qwen": _QWEN_2,
    "deepseek-v3": PreTokenizerSpec(_splits(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK_V3_WORDS)),
    "falcon": PreTokenizerSpec(_falcon),
    "glm4": PreTokenizerSpec(_THREE_DIGITS, ignore_merges=True),
    "gpt-2": _GPT_2,
    "gpt-4o": _GPT_4O,
    "llama-bpe": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama4": _GPT_4O,
    "mpt": _GPT_2,
    "olmo": _GPT_2,
    "phi-2": _GPT_2,
    "qwen2": _QWEN_2,
    "qwen35": PreTokenizerSpec(_splits(_words(r"\p{N}", letters=r"\p{L}\p{M}"))),
    "refact": _STARCODER,
    "smaug-bpe": PreTokenizerSpec(_THREE_DIGITS),
    "smollm": _STARCODER,
    "stablelm2": _QWEN_2,
    "starcoder": _STARCODER,
    "tekken": PreTokenizerSpec(_splits(_cased_words(r"\p{N}", "")), add_bos=True, ignore_merges=True),
}


def pre_tokenizer_spec(name: str | None, *, force: bool) -> PreTokenizerSpec:
    """The pre-tokeniser of that name; `force` replaces an unknown one by gpt-2 and logs a warning, else LoadError."""
    spec = None if name is None else PRE_TOKENIZERS.get(name)
    if spec is not None:
        return spec
    problem = "the file names no pre-tokeniser" if name is None else f"pre-tokeniser {name!r} is not supported"
    if not force:
        supported = ", ".join(PRE_TOKENIZERS)
        raise LoadError(
            f"{problem} (tokenizer.ggml.pre); supported: {supported}; --force tries gpt-2 in its place, "
            "which may tokenise text wrongly"
        )
    _LOGGER.warning("%s (tokenizer.ggml.pre); gpt-2 is used in its place, text may be tokenised wrongly", problem)
    return _GPT_2
