"""The drawings of docs/storage.md and docs/architecture.md."""

from __future__ import annotations

from collections.abc import Callable

from scripts.reference.svg import CELL, Drawing


def dense() -> Drawing:
    drawing = Drawing(
        "Dense storage",
        "Two rows of sixteen cells. Sequence A has written nine tokens and sequence B four; the rest of each row stays "
        "free for that sequence alone.",
        720,
        190,
    )
    for top, name, count, fill in ((30, "A", 9, "a"), (95, "B", 4, "b")):
        drawing.words(20, top + 19, f"sequence {name}", "strong")
        drawing.cells(120, top, [(fill, str(i)) if i < count else ("free", "") for i in range(16)])
    drawing.brace(120, 131, 4 * CELL, "written by B")
    drawing.brace(120 + 4 * CELL, 131, 12 * CELL, "set aside for B, up to its longest")
    return drawing


def ring() -> Drawing:
    drawing = Drawing(
        "A ring of eight slots",
        "Tokens at positions 0 to 11 in a line; the last eight, 4 to 11, are within the window. Below them a ring of "
        "eight slots, in which position p lies in slot p modulo 8: 8, 9, 10, 11, 4, 5, 6, 7. Position 12 comes next "
        "and overwrites position 4.",
        720,
        220,
    )
    drawing.words(20, 49, "positions", "strong")
    drawing.cells(
        120, 30, [("free", str(i)) for i in range(4)] + [("a", str(i)) for i in range(4, 12)] + [("hot", "12")]
    )
    drawing.brace(120 + 4 * CELL, 62, 8 * CELL, "the window of position 11")
    drawing.words(20, 149, "slots", "strong")
    slots = [("a", str(i)) for i in (8, 9, 10, 11)] + [("hot", "4 → 12")] + [("a", str(i)) for i in (5, 6, 7)]
    drawing.cells(120, 130, slots, width=54)
    for slot in range(8):
        drawing.words(147 + 54 * slot, 174, str(slot), "small mid")
    drawing.arrow((120 + 12.5 * CELL, 62), (120 + 12.5 * CELL, 112), (363, 112), (363, 126))
    drawing.words(
        120, 204, "position p lies in slot p mod 8; a new token overwrites the one that left the window", "small"
    )
    return drawing


def blocks() -> Drawing:
    drawing = Drawing(
        "Blocks and block tables",
        "A pool of twelve blocks. The table of sequence A names blocks 0, 3 and 4, that of sequence B blocks 1 and 6. "
        "The other blocks are free.",
        720,
        250,
    )
    owner = {0: "a", 3: "a", 4: "a", 1: "b", 6: "b"}
    drawing.words(20, 49, "pool", "strong")
    drawing.cells(120, 30, [(owner.get(i, "free"), str(i)) for i in range(12)], width=44)
    drawing.words(664, 49, "…")
    for left, name, fill, ids in ((120, "A", "a", (0, 3, 4)), (420, "B", "b", (1, 6))):
        drawing.words(left + 44 * len(ids) + 10, 181, f"block table of {name}", "strong")
        drawing.cells(left, 162, [(fill, str(i)) for i in ids], width=44)
        for number, block in enumerate(ids):
            drawing.words(left + 22 + 44 * number, 206, f"{16 * number}…", "small mid")
            drawing.arrow((left + 22 + 44 * number, 160), (142 + 44 * block, 62))
    drawing.words(
        120, 232, "an entry is a block of 16 tokens, at the index of its first position divided by 16", "small"
    )
    return drawing


def prefix_tree() -> Drawing:
    drawing = Drawing(
        "Prefixes in a tree",
        "A tree over blocks of tokens. Its root leads to a common beginning in blocks 0 and 3; from there one branch "
        "has block 4 and another block 6. A running request C borrows blocks 0, 3 and 6 and adds block 7 of its own.",
        720,
        270,
    )
    drawing.box(20, 30, 60, 34, "free", "root")
    drawing.arrow((80, 47), (126, 47))
    drawing.box(130, 20, 230, 54, "a", "“You are a careful …”\nblocks 0, 3 · borrowed by C")
    drawing.arrow((360, 40), (426, 40))
    drawing.box(430, 14, 260, 54, "b", "“… Translate this text: …”\nblock 4 · kept, used by nobody now")
    drawing.arrow((245, 74), (245, 124), (426, 124))
    drawing.box(430, 98, 260, 54, "c", "“… Write a letter to …”\nblock 6 · borrowed by C")
    drawing.words(20, 205, "request C", "strong")
    drawing.cells(130, 186, [("a", "0"), ("a", "3"), ("c", "6"), ("hot", "7")], width=60)
    drawing.brace(130, 218, 180, "found in the tree: not computed again")
    drawing.words(382, 205, "its own: written by C alone", "small")
    drawing.arrow((490, 152), (490, 172), (280, 172), (280, 183))
    return drawing


