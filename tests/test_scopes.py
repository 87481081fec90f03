"""The parts of the training step: which of them the name of an operation says."""

import pytest


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("while/body/_1/while/step.forward/block_2_1/MatMul:MatMul", "forward"),
        ("while/body/_1/gradient_tape/while/step.forward/block_2_1/MatMul/MatMul_1", "backward"),
        ("while/step.update_1/step.mask_52/SelectV2", "mask"),
        ("while/step.mask/step.update/Mul", "update"),
        ("while/body/_1/while/TensorArrayV2Write/TensorListSetItem", None),
        ("overstep.forward", None),
    ],
)
def test_the_innermost_scope_counts_and_derivatives_are_backward(benchmarks, tensorflow, operation, part):
    from traces import part_of

    assert part_of(operation) == part


def test_a_scope_is_a_context_and_a_decorator(benchmarks, tensorflow):
    from traces import part_of

    from lottery.engine.scopes import part

    @part("mask")
    def zeros():
        return tensorflow.zeros([])

    with tensorflow.Graph().as_default(), part("update"):
        assert part_of(tensorflow.ones([]).name) == "update"
        assert [part_of(zeros().name) for _ in range(2)] == ["mask", "mask"]
