"""A number is read as one in whatever form a program printed it, and what is neither number nor name is refused."""

import codecs

import pytest

from tta_pipeline.data.labels.class_map import label_order
from tta_pipeline.data.labels.label_text import decode_label, name_or_digits, parse_label

FORMS = (
    "3", "3\n", " 3 ", "+3", "03", "3.0", "3.", "3.000000000000000000e+00", "\ufeff3", "3\0\0", "[3]", "[[3]]", "(3,)",
    '"3"', "b'3'", "tensor(3)", "tensor([3])", "tensor(3, device='cuda:0')", "tensor([3], dtype=torch.int32)",
    "np.int64(3)", "np.float32(3.0)", "array(3)", "array([3], dtype=int32)", "Array(3, dtype=int32, weak_type=True)",
    "<tf.Tensor: shape=(), dtype=int64, numpy=3>", "tf.Tensor(3, shape=(), dtype=int64)",
)  # fmt: skip
NO_CLASS = (
    "3.5", "[0, 1, 0]", "[0 1 0]", "[0. 1. 0.]", "tensor([0, 1, 0])", "tensor([0, 0,  ..., 0, 1])", "[[0], [1]]", "3 4",
    "3\n4", "3,5", "0x3", "0XfF", "[]", '""', "9" * 30, "1e400", '{"label": 3}', "3\ncat", "\x03", "tensor(3.5)",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_a_number_is_read_in_any_form(text: str):
    """As Python, NumPy, PyTorch, JAX and TensorFlow print it."""
    assert 3 == parse_label(text)
    assert "3" == name_or_digits(text).lstrip("0")


@pytest.mark.parametrize("text", NO_CLASS)
def test_what_is_neither_one_number_nor_a_name_is_refused(text: str):
    """Among sorted names each of them would have the label of another class."""
    with pytest.raises(ValueError, match="has "):
        parse_label(text)


@pytest.mark.parametrize(
    "name", ["tench, Tinca tinca", "n01440764", "727-200", "2012-05-01", "1.2.3", "F/A-18", "crane (bird)", "3d",
             "1f60", "Boeing(747)", "int", "nan", "中文"],
)  # fmt: skip
def test_a_name_stays_a_name(name: str):
    """Digits in it do not make it a number."""
    assert name == parse_label(name) == name_or_digits(f"{name}\n")


def test_digits_in_front_of_a_name_stay():
    """`03` can be the name of a class too; a negative number is that of none."""
    assert "03" == name_or_digits(" 03\n")
    with pytest.raises(ValueError, match="-1"):
        name_or_digits("-1")


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_text_with_any_byte_order_mark_is_read(mark: bytes):
    """Windows puts one before the text."""
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(mark, "utf-8")

    assert 12 == parse_label(decode_label(mark + "12".encode(encoding)))
    with pytest.raises(ValueError, match="UTF-8"):
        decode_label("é".encode("latin-1"))


def test_names_that_are_numbers_are_in_their_order():
    """In any form, if all of them are numbers."""
    assert ("tensor(2)", "tensor(10)") == label_order(["tensor(10)", "tensor(2)"])
    assert ("-1", "2.0", "10.0") == label_order(["10.0", "2.0", "-1"])
    assert ("10.0", "2.0", "3.5") == label_order(["2.0", "10.0", "3.5"])