def copy_on_write() -> Drawing:
    drawing = Drawing(
        "Copy on write",
        "Before, sequences A and B share block 3, of which five of eight rows are written. When B writes its next "
        "token, the pool gives B block 5, copies the five rows into it, and B writes there. A keeps block 3 as it was.",
        720,
        230,
    )
    shared = [("a", str(i)) for i in range(5)] + [("free", "")] * 3
    copied = [("b", str(i)) for i in range(5)] + [("hot", "new")] + [("free", "")] * 2
    drawing.words(20, 40, "before", "strong")
    drawing.words(120, 24, "block 3 · two references: A, B", "small")
    drawing.cells(120, 32, shared)
    drawing.words(20, 112, "B writes", "strong")
    drawing.words(120, 96, "block 3 · one reference: A", "small")
    drawing.cells(120, 104, shared)
    drawing.words(120, 168, "block 5 · one reference: B", "small")
    drawing.cells(120, 176, copied)
    drawing.arrow((200, 134), (200, 154))
    drawing.words(430, 122, "unchanged, to the bit", "small")
    drawing.words(430, 194, "whole rows copied, with their scales", "small")
    return drawing


def window_hole() -> Drawing:
    drawing = Drawing(
        "A sliding window's hole",
        "Two block tables of one sequence of ten blocks. The group of full layers holds all ten. The group of sliding "
        "layers holds the last three, which the window touches; the seven before are a hole whose blocks are free.",
        720,
        225,
    )
    drawing.words(20, 49, "full layers", "strong")
    drawing.cells(150, 30, [("a", f"{i}") for i in range(10)], width=48)
    drawing.words(20, 121, "sliding layers", "strong")
    drawing.cells(150, 102, [("hole", "")] * 7 + [("b", str(i)) for i in (7, 8, 9)], width=48)
    drawing.box(516, 134, 108, 20, "hot", "window", "small")
    drawing.brace(150, 160, 336, "hole: the blocks went back to the pool")
    drawing.brace(486, 160, 144, "held")
    drawing.words(20, 210, "live_start moves on with the window; written does not fall", "small")
    return drawing


def context_shift() -> Drawing:
    drawing = Drawing(
        "A context shift",
        "Before, a full context: one kept block, then blocks 1 to 7. After, blocks 1 to 3 are dropped, blocks 4 to 7 "
        "follow the kept one with their keys rotated back by three blocks, and there is room for three more.",
        720,
        260,
    )
    drawing.words(20, 49, "full", "strong")
    drawing.cells(
        120, 30, [("c", "kept")] + [("free", str(i)) for i in (1, 2, 3)] + [("a", str(i)) for i in (4, 5, 6, 7)], 66
    )
    drawing.brace(186, 62, 198, "dropped: whole blocks")
    drawing.brace(384, 62, 264, "stay where they lie in memory")
    drawing.words(20, 159, "shifted", "strong")
    drawing.cells(120, 140, [("c", "kept")] + [("a", str(i)) for i in (4, 5, 6, 7)] + [("hole", "")] * 3, 66)
    drawing.brace(186, 172, 264, "keys rotated back by 48 positions")
    drawing.brace(450, 172, 198, "room again")
    drawing.arrow((516, 92), (516, 112), (318, 112), (318, 136))
    drawing.words(120, 236, "by rotary position: that of the next token is written − rope_offset", "small")
    return drawing


def request_path() -> Drawing:
    drawing = Drawing(
        "From a request to a kernel and back",
        "Top to bottom: server, engine client, EngineCore.step, with the scheduler and the cache pool at its side; "
        "then ModelRunner, the model's layers, KVCache.attend and kernels; sampler and output processor lead back.",
        720,
        470,
    )
    middle, width = 250, 220
    steps = (
        ("server/  or  llm.py", "free"),
        ("engine client", "free"),
        ("EngineCore.step", "hot"),
        ("ModelRunner.forward", "a"),
        ("models/ and layers/", "a"),
        ("KVCache.attend", "hot"),
        ("kernels/", "a"),
    )
    for number, (text, fill) in enumerate(steps):
        top = 20 + 62 * number
        drawing.box(middle, top, width, 40, fill, text)
        if number:
            drawing.arrow((middle + 80, top - 22), (middle + 80, top - 3))
    drawing.box(20, 144, 180, 40, "b", "Scheduler, CachePool")
    drawing.arrow((middle, 156), (203, 156))
    drawing.arrow((200, 174), (middle - 3, 174))
    drawing.words(20, 204, "which tokens, which blocks:", "small")
    drawing.words(20, 220, "plain Python, no torch", "small")
    drawing.words(middle + 90, 197, "StepBatch", "small")
    drawing.words(middle + 90, 321, "q, k, v of every token", "small")
    drawing.box(520, 206, 180, 40, "c", "Sampler")
    drawing.box(520, 144, 180, 40, "c", "OutputProcessor")
    drawing.arrow((middle + width, 226), (517, 226))
    drawing.arrow((610, 206), (610, 187))
    drawing.arrow((520, 164), (middle + width + 3, 164))
    drawing.words(478, 264, "logits of the rows that ask for a token", "small")
    drawing.words(20, 455, "red: the two places where everything meets", "small")
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "dense": dense,
    "ring": ring,
    "blocks": blocks,
    "prefix-tree": prefix_tree,
    "copy-on-write": copy_on_write,
    "window-hole": window_hole,
    "context-shift": context_shift,
    "request-path": request_path,
}
