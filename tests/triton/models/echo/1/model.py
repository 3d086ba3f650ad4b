"""Answers its inputs, and costs of three shapes."""

import numpy
import triton_python_backend_utils as backend


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    def given(name):
        tensor = backend.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy()

    outputs = [
        ("COST_METRIC_input_tokens", numpy.array([3], dtype=numpy.int64)),
        ("OUTPUT0", given("INPUT0")),
        ("COST_METRIC_steps", numpy.array([[0.5], [2.0]], dtype=numpy.float32)),
        ("OUTPUT1", given("INPUT1")),
        ("COST_METRIC_output_tokens", numpy.array([1, 1, 2], dtype=numpy.int32)),
    ]
    return backend.InferenceResponse(
        [backend.Tensor(name, value) for name, value in outputs if value is not None]
    )
