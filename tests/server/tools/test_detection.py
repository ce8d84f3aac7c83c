"""Which form of calls and thinking a chat template shows, for templates of our own and for real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_engine import CHAT_TEMPLATE, byte_tokenizer

from octavo.server.parsers.detect import detect_thinking, detect_tools
from tests.tokenizer.vocab_oracle import data_root, require_data

# For each real template: the form of its calls, whether it tells of tools, the form of its thinking. No form where it
# tells of tools: the template writes calls as none of our parsers reads them, or refuses earlier calls altogether.
REAL: dict[str, tuple[str | None, bool, str | None]] = {
    "Apertus-8B-Instruct": (None, True, None),
    "Apriel-1.6-15b-Thinker-fixed": ("tool_calls", True, None),
    "Bielik-11B-v3.0-Instruct": ("hermes", True, "think"),
    "ByteDance-Seed-OSS": (None, True, "seed"),
    "Cohere2MoE": ("cohere", True, "cohere"),
    "CohereForAI-c4ai-command-r-plus-tool_use": (None, True, None),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere", True, "cohere"),
    "GLM-4.6": (None, True, "think"),
    "GLM-4.7-Flash": (None, True, "think"),
    "GigaChat3-10B-A1.8B": (None, True, None),
    "GigaChat3.1-10B-A1.8B": ("gigachat", True, None),
    "HuggingFaceTB-SmolLM3-3B": (None, False, "think"),
    "Kimi-K2-Instruct": ("kimi", True, None),
    "Kimi-K2-Thinking": ("kimi", True, "think"),
    "Kimi-K3": (None, True, None),
    "LFM2-8B-A1B": (None, True, None),
    "LFM2.5-8B-A1B": ("lfm2", True, "think"),
    "LFM2.5-Instruct": (None, True, "think"),
    "MiMo-VL": ("hermes", True, None),
    "MiniMax-M1": ("tool_calls", True, None),
    "MiniMax-M2": (None, True, "think"),
    "MiniMax-M3": (None, True, "minimax"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", True, None),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen_xml", True, "think"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron", True, "think"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", True, None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", True, None),
    "Qwen-QwQ-32B": ("hermes", True, "think"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", True, None),
    "Qwen-Qwen3-0.6B": ("hermes", True, "think"),
    "Qwen3-Coder": ("qwen_xml", True, None),
    "Qwen3.5-4B": ("qwen_xml", True, "think"),
    "Reka-Edge": ("hermes", True, "think"),
    "Spark2.5": (None, True, "think"),
    "StepFun3.5-Flash": ("qwen_xml", True, "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (None, False, "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (None, False, "think"),
    "deepseek-ai-DeepSeek-V3.1": (None, False, "think"),
    "deepseek-ai-DeepSeek-V3.2": (None, True, "think"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": (None, True, "think"),
    "deepseek-ai-DeepSeek-V4": (None, True, "think"),
    "fireworks-ai-llama-3-firefunction-v2": (None, False, None),
    "google-gemma-2-2b-it": (None, False, None),
    "google-gemma-4-31B-it-interleaved": (None, True, "gemma"),
    "google-gemma-4-31B-it": (None, True, "gemma"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", True, "think"),
    "ibm-granite-granite-4.0": ("hermes", True, None),
    "ibm-granite-granite-4.1": ("hermes", True, None),
    "inclusionai-ling-3.0-flash": (None, True, "think"),
    "llama-cpp-deepseek-r1": (None, False, "think"),
    "llama-cpp-rwkv-world": (None, False, "think"),
    "meetkai-functionary-medium-v3.1": ("functionary", True, None),
    "meetkai-functionary-medium-v3.2": (None, True, None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3", True, None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3", True, None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3", True, None),
    "microsoft-Phi-3.5-mini-instruct": (None, False, None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", True, "mistral"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", True, None),
    "moonshotai-Kimi-K2": ("kimi", True, None),
    "muse-glimmer": (None, True, None),
    "openai-gpt-oss-120b": (None, True, None),
    "openbmb-MiniCPM5-1B": (None, True, "think"),
    "poolside-Laguna-S-2.1": (None, True, "think"),
    "poolside-Laguna-XS-2.1": (None, True, "think"),
    "poolside-Laguna-XS.2": (None, True, "think"),
    "tencent-Hy3": (None, True, None),
    "unsloth-Apriel-1.5": ("tool_calls", True, "thinking"),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", True, None),
    "upstage-Solar-Open-100B": (None, True, None),
}
HERMES = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def template_files() -> list[Path | None]:
    return [*sorted((data_root() / "templates").glob("*.jinja"))] or [None]


@pytest.mark.weights
@pytest.mark.parametrize("file", template_files(), ids=lambda file: file.stem if file else "absent")
def test_a_real_template_shows_its_forms(file: Path | None) -> None:
    require_data()
    assert file is not None
    tokenizer = byte_tokenizer(file.read_text(encoding="utf-8"))
    tools, thinking = detect_tools(tokenizer), detect_thinking(tokenizer)
    found = (tools.form and tools.form.name, tools.described, thinking and thinking.name)
    assert found == REAL[file.stem]


@pytest.mark.weights
def test_most_real_templates_that_tell_of_tools_have_a_parser() -> None:
    require_data()
    assert {file.stem for file in template_files() if file} == set(REAL)
    told = [form for form, described, _ in REAL.values() if described]
    assert sum(form is not None for form in told) >= 0.5 * len(told)


def test_the_form_is_the_one_that_reads_what_the_template_writes() -> None:
    tools = detect_tools(byte_tokenizer(HERMES))
    assert tools.described and tools.form is not None and tools.form.name == "hermes"
    other = detect_tools(byte_tokenizer(HERMES.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", "")))
    assert other.form is not None and other.form.name == "mistral"


def test_a_template_that_writes_calls_in_a_form_of_its_own_has_none() -> None:
    tools = detect_tools(byte_tokenizer(HERMES.replace("tool_call>", "my_call>")))
    assert tools.described and tools.form is None


def test_a_template_without_tools_describes_none() -> None:
    tools = detect_tools(byte_tokenizer(CHAT_TEMPLATE))
    assert not tools.described and tools.form is None


def test_a_model_without_a_template_has_neither_tools_nor_thinking() -> None:
    tokenizer = byte_tokenizer(None)
    assert not detect_tools(tokenizer).described and detect_thinking(tokenizer) is None


def test_thinking_is_told_by_its_closing_marker() -> None:
    thinking = detect_thinking(byte_tokenizer("{{ messages[0].content.split('[/THINK]')[-1] }}"))
    assert thinking is not None and thinking.name == "mistral"
