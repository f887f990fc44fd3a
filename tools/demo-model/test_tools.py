"""Tests of the demo checkpoint's tools; seconds, without an accelerator.

    pytest tools/demo-model

Needs numpy, jinja2, pytest and tokenizers; what needs torch is skipped without it.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

import affine
import template_check
from generate import draw_document
from item import last_user_position
from judge import judge, read_questions
from packing import ChatEncoder, pack
from paths import CHAT_TEMPLATE, DEMO_FOLDER, REPOSITORY, TOKENIZER
from sampling import held_out

HERE = Path(__file__).resolve().parent
PACKED_BY_MLX = REPOSITORY / "crates" / "weights" / "tests" / "data" / "mlx_packing.npz"

# SHA-256 of the texts of 500 chats of seed 0 with PYTHONHASHSEED=0. The checkpoint was trained on
# the text of this generator: a change here means other data.
TEXT_HASH = "7e49303c22763aa6c1e113595bc0355a48a2caea1c2ebfe1174cb02e8a95a9a8"
HASH_PROGRAM = """
import hashlib, random
from generate import draw_document
rng = random.Random(0)
digest = hashlib.sha256()
for _ in range(500):
    digest.update(draw_document(rng).text.encode())
print(digest.hexdigest())
"""


def text_question(answer: str, think: bool = False) -> dict:
    return {"think": think, "answer": answer}


def call_question(**arguments: object) -> dict:
    return {"think": False, "answer": {"name": "move", "arguments": arguments}}


def call_text(name: str, **arguments: str) -> str:
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("reply", "question", "right"),
    [
        ("47 + 38 = 85", text_question("47 + 38 = 85"), True),
        ("\n 47 + 38 = 85 \n", text_question("47 + 38 = 85"), True),
        ("47 + 38 = 86", text_question("47 + 38 = 85"), False),
        ("85\n" + call_text("move"), text_question("85"), False),
        ("I add.\n</think>\n\n85", text_question("85", think=True), True),
        ("85", text_question("85", think=True), False),
        ("wrong</think>a</think>b", text_question("a</think>b", think=True), True),
        (call_text("move", x="1", to="home"), call_question(x=1, to="home"), True),
        (call_text("move", to="home", x="1"), call_question(x=1, to="home"), True),
        (call_text("move", x="1.0", to="home"), call_question(x=1, to="home"), False),
        (call_text("move", x="1"), call_question(x=1, to="home"), False),
        (call_text("go", x="1"), call_question(x=1), False),
        ("Sure. " + call_text("move", x="1"), call_question(x=1), False),
        (call_text("move", x="1") * 2, call_question(x=1), False),
        (call_text("move", x="é"), call_question(x="é"), True),
        (call_text("move", x="true"), call_question(x=True), True),
        ("", call_question(x=1), False),
    ],
)
def test_judge(reply: str, question: dict, right: bool) -> None:
    assert judge(reply, question) is right


def test_every_published_answer_is_right_and_its_change_is_wrong() -> None:
    questions = read_questions(DEMO_FOLDER / "eval.jsonl")
    assert len(questions) == 600
    for question in questions:
        answer = question["answer"]
        if isinstance(answer, str):
            reply = answer
        else:
            texts = {
                name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for name, value in answer["arguments"].items()
            }
            reply = call_text(answer["name"], **texts)
        if question["think"]:
            reply = "thinking\n</think>\n\n" + reply
        assert judge(reply, question)
        assert not judge(reply + "x", question)


def test_generated_text_is_that_of_the_checkpoint() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(HERE)}
    result = subprocess.run(
        [sys.executable, "-c", HASH_PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == TEXT_HASH


def test_held_out_split_is_stable() -> None:
    keys = [f"add:{a}:{b}" for a in range(100) for b in range(100)]
    kept_out = [key for key in keys if held_out(key)]
    assert len(kept_out) == 215
    digest = hashlib.sha256("\n".join(kept_out).encode()).hexdigest()
    assert digest == "3a17d9928c52d390d6a54e7dc6950d376f7169ec3acff83c795422979726590b"


def test_template_renders_what_the_generator_renders() -> None:
    template = template_check.load_template(CHAT_TEMPLATE)
    rng = Random(17)
    for _ in range(300):
        assert template_check.difference(template, draw_document(rng)) is None


def test_template_check_finds_a_difference() -> None:
    source = CHAT_TEMPLATE.read_text(encoding="utf-8")
    assert "<tool_response>\\n' + text" in source
    template = template_check.load_template(CHAT_TEMPLATE)
    document = draw_document(Random(3), task="add", think=True)
    changed = document._replace(text=document.text.replace("</think>\n\n", "</think>\n"))
    assert template_check.difference(template, changed) is not None


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_quantizer_is_that_of_mlx(bits: int, group_size: int) -> None:
    with np.load(PACKED_BY_MLX) as file:
        prefix = f"b{bits}_g{group_size}_"
        expected = {name.removeprefix(prefix): file[name] for name in file if prefix in name}
    quantized = affine.quantize(expected["weight"], bits, group_size)
    np.testing.assert_array_equal(quantized.packed, expected["packed"])
    np.testing.assert_array_equal(quantized.scales, expected["scales"])
    np.testing.assert_array_equal(quantized.biases, expected["biases"])
    read_back = affine.dequantize(quantized, bits, group_size)
    np.testing.assert_array_equal(read_back, expected["dequantized"])


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packing_round_trip(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 5, 64), dtype=np.uint32)
    packed = affine.pack(codes, bits)
    assert packed.shape == (3, 5, 2 * bits)
    np.testing.assert_array_equal(affine.unpack(packed, bits), codes)


@pytest.mark.parametrize("bits", [4, 8])
def test_dequantized_weights_are_near(bits: int) -> None:
    weight = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    weight = affine.round_to_bf16(weight)
    quantized = affine.quantize(weight, bits, 64)
    steps = np.repeat(np.abs(quantized.scales), 64, axis=-1)
    error = np.abs(affine.dequantize(quantized, bits, 64) - weight) / steps
    # Half a step almost everywhere; up to one at the far end of the range, which the scale gives up
    # so that zero is a code. Rounding scale and bias to bf16 adds to it with the size of the codes.
    assert error.max() < 1 + 2**bits * 2.0**-8
    assert np.median(error) < 0.5


def test_only_replies_are_weighted() -> None:
    encoder = ChatEncoder(TOKENIZER)
    rng = Random(11)
    for _ in range(100):
        document = draw_document(rng)
        chat = encoder.encode_for_scoring(document)
        weighted = encoder.tokenizer.decode(
            chat.ids[chat.weights > 0].tolist(), skip_special_tokens=False
        )
        asked = last_user_position(document.messages)
        replies = [m for m in document.messages[asked:] if m.role == "assistant"]
        assert weighted.count("<|im_end|>") == len(replies)
        assert weighted.endswith("<|im_end|>")
        assert replies[-1].content.strip() in weighted


def test_rows_hold_every_chat_once() -> None:
    encoder = ChatEncoder(TOKENIZER)
    rng = Random(12)
    texts = [draw_document(rng).text for _ in range(200)]
    chats = encoder.encode_for_training(texts, prompt_weight=0.1)
    rows = pack(chats, 1024)
    packed = sorted(len(chat.ids) for row in rows for chat in row.chats)
    assert packed == sorted(len(chat.ids) for chat in chats if len(chat.ids) <= 1024)
    for packed_row in rows:
        row = encoder.fill_row(packed_row, 1024)
        padding = 1024 - packed_row.length
        assert (row.positions == 0).sum() == len(packed_row.chats) + (padding > 0)
        assert (row.weights[packed_row.length :] == 0).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_training_quantizer_is_that_of_the_file(bits: int) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from fake_quantize import fake_quantize

    weight = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    weight = affine.round_to_bf16(weight)
    expected = affine.dequantize(affine.quantize(weight, bits, 64), bits, 64)
    found = fake_quantize(torch.from_numpy(weight), bits).numpy()
    # The straight-through form adds and subtracts the weight, which rounds once more.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_delta_rule_inverse() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from delta_rule import inverse_of_unit_lower

    torch.manual_seed(0)
    strict_lower = torch.randn(3, 64, 64).tril(-1) * 0.2
    inverse = inverse_of_unit_lower(strict_lower)
    product = inverse @ (torch.eye(64) + strict_lower)
    assert (product - torch.eye(64)).abs().max() < 1e-4


def test_names_of_hugging_face_and_back() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from hf_names import from_hugging_face, to_hugging_face
    from network import initial_parameters

    parameters = initial_parameters("cpu", seed=2)
    found = from_hugging_face(to_hugging_face(parameters))
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        assert torch.equal(found[name], value.detach()), name
